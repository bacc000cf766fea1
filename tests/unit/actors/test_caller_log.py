"""What callers of a client did with records: the sends by partition, and the names of records in logs."""

from __future__ import annotations

from itertools import count

from actors.caller_log import (
    CallerLog,
    RecordsRead,
    SendBegan,
    SendEnded,
    digest_of,
    parts_in,
    runs_of,
    send_number,
)
from actors.caller_log import first_command as first_of
from protocol.client.records import BY_DIGEST, join, record
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import (
    ROUND_ROBIN,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
    SentRange,
)

NONE = ErrorCode.NONE
FIVE, EIGHT, NINE = (-(first_of(2) + number) for number in (5, 8, 9))


def log() -> CallerLog:
    return CallerLog(FIRST_CLIENT, 2, count(100).__next__)


def test_numbers_of_sends_differ_between_incarnations_and_partitions() -> None:
    numbers = {send_number(-(first_of(life) + n), p) for life in (1, 2) for n in (1, 2, 2**31) for p in (0, 1, 99_999)}

    assert len(numbers) == 18
    assert all(0 < number < 2**62 for number in numbers)


def test_a_batch_of_a_user_is_known_by_its_digest() -> None:
    calls, payload = log(), join([b"a", b"bc"])
    command = ProduceCommand(command_id=FIVE, topic="t", partition=1, acks=-1, record_count=2, payload=payload)

    calls.began(command)
    calls.ended(command, ProduceOutcome(command_id=FIVE, error=NONE, base_offset=7, unknown=False))

    began, ended = calls.take()
    number, name = send_number(FIVE, 1), TopicPartition("t", 1)
    assert began == SendBegan(100, number, began.producer, name, 2, -1, digest_of(payload))
    assert ended == SendEnded(101, number, -1, SentRange(first=0, count=2, partition=1, error=NONE, base_offset=7))
    assert calls.take() == []
    written = RecordBatch(base_offset=7, leader_epoch=3, record_count=2, payload=payload)
    assert list(runs_of(written, 1)) == [(7, 3, BY_DIGEST - digest_of(payload), 0, 2)]


def test_records_that_a_client_generates_carry_the_number_of_their_send() -> None:
    payload = join([record(NINE, 4, 20), record(NINE, 5, 20), record(EIGHT, 0, 20)])
    batch = RecordBatch(base_offset=10, leader_epoch=1, record_count=3, payload=payload)

    assert list(runs_of(batch, 2)) == [(10, 1, send_number(NINE, 2), 4, 2), (12, 1, send_number(EIGHT, 2), 0, 1)]


def test_bytes_that_only_look_like_generated_records_are_known_by_their_digest() -> None:
    for payload in (join([b"\xff" * 12, b"x"]), b"\x00\x00\x00\x0c\xff" + b"\xff" * 30, join([record(3, 0, 12)])):
        [(_, _, send, _, size)] = runs_of(RecordBatch(record_count=2, payload=payload), 0)
        assert (send, size) == (BY_DIGEST - digest_of(payload), 2)


def test_records_for_any_partition_are_a_send_to_each_in_which_those_of_the_others_have_failed() -> None:
    calls = log()
    command = SendRecords(command_id=FIVE, topic="t", partition=ROUND_ROBIN, acks=-1, record_count=6, record_bytes=12)
    ranges = (
        SentRange(first=0, count=2, partition=1, error=NONE, base_offset=0),
        SentRange(first=2, count=2, partition=0, error=NONE, base_offset=0),
        SentRange(first=4, count=2, partition=1, error=NONE, base_offset=2),
    )

    calls.began(command)
    assert calls.take() == [], "which partitions it writes to is not known yet"
    calls.ended(command, SendOutcome(command_id=FIVE, error=NONE, ranges=ranges))

    found = calls.take()
    assert [it.partition.partition for it in found if isinstance(it, SendBegan)] == [0, 1]
    ends = [(it.send, it.part.first, it.part.count, it.part.error) for it in found if isinstance(it, SendEnded)]
    gone, zero, one = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, send_number(FIVE, 0), send_number(FIVE, 1)
    assert ends == [
        (zero, 0, 2, gone),
        (zero, 2, 2, NONE),
        (zero, 4, 2, gone),
        (one, 0, 2, NONE),
        (one, 2, 2, gone),
        (one, 4, 2, NONE),
    ]


def test_neighbouring_ranges_of_other_partitions_are_one() -> None:
    ranges = [SentRange(first=n, count=1, partition=n, error=NONE) for n in range(4)]

    assert [(it.first, it.count) for it in parts_in(ranges, 3)] == [(0, 3), (3, 1)]


def test_what_a_caller_reads_is_kept_without_the_payloads() -> None:
    calls, payload = log(), join([record(NINE, 0, 12)])
    batch = RecordBatch(base_offset=3, leader_epoch=1, record_count=1, payload=payload)
    command = ConsumeCommand(command_id=-1, topic="t", partition=0)

    calls.began(command)
    calls.ended(command, ConsumeOutcome(command_id=-1, error=NONE, batches=(batch,), high_watermark=4))
    calls.ended(command, ConsumeOutcome(command_id=-1, error=NONE))

    runs = ((3, 1, send_number(NINE, 0), 0, 1),)
    assert calls.take() == [RecordsRead(100, FIRST_CLIENT, TopicPartition("t", 0), runs, 4)]
