"""The contract between a node and its host: inputs, effects, ordering rules, timers and storage.

A node (broker, controller, recovery manager or client) is a deterministic state machine. It never blocks, reads no
clock, draws random numbers only from an injected `random.Random`, and touches files only through `Storage`. A host is
what runs it: the simulator, or a Ray actor. The same inputs, times, seed and storage give the same effects.

Usage
-----
The host starts a node once per incarnation and then passes it one input at a time, with the current time:

    effects = node.start(now_ms)                     the process starts; storage holds what the last incarnation left
    effects = node.receive(now_ms, sender, message)  a message has arrived
    effects = node.fire(now_ms, name)                a timer that the node has set is due

Every call returns the effects of that input, in order:

    for effect in effects:
        match effect:
            case Send(to, message):  deliver message to the node `to`, or lose it
            case SetTimer(name, at_ms):  call node.fire(name) at that time
            case CancelTimer(name):  forget that timer
            case Trace():  hand it to observers; nodes never see it
            case Exit():  end the process

A node whose disk fails emits `Exit` (a broker) or raises StorageError (all others); either ends the process. So does
ProtocolInvariantError, a defect of the program. Errors of other nodes arrive as values in responses.

Rules
-----
Host and nodes keep these rules, on both engines:

1. A node handles one input at a time. The host carries out all effects of an input before it passes the next one.
2. Messages from one node to another on one channel arrive in the order sent. Each may be lost, and a fault may
   duplicate or reorder them; nodes must tolerate all of that. Messages with `Message.CONTROL` use a channel of their
   own, so that they do not queue behind data.
3. A timer has a name that is unique in its node. Setting it again replaces it, and it fires once.
4. Storage calls are synchronous and take effect in program order. What must be durable before a message leaves is
   flushed before the `Send` is emitted: votes, quorum state, records of the metadata log, the clean-shutdown file.
   What Kafka leaves to the page cache stays unflushed until the flush policy runs.
5. Time never decreases within an incarnation. A new incarnation knows nothing but its storage.

State
-----
What a node does next depends on its attributes and those of its parts. A class names in `NOT_STATE` those that only
say when a timer is due or whether it is set, and those that follow from others, such as tables of the parts' methods.
An exhaustive search takes nodes that differ in nothing else as equal (`experiments/hunt/explore`).

Idle timers
-----------
A cluster without traffic must cost nothing in simulation. A node therefore marks timers that a host may leave unfired
while they change nothing:

- `idle_with=peer`: a periodic timer that only sends `peer` what it knows already, such as a heartbeat.
- `renewed_by=name`: a watchdog timer that every message of the peer's timer `name` postpones.
- `echoes=name`: a watchdog timer that the peer's response to each message of this node's own timer `name` postpones.

A host may elide such timers while both nodes run and their links have no fault, and an `idle_with` timer while the peer
does not run. It must resume them as if they had run when that ends or the node sets them again. A host that ignores the
marks is correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.events.base import Trace
from protocol.ids import Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.values import immutable


@dataclass(slots=True)
class Send:
    """Deliver `message` to the node `to`. Delivery and response are not guaranteed."""

    to: NodeId
    message: Message


@dataclass(slots=True)
class SetTimer:
    """Call `fire(name)` at `at_ms`, in the past: at once; replaces an earlier setting of `name`. `idle_with`,
    `renewed_by` and `echoes`: see "Idle timers" above.
    """

    name: str
    at_ms: TimeMs
    idle_with: NodeId | None = None
    renewed_by: str | None = None
    echoes: str | None = None


@dataclass(slots=True)
class CancelTimer:
    """Do not call `fire(name)`. No effect if the timer is not set."""

    name: str


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process: the node has shut down, or its disk has failed."""


Effect = Send | SetTimer | CancelTimer | Trace | Exit


