"""Nodes on a bench: fed by hand, and asked what they did. `effects` are those of the last input."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Generic, Self, TypeVar

from experiments.engines.sim.disk import SimStorage, formatted_disk
from protocol.config import ClusterConfig
from protocol.contract import CancelTimer, Effect, Node, Send, SetTimer
from protocol.events.base import Trace
from protocol.ids import NodeId, TimeMs
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.messages.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    PartitionIsrProposal,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.controller import ControllerNode

M = TypeVar("M", bound=Message)
N = TypeVar("N", bound=Node)
CONTROLLER, CLIENT = 1000, 3000


class NodeBench(Generic[N]):
    """One node and the time; `_did` sees the effects of every input."""

    def __init__(self, node: N, now_ms: TimeMs = 0) -> None:
        self.node = node
        self.now_ms = now_ms
        self.effects: Sequence[Effect] = []

    def _did(self, effects: list[Effect]) -> Self:
        self.effects = effects
        return self

    def start(self) -> Self:
        return self._did(self.node.start(self.now_ms))

    def receive(self, sender: NodeId, message: Message) -> Self:
        return self._did(self.node.receive(self.now_ms, sender, message))

    def fire(self, name: str, at_ms: TimeMs | None = None) -> Self:
        """The timer is due, by default now."""
        self.now_ms = self.now_ms if at_ms is None else at_ms
        return self._did(self.node.fire(self.now_ms, name))

    # -- what it did ---------------------------------------------------------------------------------------------------

    def sends(self, kind: type[M]) -> list[tuple[NodeId, M]]:
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def sent(self, kind: type[M]) -> M:
        """The one message of that type among the last effects."""
        [(_, message)] = self.sends(kind)
        return message

    def timer(self, name: str) -> SetTimer | None:
        """How the last input left the timer, None if it did not set it."""
        setting = None
        for effect in self.effects:
            if isinstance(effect, SetTimer | CancelTimer) and effect.name == name:
                setting = effect if isinstance(effect, SetTimer) else None
        return setting

    def traces(self, kind: str) -> list[Trace]:
        return [effect for effect in self.effects if isinstance(effect, Trace) and effect.kind == kind]


class ControllerNodeBench(NodeBench[ControllerNode]):
    """A controller, by default the only one, and the requests of its brokers and clients."""

    def __init__(
        self,
        config: ClusterConfig,
        storage: SimStorage | None = None,
        start_ms: TimeMs = 0,
        ids: Sequence[NodeId] = (CONTROLLER,),
    ) -> None:
        self.storage = storage or formatted_disk()
        self.config = config
        self.ids = tuple(ids)
        self.number = 0
        super().__init__(self._new_node(), start_ms)
        self.start()

    def _new_node(self) -> ControllerNode:
        return ControllerNode(self.ids[0], self.ids, self.config, self.storage, Random(1))

    def restart(self) -> Self:
        """The next incarnation, on the same disk."""
        self.node = self._new_node()
        return self.start()

    @property
    def image(self) -> MetadataImage:
        return self.node.state.image

    @property
    def partition(self) -> PartitionState:
        topic = self.image.topic_named("t")
        assert topic is not None
        return topic.partitions[0]

    def register(self, broker: int = 0, incarnation: str = "one", previous: int = -1) -> Self:
        self.number += 1
        request = BrokerRegistrationRequest(
            correlation_id=self.number,
            broker_id=broker,
            incarnation_id=incarnation,
            previous_broker_epoch=previous,
        )
        return self.receive(broker, request)

    def registered(self, broker: int, incarnation: str = "one", previous: int = -1) -> BrokerRegistrationResponse:
        return self.register(broker, incarnation, previous).sent(BrokerRegistrationResponse)

    def beat(self, broker: int = 0, offset: int | None = None, **fields: object) -> Self:
        """A heartbeat of a broker that has replayed `offset` records, by default all."""
        self.number += 1
        present = {"correlation_id": self.number, "broker_id": broker, "broker_epoch": self.image.broker_epoch(broker)}
        present["current_metadata_offset"] = self.image.next_offset if offset is None else offset
        return self.receive(broker, BrokerHeartbeatRequest.model_validate(present | fields))

    def heard(self, broker: int, offset: int | None = None, **fields: object) -> BrokerHeartbeatResponse:
        """The answer to a heartbeat."""
        return self.beat(broker, offset, **fields).sent(BrokerHeartbeatResponse)

    def proposal(self, leader: int, *isr: int, broker_epoch: int | None = None) -> AlterPartitionRequest:
        state = self.partition
        members = tuple(BrokerState(broker_id=b, broker_epoch=self.image.broker_epoch(b) or 0) for b in isr)
        proposal = PartitionIsrProposal(
            topic_id=self.image.topic_ids["t"],
            partition_id=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=members,
        )
        epoch = self.image.broker_epoch(leader) if broker_epoch is None else broker_epoch
        self.number += 1
        return AlterPartitionRequest(
            correlation_id=self.number, broker_id=leader, broker_epoch=epoch or 0, partitions=(proposal,)
        )

    def ask(self, request: AdminRequest) -> AdminResponse:
        """The answer to a client's request."""
        return self.receive(CLIENT, request).sent(AdminResponse)
