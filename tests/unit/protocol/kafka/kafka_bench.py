"""A broker with a listener on a bench, and a client of Kafka's protocol that speaks by kio's schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from actors.log.format import crc32c
from experiments.engines.sim.disk import SimStorage
from protocol.broker.lifecycle import LifecycleState
from protocol.config import ClusterConfig
from protocol.contract import Effect, Send, SetTimer
from protocol.ids import CLUSTER_ID
from protocol.kafka.batches import build_batch, to_kafka
from protocol.kafka.sasl import Sasl
from protocol.kafka.wire import API_VERSIONS, encode_request
from protocol.messages.base import Message
from protocol.messages.connections import ClientBytes, ClientConnected, ClientDisconnected
from protocol.messages.records import BrokerEndpointRecord, MetadataRecord
from protocol.nodes.broker import BrokerNode
from protocol.nodes.listening_broker import ListeningBroker
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, config_of, registrations, topic_records

HOST = 8001
"""The node at the other end of connections."""
TOPIC_ID = "VG9waWNUb3BpY1RvcGljVA"


def listening(brokers: Sequence[int], first_port: int = 9092) -> list[MetadataRecord]:
    """Registers active brokers with listeners on consecutive ports."""
    records = registrations(brokers)
    records += [
        BrokerEndpointRecord(broker_id=broker, broker_epoch=epoch, endpoint=f"127.0.0.1:{first_port + broker}")
        for epoch, broker in enumerate(brokers)
    ]
    return records


class KafkaBench(BrokerBench):
    """Broker 0 with its listener; `sent_bytes` of each connection, and why it was closed."""

    def __init__(
        self,
        config: ClusterConfig | None = None,
        brokers: Sequence[int] = (0,),
        sasl: Sasl | None = None,
        first_port: int = 9092,
    ) -> None:
        super().__init__(0, config or config_of(), SimStorage())
        self.node = BrokerNode(
            0, [CONTROLLER], config or config_of(), self.storage, Random(1), endpoint="127.0.0.1:9092"
        )
        self.both = ListeningBroker(self.node, crc32c, CLUSTER_ID, Random(2), sasl)
        self.brokers, self._first_port = brokers, first_port
        self.sent_bytes: dict[int, bytearray] = {}
        self.closed: dict[int, str] = {}
        self.timers: dict[str, int] = {}
        self.last_correlation = 0

    def _did(self, effects: list[Effect]) -> KafkaBench:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, ClientBytes):
                self.sent_bytes.setdefault(effect.message.connection, bytearray()).extend(effect.message.data)
            elif isinstance(effect, Send) and isinstance(effect.message, ClientDisconnected):
                self.closed[effect.message.connection] = effect.message.reason
            elif isinstance(effect, SetTimer):
                self.timers[effect.name] = effect.at_ms
        super()._did(effects)
        return self

    def start(self) -> KafkaBench:
        return self._did(self.both.start(self.now_ms))

    def receive(self, sender: int, message: Message) -> KafkaBench:
        return self._did(self.both.receive(self.now_ms, sender, message))

    def fire(self, name: str, at_ms: int | None = None) -> KafkaBench:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        return self._did(self.both.fire(self.now_ms, name))

    def run(self, *records: MetadataRecord) -> KafkaBench:
        self.start().registered().publish(*listening(self.brokers, self._first_port), *records).heartbeat_answered()
        assert self.node.state is LifecycleState.RUNNING
        return self

    def connect(self, connection: int = 1, peer: str = "test") -> KafkaBench:
        return self.receive(HOST, ClientConnected(connection=connection, peer=peer))

    def send(self, api_key: int, version: int, values: dict[str, Any], connection: int = 1) -> int:
        """Sends a request; returns its correlation id."""
        self.last_correlation += 1
        self.receive(
            HOST, ClientBytes(connection=connection, data=frame(api_key, version, self.last_correlation, values))
        )
        return self.last_correlation

    def response(self, api_key: int, version: int, connection: int = 1) -> Any:
        """The next response on a connection; None while there is none."""
        data = self.sent_bytes.get(connection, bytearray())
        if len(data) < 4:
            return None
        length = int.from_bytes(data[:4], "big")
        body = bytes(data[4 : 4 + length])
        del data[: 4 + length]
        schema = load_response_schema(api_key, version)
        start = 5 if schema.__header_schema__.__flexible__ and api_key != API_VERSIONS else 4
        value, size = entity_reader(schema)(body, start)
        assert start + size == len(body)
        return value

    def ask(self, api_key: int, version: int, values: dict[str, Any], connection: int = 1) -> Any:
        """The response to a request, which must be answered at once."""
        self.send(api_key, version, values, connection)
        response = self.response(api_key, version, connection)
        assert response is not None, self.closed.get(connection, "no response")
        return response


def frame(api_key: int, version: int, correlation_id: int, values: dict[str, Any]) -> bytes:
    """A request as a client writes it."""
    return encode_request(api_key, version, correlation_id, "bench", values)


def batch_bytes(*values: bytes, timestamp_ms: int = 1_000) -> bytes:
    """An uncompressed batch of Kafka's with these values, as a producer sends it."""
    return to_kafka(build_batch([(None, value) for value in values], timestamp_ms, crc32c), crc32c)


def one_topic(**partition: object) -> list[MetadataRecord]:
    """Topic `t` with one partition on broker 0, under a topic id of Kafka's form."""
    fields: dict[str, object] = {"replicas": (0,), "isr": (0,), "leader": 0, "topic_id": TOPIC_ID} | partition
    topic, config, record = topic_records(1, **fields)
    return [replace(topic, topic_id=TOPIC_ID), replace(config, topic_id=TOPIC_ID), record]  # type: ignore[call-arg]
