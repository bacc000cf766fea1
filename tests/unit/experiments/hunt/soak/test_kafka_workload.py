"""What librdkafka reports, as operations of a history; and the operations of a workload by a client that is a fake."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.check.history import Committed, Ended, Invoked, OffsetShown, Operation, RecordRange, Seen
from experiments.hunt.soak import kafka_clients
from experiments.hunt.soak.kafka_clients import ClientGaveUpError, KafkaWorkload, ends_of, runs_of
from experiments.hunt.soak.workload import RECORDS_PER_SEND
from protocol.client.records import record
from protocol.ids import NO_OFFSET, TopicPartition

P0, P1 = TopicPartition("soak", 0), TopicPartition("soak", 1)


class Message:
    """A record as librdkafka shows it."""

    def __init__(self, partition: int, offset: int, value: bytes, epoch: int = 3) -> None:
        self._fields = partition, offset, value, epoch

    def topic(self) -> str:
        return "soak"

    def partition(self) -> int:
        return self._fields[0]

    def offset(self) -> int:
        return self._fields[1]

    def value(self) -> bytes:
        return self._fields[2]

    def leader_epoch(self) -> int:
        return self._fields[3]

    def error(self) -> None:
        return None


def test_reports_of_consecutive_records_are_one_end() -> None:
    """Offsets of records in one batch rise by one each; the second batch of send 7 begins at 20."""
    reports: Any = [
        (P0, 7, 0, "acknowledged", 10),
        (P0, 7, 1, "acknowledged", 11),
        (P0, 7, 2, "acknowledged", 20),
        (P0, 8, 0, "acknowledged", 21),
        (P1, 9, 0, "unknown", NO_OFFSET),
        (P1, 9, 1, "unknown", NO_OFFSET),
    ]
    assert list(ends_of(reports)) == [
        (P0, Ended(7, 0, 2, "acknowledged", 10)),
        (P0, Ended(7, 2, 1, "acknowledged", 20)),
        (P0, Ended(8, 0, 1, "acknowledged", 21)),
        (P1, Ended(9, 0, 2, "unknown", NO_OFFSET)),
    ]


def test_consecutive_records_that_were_read_are_one_run() -> None:
    found = [(10, 7, 0, 3), (11, 7, 1, 3), (12, 7, 2, 4), (13, 8, 0, 4), (15, 8, 1, 4)]
    messages = [Message(0, offset, record(send, place, 20), epoch) for offset, send, place, epoch in found]
    assert list(runs_of(messages)) == [
        RecordRange(10, 3, 7, 0, 2),
        RecordRange(12, 4, 7, 2, 1),
        RecordRange(13, 4, 8, 0, 1),
        RecordRange(15, 4, 8, 1, 1),
    ]


class LibraryError(Exception):
    """What librdkafka raises."""


class Library:
    """librdkafka of one partition: a poll acknowledges all records since the last one but the first of them."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.reports: list[Any] = []
        self.given_to: list[list[int]] = []
        self.next_read: dict[int, int] = {}
        self.error_cb: Any = None
        self.gives_up = False
        self.on_commit: Any = None
        self.commits: list[list[Any]] = []
        self.wrong_coordinators = 0
        self.may_close = Event()
        self.may_close.set()

    def client(self, settings: dict[str, Any]) -> Any:
        self.error_cb = settings.get("error_cb", self.error_cb)
        self.on_commit = settings.get("on_commit", self.on_commit)
        reader = int(settings.get("group.id", "soak-9").removeprefix("soak-"))
        return SimpleNamespace(
            produce=self.produce,
            poll=self.poll,
            purge=lambda: None,
            close=self.may_close.wait,
            assign=lambda places: self.assign(reader, places),
            consume=lambda count, timeout: self.consume(reader),
            commit=lambda offsets, asynchronous: self.commits.append(offsets),
            committed=lambda places, timeout: self.committed(),
        )

    def committed(self) -> list[Any]:
        if self.wrong_coordinators:
            self.wrong_coordinators -= 1
            raise LibraryError(SimpleNamespace(str=lambda: "not coordinator"))
        return self.commits[-1]

    def produce(self, topic: str, value: bytes, partition: int, on_delivery: Any) -> None:
        self.log.append(value)
        self.reports.append((on_delivery, Message(partition, len(self.log) - 1, value)))

    def poll(self, timeout: float) -> None:
        reports, self.reports = self.reports, []
        for number, (report, message) in enumerate(reports):
            report("broken" if number == 0 else None, message)
        if self.gives_up:
            self.error_cb(SimpleNamespace(fatal=lambda: True, str=lambda: "fenced"))

    def assign(self, reader: int, places: list[Any]) -> None:
        self.given_to.append([place.offset for place in places])
        self.next_read[reader] = places[0].offset

    def consume(self, reader: int) -> list[Message]:
        begin, self.next_read[reader] = self.next_read[reader], len(self.log)
        return [Message(0, offset, self.log[offset]) for offset in range(begin, len(self.log))]


