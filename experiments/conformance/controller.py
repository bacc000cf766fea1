"""A controller node that is fed with recorded events, one by one.

Every event enters the node where it enters in an engine. Brokers have applied all metadata by the time of the next
event, as they had when the traces were recorded. A recorded broker epoch stands for the epoch that the same
registration got here.

The recorder drove Kafka's replication manager without the part of the quorum controller that stores the offset at which
a controlled shutdown began, so its heartbeat responses treat such a broker as running. A controller that has just
started behaves alike, so the node is restarted on its log after a heartbeat that requests a shutdown.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from experiments.conformance.shapes import Broker
from experiments.engines.sim.disk import formatted_disk
from experiments.support.fields import StrictModel
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import ClusterConfig
from protocol.contract import Send
from protocol.controller.heartbeats import BrokerControlState
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NO_EPOCH, Epoch
from protocol.kafka_release import KafkaRelease
from protocol.messages import control
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode

UNKNOWN_EPOCH = -2
"""An epoch that no registration ever had."""

Answer = TypeVar("Answer", bound=Message)


class RegisterBroker(StrictModel):
    type: Literal["register_broker"]
    broker_id: Broker
    broker_epoch: int
    unclean_shutdown: bool


class BrokerEvent(StrictModel):
    """A heartbeat (`unfence`, `want_fence`, `controlled_shutdown`), or the end of a session (`fence`)."""

    type: Literal["unfence", "want_fence", "controlled_shutdown", "fence"]
    broker_id: Broker


class IsrMember(StrictModel):
    broker_id: Broker
    broker_epoch: int


class AlterPartition(StrictModel):
    type: Literal["alter_partition"]
    broker_id: Broker
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: Annotated[int, Field(ge=0, le=1)]
    new_isr: tuple[IsrMember, ...]


class HeartbeatReply(StrictModel):
    fenced: bool
    in_controlled_shutdown: bool
    should_shut_down: bool


class ReplayedController:
    """A controller node on a disk of its own, under the rules of a release and under these of Kafka's."""

    def __init__(self, elr_enabled: bool, kafka_release: KafkaRelease, kafka_rules: frozenset[str]) -> None:
        generation = Generation.KIP_966_ELR if elr_enabled else Generation.KIP_497
        self._config = ClusterConfig.of(generation, kafka_rules=kafka_rules, kafka_release=kafka_release)
        self._storage = formatted_disk()
        self._ids = count(1)
        self._epochs: dict[int, dict[int, Epoch]] = {}
        self._start()

    def _start(self) -> None:
        self._node = ControllerNode(FIRST_CONTROLLER, (FIRST_CONTROLLER,), self._config, self._storage, Random(0))
        self.image = self._node.state.image
        self._node.start(0)

    def settle(self) -> None:
        """All brokers apply all metadata."""
        for broker in self.image.brokers:
            self._node.receive(0, broker, metadata_fetch(self._node, broker))

    def ask(self, request: AdminRequest) -> AdminResponse:
        """The answer to a client's request."""
        return self._ask(FIRST_CLIENT, replace(request, correlation_id=next(self._ids)), AdminResponse)

    def broker_event(self, event: RegisterBroker | BrokerEvent) -> object:
        """The result of a registration, a heartbeat, or the end of a session."""
        if isinstance(event, RegisterBroker):
            return self._register(event)
        return self._fence(event) if event.type == "fence" else self._heartbeat(event)

    def _ask(self, sender: int, request: Message, answer: type[Answer]) -> Answer:
        effects = self._node.receive(0, sender, request)
        [found] = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, answer)]
        return found

    def _register(self, event: RegisterBroker) -> str:
        known, number = self.image.broker_epoch(event.broker_id), next(self._ids)
        request = control.BrokerRegistrationRequest(
            correlation_id=number,
            broker_id=event.broker_id,
            incarnation_id=str(number),
            previous_broker_epoch=NO_EPOCH if event.unclean_shutdown or known is None else known,
        )
        answer = self._ask(event.broker_id, request, control.BrokerRegistrationResponse)
        self._epochs.setdefault(event.broker_id, {})[event.broker_epoch] = answer.broker_epoch
        return answer.error.name

    def _fence(self, event: BrokerEvent) -> str:
        if event.broker_id not in self.image.brokers:
            return ErrorCode.BROKER_ID_NOT_REGISTERED.name
        self._node.fire(0, f"{SESSION_PREFIX}{event.broker_id}")
        return ErrorCode.NONE.name

    def _heartbeat(self, event: BrokerEvent) -> object:
        request = control.BrokerHeartbeatRequest(
            correlation_id=next(self._ids),
            broker_id=event.broker_id,
            broker_epoch=self.image.broker_epoch(event.broker_id) or 0,
            current_metadata_offset=self.image.next_offset,
            want_fence=event.type == "want_fence",
            want_shut_down=event.type == "controlled_shutdown",
        )
        answer = self._ask(event.broker_id, request, control.BrokerHeartbeatResponse)
        if answer.error is not ErrorCode.NONE:
            return answer.error.name
        in_shutdown = self._node.incarnations.control_state(event.broker_id) is BrokerControlState.CONTROLLED_SHUTDOWN
        if request.want_shut_down:
            self._start()
        return {
            "fenced": answer.is_fenced,
            "in_controlled_shutdown": in_shutdown,
            "should_shut_down": answer.should_shut_down,
        }

    def _epoch(self, broker: int, recorded: int) -> Epoch:
        return recorded if recorded == NO_EPOCH else self._epochs.get(broker, {}).get(recorded, UNKNOWN_EPOCH)

    def alter_partition(self, topic: str, partition: int, event: AlterPartition) -> str:
        """The result of a leader's proposal."""
        proposal = control.PartitionIsrProposal(
            topic_id=self.image.topic_ids.get(topic, ""),
            partition_id=partition,
            leader_epoch=event.leader_epoch,
            partition_epoch=event.partition_epoch,
            new_isr=tuple(
                control.BrokerState(
                    broker_id=member.broker_id, broker_epoch=self._epoch(member.broker_id, member.broker_epoch)
                )
                for member in event.new_isr
            ),
            leader_recovery_state=event.leader_recovery_state,
        )
        request = control.AlterPartitionRequest(
            correlation_id=next(self._ids),
            broker_id=event.broker_id,
            broker_epoch=self._epoch(event.broker_id, event.broker_epoch),
            partitions=(proposal,),
        )
        answer = self._ask(event.broker_id, request, control.AlterPartitionResponse)
        return (answer.partitions[0].error if answer.error is ErrorCode.NONE else answer.error).name
