"""Data-loss hooks for experiments, as `unclean.leader.hook: experiments.scenarios.hooks:wait_10s` in a config: the work
of a broker on a partition that it leads after an unclean election (`protocol.broker.recovery`). Every importable
function with that signature can be used.
"""

from __future__ import annotations

from protocol.ids import Epoch, Offset, TopicPartition


def wait_10s(partition: TopicPartition, leader_epoch: Epoch, log_end: Offset) -> int:
    """A routine that takes 10 seconds, whatever the partition."""
    return 10_000


def wait_30s(partition: TopicPartition, leader_epoch: Epoch, log_end: Offset) -> int:
    """A routine that takes 30 seconds, whatever the partition: time for brokers to start meanwhile on any machine."""
    return 30_000
