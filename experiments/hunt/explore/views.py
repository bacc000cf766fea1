"""What the checks of one node read of the states of other nodes, as a number.

A check of broker 1 reads all of broker 1 and of the controller, but of broker 2 only the few things listed here. The
result of the check is then the same in all states in which these are, and `checker.py` computes it once. That nothing
is missing here, a test makes sure: it compares searches with those in which every check reads everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from experiments.engines.sim.disk import SimStorage
from experiments.hunt.explore.machines import DeadBroker, Exhibit, Local, Machines
from protocol.broker.context import Replica
from protocol.config import NUM_REPLICA_FETCHERS
from protocol.ids import METADATA_LOG, NodeId
from protocol.nodes.broker import BrokerNode

_Part = TypeVar("_Part")


class Views(Generic[_Part]):
    """A part of each node's state, by the number of the state; each part has a number as well."""

    def __init__(self, machines: Machines, part_of: Callable[[Exhibit], _Part]) -> None:
        self._machines = machines
        self._part_of = part_of
        self._numbers: dict[_Part, int] = {}
        self._of: list[int] = []

    def __getitem__(self, local: Local) -> int:
        while len(self._of) <= local:
            part = self._part_of(self._machines.exhibits[len(self._of)])
            self._of.append(self._numbers.setdefault(part, len(self._numbers)))
        return self._of[local]


def high_watermark(node: Exhibit) -> object:
    """A running broker's high watermark, with its incarnation: it may not fall in the next step."""
    if not isinstance(node, BrokerNode):
        return None
    marks = tuple((key, replica.log.high_watermark) for key, replica in node.context.replicas.items())
    return node.context.broker_epoch, marks


def read_by_others(node: Exhibit) -> object:
    """Of a running broker: its epochs, how far it has replayed the metadata, the ends and epochs of its replicas, the
    ISRs that it leads with; of every broker what its disk holds.
    """
    if isinstance(node, DeadBroker):
        return _disk_ends(node.disk)
    if not isinstance(node, BrokerNode):
        return None
    context = node.context
    known = tuple(
        (topic.topic_id, *[(index, state.first_leader_epoch) for index, state in topic.partitions.items()])
        for topic in context.image.topics.values()
    )
    assert isinstance(node.storage, SimStorage)
    return (
        context.broker_epoch,
        context.image.next_offset,
        known,
        tuple(map(_replica, context.replicas.values())),
        _disk_ends(node.storage),
    )


def _replica(replica: Replica) -> object:
    log, leadership = replica.log, replica.leadership
    role = None if leadership is None else (tuple(leadership.isr), tuple(leadership.maximal_isr))
    return replica.key, replica.leader_id, replica.leader_epoch, log.start_offset, log.end_offset, role


def sessions(node: Exhibit) -> object:
    """A running broker's fetch sessions, as a leader and as a follower, and which of them it uses."""
    if not isinstance(node, BrokerNode):
        return None
    context, fetchers = node.context, range(node.context.config.int_value(NUM_REPLICA_FETCHERS))
    others: list[NodeId] = [broker for broker in context.image.brokers if broker != node.node_id]
    served = [
        (other, node.streams.epoch_of(other), *[node.streams.session((other, fetcher)) for fetcher in fetchers])
        for other in others
    ]
    began = [(other, *[node.fetcher.session(other, fetcher) for fetcher in fetchers]) for other in others]
    roles = [(replica.leader_id, _followers(replica)) for replica in context.replicas.values()]
    return context.broker_epoch, tuple(served), tuple(began), tuple(roles)


def _followers(replica: Replica) -> tuple[NodeId, ...] | None:
    return None if replica.leadership is None else tuple(replica.leadership.followers)


def _disk_ends(disk: SimStorage) -> object:
    return tuple((name, disk.log_end(name)) for name in disk.log_names() if name != METADATA_LOG)
