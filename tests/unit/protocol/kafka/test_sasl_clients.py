"""librdkafka authenticates at a listener, over sockets of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from actors.sockets import BrokerSockets, bind, endpoint_of
from experiments.engines.sim.disk import SimStorage
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.kafka.addresses import listener_address
from protocol.kafka.sasl import MECHANISMS, Sasl
from tests.unit.protocol.kafka.kafka_bench import KafkaBench, one_topic
from tests.unit.protocol.kafka.socket_host import Host

WITHIN_S = 60


@contextmanager
def served(sasl: Sasl) -> Iterator[str]:
    """The address of a broker with these users."""
    address = listener_address(ClusterConfig.of(Generation.KIP_966, {"listeners": "PLAINTEXT://127.0.0.1:0"}))
    assert address is not None
    bound = bind(address, 0, SimStorage(), "")
    bench = KafkaBench(sasl=sasl, first_port=bound.getsockname()[1]).run(*one_topic())
    host = Host(bench, BrokerSockets(bound, lambda to, message: None))
    try:
        yield endpoint_of(bound)
    finally:
        host.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_authenticates(mechanism: str) -> None:
    errors: list[KafkaError] = []

    def client(address: str, password: str) -> AdminClient:
        config = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        login = {"sasl.username": "alice", "sasl.password": password, "error_cb": errors.append}
        return AdminClient(config | login)

    with served(Sasl({"alice": "secret"}, Random(3).randbytes)) as address:
        assert "t" in client(address, "secret").list_topics(timeout=WITHIN_S).topics
        assert not errors
        wrong = client(address, "wrong")
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=1)
        wrong.poll(WITHIN_S)
        assert KafkaError._AUTHENTICATION in {error.code() for error in errors}
