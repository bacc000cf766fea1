"""The final logs of a running cluster, for the judge of its history (`history.py`), on any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.check.history import FinalPartition, Run
from experiments.engines.port import ClusterView, Engine
from protocol.ids import NO_LEADER, BrokerId, Offset, TopicPartition
from protocol.messages.batch import RecordBatch

SEATED_WITHIN_MS = 5_000


def final_logs(engine: Engine, runs_of: Callable[[RecordBatch], Iterator[Run]]) -> list[FinalPartition]:
    """The logs of the in-sync replicas that run, of every partition whose leader leads. Replication may go on: settled
    is what lies below the leader's high watermark. `runs_of` reads the records of a batch.
    """
    engine.run_until(lambda: _all_seated(engine), SEATED_WITHIN_MS)
    view = engine.view()
    if view is None:
        return []
    found = (_final(engine, view, partition, runs_of) for partition in sorted(view.partitions))
    return [final for final in found if final is not None]


def final_partition(
    engine: Engine,
    partition: TopicPartition,
    leader: BrokerId,
    members: Sequence[BrokerId],
    runs_of: Callable[[RecordBatch], Iterator[Run]],
    settled: Offset | None = None,
) -> FinalPartition:
    """What replicas that run hold, from where on all of them hold it; `settled` as in `FinalPartition`."""
    logs = {broker: engine.log(broker, partition) for broker in members}
    ends = {broker: found.log_end_offset for broker in members if (found := engine.replica(broker, partition))}
    start = max((log_start(logs[broker], end) for broker, end in ends.items()), default=0)
    runs = {
        broker: [run for batch in batches if batch.base_offset >= start for run in runs_of(batch)]
        for broker, batches in logs.items()
    }
    return FinalPartition(partition, leader, runs, start, settled)


def log_start(batches: Sequence[RecordBatch], log_end: Offset) -> Offset:
    """Where a log with these batches begins; one of which retention has left nothing begins where it ends."""
    return batches[0].base_offset if batches else log_end


def _all_seated(engine: Engine) -> bool:
    view = engine.view()
    return view is None or all(
        state.leader == NO_LEADER or not engine.is_running(state.leader) or _leads(engine, view, partition)
        for partition, state in view.partitions.items()
    )


def _leads(engine: Engine, view: ClusterView, partition: TopicPartition) -> bool:
    """Whether the leader that the controller has recorded knows that it is."""
    state = view.partitions[partition]
    replica = engine.replica(state.leader, partition) if engine.is_running(state.leader) else None
    return replica is not None and replica.leads and replica.leader_epoch == state.leader_epoch


def _final(
    engine: Engine, view: ClusterView, partition: TopicPartition, runs_of: Callable[[RecordBatch], Iterator[Run]]
) -> FinalPartition | None:
    state = view.partitions[partition]
    if state.leader == NO_LEADER or not _leads(engine, view, partition):
        return None
    leader = engine.replica(state.leader, partition)
    assert leader is not None
    members = [broker for broker in state.isr if engine.is_running(broker) and engine.replica(broker, partition)]
    return final_partition(engine, partition, state.leader, members, runs_of, leader.high_watermark)
