"""The commands of transcripts about a client's producer: commands of users, answers of leaders, and time.

A command prints in one line the produce requests, each with a number of its own (`#2 to 0: 5/1/0 x3`: producer id,
epoch and sequence number, and records; those of sends by command and place, `1:0-2`), and the ends of commands
(`1: NONE at 0`; of sends by ranges, `1 NONE: 0+3 NONE at 40`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import pytest

from protocol.client import partition_sender, producer
from protocol.client.records import identity, joined_size, split
from protocol.errors import ErrorCode
from protocol.log.checksum import is_intact
from protocol.messages.admin import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.base import Message
from protocol.messages.commands import ProduceOutcome, SendOutcome
from protocol.messages.data import ProduceRequest
from tests.unit.protocol.client.client_helpers import ClientBench, client_config
from tests.unit.protocol.transcripts import Command, Script, listed, numbers

SIZE = joined_size(12)
"""Bytes of a record in a batch."""


class ProducerScript(Script):
    """Brokers 0 and 1; broker 0 leads the partitions of `t`. Producer ids are 5, 6, 7."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.start(ClientBench())

    def start(self, bench: ClientBench, checked: bool = False) -> None:
        self.bench, self.checked = bench, checked
        self.requests: list[ProduceRequest] = []
        self.asked: list[tuple[int, InitProducerIdRequest]] = []
        self.ended = 0
        self.checksums = set[int]()

    def run(self, text: str) -> list[str]:
        self.bench.sent = []
        printed = super().run(text)
        sent, self.bench.sent = self.bench.sent, []
        line = [said for to, message in sent if (said := self.said(to, message))]
        line += [_end(outcome) for outcome in self.bench.outcomes[self.ended :]]
        self.ended = len(self.bench.outcomes)
        return [*printed, " | ".join(line)] if line else printed

    def do_client(self, command: Command) -> None:
        """`client partitions=2 ids=5,6 controllers=1000,1001 checked batch.size=3r`: `3r` is the size of 3 records."""
        partitions, checked = command.number("partitions", 1), command.flag("checked")
        ids, controllers = numbers(command.get("ids", "5-7")), numbers(command.get("controllers", "1000"))
        config = {}
        for name, value in command.named().items():
            count, of_records, more = value.partition("r")
            size: object = int(count) * SIZE + int(more or 0) if of_records and count.isdigit() else int(count)
            config[name.replace(".", "_")] = bool(size) if name == "enable.idempotence" else size
        checksum = zlib.crc32 if checked else None
        self.start(ClientBench(partitions, ids, checksum, controllers, client_config(**config)), checked)

    def do_limit(self, command: Command) -> None:
        """`limit MAX_HELD 2`: a constant of `producer.py` or `partition_sender.py`."""
        name, value = command.next(), int(command.next())
        self.monkeypatch.setattr(producer if name == "MAX_HELD" else partition_sender, name, value)

    def do_leader(self, command: Command) -> None:
        """`leader 1 epoch=1 topic=U`: what all nodes answer from now on; `leader none`: no node answers."""
        who = command.next()
        self.bench.leader = None if who == "none" else int(who)
        self.bench.leader_epoch = command.number("epoch", self.bench.leader_epoch)
        self.bench.topic_id = command.get("topic", self.bench.topic_id)

    def do_ids(self, command: Command) -> None:
        """Producer ids that the controller assigns from now on."""
        self.bench.producer_ids = list(numbers(command.next()))

    def do_produce(self, command: Command) -> None:
        """`produce 1,2 count=4 partition=1 acks=1 final=NOT_ENOUGH_REPLICAS`: commands 1 and 2, one after the other."""
        final = tuple(ErrorCode[name] for name in filter(None, command.get("final").split(",")))
        fields: dict[str, object] = {"partition": command.number("partition", 0), "acks": command.number("acks", -1)}
        sent, ids, count = list[tuple[int, Message]](), numbers(command.next()), command.number("count", 1)
        for number in ids:
            self.bench.produce(number, count, final_errors=final, **fields)
            sent += self.bench.sent
        self.bench.sent = sent

    def do_send(self, command: Command) -> None:
        """`send 1 7 partition=-1 bytes=12`: command 1 for 7 records."""
        number, count = int(command.next()), int(command.next("1"))
        place, size = command.number("partition", 0), command.number("bytes", 12)
        self.bench.send_records(number, count, partition=place, record_bytes=size)

    def do_answer(self, command: Command) -> None:
        """`answer 1,2 NOT_LEADER_OR_FOLLOWER offset=4`: of the leader, to these requests."""
        which, error, offset = numbers(command.next()), ErrorCode[command.next("NONE")], command.get("offset")
        sent = list[tuple[int, Message]]()
        for number in which:
            self.bench.answer(self.requests[number - 1], error, int(offset) if offset else None)
            sent += self.bench.sent
        self.bench.sent = sent

    def do_refuse_id(self, command: Command) -> None:
        """The controller's answer to the last request for a producer id."""
        number = self.asked[-1][1].correlation_id
        self.bench.receive(1000, InitProducerIdResponse(correlation_id=number, error=ErrorCode[command.next()]))

    def do_at(self, command: Command) -> None:
        self.bench.now_ms = int(command.next())

    def do_fire(self, command: Command) -> None:
        """`fire linger`: the time goes on to a timer, by the beginning of its name."""
        self.bench.fire(command.next())

    def do_until(self, command: Command) -> None:
        """`until 5000`: all timers that are due by then."""
        self.bench.run_until(int(command.next()))

    def do_show(self, command: Command) -> Iterator[str]:
        """`show`: what is left of requests, timers and batches; `show timer linger`; `show memory`, in records;
        `show checksums`: of all batches sent.
        """
        what = command.next("rest")
        if what == "timer":
            name = command.next()
            yield listed(f"{timer} at {at_ms}" for timer, at_ms in self.bench.timers.items() if timer.startswith(name))
        elif what == "checksums":
            yield f"{len(self.checksums)} different checksums"
        elif what == "memory":
            yield f"memory of {self.bench.node.buffered_bytes / SIZE:g} records"
        else:
            yield "at rest" if self.bench.is_at_rest() else "not at rest"

    def said(self, to: int, message: Message) -> str:
        if isinstance(message, InitProducerIdRequest):
            self.asked.append((to, message))
            return f"asks {to} for an id" if not self.bench.producer_ids else ""
        if not isinstance(message, ProduceRequest):
            return ""
        self.requests.append(message)
        batch = message.batch
        if self.checked:
            assert is_intact(batch, zlib.crc32)
            assert batch.crc >= 0
            self.checksums.add(batch.crc)
        place = f" t-{message.partition}" if message.partition else ""
        numbered = f"{batch.producer_id}/{batch.producer_epoch}/{batch.base_sequence} x{batch.record_count}"
        return f"#{len(self.requests)} to {to}{place}: {numbered}{_records(batch.payload)}"


def _records(payload: bytes) -> str:
    """The records of sends in a batch, by command and place; nothing for the payload of a produce command."""
    if len(payload) < SIZE:
        return f" {payload.decode()}"
    found: dict[int, list[int]] = {}
    for data in split(payload):
        command_id, place = identity(data)
        found.setdefault(command_id, []).append(place)
    for places in found.values():
        assert places == list(range(places[0], places[0] + len(places)))
    return " " + " ".join(f"{command}:{places[0]}-{places[-1]}" for command, places in found.items())


def _end(outcome: Message) -> str:
    if isinstance(outcome, ProduceOutcome):
        unknown = " unknown" if outcome.unknown else ""
        return f"{outcome.command_id}: {outcome.error.name} at {outcome.base_offset}{unknown}"
    assert isinstance(outcome, SendOutcome)
    ranges: Sequence[str] = [
        f"{part.first}+{part.count}{f' t-{part.partition}' if part.partition else ''} {part.error.name}"
        f"{f' at {part.base_offset}' if part.base_offset >= 0 else ''}{' unknown' if part.unknown else ''}"
        for part in outcome.ranges
    ]
    return f"{outcome.command_id} {outcome.error.name}: {', '.join(ranges)}"
