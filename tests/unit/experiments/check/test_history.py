"""The judge of client histories: each finding fires where it should and nowhere else; the file histories live in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.log.format import crc32c
from experiments.check.client_history import ranges_of
from experiments.check.history import (
    DuplicatedRecord,
    Ended,
    FailedRecordStored,
    FinalPartition,
    Finding,
    Invoked,
    LostRecord,
    MovedRecord,
    Operation,
    ReadBeyondHighWatermark,
    ReadsDiffer,
    Record,
    RecordRange,
    ReorderedRecords,
    ReplicasDiffer,
    Seen,
    StrayRecord,
    Unanswered,
    VanishedRead,
    judge,
    judge_and_count,
)
from experiments.check.recording import HistoryReader, HistoryWriter
from experiments.hunt.soak.run import schedule
from experiments.support.errors import InputError
from protocol.client.records import join, record
from protocol.ids import TopicPartition
from protocol.kafka.batches import build_batch
from protocol.messages.base import changed
from protocol.messages.batch import RecordBatch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SENT: tuple[Operation, ...] = (Invoked(1, 0, T0, 2), Invoked(2, 0, T0, 2), Invoked(3, 0, T0, 1))
ACKED: tuple[Operation, ...] = (*SENT, Ended(1, 0, 2, "acknowledged", 0), Ended(2, 0, 2, "acknowledged", 2))
CLEAN: tuple[Operation, ...] = (
    *ACKED,
    Ended(3, 0, 1, "failed"),
    Seen(0, T0, (RecordRange(0, 0, 1, 0, 2), RecordRange(2, 0, 2, 0, 1)), 4),
    Seen(1, T0, (RecordRange(1, 0, 1, 1, 1),), 4),
)
LOG = (RecordRange(0, 0, 1, 0, 2), RecordRange(2, 0, 2, 0, 2))


def final(*runs: RecordRange, **others: Sequence[RecordRange]) -> FinalPartition:
    """Broker 0 leads with these runs; `b1=...` are the logs of others."""
    replicas = {0: runs, **{int(name.removeprefix("b")): log for name, log in others.items()}}
    return FinalPartition(T0, 0, replicas)


def test_a_clean_history_gives_no_findings() -> None:
    assert judge(CLEAN, [final(*LOG, b1=LOG, b2=list(LOG))]) == []


def test_an_unknown_record_may_be_there_or_not() -> None:
    history = (*ACKED, Ended(3, 0, 1, "unknown"))
    assert judge(history, [final(*LOG)]) == []
    assert judge(history, [final(*LOG, RecordRange(4, 1, 3, 0, 1))]) == []


def test_acknowledged_records_are_counted_by_acks() -> None:
    """Sends 1 and 2 with acks=all, 3 and 4 by the leader alone, each of two records; the log begins at offset 2."""
    sends = [Invoked(send, 0, T0, 2, send < 3) for send in (1, 2, 3, 4)]
    ends = [
        Ended(send, 0, 2, "acknowledged" if send < 3 else "appended", offset)
        for send, offset in ((1, 0), (2, 2), (3, 4), (4, 6))
    ]
    log = FinalPartition(T0, 0, {0: (RecordRange(2, 0, 2, 0, 1), RecordRange(4, 0, 3, 0, 2))}, start=2)
    findings, losses = judge_and_count((*sends, *ends), [log])
    assert findings == [LostRecord(T0, Record(2, 1), 3)], "with acks=1 nothing is promised"
    assert losses.document() == {
        "lost_acked": 1,
        "lost_by_acks": {"1": 2, "all": 1},
        "undecided": 0,
        "deleted_by_retention": 2,
    }
    assert losses.words() == "3 (acks=1: 2, acks=all: 1), deleted by retention: 2"


FIRES: list[tuple[str, Sequence[Operation], FinalPartition, list[Finding]]] = [
    ("lost", CLEAN[:6], final(*LOG[:1]), [LostRecord(T0, Record(2, 0), 2), LostRecord(T0, Record(2, 1), 3)]),
    (
        "moved",
        (Invoked(1, 0, T0, 1), Invoked(2, 0, T0, 1), Ended(1, 0, 1, "acknowledged", 1), Ended(2, 0, 1, "unknown")),
        final(RecordRange(0, 0, 1, 0, 1), RecordRange(1, 0, 2, 0, 1)),
        [MovedRecord(T0, Record(1, 0), 1, (0,))],
    ),
    ("twice", CLEAN, final(*LOG, RecordRange(4, 1, 2, 1, 1)), [DuplicatedRecord(T0, Record(2, 1), (3, 4))]),
    ("failed and there", CLEAN, final(*LOG, RecordRange(4, 1, 3, 0, 1)), [FailedRecordStored(T0, Record(3, 0), 4)]),
    ("stray", CLEAN, final(*LOG, RecordRange(4, 1, 9, 0, 1)), [StrayRecord(T0, Record(9, 0), 4)]),
    ("stray place", CLEAN, final(*LOG, RecordRange(4, 1, 2, 2, 1)), [StrayRecord(T0, Record(2, 2), 4)]),
    (
        "reordered sends",
        (*SENT[:2], Ended(1, 0, 2, "unknown"), Ended(2, 0, 2, "unknown")),
        final(RecordRange(0, 0, 2, 0, 2), RecordRange(2, 0, 1, 0, 2)),
        [
            ReorderedRecords(T0, 0, Record(1, 0), 2, Record(2, 1)),
            ReorderedRecords(T0, 0, Record(1, 1), 3, Record(2, 1)),
        ],
    ),
    (
        "reordered within a send",
        (Invoked(1, 0, T0, 2), Ended(1, 0, 2, "unknown")),
        final(RecordRange(0, 0, 1, 1, 1), RecordRange(1, 0, 1, 0, 1)),
        [ReorderedRecords(T0, 0, Record(1, 0), 1, Record(1, 1))],
    ),
    (
        "a read that vanished",
        (*CLEAN, Seen(1, T0, (RecordRange(4, 0, 3, 0, 1),), 5)),
        final(*LOG),
        [VanishedRead(T0, 1, 4, Record(3, 0), None)],
    ),
    (
        "a read of another record",
        (*CLEAN, Seen(1, T0, (RecordRange(1, 0, 2, 0, 1),), 5)),
        final(*LOG),
        [ReadsDiffer(T0, 1, (Record(1, 1), Record(2, 0))), VanishedRead(T0, 1, 1, Record(2, 0), Record(1, 1))],
    ),
    (
        "a read beyond the high watermark",
        (*ACKED, Ended(3, 0, 1, "failed"), Seen(0, T0, (RecordRange(2, 0, 2, 0, 2),), 3)),
        final(*LOG),
        [ReadBeyondHighWatermark(T0, 0, 3, 3)],
    ),
    ("another replica", CLEAN, final(*LOG, b1=[LOG[0], RecordRange(2, 1, 2, 0, 2)]), [ReplicasDiffer(T0, 0, 1, 2)]),
    ("a shorter replica", CLEAN, final(*LOG, b2=LOG[:1]), [ReplicasDiffer(T0, 0, 2, 2)]),
    ("a longer replica", CLEAN, final(*LOG, b2=[*LOG, RecordRange(4, 0, 3, 0, 1)]), [ReplicasDiffer(T0, 0, 2, 4)]),
    ("never answered", ACKED, final(*LOG), [Unanswered(T0, 3, 1)]),
    ("half answered", (Invoked(1, 0, T0, 3), Ended(1, 0, 2, "unknown")), final(), [Unanswered(T0, 1, 1)]),
]


@pytest.mark.parametrize(("history", "logs", "expected"), [case[1:] for case in FIRES], ids=[case[0] for case in FIRES])
def test_a_finding_fires(history: Sequence[Operation], logs: FinalPartition, expected: list[Finding]) -> None:
    found = [finding for finding in judge(history, [logs]) if not isinstance(finding, Unanswered)]
    if any(isinstance(finding, Unanswered) for finding in expected):
        found = judge(history, [logs])
    assert found == expected
    assert all("\n" not in finding.text and finding.text.startswith("t-0: ") for finding in found)


def test_two_producers_have_no_order_among_each_other() -> None:
    history = (Invoked(1, 0, T0, 1), Invoked(2, 1, T0, 1), Ended(1, 0, 1, "unknown"), Ended(2, 0, 1, "unknown"))
    assert judge(history, [final(RecordRange(0, 0, 2, 0, 1), RecordRange(1, 0, 1, 0, 1))]) == []


def test_records_below_the_start_of_the_log_are_not_missed() -> None:
    trimmed = FinalPartition(T0, 0, {0: LOG[1:]}, start=2)
    assert judge(CLEAN, [trimmed]) == []
    assert judge(CLEAN, [FinalPartition(T0, 0, {0: LOG[1:]}, start=1)]) == [
        LostRecord(T0, Record(1, 1), 1),
        VanishedRead(T0, 0, 1, Record(1, 1), None),
        VanishedRead(T0, 1, 1, Record(1, 1), None),
    ]


def test_a_finding_without_words_cannot_be_created() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Finding(T0)  # type: ignore[abstract]


def test_a_history_of_a_partition_without_a_log_is_refused() -> None:
    with pytest.raises(ValueError, match="no final log of t-1"):
        judge([Invoked(1, 0, T1, 1)], [final()])
    with pytest.raises(ValueError, match="send 7"):
        judge([Ended(7, 0, 1, "failed")], [final()])


# -- against a judge that looks at every pair --------------------------------------------------------------------------


def naive(history: Sequence[Operation], last: FinalPartition) -> set[Finding]:
    """The findings that the check should have, by comparing every operation with every record."""
    log = [pair for run in last.replicas[0] for pair in run.records()]
    sends = [found for found in history if isinstance(found, Invoked)]
    ends = [found for found in history if isinstance(found, Ended)]
    found = naive_results(log, ends) | naive_records(log, sends) | naive_order(log, sends) | naive_reads(log, history)
    for send in sends:
        left = send.size - sum(end.size for end in ends if end.send == send.send)
        if left:
            found.add(Unanswered(T0, send.send, left))
    return found


def naive_results(log: Sequence[tuple[int, Record]], ends: Sequence[Ended]) -> set[Finding]:
    """The acknowledged and failed records that contradict the log."""
    found: set[Finding] = set()
    for end in ends:
        for index in range(end.size):
            name, offset = Record(end.send, end.first + index), end.offset + index
            places = tuple(place for place, other in log if other == name)
            if end.result == "failed":
                found |= {FailedRecordStored(T0, name, place) for place in places}
            elif end.result == "acknowledged" and not places:
                found.add(LostRecord(T0, name, offset))
            elif end.result == "acknowledged" and offset not in places:
                found.add(MovedRecord(T0, name, offset, places))
    return found


def naive_records(log: Sequence[tuple[int, Record]], sends: Sequence[Invoked]) -> set[Finding]:
    """The records in the log that are duplicates, or that no client sent."""
    found: set[Finding] = set()
    for name in {name for _, name in log}:
        places = tuple(place for place, other in log if other == name)
        if len(places) > 1:
            found.add(DuplicatedRecord(T0, name, places))
        if not any(send.send == name.send and 0 <= name.place < send.size for send in sends):
            found.add(StrayRecord(T0, name, places[0]))
    return found


def naive_reads(log: Sequence[tuple[int, Record]], history: Sequence[Operation]) -> set[Finding]:
    """The reads that contradict the log, the high watermark or each other."""
    reads = [(read, *pair) for read in history if isinstance(read, Seen) for run in read.runs for pair in run.records()]
    found: set[Finding] = set()
    for read, offset, name in reads:
        there = next((other for place, other in log if place == offset), None)
        if there != name:
            found.add(VanishedRead(T0, read.reader, offset, name, there))
        if offset >= read.high_watermark:
            found.add(ReadBeyondHighWatermark(T0, read.reader, offset, read.high_watermark))
        names = {other for _, place, other in reads if place == offset}
        if len(names) > 1:
            found.add(ReadsDiffer(T0, offset, tuple(sorted(names))))
    return found


def naive_order(log: Sequence[tuple[int, Record]], sends: Sequence[Invoked]) -> set[Finding]:
    turns = {send.send: (turn, send.producer) for turn, send in enumerate(sends)}
    first = [
        (place, name)
        for index, (place, name) in enumerate(log)
        if name.send in turns and name not in [other for _, other in log[:index]]
    ]
    found: set[Finding] = set()
    for index, (place, name) in enumerate(first):
        producer = turns[name.send][1]
        before = [other for _, other in first[:index] if turns[other.send][1] == producer]
        latest = max(before, key=lambda other: (turns[other.send][0], other.place), default=None)
        if latest is not None and (turns[latest.send][0], latest.place) > (turns[name.send][0], name.place):
            found.add(ReorderedRecords(T0, producer, name, place, latest))
    return found


SMALL = st.integers(0, 3)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Operation], FinalPartition]:
    sends = [Invoked(number, draw(st.integers(0, 1)), T0, draw(st.integers(1, 3))) for number in range(1, 4)]
    order = draw(st.permutations(sends))
    ends = [
        Ended(send.send, 0, send.size, draw(st.sampled_from(["acknowledged", "failed", "unknown"])), draw(SMALL))
        for send in draw(st.permutations(sends))
        if draw(st.booleans())
    ]
    names = [Record(send, place) for send, place in product(range(1, 5), range(3))]
    log = [
        RecordRange(offset, 0, name.send, name.place, 1)
        for offset, name in enumerate(draw(st.lists(st.sampled_from(names), max_size=8)))
    ]
    reads = [
        Seen(
            draw(st.integers(0, 1)),
            T0,
            (RecordRange(draw(SMALL), 0, draw(st.integers(1, 3)), draw(SMALL), draw(st.integers(1, 2))),),
            draw(st.integers(0, 6)),
        )
        for _ in range(draw(SMALL))
    ]
    return [*order, *ends, *reads], FinalPartition(T0, 0, {0: log})


@given(histories())
def test_the_check_agrees_with_a_check_of_every_pair(
    case: tuple[list[Operation], FinalPartition],
) -> None:
    history, last = case
    found = judge(history, [last])
    assert len(found) == len(set(found))
    assert set(found) == naive(history, last)


# -- the file ----------------------------------------------------------------------------------------------------------


def written(folder: Path) -> Path:
    writer = HistoryWriter(folder / "history")
    for operation in CLEAN:
        writer.write(operation)
    writer.close()
    return folder / "history"


def test_a_history_is_read_back_from_its_file(tmp_path: Path) -> None:
    reader = HistoryReader(written(tmp_path))
    assert tuple(reader) == CLEAN
    assert [type(operation) for operation in reader] == [type(operation) for operation in CLEAN]
    assert not reader.is_torn


def test_a_torn_last_line_is_left_out_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    reader = HistoryReader(path)
    assert tuple(reader) == CLEAN[:-1]
    assert reader.is_torn


@pytest.mark.parametrize("line", ["{}", "junk", '{"invoked": [1]}', '{"sent": [1, 0, ["t", 0], 1]}', "[]"])
def test_a_damaged_line_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history"
    path.write_text(f'{{"invoked": [1, 0, ["t", 0], 1]}}\n{line}\n', encoding="utf-8")
    with pytest.raises(InputError, match="line 2"):
        list(HistoryReader(path))


def test_a_history_has_one_writer_and_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "history"
    writer = HistoryWriter(path)
    with pytest.raises(InputError, match="one writer"):
        HistoryWriter(path)
    writer.write(CLEAN[0])
    writer.close()
    with pytest.raises(InputError, match="a history"):
        HistoryWriter(path)


# -- load and schedule -------------------------------------------------------------------------------------------------


def test_the_runs_of_a_batch_are_its_records() -> None:
    names = [Record(5, 3), Record(5, 4), Record(6, 0), Record(6, 2), Record(5, 5)]
    payload = join([record(send, place, 20) for send, place in names])
    batch = RecordBatch(base_offset=40, leader_epoch=7, record_count=len(names), payload=payload)
    runs = list(ranges_of(batch))
    assert [pair for run in runs for pair in run.records()] == list(enumerate(names, 40))
    assert runs == [
        RecordRange(40, 7, 5, 3, 2),
        RecordRange(42, 7, 6, 0, 1),
        RecordRange(43, 7, 6, 2, 1),
        RecordRange(44, 7, 5, 5, 1),
    ]


def test_the_runs_of_a_batch_of_a_client_of_kafkas_are_its_values() -> None:
    names = [Record(5, 3), Record(5, 4), Record(6, 0)]
    values = [(None, record(send, place, 20)) for send, place in names]
    batch = changed(build_batch(values, 0, crc32c), base_offset=40, leader_epoch=7)
    assert list(ranges_of(batch)) == [RecordRange(40, 7, 5, 3, 2), RecordRange(42, 7, 6, 0, 1)]


def test_every_round_of_the_schedule_has_every_fault_once() -> None:
    kinds = ["a", "b", "c", "d", "e"]
    planned = [fault for fault, _ in zip(schedule(3, kinds), range(20), strict=False)]
    assert [fault.index for fault in planned] == list(range(20))
    orders = [[fault.kind for fault in planned[at : at + 5]] for at in range(0, 20, 5)]
    assert all(sorted(order) == kinds for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert len({fault.seed for fault in planned}) == 20
    assert [fault for fault, _ in zip(schedule(3, kinds[::-1]), range(20), strict=False)] == planned
    assert [fault for fault, _ in zip(schedule(4, kinds), range(20), strict=False)] != planned
