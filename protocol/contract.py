"""The contract between a node and the engine that hosts it: inputs, effects, ordering rules, storage.

Theory of operation ------------------- A *node* (broker, controller, client) is a plain object. It never waits, reads
no clock, rolls no dice of its own and touches no file or socket. The *host* calls it with one input and the current
time, and it answers with the effects of that input:

    start(now)                    its storage holds what it held when the last life ended
    receive(now, sender, message) a message from another node
    fire(now, name)               a timer that is due

Effects are `Send`, `SetTimer`, `CancelTimer`, `Trace` and `Exit`, carried out by the host in the order of the list.
Rules that both engines keep:

1. One input at a time per node; its effects are carried out before the next input of that node.
2. Messages from one node to another on the same channel arrive in the order sent, or not at all (a link may lose, a
   fault may duplicate or reorder; nodes must survive both). Control messages (`Message.CONTROL`) travel on a channel
   of their own.
3. A timer has a name that is unique in its node; setting it again replaces it, and a timer fires once.
4. Storage calls are synchronous and stand in the code before the `Send` that depends on them: what must be durable is
   flushed before its message is emitted. What Kafka leaves to the page cache stays unflushed.
5. Time never runs backwards within a life of a node; a new life starts from storage alone.

Idle timers
-----------
A quiet cluster must cost nothing in simulation. A node marks a periodic timer
`idle_with=peer` when firing it would only tell `peer` what it knows already (a heartbeat of an unfenced broker, the
renewal of a parked fetch), and a watchdog timer `renewed_by=name` when each arrival of the peer's timer `name` would
only push it on, or `echoes=name` when the peer's answer to each message of the node's own timer `name` would. A host
may leave such timers unfired as long as both nodes are up and the links between them are sound, and must resume them,
phase kept, the moment one of these ends or the node sets the timer anew. A host that ignores the marks is correct too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.ids import Epoch, NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch


@dataclass(slots=True)
class Send:
    """Hand `message` to node `to`; no answer is promised."""

    to: NodeId
    message: Message


@dataclass(slots=True)
class SetTimer:
    """Call `fire(name)` at `at_ms`; see "Idle timers" above for the marks."""

    name: str
    at_ms: TimeMs
    idle_with: NodeId | None = None
    renewed_by: str | None = None
    echoes: str | None = None


@dataclass(slots=True)
class CancelTimer:
    """Forget the timer `name`, if it is set."""

    name: str


@dataclass(slots=True)
class Trace:
    """Something happened that an observer may want to know; never read by nodes.

    `kind` is one of the words in docs/architecture.md ("Trace events"); `detail` holds plain values (int, str, bool,
    None, tuples of these).
    """

    kind: str
    partition: TopicPartition | None
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Exit:
    """The node has finished, in good order or because its disk has failed; the host ends its process."""


Effect = Send | SetTimer | CancelTimer | Trace | Exit


class Outbox:
    """Collects the effects of one input, in order. Parts of a node share their node's outbox."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects: list[Effect] = []

    def send(self, to: NodeId, message: Message) -> None:
        self.effects.append(Send(to, message))

    def set_timer(
        self,
        name: str,
        at_ms: TimeMs,
        idle_with: NodeId | None = None,
        renewed_by: str | None = None,
        echoes: str | None = None,
    ) -> None:
        self.effects.append(SetTimer(name, at_ms, idle_with, renewed_by, echoes))

    def cancel_timer(self, name: str) -> None:
        self.effects.append(CancelTimer(name))

    def trace(self, kind: str, partition: TopicPartition | None = None, /, **detail: object) -> None:
        self.effects.append(Trace(kind, partition, detail))

    def exit(self) -> None:
        self.effects.append(Exit())

    def drain(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects


class Node(Protocol):
    """A deterministic state machine; see the module docstring."""

    node_id: NodeId

    def start(self, now_ms: TimeMs) -> list[Effect]: ...

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]: ...

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]: ...


