"""The final logs of a running cluster on any engine, against which its history is checked (`history.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.check.history import FinalPartition, RecordRange
from experiments.engines.port import ClusterView, Engine
from protocol.ids import NO_LEADER, BrokerId, Offset, TopicPartition
from protocol.messages.batch import RecordBatch

LEADING_WITHIN_MS = 5_000


def final_logs(engine: Engine, ranges_of: Callable[[RecordBatch], Iterator[RecordRange]]) -> list[FinalPartition]:
    """The logs of the running in-sync replicas of every partition with an active leader. Replication may be in
    progress: what is below the leader's high watermark is settled. `ranges_of` reads the records of a batch.
    """
    engine.run_until(lambda: _all_leading(engine), LEADING_WITHIN_MS)
    view = engine.view()
    if view is None:
        return []
    found = (_final(engine, view, partition, ranges_of) for partition in sorted(view.partitions))
    return [final for final in found if final is not None]


def final_partition(
    engine: Engine,
    partition: TopicPartition,
    leader: BrokerId,
    members: Sequence[BrokerId],
    ranges_of: Callable[[RecordBatch], Iterator[RecordRange]],
    settled: Offset | None = None,
) -> FinalPartition:
    """The logs of running replicas from the highest of their starts; `settled` as in `FinalPartition`."""
    logs = {broker: engine.log(broker, partition) for broker in members}
    ends = {broker: found.log_end_offset for broker in members if (found := engine.replica(broker, partition))}
    start = max((log_start(logs[broker], end) for broker, end in ends.items()), default=0)
    runs = {
        broker: [run for batch in batches if batch.base_offset >= start for run in ranges_of(batch)]
        for broker, batches in logs.items()
    }
    return FinalPartition(partition, leader, runs, start, settled)


def log_start(batches: Sequence[RecordBatch], log_end: Offset) -> Offset:
    """The start of a log with these batches; an empty log starts at its end."""
    return batches[0].base_offset if batches else log_end


def _all_leading(engine: Engine) -> bool:
    view = engine.view()
    return view is None or all(
        state.leader == NO_LEADER or not engine.is_running(state.leader) or _leads(engine, view, partition)
        for partition, state in view.partitions.items()
    )


def _leads(engine: Engine, view: ClusterView, partition: TopicPartition) -> bool:
    """Whether the recorded leader has become leader."""
    state = view.partitions[partition]
    replica = engine.replica(state.leader, partition) if engine.is_running(state.leader) else None
    return replica is not None and replica.leads and replica.leader_epoch == state.leader_epoch


def _final(
    engine: Engine,
    view: ClusterView,
    partition: TopicPartition,
    ranges_of: Callable[[RecordBatch], Iterator[RecordRange]],
) -> FinalPartition | None:
    state = view.partitions[partition]
    if state.leader == NO_LEADER or not _leads(engine, view, partition):
        return None
    leader = engine.replica(state.leader, partition)
    assert leader is not None
    members = [broker for broker in state.isr if engine.is_running(broker) and engine.replica(broker, partition)]
    return final_partition(engine, partition, state.leader, members, ranges_of, leader.high_watermark)
