"""Conformance of the controller as a whole: recorded sequences of events, replayed on a `ControllerNode`.

A trace is one JSON line: events on one controller with one topic `foo` of one partition, each with its result (an
error's name, or a heartbeat's reply) and the partition's state afterwards. Every event enters the node where it enters
in an engine. Brokers have applied all metadata by the time of the next event, as they had when the traces were
recorded. A recorded broker epoch stands for the epoch that the same registration got here.

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

from experiments.conformance.shapes import Broker, Brokers, Difference, PartitionShape, Replicas, compare, state_fields
from experiments.engines.admin_requests import create_topic, elect_leader, reassign
from experiments.engines.sim.disk import formatted_disk
from experiments.support.fields import StrictModel
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import MIN_INSYNC_REPLICAS, ClusterConfig, Generation
from protocol.contract import Send
from protocol.controller.heartbeats import BrokerControlState
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NO_EPOCH, Epoch
from protocol.kafka_release import KafkaRelease
from protocol.messages import control
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Message
from protocol.messages.partitions import ElectionType
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode

TOPIC = "foo"
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


class CreateTopic(StrictModel):
    type: Literal["create_topic"]
    name: Literal["foo"]
    replicas: Replicas
    min_insync_replicas: Annotated[int, Field(ge=1)]


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


class ElectLeaders(StrictModel):
    type: Literal["elect_leaders"]
    election_type: Literal["PREFERRED", "UNCLEAN"]


class Reassign(StrictModel):
    """`replicas` None cancels."""

    type: Literal["alter_partition_reassignments"]
    replicas: Brokers | None


class HeartbeatReply(StrictModel):
    fenced: bool
    in_controlled_shutdown: bool
    should_shut_down: bool


Event = Annotated[
    RegisterBroker | BrokerEvent | CreateTopic | AlterPartition | ElectLeaders | Reassign, Field(discriminator="type")
]


class Step(StrictModel):
    event: Event
    result: str | HeartbeatReply
    partition: PartitionShape | None


class ControllerTraceRow(StrictModel):
    elr_enabled: bool
    effective_min_insync_replicas: Annotated[int, Field(ge=1)]
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]


def differences(
    row: ControllerTraceRow, kafka_release: KafkaRelease, kafka_rules: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """The differences of the first step whose answer, for this release and under these of Kafka's rules, differs from
    the recorded one."""
    controller = _Controller(row.elr_enabled, kafka_release, kafka_rules)
    for index, step in enumerate(row.steps):
        result = controller.apply(step.event)
        recorded = step.result.model_dump() if isinstance(step.result, HeartbeatReply) else step.result
        unlike = [] if result == recorded else [Difference(f"steps[{index}].result", recorded, result)]
        unlike += compare(f"steps[{index}].partition", step.partition, controller.partition())
        min_isr = row.effective_min_insync_replicas
        if isinstance(step.event, CreateTopic) and controller.min_isr() != min_isr:
            unlike.append(Difference("effective_min_insync_replicas", min_isr, controller.min_isr()))
        if unlike:
            return tuple(unlike)
    return ()


class _Controller:
    """A controller node on a disk of its own, fed with recorded events."""

    def __init__(self, elr_enabled: bool, kafka_release: KafkaRelease, kafka_rules: frozenset[str]) -> None:
        generation = Generation.KIP_966_ELR if elr_enabled else Generation.KIP_497
        self._config = ClusterConfig.of(generation, kafka_rules=kafka_rules, kafka_release=kafka_release)
        self._storage = formatted_disk()
        self._ids = count(1)
        self._epochs: dict[int, dict[int, Epoch]] = {}
        self._start()

    def _start(self) -> None:
        self._node = ControllerNode(FIRST_CONTROLLER, (FIRST_CONTROLLER,), self._config, self._storage, Random(0))
        self._image = self._node.state.image
        self._node.start(0)

    def apply(self, event: Event) -> object:
        result = self._event(event)
        for broker in self._image.brokers:
            self._node.receive(0, broker, metadata_fetch(self._node, broker))
        return result

    def partition(self) -> dict[str, object] | None:
        topic = self._image.topic_named(TOPIC)
        return None if topic is None else state_fields(topic.partitions[0])

    def min_isr(self) -> int | None:
        """The min ISR that is effective for the partition, whatever the generation."""
        topic = self._image.topic_named(TOPIC)
        if topic is None:
            return None
        configured = self._image.int_config(topic.topic_id, MIN_INSYNC_REPLICAS)
        return min(configured, len(topic.partitions[0].replicas))

    def _event(self, event: Event) -> object:
        request: AdminRequest
        match event:
            case RegisterBroker():
                return self._register(event)
            case BrokerEvent():
                return self._fence(event) if event.type == "fence" else self._heartbeat(event)
            case AlterPartition():
                return self._alter_partition(event)
            case CreateTopic():
                request = create_topic(TOPIC, (event.replicas,), {MIN_INSYNC_REPLICAS: event.min_insync_replicas})
            case ElectLeaders():
                request = elect_leader(TOPIC, 0, ElectionType[event.election_type])
            case Reassign():
                request = reassign(TOPIC, 0, event.replicas)
        error, _ = self._ask(FIRST_CLIENT, replace(request, correlation_id=next(self._ids)), AdminResponse).failure()
        return error.name

    def _ask(self, sender: int, request: Message, answer: type[Answer]) -> Answer:
        effects = self._node.receive(0, sender, request)
        [found] = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, answer)]
        return found

    def _register(self, event: RegisterBroker) -> str:
        known, number = self._image.broker_epoch(event.broker_id), next(self._ids)
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
        if event.broker_id not in self._image.brokers:
            return ErrorCode.BROKER_ID_NOT_REGISTERED.name
        self._node.fire(0, f"{SESSION_PREFIX}{event.broker_id}")
        return ErrorCode.NONE.name

    def _heartbeat(self, event: BrokerEvent) -> object:
        request = control.BrokerHeartbeatRequest(
            correlation_id=next(self._ids),
            broker_id=event.broker_id,
            broker_epoch=self._image.broker_epoch(event.broker_id) or 0,
            current_metadata_offset=self._image.next_offset,
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

    def _alter_partition(self, event: AlterPartition) -> str:
        proposal = control.PartitionIsrProposal(
            topic_id=self._image.topic_ids.get(TOPIC, ""),
            partition_id=0,
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
