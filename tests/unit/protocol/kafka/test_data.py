"""Produce, Fetch, ListOffsets, Metadata at every version that the broker lists, by kio as the client."""

from __future__ import annotations

import struct

import pytest

from actors.log.format import crc32c
from protocol.errors import ErrorCode
from protocol.kafka.apis import FETCH, PRODUCE
from protocol.kafka.batches import to_kafka
from protocol.kafka.view import uuid_of
from protocol.messages.batch import RecordBatch
from protocol.messages.connections import ClientBytes, ClientDisconnected
from protocol.messages.kafka_batch import COVERED, CRC, MARK, encode_record
from protocol.messages.records import ConfigRecord
from tests.unit.protocol.kafka.kafka_bench import HOST, TOPIC_ID, KafkaBench, batch_bytes, frame, one_topic
from tests.unit.protocol.node_helpers import config_of

ID = uuid_of(TOPIC_ID)


@pytest.fixture
def bench() -> KafkaBench:
    return KafkaBench().run(*one_topic()).connect()


def produce(bench: KafkaBench, records: bytes, acks: int = -1, version: int = 9) -> object:
    data = [{"name": "t", "topic_id": ID, "partition_data": [{"index": 0, "records": records}]}]
    fields = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": data}
    return bench.ask(PRODUCE, version, fields).responses[0].partition_responses[0]


def fetch_fields(offset: int, wait_ms: int = 0, session: tuple[int, int] = (0, -1), named: bool = True) -> dict:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "log_start_offset": -1}
    topics = [{"topic": "t", "topic_id": ID, "partitions": [partition]}] if named else []
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "session_id": session[0],
        "session_epoch": session[1],
        "isolation_level": 0,
        "replica_id": -1,
        "topics": topics,
        "forgotten_topics_data": [],
    }


@pytest.mark.parametrize("version", range(3, 14))
def test_produces_at_every_version(bench: KafkaBench, version: int) -> None:
    assert [produce(bench, batch_bytes(b"a", b"b"), version=version).base_offset for _ in range(2)] == [0, 2]


@pytest.mark.parametrize("version", range(4, 18))
def test_fetches_what_was_produced_byte_for_byte_but_for_offsets(bench: KafkaBench, version: int) -> None:
    sent = batch_bytes(b"a", b"b")
    produce(bench, sent)
    found = bench.ask(FETCH, version, fetch_fields(0)).responses[0].partitions[0]
    assert (found.error_code, found.high_watermark) == (0, 2)
    assert found.records[17:] == sent[17:]
    assert int.from_bytes(found.records[:8], "big") == 0


