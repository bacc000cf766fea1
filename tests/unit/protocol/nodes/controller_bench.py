"""A controller node alone in its quorum, fed by hand; used by the tests of the node, of metrics and of brokers."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from experiments.engines.admin_requests import alter_config, create_topic
from experiments.engines.sim.disk import SimStorage, formatted_disk
from protocol.config import ClusterConfig
from protocol.contract import Effect, Send, SetTimer
from protocol.errors import ErrorCode
from protocol.ids import TimeMs
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    PartitionIsrProposal,
)
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, config_of

SESSION_MS = 9_000
M = TypeVar("M", bound=Message)


class Bench:
    """A controller with brokers 0, 1, 2 that beat by hand, and topic `t` on all three with min ISR 2."""

    def __init__(
        self, storage: SimStorage | None = None, config: ClusterConfig | None = None, start_ms: TimeMs = 0
    ) -> None:
        self.storage = storage or formatted_disk()
        self.node = ControllerNode(CONTROLLER, [CONTROLLER], config or config_of(), self.storage, Random(1))
        self.now_ms = start_ms
        self.number = 0
        self.effects: list[Effect] = self.node.start(start_ms)

    def receive(self, sender: int, message: Message) -> Bench:
        self.effects = self.node.receive(self.now_ms, sender, message)
        return self

    def fire(self, name: str, at_ms: int) -> Bench:
        self.now_ms = at_ms
        self.effects = self.node.fire(at_ms, name)
        return self

    def sent(self, kind: type[M]) -> M:
        [message] = [e.message for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]
        return message

    def session(self, broker: int) -> int | None:
        """When the broker's session ends, as the last input set it."""
        name = f"{SESSION_PREFIX}{broker}"
        ends = [effect.at_ms for effect in self.effects if isinstance(effect, SetTimer) and effect.name == name]
        return ends[-1] if ends else None

    def register(self, broker: int, incarnation: str = "one", previous: int = -1) -> BrokerRegistrationResponse:
        request = BrokerRegistrationRequest(
            correlation_id=4, broker_id=broker, incarnation_id=incarnation, previous_broker_epoch=previous
        )
        return self.receive(broker, request).sent(BrokerRegistrationResponse)

    def beat(self, broker: int, offset: int | None = None, **fields: object) -> BrokerHeartbeatResponse:
        image = self.node.state.image
        self.number += 1
        defaults = {"correlation_id": self.number, "broker_id": broker, "broker_epoch": image.broker_epoch(broker)}
        defaults["current_metadata_offset"] = image.next_offset if offset is None else offset
        request = BrokerHeartbeatRequest.model_validate(defaults | fields)
        return self.receive(broker, request).sent(BrokerHeartbeatResponse)

    def administer(self, request: AdminRequest) -> AdminResponse:
        return self.receive(CLIENT, request).sent(AdminResponse)

    def serve(self) -> Bench:
        """Everyone registers and is unfenced; the topic is created."""
        for broker in (0, 1, 2):
            self.register(broker)
            assert not self.beat(broker).is_fenced
        create = create_topic("t", ((0, 1, 2),), {"min.insync.replicas": 2})
        assert self.administer(create).failure()[0] is ErrorCode.NONE
        return self

    def change_until_snapshot(self) -> None:
        """The topic's config is altered to and fro until the node has taken a snapshot of the metadata."""
        for number in range(40):
            if self.node.replica.snapshot is not None:
                return
            self.administer(alter_config("t", {"min.insync.replicas": 1 + number % 2}))
        raise AssertionError("no snapshot after 40 changes")

    @property
    def partition(self) -> PartitionState:
        topic = self.node.state.image.topic_named("t")
        assert topic is not None
        return topic.partitions[0]

    def proposal(self, leader: int, *isr: int, broker_epoch: int | None = None) -> AlterPartitionRequest:
        image, state = self.node.state.image, self.partition
        members = tuple(BrokerState(broker_id=b, broker_epoch=image.broker_epoch(b) or 0) for b in isr)
        proposal = PartitionIsrProposal(
            topic_id=image.topic_ids["t"],
            partition_id=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=members,
        )
        epoch = image.broker_epoch(leader) if broker_epoch is None else broker_epoch
        self.number += 1
        return AlterPartitionRequest(
            correlation_id=self.number, broker_id=leader, broker_epoch=epoch or 0, partitions=(proposal,)
        )

    def propose(self, leader: int, *isr: int, broker_epoch: int | None = None) -> AlterPartitionResponse:
        request = self.proposal(leader, *isr, broker_epoch=broker_epoch)
        return self.receive(leader, request).sent(AlterPartitionResponse)