BATCH_OVERHEAD_BYTES = 52
"""What a batch takes in a log besides its payload; every storage counts it, so that all of them roll alike."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of a log: the offsets `base_offset .. end_offset - 1`, its size, and the newest timestamp of its
    batches (-1: none of them has one).
    """

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    newest_ms: TimeMs


class LogStorage(Protocol):
    """One log of record batches with contiguous offsets, in one or more segments. Batches are appended to the last
    segment, the active one; whole segments are deleted from the front. Who decides that is `protocol.log`.

    `start_offset` <= `flushed_offset` <= `end_offset`: what lies at or above `flushed_offset` may be gone after the
    machine (not the process) dies. Every call may raise StorageError. After StorageFullError the log is as it was,
    after CorruptLogError from `read` only that read has failed; after any other the log may refuse all further changes.
    """

    @property
    def start_offset(self) -> Offset:
        """The log start offset: the base offset of the first segment."""

    @property
    def end_offset(self) -> Offset: ...

    @property
    def flushed_offset(self) -> Offset: ...

    @property
    def active_bytes(self) -> int:
        """Size of the active segment: payloads, and `BATCH_OVERHEAD_BYTES` for each batch."""

    def append(self, batch: RecordBatch) -> None:
        """Appends a batch whose `base_offset` is `end_offset`; ProtocolInvariantError otherwise, StorageFullError where
        there is no room for it.
        """

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Batches from the one that holds `from_offset` on (from `start_offset` on where that is higher), at least one
        if there is any, about `max_bytes` of payload in all. CorruptLogError where a batch is not what was appended.
        """

    def truncate(self, end_offset: Offset) -> None:
        """Drops every batch that reaches beyond `end_offset`, at most all; durable with the next flush."""

    def flush(self) -> None:
        """Makes everything appended so far durable (fsync)."""

    def segments(self) -> Sequence[SegmentInfo]:
        """The segments, oldest first; the last is the active one."""

    def roll(self) -> None:
        """Closes the active segment and begins another one; nothing where the active segment is empty."""

    def delete_segments_before(self, offset: Offset) -> None:
        """Deletes the segments that end at or below `offset`, but not the active one; durable at once."""

    def reset(self, offset: Offset) -> None:
        """Drops every batch; the log begins, empty, at `offset`. Durable at once."""

    def write_snapshot(self, data: bytes) -> None:
        """Keeps what `protocol.log` knows of the records below `end_offset`, all of which are flushed. Not durable: a
        crash may take it.
        """

    def snapshot(self) -> tuple[Offset, bytes] | None:
        """(offset, data) of the newest snapshot that there is, None without one. It is of the records that the log has
        below that offset: `truncate` takes away those beyond the end, deletion from the front those before the start,
        and `reset` all. Where a newer one was taken at the same segment, an older one may be gone.
        """

    def epoch_starts(self) -> Sequence[tuple[Epoch, Offset]]:
        """(leader epoch, offset of its first record) of what the log holds, both rising. Of the records that were
        deleted from the front the last one's epoch is remembered while the log is empty, with `start_offset`.
        """


class Storage(Protocol):
    """What a node's directory holds: named logs, and small files that are written whole and durably. Every call may
    raise StorageError.
    """

    def open_log(self, name: str) -> LogStorage:
        """The log of that name, created empty where there is none; CorruptLogError where durable records of it are
        gone or damaged.
        """

    def log_names(self) -> Sequence[str]:
        """Names of the logs that exist, sorted."""

    def delete_log(self, name: str) -> None:
        """Deletes the log with all its records, if it exists; one that could not be opened too."""

    def read_file(self, name: str) -> bytes | None:
        """The file's bytes, None where there is none."""

    def write_file(self, name: str, data: bytes) -> None:
        """Replaces the file atomically and durably."""

    def delete_file(self, name: str) -> None:
        """Removes the file durably, if it exists."""
