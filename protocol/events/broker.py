"""Events that a broker emits about itself and its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import HighWatermark, LeaderEpoch, LogEnd, PartitionTrace, Reason, Trace, braces
from protocol.ids import BrokerId, Epoch, Offset, TopicPartition


@dataclass(slots=True)
class BrokerStateChanged(Trace):
    """The broker entered another state of its lifecycle."""

    kind: ClassVar[str] = "broker_state"
    words: ClassVar[str] = "{0.state}"
    broker: Annotated[BrokerId, "the broker itself"]
    state: Annotated[str, "the new state, of `protocol/broker/lifecycle.py`"]


@dataclass(slots=True)
class MetadataPublished(Trace):
    """The broker applied the metadata log up to an offset."""

    kind: ClassVar[str] = "metadata_published"
    broker: Annotated[BrokerId, "the broker itself"]
    next_offset: Annotated[Offset, "offset of the first metadata record that is not applied"]


@dataclass(slots=True)
class BecameLeader(PartitionTrace):
    """A replica became the leader of its partition, in a new leader epoch."""

    kind: ClassVar[str] = "became_leader"
    leader_epoch: LeaderEpoch
    log_end: LogEnd
    high_watermark: HighWatermark

    def sentence(self) -> str:
        ends = f"log end {self.log_end}, high watermark {self.high_watermark}"
        return f"leads {self.partition} in epoch {self.leader_epoch}, {ends}"


@dataclass(slots=True)
class BecameFollower(PartitionTrace):
    """A replica became a follower, in a new leader epoch."""

    kind: ClassVar[str] = "became_follower"
    words: ClassVar[str] = "follows broker {0.leader} for {0.partition} in epoch {0.leader_epoch}"
    leader: Annotated[BrokerId, "the leader that it follows"]
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class RecordsAppended(PartitionTrace):
    """A leader appended a batch that a producer sent."""

    kind: ClassVar[str] = "appended"
    log_end: Annotated[Offset, "log end offset after the append"]
    leader_epoch: LeaderEpoch
    acks: Annotated[int, "acks of the produce request: 0, 1, or -1 for all"]


@dataclass(slots=True)
class RecordsFetched(PartitionTrace):
    """A follower appended batches that it fetched from the leader."""

    kind: ClassVar[str] = "fetched"
    log_end: Annotated[Offset, "log end offset after the append"]
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class LogTruncated(PartitionTrace):
    """A follower truncated its log where it diverges from the leader's."""

    kind: ClassVar[str] = "truncated"
    words: ClassVar[str] = "truncates {0.partition} from {0.log_end} to {0.to_offset}"
    to_offset: Annotated[Offset, "log end offset after the truncation"]
    log_end: Annotated[Offset, "log end offset before it"]
    high_watermark: Annotated[Offset, "high watermark before it"]


@dataclass(slots=True)
class LogReset(PartitionTrace):
    """A follower dropped its whole log, because the leader has deleted the records that it would need next."""

    kind: ClassVar[str] = "reset"
    to_offset: Annotated[Offset, "offset at which the empty log starts"]
    log_end: Annotated[Offset, "log end offset before it"]


@dataclass(slots=True)
class SegmentsDeleted(PartitionTrace):
    """Retention deleted the oldest segments of a replica's log."""

    kind: ClassVar[str] = "segments_deleted"
    log_start: Annotated[Offset, "log start offset after the deletion"]


@dataclass(slots=True)
class HighWatermarkAdvanced(PartitionTrace):
    """A leader's high watermark advanced."""

    kind: ClassVar[str] = "high_watermark"
    high_watermark: HighWatermark
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class DataLossRoutineBegan(PartitionTrace):
    """A leader after an unclean election began its data-loss routine."""

    kind: ClassVar[str] = "data_loss_routine"
    leader_epoch: LeaderEpoch
    log_end: LogEnd
    duration_ms: Annotated[int, "how long the routine runs, ms; 0: it is over at once"]

    def sentence(self) -> str:
        if not self.duration_ms:
            return ""
        return f"runs its data-loss routine for {self.partition}, log end {self.log_end}: {self.duration_ms / 1000:g} s"


@dataclass(slots=True)
class DataLossHandled(PartitionTrace):
    """A leader after an unclean election finished its data-loss routine."""

    kind: ClassVar[str] = "data_loss_handled"
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class IsrProposed(PartitionTrace):
    """A leader sent a new ISR to the controller."""

    kind: ClassVar[str] = "isr_proposed"
    isr: Annotated[tuple[BrokerId, ...], "the proposed ISR"]
    committed: Annotated[tuple[BrokerId, ...], "the ISR that the leader knows to be committed"]

    def sentence(self) -> str:
        return f"proposes ISR {braces(self.isr)} for {self.partition}"


@dataclass(slots=True)
class IsrCommitted(PartitionTrace):
    """A leader learned which ISR the controller committed."""

    kind: ClassVar[str] = "isr_committed"
    isr: Annotated[tuple[BrokerId, ...], "the committed ISR"]
    partition_epoch: Annotated[Epoch, "partition epoch of that ISR"]


@dataclass(slots=True)
class StorageFailed(Trace):
    """The broker's disk failed an operation, or holds damaged data."""

    kind: ClassVar[str] = "storage_error"
    partition: Annotated[TopicPartition | None, "the partition whose log is damaged, if it is one"]
    reason: Reason
    halted: Annotated[bool, "whether the broker ended because of it"]

    def about(self) -> TopicPartition | None:
        return self.partition