def test_every_record_ends_and_what_is_read_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sends of ten records; the first record of each poll fails, so 18 of 20 are acknowledged. Both read 20, and
    after `rewind` the second one reads again from offset 0, which is 500 before its place.
    """
    library = Library()
    module = SimpleNamespace(
        Producer=library.client,
        Consumer=library.client,
        KafkaException=LibraryError,
        TopicPartition=lambda *fields: SimpleNamespace(
            **dict(zip(("topic", "partition", "offset"), fields, strict=True)), error=None
        ),
    )
    monkeypatch.setattr(kafka_clients, "librdkafka", lambda asking: module)
    operations: list[Operation] = []
    engine: Any = SimpleNamespace(time_ms=0, now_ms=lambda: engine.time_ms, take_outcomes=lambda: {})
    workload = KafkaWorkload(engine, operations.append, [P0], 10, iter(range(1, 99)).__next__, "127.0.0.1:1")
    for engine.time_ms in (1_000, 2_000):
        workload.tick()
    workload.end_sending()
    workload.tick()
    counts = workload.counts
    assert (counts.sent, counts.acknowledged, counts.unknown, counts.read) == (20, 18, 2, 40)
    assert not workload.sends
    ends = [item for item in operations if isinstance(item, Ended)]
    assert ends[0] == Ended(1, 0, 1, "unknown", NO_OFFSET, 2_000)
    assert ends[1] == Ended(1, 1, RECORDS_PER_SEND - 1, "acknowledged", 1, 2_000)
    assert [item.send for item in operations if isinstance(item, Invoked)] == [1, 2]
    assert {item.high_watermark for item in operations if isinstance(item, Seen)} == {10, 20}
    assert workload.has_read_to({P0: 20})
    library.wrong_coordinators = 2
    workload.rewind()
    assert operations[-1] == OffsetShown("soak-0", P0, 10, 2_000)
    library.on_commit(None, library.commits[0])
    workload.tick()
    library.on_commit("broken", library.commits[1])
    assert counts.commits == 1
    assert [(it.offset, it.result) for it in operations if isinstance(it, Committed)] == [
        (10, "sent"),
        (10, "acknowledged"),
        (20, "sent"),
        (20, "unknown"),
    ]
    assert library.given_to[-1] == [0]
    library.wrong_coordinators = 1
    monkeypatch.setattr(kafka_clients, "OFFSETS_WITHIN_S", 0)
    with pytest.raises(ClientGaveUpError, match="no committed offsets of soak-0: not coordinator"):
        workload.rewind()
    monkeypatch.setattr(kafka_clients, "CLOSE_WITHIN_S", 0.01)
    library.may_close.clear()
    workload.close()  # though the consumers do not end
    library.may_close.set()
    library.gives_up = True
    with pytest.raises(ClientGaveUpError, match="fenced"):
        workload.tick()