def test_a_fetch_waits_for_records_until_its_time_is_over(bench: KafkaBench) -> None:
    bench.send(FETCH, 11, fetch_fields(0, wait_ms=500))
    assert bench.response(FETCH, 11) is None
    bench.connect(2)
    bench.send(PRODUCE, 9, {"acks": 1, "timeout": 1000, "topic_data": [
        {"name": "t", "partition_data": [{"index": 0, "records": batch_bytes(b"x")}]}]}, connection=2)  # fmt: skip
    found = bench.response(FETCH, 11)
    assert found.responses[0].partitions[0].high_watermark == 1
    bench.send(FETCH, 11, fetch_fields(1, wait_ms=500))
    assert bench.response(FETCH, 11) is None
    for name in ("read-wait", "kafka/"):
        bench.fire(name, bench.timers[name])
    assert bench.response(FETCH, 11).responses[0].partitions[0].records == b""


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"), [(17, 0, (0, 0, 2)), (17, -1, (1, -1, -1)), (2, 0, (0, -1, -1))]
)
def test_a_consumer_that_knows_its_epoch_learns_where_the_log_ends(
    bench: KafkaBench, offset: int, epoch: int, expected: tuple[int, int, int]
) -> None:
    """KIP-320. The log has two records of epoch 0. A consumer that is behind its end gets the end of the epoch that it
    names, or OFFSET_OUT_OF_RANGE (1) without one. (error, epoch and end offset of the diverging epoch)
    """
    produce(bench, batch_bytes(b"a", b"b"))
    fields = fetch_fields(offset)
    fields["topics"][0]["partitions"][0]["last_fetched_epoch"] = epoch
    found = bench.ask(FETCH, 12, fields).responses[0].partitions[0]
    assert (found.error_code, found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == expected


def test_a_fetch_waits_behind_its_records_for_as_many_bytes_as_it_asks_for(bench: KafkaBench) -> None:
    """Batches of one record of one byte have 69 bytes: 61 before the records, and of the record its length, attributes,
    two deltas, the length of a key that is null, that of the value, the value, and the number of headers. The broker
    counts the 56 bytes that it keeps of each: neither base offset and length nor magic. So 150 bytes are three batches.
    """
    assert len(batch_bytes(b"a")) == 69
    produce(bench, batch_bytes(b"a"))
    bench.send(FETCH, 11, fetch_fields(0, wait_ms=500) | {"min_bytes": 150}, connection=1)
    bench.connect(2)
    for value in (b"b", b"c"):
        assert bench.response(FETCH, 11) is None
        bench.send(PRODUCE, 9, {"acks": 1, "timeout": 1000, "topic_data": [
            {"name": "t", "partition_data": [{"index": 0, "records": batch_bytes(value)}]}]}, connection=2)  # fmt: skip
    found = bench.response(FETCH, 11).responses[0].partitions[0]
    assert (found.high_watermark, len(found.records)) == (3, 3 * 69)
    assert [int.from_bytes(found.records[place : place + 8], "big") for place in (0, 69, 138)] == [0, 1, 2]


def test_each_batch_is_told_to_the_meter_and_whether_it_was_appended(bench: KafkaBench) -> None:
    told: list[tuple[str, int, bool]] = []
    bench.both.on_produce = lambda request, is_appended: told.append(
        (request.topic, request.batch.record_count, is_appended)
    )
    produce(bench, batch_bytes(b"a", b"b"))
    produce(bench, batch_bytes(b"a"), acks=7)
    assert told == [("t", 2, True), ("t", 1, False)]


@pytest.mark.parametrize("api_key", [FETCH, PRODUCE])
def test_what_a_closed_connection_waits_for_is_withdrawn(api_key: int) -> None:
    bench = KafkaBench().run(*one_topic(replicas=(0, 1), isr=(0, 1))).connect()
    data = [{"name": "t", "topic_id": ID, "partition_data": [{"index": 0, "records": batch_bytes(b"a")}]}]
    produced = {"transactional_id": None, "acks": -1, "timeout": 60_000, "topic_data": data}
    bench.send(api_key, 11 if api_key == FETCH else 9, fetch_fields(0, 60_000) if api_key == FETCH else produced)

    def waiting() -> int:
        [replica] = bench.node.context.replicas.values()
        reads = bench.node._reads._delayed.values()
        return len(replica.delayed_produces) + sum(map(len, reads))

    assert waiting() == 1
    bench.receive(HOST, ClientDisconnected(connection=1))
    assert waiting() == 0


def test_a_session_answers_what_has_changed(bench: KafkaBench) -> None:
    produce(bench, batch_bytes(b"a"))
    first = bench.ask(FETCH, 12, fetch_fields(1, session=(0, 0)))
    assert first.session_id > 0
    assert first.responses[0].partitions[0].records == b""
    idle = bench.ask(FETCH, 12, fetch_fields(1, session=(first.session_id, 1), named=False))
    assert idle.responses == ()
    produce(bench, batch_bytes(b"b"))
    news = bench.ask(FETCH, 12, fetch_fields(1, session=(first.session_id, 2), named=False))
    assert news.responses[0].partitions[0].high_watermark == 2
    wrong = bench.ask(FETCH, 12, fetch_fields(1, session=(first.session_id, 2), named=False))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = bench.ask(FETCH, 12, fetch_fields(1, session=(99, 2), named=False))
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:-1], ErrorCode.CORRUPT_MESSAGE),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (lambda data: data[:16] + b"\1" + data[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (lambda data: data + data, ErrorCode.INVALID_RECORD),
        (lambda data: b"", ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["cut off", "flipped bit", "old format", "two batches", "empty"],
)
def test_refuses_damaged_batches(bench: KafkaBench, damage, error: ErrorCode) -> None:
    assert produce(bench, damage(batch_bytes(b"a"))).error_code == error


def test_refuses_a_batch_above_the_limit_of_its_topic() -> None:
    """`max.message.bytes` counts what the broker keeps of a batch: here 61 + 7 + 33 - 13 bytes for a value of 33."""
    bench = KafkaBench(config=config_of(max_message_bytes=88)).run(*one_topic()).connect()
    assert [produce(bench, batch_bytes(b"x" * size)).error_code for size in (33, 34)] == [
        0,
        ErrorCode.MESSAGE_TOO_LARGE,
    ]


def test_list_offsets_by_position_and_by_time(bench: KafkaBench) -> None:
    for at_ms in (1_000, 2_000):
        produce(bench, batch_bytes(b"a", b"b", timestamp_ms=at_ms))

    def offset(timestamp: int) -> tuple[int, int]:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [partition]}]}
        found = bench.ask(2, 7, fields).topics[0].partitions[0]
        return found.offset, found.timestamp

    assert [offset(wanted) for wanted in (-2, -1)] == [(0, -1), (4, -1)]
    assert [offset(wanted) for wanted in (0, 1_001, 2_001)] == [(0, 1_000), (2, 2_000), (-1, -1)]
    assert offset(-3) == (2, 2_000)
    records = b"".join(encode_record(delta, 10 * delta, None, b"c") for delta in range(3))
    produce(bench, framed(covered(3, 3_000, 3_020) + records))
    assert [offset(wanted) for wanted in (2_500, 3_001, 3_011, 3_021)] == [(4, 3_000), (5, 3_010), (6, 3_020), (-1, -1)]


