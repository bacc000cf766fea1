"""The cost of a trial is that of its events: what a restarting node reads does not grow with the trial."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest

from experiments.engines.port import Loss
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.failures.timeline import DrawnTimeline, warm_up_ms
from experiments.studies.trials.setting import SNAPSHOT_BYTES
from experiments.studies.trials.trial import Trial
from protocol.ids import METADATA_LOG, NodeId, TopicPartition, is_client
from protocol.messages.base import Message
from protocol.messages.data import ProduceRequest
from protocol.messages.topics import CreateTopicsRequest
from protocol.quorum.log import QuorumLog

DAYS = 150
MISSED_BYTES = 600
"""Of the records that a broker misses while it is down, and of the last batch before a snapshot."""
CELL = CellParameters(
    broker_mttf=Distribution(mean_ms=5 * DAY_MS),
    broker_mttr=Distribution(mean_ms=DAY_MS // 4),
    duration_ms=DAYS * DAY_MS,
    start="fresh",
)


def trial() -> Trial:
    return Trial(CELL, 1, DrawnTimeline(CELL, 1, -warm_up_ms(CELL)))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each opened metadata log has beyond its snapshot, in order."""
    found: list[int] = []
    load = QuorumLog.__init__

    def observed(log: QuorumLog, *arguments: object) -> None:
        load(log, *arguments)
        found.append(log.bytes_since_snapshot)

    monkeypatch.setattr(QuorumLog, "__init__", observed)
    return found


def test_a_restarting_node_reads_a_bounded_part_of_the_metadata_log(opened: list[int]) -> None:
    running = trial()
    running.run()
    [log] = [running.cluster.disks[node].open_log(METADATA_LOG) for node in running.cluster.spec.controller_ids]
    assert len(opened) > 60
    assert log.segments()[0].size_bytes > 5 * (SNAPSHOT_BYTES + MISSED_BYTES), "there was more to read"
    assert SNAPSHOT_BYTES // 2 < max(opened) <= SNAPSHOT_BYTES + MISSED_BYTES


def test_a_broker_that_crashes_is_freed_without_a_garbage_collection() -> None:
    running = trial()
    running.set_up()
    crashed = weakref.ref(running.cluster.nodes[0])
    gc.disable()
    try:
        running.cluster.crash(0, Loss("unflushed"))
        assert crashed() is None
    finally:
        gc.enable()


def test_the_writer_sends_one_request_per_write_to_the_leader() -> None:
    running = trial()
    sent: Counter[type[Message]] = Counter()
    to_others: list[Message] = []

    def see(source: NodeId, target: NodeId, message: Message) -> None:
        if is_client(source):
            sent[type(message)] += 1
            if isinstance(message, ProduceRequest):
                leader = running.observer.states.partitions[TopicPartition(TOPIC, message.partition)].leader
                to_others.extend([message] if target != leader else [])

    running.cluster.on_message = see
    running.run()
    [writes] = running.observer.writer.writes.values()
    assert sent.keys() == {CreateTopicsRequest, ProduceRequest}
    assert not to_others
    assert len(writes.acked) <= sent[ProduceRequest] <= 1.2 * len(writes.acked)
