"""The samples of a node on Ray: what its trace events and its state say about the metrics of `protocol/metrics.py`.

Each series costs the node, and Ray's agent on its machine, some ten microseconds whenever it is set, and again with
every collection; so a broker that leads thousands of partitions would be busy with their series alone. A node with more
than `MAX_PARTITION_SERIES` partitions exports series of single partitions for those only whose ISR lacks a replica
(`ShownPartitions`). The counts over all partitions are always exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from protocol import metrics
from protocol.broker.replica_gauges import ReplicaGauges
from protocol.events.base import Trace
from protocol.events.broker import (
    BecameFollower,
    BecameLeader,
    HighWatermarkAdvanced,
    IsrCommitted,
    IsrProposed,
    LogReset,
    LogTruncated,
    RecordsAppended,
    RecordsFetched,
)
from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, BrokerId, TopicPartition

Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement: the increment of a counter, or the new value of a gauge."""

    metric: str
    value: int
    tags: Tags


class ShownPartitions:
    """The partitions with series of their own: all while there are at most `MAX_PARTITION_SERIES`, otherwise the first
    so many of those whose ISR lacks a replica. A pass over all partitions (`begin`, `admits`) decides.
    """

    def __init__(self) -> None:
        self._all = True
        self._shown: set[TopicPartition] = set()

    def begin(self, partitions: int) -> None:
        """Begins a pass over so many partitions."""
        self._all = partitions <= metrics.MAX_PARTITION_SERIES
        self._shown.clear()

    def admits(self, partition: TopicPartition, is_whole: bool) -> bool:
        """Whether the partition has series; `is_whole`: its ISR is all its replicas."""
        if self._all:
            return True
        if is_whole or len(self._shown) >= metrics.MAX_PARTITION_SERIES:
            return False
        self._shown.add(partition)
        return True

    def includes(self, partition: TopicPartition) -> bool:
        """Whether the partition has series by the last pass."""
        return self._all or partition in self._shown


class PartitionSamples:
    """Turns the trace events of one node into samples. Partitions that are not `shown` have no gauges, and their
    elections are counted for the topic.
    """

    def __init__(self, shown: ShownPartitions | None = None) -> None:
        self._shown = shown or ShownPartitions()
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._log_ends: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._proposed: dict[TopicPartition, IsrProposed] = {}

    def samples_of(self, trace: Trace) -> Iterator[Sample]:
        """The samples of one trace event; most events have none."""
        read = _READERS.get(type(trace))
        return iter(()) if read is None else read(self, trace)

    def _became_leader(self, trace: BecameLeader) -> Iterator[Sample]:
        self._log_ends[trace.partition] = trace.log_end
        self._high_watermarks[trace.partition] = trace.high_watermark
        return self._of_leader(trace.partition)

    def _appended(self, trace: RecordsAppended) -> Iterator[Sample]:
        self._log_ends[trace.partition] = trace.log_end
        return self._of_leader(trace.partition)

    def _advanced(self, trace: HighWatermarkAdvanced) -> Iterator[Sample]:
        self._high_watermarks[trace.partition] = trace.high_watermark
        return self._of_leader(trace.partition)

    def _of_leader(self, partition: TopicPartition) -> Iterator[Sample]:
        if self._shown.includes(partition):
            yield from leader_samples(partition, self._log_ends[partition], self._high_watermarks[partition])

    def _became_follower(self, trace: BecameFollower) -> Iterator[Sample]:
        self._proposed.pop(trace.partition, None)
        if self._shown.includes(trace.partition):
            yield lag_sample(trace.partition, 0)

    def _fetched(self, trace: RecordsFetched) -> Iterator[Sample]:
        if self._shown.includes(trace.partition):
            yield log_end_sample(trace.partition, trace.log_end)

    def _cut(self, trace: LogTruncated | LogReset) -> Iterator[Sample]:
        if self._shown.includes(trace.partition):
            yield log_end_sample(trace.partition, trace.to_offset)

    def _isr_proposed(self, trace: IsrProposed) -> Iterator[Sample]:
        self._proposed[trace.partition] = trace
        return iter(())

    def _isr_committed(self, trace: IsrCommitted) -> Iterator[Sample]:
        return _isr_changes(self._proposed.pop(trace.partition, None), trace.isr)

    def _of_controller(self, trace: PartitionChanged) -> Iterator[Sample]:
        partition, epoch, is_shown = trace.partition, trace.leader_epoch, self._shown.includes(trace.partition)
        known = self._leader_epochs.get(partition, -1 if trace.partition_epoch == 0 else epoch)
        self._leader_epochs[partition] = epoch
        if epoch > known and trace.leader != NO_LEADER:
            of_topic = (("topic", partition.topic), ("partition", ""))
            yield Sample(metrics.ELECTIONS, 1, _tags(partition) if is_shown else of_topic)
        if is_shown:
            yield from partition_samples(partition, len(trace.isr), len(trace.elr))


