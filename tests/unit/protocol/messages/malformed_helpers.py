"""Generates messages: from a seeded random source, requests with fields that are valid in the present state, at a limit
or invalid, and bytes of damaged messages; with Hypothesis, instances of every message type.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from enum import Enum
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack
from hypothesis import strategies as st

from experiments.engines import admin_requests
from experiments.engines.sim.disk import formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol import messages
from protocol.config import CONFIGS, ClusterConfig
from protocol.contract import Effect, Send, SetTimer
from protocol.controller.recovery_requests import ELECTIONS_TIMER
from protocol.errors import ErrorCode
from protocol.features import SUPPORTED_FEATURES
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message, field_values
from protocol.messages.codec import encode
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerState,
    PartitionIsrProposal,
)
from protocol.messages.partitions import ElectionType
from protocol.metadata.image import MetadataImage
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, config_of

M = TypeVar("M", bound=Message)
NONE = ErrorCode.NONE

_LARGEST = tuple(2**bits - 1 for bits in (15, 31, 63))
NUMBERS = (*(-1 - number for number in reversed(_LARGEST)), -5, -2, -1, 0, 0, 1, 1, 2, 3, 4, 7, 999, 1_000, *_LARGEST)
BROKERS = (0, 1, 2, 3, 0, 1, 2, 3, 4, 7, 999, 1_000, -1, -2, 2**31 - 1)
TEXTS = ("", "x", "a b", "*", "../x", "\x00", "é" * 300, "9" * 5_000, "-1", "0", "1", "2", "true", "false", "none")
NONSENSE: tuple[object, ...] = (None, True, 1.5, "x", b"x", [], {"a": 1}, 2**64 - 1, -(2**63), [[]], "")
_LENGTHS = (0, 1, 1, 1, 2, 2, 3)


def pools(image: MetadataImage, topics: Sequence[str] = ("t", "u", "new", "no")) -> Mapping[str, Sequence[object]]:
    """Values by field name, from the present state; fields without a pool draw from `NUMBERS` or `TEXTS`."""
    states = [state for _, state in image.partitions()]
    broker_epochs = [registration.broker_epoch for registration in image.brokers.values()]
    offsets = (0, image.next_offset - 1, image.next_offset, image.next_offset, image.next_offset + 1)
    names = (*topics, *topics, *TEXTS)
    replicas = (*BROKERS[:8], *BROKERS)
    return {
        **dict.fromkeys(("topic", "topic_name", "topics"), names),
        "name": (*names, *CONFIGS),
        "resource_name": (*names, "kafka-cluster", ""),
        "topic_id": (*image.topics, *image.topics, "", "no.1"),
        "feature": (*SUPPORTED_FEATURES, *TEXTS),
        "configuration_keys": (*CONFIGS, *TEXTS),
        "principal": ("User:ANONYMOUS", "User:root", "User:alice", "Node:broker-0", ""),
        "host": ("*", "192.0.2.1"),
        "incarnation_id": ("", "incarnation-0", "incarnation-1", "another"),
        **dict.fromkeys(("partition_index", "partition_id", "partitions", "partition_indexes"), (0, 0, 1, 2, *NUMBERS)),
        "partition": (0, 0, 0, 1, *NUMBERS),
        **dict.fromkeys(("broker_id", "broker_ids", "replicas", "assignments", "desired_leaders"), replicas),
        "num_partitions": (-1, 1, 2, 3, 0, -2, 10_001, 2**31 - 1),
        "replication_factor": (-1, 1, 2, 3, 0, -2, 100, 2**15 - 1),
        "count": (-1, 0, 1, 2, 3, 4, 10_001, 2**31 - 1),
        "max_version_level": (0, 1, 2, 3, -1, 2**15 - 1),
        "broker_epoch": (*broker_epochs, *broker_epochs, *broker_epochs, *NUMBERS),
        "previous_broker_epoch": (*broker_epochs, -1, *NUMBERS),
        "replica_epoch": (*broker_epochs, *NUMBERS),
        **dict.fromkeys(("leader_epoch", "current_leader_epoch"), (*(s.leader_epoch for s in states), *NUMBERS)),
        "partition_epoch": (*(state.partition_epoch for state in states), *NUMBERS),
        "leader_recovery_state": (0, 0, 0, 1, 2, -1, 127, -128),
        "current_metadata_offset": (*offsets, *NUMBERS),
        "response_partition_limit": (1, 2, 3, 2_000, *NUMBERS),
        "acks": (-1, 0, 1, -1, 1, 7, -2, 2**15 - 1, -(2**15)),
    }


def names_of(model: type[Message]) -> list[str]:
    """The names of the fields of a type, in order."""
    return [field.name for field in fields_of(model)]


def request(model: type[M], rng: Random, values: Mapping[str, Sequence[object]], **fields: object) -> M:
    """A message of that type with valid types of values; `fields` are set."""
    hints = get_type_hints(model, include_extras=True)
    drawn = {
        name: fields[name] if name in fields else _value(hints[name], name, rng, values) for name in names_of(model)
    }
    return model(**drawn)


def varied(message: M, rng: Random, values: Mapping[str, Sequence[object]]) -> M:
    """A copy with one random field drawn again, its own or one of a nested message."""
    names = names_of(type(message))
    inner = [name for name in names if _holds_messages(getattr(message, name))]
    if inner and rng.random() < 0.7:
        name = rng.choice(inner)
        found = getattr(message, name)
        at = rng.randrange(len(found))
        fresh = (*found[:at], varied(found[at], rng, values), *found[at + 1 :])
    else:
        name = rng.choice(names)
        fresh = _value(get_type_hints(type(message), include_extras=True)[name], name, rng, values)
    return type(message)(**(field_values(message) | {name: fresh}))


def _holds_messages(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Message)


def _value(kind: Any, name: str, rng: Random, values: Mapping[str, Sequence[object]]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [limit for field in arguments[1:] for limit in field.metadata]
        return _within(limits, lambda: _value(arguments[0], name, rng, values))
    if origin in (Union, UnionType):
        kinds = [argument for argument in arguments if argument is not NoneType]
        return None if rng.random() < 0.2 else _value(kinds[0], name, rng, values)
    if origin is tuple:
        length = 21 if rng.random() < 0.02 else rng.choice(_LENGTHS)
        items = tuple(_value(arguments[0], name, rng, values) for _ in range(length))
        return items + items[:1] if rng.random() < 0.1 else items
    if kind is bool:
        return rng.random() < 0.3
    if kind is bytes:
        return rng.choice((b"", b"x", b"x" * 100))
    if issubclass(kind, Enum):
        return rng.choice(list(kind))
    if issubclass(kind, Message):
        return request(kind, rng, values)
    fitting = [value for value in values.get(name, ()) if type(value) is kind]
    return rng.choice(fitting or (TEXTS if kind is str else NUMBERS))


def _within(limits: Sequence[Any], draw: Callable[[], Any]) -> Any:
    """Draws until the value is within the limits of its type."""
    while True:
        value = draw()
        if not isinstance(value, int) or isinstance(value, bool | Enum):
            return value
        low = max((limit.ge for limit in limits if hasattr(limit, "ge")), default=value)
        high = min((limit.lt for limit in limits if hasattr(limit, "lt")), default=value + 1)
        if low <= value < high:
            return value


def mutated(message: Message, rng: Random) -> bytes:
    """The message's frame with one field of it replaced, or with bytes changed, inserted or lost; its checksum is right
    more often than not.
    """
    body = bytearray(encode(message)[4:])
    if rng.random() < 0.5:
        outer = msgpack.unpackb(bytes(body), ext_hook=msgpack.ExtType, strict_map_key=False)
        parts = msgpack.unpackb(outer.data, ext_hook=msgpack.ExtType, strict_map_key=False)
        parts[rng.randrange(len(parts))] = rng.choice(NONSENSE)
        body = bytearray(msgpack.packb(msgpack.ExtType(outer.code, msgpack.packb(parts))))
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(body) + 1)
        body[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    checksum = zlib.crc32(bytes(body)) if rng.random() < 0.9 else 0
    return checksum.to_bytes(4, "big") + bytes(body)


TYPES = sorted(
    (model for model in Message.REGISTRY.values() if model.__module__.startswith(messages.__name__)),
    key=lambda m: m.__name__,
)


def framed(body: bytes) -> bytes:
    """A body with a valid checksum."""
    return zlib.crc32(body).to_bytes(4, "big") + body


def message_body(*parts: object) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(1, msgpack.packb(list(parts), use_bin_type=True)))
    return packed


def values_of(annotation: Any, bounds: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    """Values of a field's type within its bounds; for a message type, of it and all its subclasses."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        return values_of(inner, [part for field in metadata for part in field.metadata])
    if origin in (UnionType, Union):
        return st.one_of([values_of(part) for part in get_args(annotation)])
    if origin is tuple:
        return st.lists(values_of(get_args(annotation)[0]), max_size=3).map(tuple)
    if annotation is type(None):
        return st.none()
    if annotation is int:
        lowest = next((bound.ge for bound in bounds if hasattr(bound, "ge")), -(2**63))
        limit = next((bound.lt for bound in bounds if hasattr(bound, "lt")), 2**63)
        return st.integers(lowest, limit - 1)
    if issubclass(annotation, Message):
        return st.one_of([instances_of(model) for model in TYPES if issubclass(model, annotation)])
    if issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    simple: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=16),
    }
    return simple[annotation]


