"""The names of records in the recording of a cluster of one's own.

What a user writes does not carry the name of its send, so a log, and what a reader saw, name the batch by a digest of
its payload (`actors/caller_log.py`; all such names are `BY_DIGEST` or below). Batches are never split or merged on the
way into a log, so a send and its batch have the same digest. Several sends may have the same payload: the batch at an
offset belongs to the last send that was acknowledged there, else to the next one whose outcome is unknown. Any other
batch keeps its name, since others than the users of the history may write the same bytes. So a second copy of such a
batch, and one whose send has failed, are not found.

Of two sends of equal payload that were acknowledged at one offset, in two leader epochs, the first has lost its record.
That is why the last one counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from experiments.check.history import ACKS_OF, Ended, FinalPartition, Invoked, Operation, RecordRange, Seen
from protocol.client.records import BY_DIGEST
from protocol.ids import Epoch, Offset, TopicPartition


@dataclass(slots=True)
class _Equal:
    """The sends of one payload to one partition: by the offset at which they were acknowledged, those with an unknown
    outcome, and which of these the batches found so far are, by offset and leader epoch.
    """

    acknowledged: dict[Offset, int] = field(default_factory=dict)
    unknown: deque[int] = field(default_factory=deque)
    found: dict[tuple[Offset, Epoch], int] = field(default_factory=dict)

    def at(self, offset: Offset, epoch: Epoch) -> int | None:
        """The send whose batch is at an offset, None where it is not known."""
        send = self.acknowledged.get(offset, self.found.get((offset, epoch)))
        if send is None and self.unknown:
            send = self.found[offset, epoch] = self.unknown.popleft()
        return send


class Names:
    """Names the runs of a history and of the logs beside it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._equal: dict[tuple[TopicPartition, int], _Equal] = {}
        open_sends: dict[int, tuple[TopicPartition, int]] = {}
        for operation in operations:
            if isinstance(operation, Invoked) and operation.digest:
                open_sends[operation.send] = operation.partition, operation.digest
            elif isinstance(operation, Ended) and operation.send in open_sends:
                self._add(open_sends.pop(operation.send), operation)
        for send, key in open_sends.items():
            self._equal.setdefault(key, _Equal()).unknown.append(send)

    def _add(self, key: tuple[TopicPartition, int], end: Ended) -> None:
        equal = self._equal.setdefault(key, _Equal())
        if end.result in ACKS_OF:
            equal.acknowledged[end.offset] = end.send
        elif end.result == "unknown":
            equal.unknown.append(end.send)

    def run(self, partition: TopicPartition, run: RecordRange) -> RecordRange:
        """The run under the name of its send, if that is known."""
        equal = self._equal.get((partition, BY_DIGEST - run.send)) if run.send <= BY_DIGEST else None
        send = None if equal is None else equal.at(run.offset, run.leader_epoch)
        return run if send is None else run._replace(send=send)

    def final(self, final: FinalPartition) -> FinalPartition:
        """Final logs under the names of their sends, read as they are iterated."""
        replicas = {broker: _Named(self, final.partition, runs) for broker, runs in final.replicas.items()}
        return FinalPartition(final.partition, final.leader, replicas, final.start, final.settled)

    def operations(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        """The operations, with what was read under the names of its sends."""
        for operation in operations:
            if isinstance(operation, Seen):
                runs = tuple(self.run(operation.partition, run) for run in operation.runs)
                operation = operation._replace(runs=runs)
            yield operation


@dataclass(frozen=True, slots=True)
class _Named:
    """The runs of a log under the names of their sends, read again by each iteration."""

    names: Names
    partition: TopicPartition
    runs: Iterable[RecordRange]

    def __iter__(self) -> Iterator[RecordRange]:
        return (self.names.run(self.partition, run) for run in self.runs)