_READERS: dict[type[Trace], Callable[[PartitionSamples, Any], Iterator[Sample]]] = {
    PartitionChanged: PartitionSamples._of_controller,
    BecameLeader: PartitionSamples._became_leader,
    RecordsAppended: PartitionSamples._appended,
    HighWatermarkAdvanced: PartitionSamples._advanced,
    BecameFollower: PartitionSamples._became_follower,
    RecordsFetched: PartitionSamples._fetched,
    LogTruncated: PartitionSamples._cut,
    LogReset: PartitionSamples._cut,
    IsrProposed: PartitionSamples._isr_proposed,
    IsrCommitted: PartitionSamples._isr_committed,
}


def partition_samples(partition: TopicPartition, isr: int, elr: int) -> Iterator[Sample]:
    """The gauges of a partition in the controller's metadata, with `isr` members of the ISR and `elr` of the ELR."""
    tags = _tags(partition)
    yield Sample(metrics.ISR_SIZE, isr, tags)
    yield Sample(metrics.ELR_SIZE, elr, tags)
    yield Sample(metrics.ELECTABLE_LEADERS_COUNT, isr + elr, tags)


def lag_sample(partition: TopicPartition, records: int) -> Sample:
    """The gauge of a broker's replica with this many uncommitted records."""
    return Sample(metrics.HIGH_WATERMARK_LAG, records, _tags(partition))


def log_end_sample(partition: TopicPartition, log_end: int) -> Sample:
    """The gauge of a replica whose log ends at this offset."""
    return Sample(metrics.LOG_END_OFFSET, log_end, _tags(partition))


def leader_samples(partition: TopicPartition, log_end: int, high_watermark: int) -> Iterator[Sample]:
    """The gauges of a leader's replica."""
    yield log_end_sample(partition, log_end)
    yield Sample(metrics.HIGH_WATERMARK, high_watermark, _tags(partition))
    yield lag_sample(partition, log_end - high_watermark)


def _isr_changes(proposed: IsrProposed | None, isr: tuple[BrokerId, ...]) -> Iterator[Sample]:
    """Counts the leader's proposal if it is what the controller has committed; an exchange of members counts twice."""
    if proposed is None or set(proposed.isr) != set(isr):
        return
    if set(proposed.committed) - set(isr):
        yield Sample(metrics.ISR_SHRINKS, 1, ())
    if set(isr) - set(proposed.committed):
        yield Sample(metrics.ISR_EXPANDS, 1, ())


def _tags(partition: TopicPartition) -> Tags:
    return (("topic", partition.topic), ("partition", str(partition.partition)))


def broker_samples(counts: ReplicaGauges) -> Iterator[Sample]:
    """The gauges of a broker over all its replicas."""
    yield Sample(metrics.PARTITION_COUNT, counts.partitions, ())
    yield Sample(metrics.LEADER_COUNT, counts.leaders, ())
    yield Sample(metrics.UNDER_REPLICATED, counts.under_replicated, ())
    yield Sample(metrics.BELOW_MIN_ISR, counts.under_min_isr, ())
    yield Sample(metrics.AT_MIN_ISR, counts.at_min_isr, ())
