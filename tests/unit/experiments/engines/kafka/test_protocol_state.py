"""The state by requests: a thread with a socket stands for a broker, and answers as its table says."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from experiments.engines.kafka.protocol_state import ProtocolState
from protocol.ids import TopicPartition
from protocol.kafka.wire import FrameReader, encode_response, request_head

METADATA, DESCRIBE = 3, 75


def partition(index: int, leader: int, epoch: int, isr: tuple[int, ...], elr: tuple[int, ...] | None) -> dict[str, Any]:
    fields = {"error_code": 0, "partition_index": index, "leader_id": leader, "leader_epoch": epoch, "isr_nodes": isr}
    lists = {"replica_nodes": (0, 1), "eligible_leader_replicas": elr, "last_known_elr": None, "offline_replicas": ()}
    return fields | lists


def page(*partitions: dict[str, Any], following: dict[str, Any] | None = None) -> dict[str, Any]:
    topic = {"error_code": 0, "name": "t", "topic_id": UUID(int=1), "partitions": partitions}
    return {"topics": [topic], "next_cursor": following}


ANSWERS: Mapping[int, list[dict[str, Any]]] = {
    METADATA: [
        {
            "brokers": [{"node_id": 1, "host": "h", "port": 1, "rack": "r"}],
            "cluster_id": "c",
            "controller_id": 1,
            "topics": [{"error_code": 0, "name": "t", "is_internal": False, "partitions": ()}],
        }
    ],
    DESCRIBE: [
        page(partition(0, 1, 5, (1,), (0,)), following={"topic_name": "t", "partition_index": 1}),
        page(partition(1, -1, 6, (), None)),
    ],
}


@pytest.fixture
def broker() -> Iterator[tuple[str, int]]:
    """The address of a broker that answers one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            frames, left = FrameReader(10_000), {key: list(values) for key, values in ANSWERS.items()}
            with connection:
                while data := connection.recv(10_000):
                    frames.feed(data)
                    while (body := frames.next()) is not None:
                        head = request_head(body)
                        values = left[head.api_key].pop(0)
                        connection.sendall(encode_response(head.api_key, head.version, head.correlation_id, values))

        thread = Thread(target=serve)
        thread.start()
        yield server.getsockname()
        thread.join()


def test_the_state_is_what_brokers_describe_page_by_page(broker: tuple[str, int]) -> None:
    """Broker 0 refuses connections; broker 1 describes two partitions on two pages, the second without an ELR."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    state = ProtocolState({0: address, 1: broker}, 1000)
    assert state.refresh()
    found = state.view()
    assert (found.unfenced, found.brokers[1].rack) == ({1}, "r")
    first, second = (found.partitions[TopicPartition("t", index)] for index in (0, 1))
    assert (first.leader, first.leader_epoch, first.isr, first.elr) == (1, 5, (1,), (0,))
    assert (second.leader, second.isr, second.elr, second.partition_epoch) == (-1, (), (), -1)
    assert dict(state.quorum({}))[1000].is_active


def test_nothing_is_known_while_no_broker_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    state = ProtocolState({0: address}, 1000)
    assert (state.refresh(), dict(state.quorum({}))) == (False, {})