@cache
def instances_of(model: type[Message]) -> st.SearchStrategy[Message]:
    hints = get_type_hints(model, include_extras=True)
    fields = {name: st.deferred(lambda hint=hints[name]: values_of(hint)) for name in names_of(model)}
    return st.builds(model, **fields)


class Controller:
    """A controller node with brokers 0..3, of which 3 is fenced, and two topics: `t` with three partitions and min ISR
    2, of which one has lost its ISR but for the leader and one is being moved, and `u`.
    """

    def __init__(self, config: ClusterConfig | None = None) -> None:
        self.config = config or config_of()
        self.storage = formatted_disk()
        self.node = self.started()
        self.now_ms = 0
        self.number = 0
        self.effects: list[Effect] = []
        for broker in (0, 1, 2, 3):
            registration = BrokerRegistrationRequest(
                correlation_id=1, broker_id=broker, incarnation_id=f"incarnation-{broker}"
            )
            self.receive(broker, registration)
        for broker in (0, 1, 2):
            self.beat(broker)
        self.receive(CLIENT, self.admin(admin_requests.create_topic("t", [(0, 1, 2)] * 3, {"min.insync.replicas": 2})))
        self.receive(CLIENT, self.admin(admin_requests.create_topic("u", [(2, 3)])))
        self.propose(0, 1)
        self.propose(0, 0)
        self.receive(CLIENT, self.admin(admin_requests.reassign("t", 1, (0, 1, 3))))

    def started(self) -> ControllerNode:
        """A node started from the same storage."""
        node = ControllerNode(CONTROLLER, [CONTROLLER], self.config, self.storage, Random(1))
        node.start(0)
        return node

    @staticmethod
    def admin(message: AdminRequest) -> AdminRequest:
        return replace(message, principal="User:root")

    @property
    def image(self) -> MetadataImage:
        return self.node.state.image

    @property
    def end(self) -> int:
        return len(self.node.records)

    def receive(self, sender: int, message: Message) -> Controller:
        """Passes a message; an election that waits for replicas' log info times out at once."""
        self.effects = self.node.receive(self.now_ms, sender, message)
        for effect in self.effects:
            if isinstance(effect, SetTimer) and effect.name == ELECTIONS_TIMER:
                self.now_ms = effect.at_ms
                self.effects = [*self.effects, *self.node.fire(self.now_ms, effect.name)]
        return self

    def sends(self, kind: type[Any]) -> list[Any]:
        return [e.message for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def next(self) -> int:
        """The next correlation id."""
        self.number += 1
        return self.number

    def heartbeat(self, broker: int, **fields: object) -> BrokerHeartbeatRequest:
        present = {"correlation_id": self.next(), "broker_id": broker, "broker_epoch": self.image.broker_epoch(broker)}
        present["current_metadata_offset"] = self.image.next_offset
        return BrokerHeartbeatRequest(**(present | fields))

    def beat(self, broker: int, **fields: object) -> BrokerHeartbeatResponse:
        [answer] = self.receive(broker, self.heartbeat(broker, **fields)).sends(BrokerHeartbeatResponse)
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer

    def proposal(self, index: int, *isr: int, **fields: object) -> PartitionIsrProposal:
        """A leader's valid proposal for a partition of `t`, changed by `fields`."""
        topic = self.image.topic_named("t")
        assert topic is not None
        state = topic.partitions[index]
        members = tuple(BrokerState(broker_id=b, broker_epoch=self.image.broker_epoch(b) or 0) for b in isr)
        present = {"topic_id": topic.topic_id, "partition_id": index, "new_isr": members}
        present |= {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
        return PartitionIsrProposal(**(present | fields))

    def alteration(self, broker: int, *proposals: PartitionIsrProposal) -> AlterPartitionRequest:
        epoch = self.image.broker_epoch(broker) or 0
        return AlterPartitionRequest(
            correlation_id=self.next(), broker_id=broker, broker_epoch=epoch, partitions=proposals
        )

    def alter(self, *proposals: PartitionIsrProposal, broker: int = 0) -> list[ErrorCode]:
        """The error of each proposal, or of the whole request."""
        [answer] = self.receive(broker, self.alteration(broker, *proposals)).sends(AlterPartitionResponse)
        return [answer.error] if answer.error is not NONE else [result.error for result in answer.partitions]

    def propose(self, index: int, *isr: int) -> None:
        """Shrinks the ISR of a partition of `t` to the leader and `isr`, as its leader would."""
        assert self.alter(self.proposal(index, *dict.fromkeys((0, *isr)))) == [NONE]

    def live(self, rng: Random) -> tuple[int, Message]:
        """A sender and a message of a healthy cluster; now and then a session expires."""
        broker = rng.choice((0, 1, 2, 3))
        if rng.random() < 0.2 and broker in self.image.brokers:
            self.node.fire(self.now_ms, f"{SESSION_PREFIX}{broker}")
        if broker not in self.image.brokers or rng.random() < 0.1:
            return broker, BrokerRegistrationRequest(correlation_id=1, broker_id=broker, incarnation_id=f"{self.end}")
        if "t" not in self.image.topic_ids:
            return CLIENT, self.admin(admin_requests.create_topic("t", [(0, 1, 2), (1, 2, 0), (2, 0, 1)]))
        if rng.random() < 0.4:
            return broker, self.heartbeat(broker)
        if rng.random() < 0.2:
            return broker, metadata_fetch(self.node, broker, rng.choice((0, self.end, self.end, None)))
        replicas = tuple(rng.sample((0, 1, 2, 3), rng.choice((1, 2, 3))))
        index, state = rng.choice(list(self.image.topics[self.image.topic_ids["t"]].partitions.items()))
        isr = tuple(b for b in state.replicas if b == state.leader or (self.image.is_active(b) and rng.random() < 0.6))
        administration: list[AdminRequest] = [
            admin_requests.reassign("t", index, rng.choice((replicas, replicas, None))),
            admin_requests.elect_leader("t", index, rng.choice(list(ElectionType))),
            admin_requests.alter_config("t", {"min.insync.replicas": rng.choice((1, 2, 3, None))}),
            admin_requests.alter_config(None, {"unclean.leader.election.enable": rng.choice((True, None))}),
            admin_requests.add_partitions(
                "t", len(self.image.topics[self.image.topic_ids["t"]].partitions), [replicas]
            ),
        ]
        if rng.random() < 0.4:
            return CLIENT, self.admin(rng.choice(administration))
        return state.leader, self.alteration(state.leader, self.proposal(index, *isr))