class Outbox:
    """Collects the effects of one input, in order. The parts of a node share its outbox; the node drains it."""

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

    def trace(self, event: Trace) -> None:
        self.effects.append(event)

    def exit(self) -> None:
        self.effects.append(Exit())

    def drain(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects


class Node(Protocol):
    """A deterministic state machine that a host drives. `now_ms` is the host's time in milliseconds; every method
    returns the effects of its input, in order, and may raise StorageError or ProtocolInvariantError.
    """

    node_id: NodeId

    def start(self, now_ms: TimeMs) -> list[Effect]:
        """The first input of an incarnation: reads storage, sets timers."""

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        """Handles a message. `sender` is authentic; the content of `message` may be stale or wrong."""

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        """Handles a timer that is due. ProtocolInvariantError for a name that the node does not set."""


BATCH_OVERHEAD_BYTES = 52
"""Bytes that a batch takes in a log besides its payload. Every storage counts them, so that all roll segments alike."""


@immutable
class SegmentInfo:
    """Offsets `base_offset` to `end_offset - 1`, and the largest timestamp of the batches in ms (-1: none has one)."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    newest_ms: TimeMs


class LogStorage(Protocol):
    """One log of record batches with contiguous offsets, in segments. Batches are appended to the last, the active one;
    whole segments are deleted from the front. Records at or above `flushed_offset` survive a crash of the process, not
    one of the machine. Every call may raise StorageError. After StorageFullError the log is unchanged; CorruptLogError
    from `read` concerns that read only; after any other error the log may reject changes.
    """

    @property
    def start_offset(self) -> Offset:
        """The log start offset: the base offset of the first segment."""

    @property
    def end_offset(self) -> Offset:
        """The log end offset: the offset of the next record."""

    @property
    def flushed_offset(self) -> Offset:
        """The offset below which all records are durable."""

    @property
    def active_bytes(self) -> int:
        """The size of the active segment: payloads, and `BATCH_OVERHEAD_BYTES` for each batch."""

    def append(self, batch: RecordBatch) -> None:
        """Appends a batch, unflushed. ProtocolInvariantError unless it begins at `end_offset`; StorageFullError."""

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Batches from the one that contains `from_offset` on (or from `start_offset` on, if that is higher): at least
        one if there is any, about `max_bytes` of payload in all. Raises CorruptLogError for a damaged batch.
        """

    def truncate(self, end_offset: Offset) -> None:
        """Removes every batch that has a record at or above `end_offset`. Durable with the next flush."""

    def flush(self) -> None:
        """Makes everything appended so far durable (fsync)."""

    def segments(self) -> Sequence[SegmentInfo]:
        """The segments, oldest first; the last is the active one."""

    def roll(self) -> None:
        """Closes the active segment and starts a new one. No effect if the active segment is empty."""

    def delete_segments_before(self, offset: Offset) -> None:
        """Deletes the segments that end at or below `offset`, except the active one. Durable at once."""

    def reset(self, offset: Offset) -> None:
        """Removes all batches; the empty log starts at `offset`. Durable at once."""

    def write_snapshot(self, data: bytes) -> None:
        """Stores the producer state below `end_offset`; all records are flushed. Not durable: a crash may lose it."""

    def snapshot(self) -> tuple[Offset, bytes] | None:
        """(offset, data) of the newest snapshot, None if there is none. It covers the records below that offset.
        `truncate` deletes those above the new end, deletion of segments those below the new start, `reset` all.
        """

    def epoch_starts(self) -> Sequence[tuple[Epoch, Offset]]:
        """(leader epoch, offset of its first record) of every epoch in the log, both ascending. An empty log whose
        records were deleted from the front has the epoch of the last one, with `start_offset`.
        """


class Storage(Protocol):
    """A node's directory: named logs, and small files that are replaced durably as a whole. StorageError."""

    def open_log(self, name: str) -> LogStorage:
        """The log `name`, created empty if it does not exist. CorruptLogError if durable records are lost."""

    def log_names(self) -> Sequence[str]:
        """The names of all logs, sorted."""

    def delete_log(self, name: str) -> None:
        """Deletes a log with all its records, even one that cannot be opened. No effect if it does not exist."""

    def read_file(self, name: str) -> bytes | None:
        """The content of a file, None if it does not exist."""

    def write_file(self, name: str, data: bytes) -> None:
        """Creates or replaces a file, atomically and durably."""

    def delete_file(self, name: str) -> None:
        """Deletes a file durably. No effect if it does not exist."""
