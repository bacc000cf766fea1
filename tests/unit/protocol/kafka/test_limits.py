"""Limits of a listener: size of requests, number of connections, idle time; and long pipelines of requests."""

from __future__ import annotations

from protocol.messages.connections import ClientBytes, ClientDisconnected
from tests.unit.protocol.kafka.kafka_bench import HOST, KafkaBench, frame, listening, one_topic
from tests.unit.protocol.kafka.test_data import fetch_fields
from tests.unit.protocol.node_helpers import config_of


def bench_with(**configs: object) -> KafkaBench:
    return KafkaBench(config_of(**configs)).run(*one_topic())


def test_a_request_above_the_limit_ends_its_connection() -> None:
    bench = bench_with(socket_request_max_bytes=1_000).connect()
    bench.receive(HOST, ClientBytes(connection=1, data=(1_000).to_bytes(4, "big")))
    assert not bench.closed
    bench.connect(2).receive(HOST, ClientBytes(connection=2, data=(1_001).to_bytes(4, "big")))
    assert bench.closed == {2: "found a frame of 1001 bytes; allowed: 0 to 1000"}


def test_the_buffer_of_a_busy_connection_is_bounded() -> None:
    bench = bench_with(socket_request_max_bytes=1_000).connect()
    bench.send(1, 11, fetch_fields(0, wait_ms=60_000))
    for _ in range(2):
        bench.receive(HOST, ClientBytes(connection=1, data=bytes(1_000)))
    assert not bench.closed
    bench.receive(HOST, ClientBytes(connection=1, data=bytes(1)))
    assert bench.closed == {1: "2001 bytes of requests wait"}


def test_the_number_of_connections_is_limited() -> None:
    bench = bench_with(max_connections=3, max_connections_per_ip=2)
    for number, peer in enumerate(("10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:1", "10.0.0.3:1")):
        bench.connect(number, peer)
    assert bench.closed.keys() == {2, 4}
    assert "10.0.0.1 has 2 connections" in bench.closed[2]
    assert "there are 3 connections" in bench.closed[4]
    bench.receive(HOST, ClientDisconnected(connection=0))
    bench.connect(5, "10.0.0.1:4")
    assert 5 not in bench.closed


def test_an_idle_connection_is_closed_and_one_that_waits_for_its_response_is_not() -> None:
    bench = bench_with(connections_max_idle_ms=1_000)
    for number in (1, 2, 3):
        bench.connect(number)
    bench.now_ms = 600
    bench.ask(18, 0, {}, connection=2)
    bench.send(1, 11, fetch_fields(0, wait_ms=60_000), connection=3)
    assert bench.timers["kafka/"] == 1_000
    bench.fire("kafka/", 1_000)
    assert bench.closed.keys() == {1}
    assert bench.timers["kafka/"] == 1_600
    bench.fire("kafka/", 1_600)
    assert bench.closed.keys() == {1, 2}
    assert bench.both.listener.connection_count == 1


def test_connections_are_never_idle_where_the_limit_is_off() -> None:
    bench = bench_with(connections_max_idle_ms=-1).connect()
    assert "kafka/" not in bench.timers
    bench.fire("kafka/", 10**9)
    assert not bench.closed


def test_a_long_pipeline_is_answered_in_order() -> None:
    bench = bench_with().connect()
    unknown = {"replica_id": -1, "isolation_level": 0}
    unknown["topics"] = [{"name": "nope", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    unknown["topics"][0]["partitions"][0]["current_leader_epoch"] = -1
    data = b"".join(frame(2, 7, number, unknown) for number in range(3_000))
    bench.receive(HOST, ClientBytes(connection=1, data=data))
    while "kafka/" in bench.timers and bench.timers.pop("kafka/") <= bench.now_ms:  # the turns of the connection
        bench.fire("kafka/")
    answered = bytes(bench.sent_bytes[1])
    size = int.from_bytes(answered[:4], "big") + 4
    numbers = [int.from_bytes(answered[place + 4 : place + 8], "big") for place in range(0, len(answered), size)]
    assert numbers == list(range(3_000))


def test_connections_are_accepted_once_the_broker_has_been_unfenced() -> None:
    """Before that its metadata may name it as the leader that it was before its restart."""
    bench = KafkaBench()
    bench.start().registered().publish(*listening((0,)), *one_topic()).connect(1)
    assert bench.closed == {1: "the broker is starting"}
    bench.heartbeat_answered().connect(2)
    assert bench.ask(18, 0, {}, connection=2).error_code == 0
