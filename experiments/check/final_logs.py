"""The final logs of a running cluster on any engine, against which its history is checked (`history.py`)."""

from __future__ import annotations

from collections.abc import Container, Sequence

from experiments.check.client_history import RangesOf
from experiments.check.history import FinalPartition
from experiments.engines.port import Engine
from protocol.broker.context import ReplicaView
from protocol.ids import NO_LEADER, BrokerId, Offset, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.metadata.partition import PartitionState

LEADING_WITHIN_MS = 5_000


def final_logs(
    engine: Engine, ranges_of: RangesOf, only: Container[TopicPartition] | None = None
) -> list[FinalPartition]:
    """The logs of the running in-sync replicas of every partition with an active leader, or of those in `only`.
    Replication may be in progress: what is below the leader's high watermark is settled. `ranges_of` reads the records
    of a batch.
    """

    def all_have_leaders() -> bool:
        view = engine.view()
        return view is None or all(has_its_leader(engine, *item) for item in view.partitions.items())

    engine.run_until(all_have_leaders, LEADING_WITHIN_MS)
    view, found = engine.view(), []
    for partition, state in () if view is None else sorted(view.partitions.items()):
        leader = _active_leader(engine, partition, state)
        if leader is not None and (only is None or partition in only):
            members = [broker for broker in state.isr if engine.replica(broker, partition)]
            mark = leader.high_watermark
            found.append(final_partition(engine, partition, state.leader, members, ranges_of, mark))
    return found


def final_partition(
    engine: Engine,
    partition: TopicPartition,
    leader: BrokerId,
    members: Sequence[BrokerId],
    ranges_of: RangesOf,
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


def _active_leader(engine: Engine, partition: TopicPartition, state: PartitionState) -> ReplicaView | None:
    """The replica of the running leader that the controller has recorded, if it has become leader."""
    replica = None if state.leader == NO_LEADER else engine.replica(state.leader, partition)
    is_active = replica is not None and replica.leads and replica.leader_epoch == state.leader_epoch
    return replica if is_active else None


def has_its_leader(engine: Engine, partition: TopicPartition, state: PartitionState) -> bool:
    """Whether the leader that the controller has recorded has become leader; True if there is none, or it is down."""
    is_down = state.leader == NO_LEADER or not engine.is_running(state.leader)
    return is_down or _active_leader(engine, partition, state) is not None
