"""What a client may send without harm to the broker: records that are none, texts that are too long, requests sent
ahead of responses, clients that go away. In each case the broker serves the next client.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.log.format import crc32c
from protocol.errors import ErrorCode
from protocol.kafka.apis import FETCH, PRODUCE
from protocol.kafka.batches import build_batch, to_kafka
from protocol.messages.connections import ClientBytes
from protocol.messages.kafka_batch import COVERED, encode_record, varint
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.kafka.kafka_bench import HOST, KafkaBench, batch_bytes, frame, one_topic
from tests.unit.protocol.kafka.test_data import covered, fetch_fields, framed, produce
from tests.unit.protocol.kafka.test_groups import (
    COMMIT,
    DELAY_MS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    OFFSETS_ID,
    SYNC,
    commit_fields,
    committed,
    join_fields,
    joined,
    member_fields,
    offsets_topic,
    pass_ms,
    stable,
    sync_fields,
)


@pytest.fixture
def bench() -> KafkaBench:
    return KafkaBench().run(*one_topic(), *offsets_topic()).connect()


def offset_by_time(bench: KafkaBench, timestamp: int) -> int:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [partition]}]}
    return int(bench.ask(2, 7, fields).topics[0].partitions[0].offset)


def gzipped(content: bytes) -> bytes:
    return framed(COVERED.pack(1, 0, 1_000, 1_000, -1, -1, -1, 1) + content)


BAD_RECORDS = {
    "none": framed(covered(1, 1_000, 1_000)),
    "cut off": framed(covered(1, 1_000, 1_000) + encode_record(0, 0, None, b"value")[:-1]),
    "no gzip": gzipped(b"garbage"),
    "another offset": framed(covered(1, 1_000, 1_000) + encode_record(2**62, 0, None, b"v")),
    "a negative length": framed(covered(1, 1_000, 1_000) + varint(-5)),
    "an endless number": framed(covered(1, 1_000, 1_000) + b"\xff" * 20),
}


@pytest.mark.parametrize("batch", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_records_that_are_none_keep_the_offset_of_their_batch(bench: KafkaBench, batch: bytes) -> None:
    produce(bench, batch_bytes(b"a", timestamp_ms=10))
    produce(bench, batch)
    assert offset_by_time(bench, 500) == 1


def test_only_brokers_write_to_internal_topics_and_what_cannot_be_read_is_no_commit(bench: KafkaBench) -> None:
    bench.ask(COMMIT, 7, commit_fields(7))
    bad = to_kafka(build_batch([(b"\0\1\0\5ab", b"\0\3")], 1_000, crc32c), crc32c)
    topics = [{"name": "__consumer_offsets", "partition_data": [{"index": 0, "records": bad}]}]
    fields = {"transactional_id": None, "acks": -1, "timeout": 1_000, "topic_data": topics}
    refused = bench.ask(PRODUCE, 9, fields).responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    for key, value in ((b"\0\1\0\5ab", b"\0\3"), (b"\0\2\0\1g", b"\0\3\0")):
        for index in range(2):
            bench.produce(topic="__consumer_offsets", partition=index, batch=build_batch([(key, value)], 1_000, crc32c))
    for leader in (9, 0):
        bench.publish(
            *(PartitionChangeRecord(topic_id=OFFSETS_ID, partition_id=index, leader=leader) for index in range(2))
        )
    assert committed(bench) == (7, "m", 0)


def test_requests_that_are_sent_ahead_change_a_group_between_two_answers(bench: KafkaBench) -> None:
    member = joined(bench)
    pass_ms(bench, DELAY_MS)
    assert bench.response(JOIN, 9).error_code == ErrorCode.NONE
    leave = {"group_id": "g", "members": [{"member_id": member}]}
    ahead = frame(SYNC, 5, 1, sync_fields(member, 1, {member: b"A"})) + frame(LEAVE, 5, 2, leave)
    bench.receive(HOST, ClientBytes(connection=1, data=ahead))
    pass_ms(bench, 0)
    assert bench.response(SYNC, 5).assignment == b"A"
    assert bench.response(LEAVE, 5).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        (COMMIT, 8, commit_fields(1, group="g" * 40_000)),
        (JOIN, 9, join_fields(group_id="g" * 40_000)),
        (DESCRIBE, 5, {"groups": ["g" * 40_000], "include_authorized_operations": False}),
    ],
)
def test_a_text_that_is_too_long_ends_its_connection_alone(
    bench: KafkaBench, api: int, version: int, fields: dict[str, Any]
) -> None:
    bench.send(api, version, fields)
    assert 1 in bench.closed
    assert committed(bench.connect(2), connection=2) == (-1, "", 0)


def test_fetches_that_are_sent_ahead_are_answered_in_turns(bench: KafkaBench) -> None:
    produce(bench, batch_bytes(bytes(100_000)))
    bench.receive(HOST, ClientBytes(connection=1, data=frame(FETCH, 11, 1, fetch_fields(0)) * 20))
    first = len(bench.sent_bytes[1])
    assert 100_000 < first < 300_000
    pass_ms(bench, 0)
    assert len(bench.sent_bytes[1]) > 10 * first


def test_a_repeated_partition_is_read_once_and_the_largest_response_is_honoured(bench: KafkaBench) -> None:
    produce(bench, batch_bytes(bytes(1_000)))
    fields = fetch_fields(0)
    fields["topics"][0]["partitions"] *= 300
    found = bench.ask(FETCH, 11, fields | {"max_bytes": 1_000})
    assert len(found.responses[0].partitions) == 1


def test_a_member_id_that_is_not_used_holds_up_no_rebalance(bench: KafkaBench) -> None:
    one, two = stable(bench)
    bench.connect(3)
    assert bench.ask(JOIN, 9, join_fields(session_timeout=6_000), 3).error_code == ErrorCode.MEMBER_ID_REQUIRED
    slow = {"rebalance_timeout": 300_000, "session_timeout": 30_000}
    bench.send(JOIN, 9, join_fields(one, **slow, protocols=("range", "other")), 1)
    bench.send(JOIN, 9, join_fields(two, **slow), 2)
    pass_ms(bench, 5_000)
    assert bench.response(JOIN, 9, 1) is None
    pass_ms(bench, 2_000)
    assert [bench.response(JOIN, 9, number).generation_id for number in (1, 2)] == [2, 2]


def test_a_static_member_with_the_same_subscription_comes_back_without_a_rebalance(bench: KafkaBench) -> None:
    fields = join_fields(group_instance_id="i")
    bench.send(JOIN, 9, fields)
    pass_ms(bench, DELAY_MS)
    member = bench.response(JOIN, 9).member_id
    bench.send(SYNC, 5, sync_fields(member, 1, {member: b"A"}) | {"group_instance_id": "i"})
    pass_ms(bench, 0)
    assert bench.response(SYNC, 5).assignment == b"A"
    again = bench.connect(2).ask(JOIN, 9, fields, 2)
    assert (again.generation_id, again.members) == (1, ())
    assert again.leader != again.member_id != member
    synced = bench.ask(SYNC, 5, sync_fields(again.member_id, 1) | {"group_instance_id": "i"}, 2)
    assert synced.assignment == b"A"


def test_a_static_leader_that_does_not_join_again_is_replaced(bench: KafkaBench) -> None:
    for number, instance in ((1, "i"), (2, "j")):
        bench.connect(number).send(JOIN, 9, join_fields(group_instance_id=instance), number)
    pass_ms(bench, DELAY_MS)
    first, second = (bench.response(JOIN, 9, number) for number in (1, 2))
    assert first.leader == first.member_id
    shares = {first.member_id: b"A", second.member_id: b"B"}
    bench.send(SYNC, 5, sync_fields(first.member_id, 1, shares) | {"group_instance_id": "i"}, 1)
    bench.send(SYNC, 5, sync_fields(second.member_id, 1) | {"group_instance_id": "j"}, 2)
    pass_ms(bench, 0)
    patient = {"session_timeout": 60_000, "group_instance_id": "j", "protocols": [{"name": "range", "metadata": b"x"}]}
    for member, instance, number in ((first, "i", 1), (second, "j", 2)):
        bench.response(SYNC, 5, number)
        sender = member_fields(member.member_id, group_instance_id=instance)
        assert bench.ask(HEARTBEAT, 4, sender, number).error_code == ErrorCode.NONE
    bench.send(JOIN, 9, join_fields(second.member_id) | patient, 2)
    for _ in range(5):
        pass_ms(bench, 4_100)
        beat = member_fields(first.member_id, group_instance_id="i")
        bench.ask(HEARTBEAT, 4, beat, 1)
    found = bench.response(JOIN, 9, 2)
    assert (found.generation_id, found.leader) == (2, second.member_id)
    assert len(found.members) == 2


def test_many_signs_of_life_leave_one_deadline(bench: KafkaBench) -> None:
    one, _ = stable(bench)
    before = bench.both.listener.tasks.waiting
    for _ in range(100):
        bench.ask(HEARTBEAT, 4, member_fields(one))
    assert bench.both.listener.tasks.waiting == before
