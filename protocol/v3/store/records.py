"""The data of the store's nodes: JSON with sorted keys, as Kafka's (A4-A9, A35, C2).

Shape and names are Kafka's. Departures: leader and ISR are recorded with the controller that decided on them (A35) and
with `is_unclean_leader` (C2); a topic has an id that is never reused (N11). The epoch of a broker is the id of the
session that its node belongs to, which no later incarnation has; Kafka uses the transaction that created the node.

A damaged node is never treated as a missing one: the controller would create a new state in its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pydantic import Field, ValidationError

from protocol.errors import ProtocolError
from protocol.ids import BrokerId, Epoch, TopicPartition
from protocol.messages.base import Frozen, Int32, Int64

Record = TypeVar("Record", bound="NodeData")


class DamagedNodeError(ProtocolError):
    """The data of a node are not what its path requires."""

    def __init__(self, path: str, found: bytes, allowed: str) -> None:
        super().__init__(f"damaged node {path}: found {found[:60]!r}; allowed: {allowed}")
        self.path = path


class NodeData(Frozen):
    """Base of the data of nodes."""

    version: Literal[1] = 1

    def encode(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls: type[Record], path: str, data: bytes) -> Record:
        """The record of the node at `path`. Raises DamagedNodeError."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise DamagedNodeError(path, data, f"JSON of {', '.join(sorted(cls.model_fields))}") from None


class ControllerNode(NodeData):
    """`/controller`: the broker that is controller, with its broker epoch."""

    brokerid: Int32
    broker_epoch: Int64


class BrokerNode(NodeData):
    """`/brokers/ids/[id]`: the address of a live broker, and its epoch."""

    host: str
    port: Int32
    broker_epoch: Int64


class TopicNode(NodeData):
    """`/brokers/topics/[topic]`: the assigned brokers of each partition, the preferred replica first. `first_epoch`, at
    which partitions begin, is above that of every removed one, which a command to stop is for. `configs`: overrides.
    """

    topic_id: str
    partitions: dict[Int32, tuple[Int32, ...]]
    first_epoch: Int32 = 0
    configs: dict[str, str] = Field(default_factory=dict)


class LeaderAndIsr(NodeData):
    """`leaderAndISR` of a partition. `leader` -1: none is alive; `isr` is then the last one. The leader epoch grows
    with every decision of a controller, and not with ISR changes of the leader (A16).
    """

    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...]
    controller: Int32
    controller_epoch: Int32
    is_unclean_leader: bool = False


REMOVED: Final = b"removed"
"""The data of `leaderAndISR` of a removed partition. The node stays, so that its versions go on when the partition is
added again: a leader of the removed one, whose write has an old version, changes nothing."""


def stored_state(path: str, data: bytes) -> LeaderAndIsr | None:
    """What a node `leaderAndISR` says, None if it is `REMOVED`. Raises DamagedNodeError."""
    return None if data == REMOVED else LeaderAndIsr.decode(path, data)


class ReplicasNode(NodeData):
    """A request to reassign or add a partition: the brokers that are to hold it."""

    replicas: tuple[Int32, ...]


class IsrChangeNode(NodeData):
    """A notification: partitions, as (topic, index), whose ISR their leader has written."""

    partitions: tuple[tuple[str, Int32], ...]

    @property
    def keys(self) -> list[TopicPartition]:
        return [TopicPartition(*partition) for partition in self.partitions]


def encode_epoch(epoch: Epoch) -> bytes:
    return str(epoch).encode()


def decode_epoch(path: str, data: bytes) -> Epoch:
    """The number in `/controller_epoch`. Raises DamagedNodeError."""
    if not data.isdigit():
        raise DamagedNodeError(path, data, "a number")
    return int(data)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the controller knows it: its assignment, the version of its node, and as in `TopicNode`."""

    topic_id: str
    partitions: dict[int, tuple[BrokerId, ...]]
    version: int
    first_epoch: Epoch = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """Leader and ISR of a partition as the controller knows them, and the version of their node."""

    state: LeaderAndIsr
    version: int
