"""The clients of a plan: their operations, and the history of what they did.

A command is *open* until it has an outcome. When the client's process is killed, its open commands stay without one and
count as abandoned; the next process is another producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from experiments.check.client_history import ended, result_of, seen
from experiments.check.engine import CheckedEngine
from experiments.check.history import ACKS_OF, Ended, Invoked, Operation
from experiments.engines.admin_requests import elect_leader
from experiments.hunt.fuzz.plan import Elect, Read, Send
from protocol.config import ENABLE_IDEMPOTENCE
from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET, Offset, TimeMs, TopicPartition
from protocol.messages.commands import AdminCommand, ConsumeCommand, ConsumeOutcome, SendOutcome, SendRecords
from protocol.messages.data import EARLIEST
from protocol.messages.partitions import ElectionType


class PlanClients:
    """The commands of the operations of a plan, on one cluster."""

    def __init__(self, engine: CheckedEngine) -> None:
        self.sends: dict[int, Send] = {}
        self._engine = engine
        self._producers: dict[int, int] = {}
        self._reads: dict[int, tuple[int, TopicPartition, TimeMs]] = {}
        self._latest: dict[tuple[int, TopicPartition], int] = {}
        self._commands: list[int] = []
        self._processes = 0
        self._abandoned: set[int] = set()

    def die(self) -> None:
        """The client's process has ended."""
        self._processes += 1
        self._abandoned.update(self._commands)
        self._latest.clear()

    def operate(self, operation: Send | Read | Elect) -> None:
        if isinstance(operation, Send):
            self._send(operation)
        elif isinstance(operation, Read):
            self._read(operation)
        else:
            election = ElectionType.UNCLEAN if operation.unclean else ElectionType.PREFERRED
            request = elect_leader(operation.topic, operation.partition, election)
            self._commands.append(operation.id)
            self._engine.submit(AdminCommand(command_id=operation.id, request=request))

    def _send(self, send: Send) -> None:
        self.sends[send.id] = send
        self._producers[send.id] = -self._processes
        self._commands.append(send.id)
        self._engine.submit(
            SendRecords(
                command_id=send.id,
                topic=send.topic,
                partition=send.partition,
                acks=send.acks,
                record_count=send.records,
                record_bytes=send.record_bytes,
            )
        )

    def _read(self, read: Read) -> None:
        offset: Offset = EARLIEST
        latest = self._latest.get((read.reader, read.place))
        if latest is not None:
            outcome = self._engine.outcome(latest)
            if not isinstance(outcome, ConsumeOutcome):
                return
            if not read.from_start and outcome.next_offset != NO_OFFSET:
                offset = outcome.next_offset
        self.consume(read.id, read.reader, read.place, offset, read.max_wait_ms)

    def consume(self, command_id: int, reader: int, partition: TopicPartition, offset: Offset, wait_ms: int) -> None:
        """A reader reads from an offset on."""
        self._latest[reader, partition] = command_id
        self._reads[command_id] = (reader, partition, self._engine.now_ms())
        self._commands.append(command_id)
        self._engine.submit(
            ConsumeCommand(
                command_id=command_id,
                topic=partition.topic,
                partition=partition.partition,
                offset=offset,
                max_wait_ms=wait_ms,
            )
        )

    def open_commands(self) -> list[int]:
        """The commands without an outcome, except those of processes that have ended."""
        left = (number for number in self._commands if number not in self._abandoned)
        return [number for number in left if self._engine.outcome(number) is None]

    def acknowledged_sends(self, topic: str) -> set[int]:
        """The sends to a topic of which all records are acknowledged by now."""
        sends = [(number, self._engine.outcome(number)) for number, send in self.sends.items() if send.topic == topic]
        return {
            number
            for number, outcome in sends
            if isinstance(outcome, SendOutcome) and all(result_of(part) == "acknowledged" for part in outcome.ranges)
        }

    def read_errors(self) -> Iterator[ErrorCode]:
        """How the reads ended."""
        outcomes = map(self._engine.outcome, self._reads)
        return (outcome.error for outcome in outcomes if isinstance(outcome, ConsumeOutcome))

    def _is_lost(self, number: int) -> bool:
        """Whether the command stays without an outcome."""
        return number in self._abandoned and self._engine.outcome(number) is None

    def history(self, precedes: Callable[[str, TimeMs], bool]) -> Iterator[Operation]:
        """The history of the clients. Each send without idempotence counts as a producer of its own, since such sends
        promise no order. The acknowledgement of a send which `precedes` the present incarnation of its topic counts as
        unknown, since it promises nothing any more; such reads are left out.
        """
        for number, send in self.sends.items():
            idempotent = send.acks == -1 and bool(self._engine.spec.config.values[ENABLE_IDEMPOTENCE])
            producer = self._producers[number] if idempotent else number
            yield Invoked(number, producer, send.place, send.records, idempotent)
        for number, send in self.sends.items():
            if self._is_lost(number):
                yield Ended(number, 0, send.records, "unknown")
                continue
            is_former, outcome = precedes(send.topic, send.at_ms), self._engine.outcome(number)
            assert isinstance(outcome, SendOutcome), outcome
            for end in ended(outcome, send.acks):
                yield end._replace(result="unknown") if is_former and end.result in ACKS_OF else end
        for number, (reader, partition, began_ms) in self._reads.items():
            if precedes(partition.topic, began_ms) or self._is_lost(number):
                continue
            outcome = self._engine.outcome(number)
            assert isinstance(outcome, ConsumeOutcome), outcome
            read = seen(reader, partition, outcome)
            if read.runs:
                yield read
