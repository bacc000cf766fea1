"""librdkafka authenticates at a listener, over a socket of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from protocol.kafka.sasl import MECHANISMS, Sasl
from protocol.messages.connections import ClientBytes, ClientDisconnected
from tests.unit.protocol.kafka.kafka_bench import HOST, KafkaBench, one_topic

WITHIN_S = 60


@contextmanager
def served(bench: KafkaBench) -> Iterator[str]:
    """The address of a socket whose connections are those of the bench."""
    one_at_a_time = threading.Lock()

    def serve(client: socket.socket, number: int) -> None:
        with client:
            with one_at_a_time:
                bench.connect(number)
            while number not in bench.closed and (data := client.recv(65_536)):
                with one_at_a_time:
                    bench.receive(HOST, ClientBytes(connection=number, data=data))
                    answer = bytes(bench.sent_bytes.pop(number, b""))
                client.sendall(answer)
            with one_at_a_time:
                bench.receive(HOST, ClientDisconnected(connection=number))

    def accept() -> None:
        number = 0
        while True:
            number += 1
            try:
                client, _ = server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=serve, args=(client, number), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_authenticates(mechanism: str) -> None:
    bench = KafkaBench(sasl=Sasl({"alice": "secret"}, Random(3).randbytes)).run(*one_topic())
    errors: list[KafkaError] = []

    def client(address: str, password: str) -> AdminClient:
        config = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        login = {"sasl.username": "alice", "sasl.password": password, "error_cb": errors.append}
        return AdminClient(config | login)

    with served(bench) as address:
        assert "t" in client(address, "secret").list_topics(timeout=WITHIN_S).topics
        assert not errors
        wrong = client(address, "wrong")
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=1)
        wrong.poll(WITHIN_S)
        assert KafkaError._AUTHENTICATION in {error.code() for error in errors}
