"""What the handlers of Kafka's requests see of their broker, and the small rules that they share."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, BrokerId, TimeMs
from protocol.kafka.calls import Tasks
from protocol.kafka.wire import Values
from protocol.log.checksum import Checksum
from protocol.messages.base import ANONYMOUS
from protocol.metadata.image import MetadataImage, TopicImage
from protocol.metadata.partition import PartitionState

if TYPE_CHECKING:
    from protocol.broker.context import BrokerContext
    from protocol.kafka.sasl import SaslSession

NO_UUID = UUID(int=0)


@dataclass(eq=False, slots=True)
class Client:
    """Who sends the requests of a connection."""

    peer: str = ""
    client_id: str = ""
    principal: str = ANONYMOUS
    sasl: SaslSession | None = None
    """The authentication, on a listener with SASL."""

    @property
    def must_authenticate(self) -> bool:
        return self.sasl is not None and not self.sasl.is_complete


@dataclass(frozen=True, slots=True)
class LastResponse:
    """What a handler returns where the connection ends after the response with these values."""

    values: Values


@dataclass(eq=False)
class View:
    """A handler's broker at the time of an input: `now_ms` is updated at each. `checksum` computes CRC-32C."""

    context: BrokerContext
    tasks: Tasks
    checksum: Checksum
    cluster_id: str
    rng: Random
    """Draws ids of group members."""
    supported: dict[int, tuple[int, int]]
    """API keys with the lowest and the highest version."""
    now_ms: TimeMs = 0

    @property
    def image(self) -> MetadataImage:
        return self.context.image

    @property
    def me(self) -> BrokerId:
        return self.context.me

    def topic(self, name: str | None, topic_id: UUID | None) -> TopicImage | None:
        """The topic with a name, or with an id where there is no name."""
        if name:
            return self.image.topic_named(name)
        return self.image.topics.get(text_of(topic_id)) if topic_id is not None else None

    def endpoint(self, broker: BrokerId) -> tuple[str, int] | None:
        """(host, port) of a registered broker's listener; None without one."""
        registration = self.image.brokers.get(broker)
        if registration is None or registration.endpoint is None:
            return None
        return split_endpoint(registration.endpoint)

    def live_brokers(self) -> list[BrokerId]:
        """The unfenced brokers with a listener, in order."""
        brokers = self.image.brokers.items()
        return [broker for broker, entry in sorted(brokers) if not entry.fenced and entry.endpoint is not None]

    def node_endpoints(self, brokers: Sequence[BrokerId]) -> list[dict[str, Any]]:
        """Addresses and racks of brokers with a listener, as responses have them."""
        found: list[dict[str, Any]] = []
        for broker in sorted(set(brokers)):
            endpoint = self.endpoint(broker)
            if endpoint is not None:
                rack = self.image.brokers[broker].rack
                found.append({"node_id": broker, "host": endpoint[0], "port": endpoint[1], "rack": rack})
        return found


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`."""
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def leader_fields(state: PartitionState | None) -> Values:
    """The leader as responses name it."""
    leader, epoch = (NO_LEADER, -1) if state is None else (state.leader, state.leader_epoch)
    return {"leader_id": leader, "leader_epoch": epoch}


def uuid_of(topic_id: str) -> UUID:
    """A topic id of the metadata as Kafka's protocol has it; the zero uuid for one that is not Kafka's form."""
    try:
        return UUID(bytes=urlsafe_b64decode(topic_id + "=="))
    except ValueError:
        return NO_UUID


def text_of(topic_id: UUID) -> str:
    """A topic id of Kafka's protocol as the metadata have it."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def epoch_error(image: MetadataImage, topic: TopicImage, partition: int, expected_epoch: int) -> ErrorCode:
    """NONE, or why a client's leader epoch (-1: it names none) is not this broker's (KIP-320)."""
    state = topic.partitions.get(partition)
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if expected_epoch < 0 or expected_epoch == state.leader_epoch:
        return ErrorCode.NONE
    is_old = expected_epoch < state.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