@pytest.mark.parametrize(("policy", "keeps"), [("delete", False), ("compact", True), ("compact,delete", False)])
def test_retention_holds_for_topics_whose_old_segments_may_be_deleted(policy: str, keeps: bool) -> None:
    configs = {"cleanup.policy": policy, "segment.bytes": "100", "retention.bytes": "0"}
    records = [ConfigRecord(topic_id=TOPIC_ID, name=name, value=value) for name, value in configs.items()]
    bench = KafkaBench().run(*one_topic(), *records).connect()
    for _ in range(4):
        produce(bench, batch_bytes(b"a" * 100))
    bench.fire("log-retention", bench.timers["log-retention"])
    assert (bench.both.broker.context.replica_named("t", 0).log.start_offset == 0) is keeps


def covered(count: int, first_ms: int, last_ms: int) -> bytes:
    """The fields of a batch that its CRC covers, up to the records."""
    return COVERED.pack(0, count - 1, first_ms, last_ms, -1, -1, -1, count)


def framed(content: bytes) -> bytes:
    """A batch of Kafka's with this content."""
    batch = RecordBatch(record_count=1, payload=MARK + CRC.pack(crc32c(content, 0)) + content)
    return to_kafka(batch, crc32c)


def test_metadata_names_listeners_and_leaders(bench: KafkaBench) -> None:
    for version in range(13):
        flags = {f"include_{kind}_authorized_operations": False for kind in ("cluster", "topic")}
        found = bench.ask(3, version, {"topics": None if version else [], **flags})
        assert [(b.node_id, b.host, b.port) for b in found.brokers] == [(0, "127.0.0.1", 9092)]
        assert [(t.name, t.partitions[0].leader_id) for t in found.topics] == [("t", 0)]
    missing = bench.ask(3, 9, {"topics": [{"name": "nope"}], **flags})
    assert missing.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def receive_frame(bench: KafkaBench, body: bytes) -> None:
    bench.receive(HOST, ClientBytes(connection=1, data=len(body).to_bytes(4, "big") + body))


def test_tagged_fields_of_newer_clients_are_skipped_wherever_they_are(bench: KafkaBench) -> None:
    """KIP-482: tag, size and content of a field that the broker does not know. Here tag 99 with two bytes is in the
    header of a Metadata request, in its topic and in the request, which has an empty tag 100 as well; and beside and in
    a tagged field that is known, the state of a replica in Fetch, whose id is honoured: followers are refused.
    """
    unknown = b"\x63\x02hi"
    tags = b"\x01" + unknown
    head = struct.pack(">hhih", 3, 12, 7, 5) + b"bench" + tags
    receive_frame(bench, head + b"\x02" + bytes(16) + b"\x02t" + tags + b"\0\0" + b"\x02" + unknown + b"\x64\0")
    assert bench.response(3, 12).topics[0].name == "t"
    body = frame(FETCH, 15, 8, fetch_fields(0))[4:]
    assert body[-1] == 0
    replica = struct.pack(">iq", 7, 1) + tags
    receive_frame(bench, body[:-1] + b"\x02" + unknown + bytes((1, len(replica))) + replica)
    assert bench.response(FETCH, 15).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not bench.closed


def test_what_ends_a_connection() -> None:
    bench = KafkaBench().run(*one_topic())
    bad = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\2ab", b"\0\0\0\x08\0\x63\0\0\0\0\0\1"]
    for number, data in enumerate(bad):
        bench.connect(number).receive(HOST, ClientBytes(connection=number, data=data))
        assert number in bench.closed
    assert bench.both.listener.connection_count == 0


def test_api_versions_of_the_future_get_those_that_are_supported(bench: KafkaBench) -> None:
    bench.receive(HOST, ClientBytes(connection=1, data=b"\0\0\0\x0a\0\x12\0\x63\0\0\0\7\xff\xff"))
    found = bench.response(18, 0)
    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {key.api_key for key in found.api_keys} >= {0, 1, 2, 3, 18}
