"""The metadata of a broker that the controller commands: LeaderAndIsr and StopReplica become changes of its image.

A broker knows only the partitions that it holds. The replicas follow the image as in the other generations
(`broker/replicas.py`; A23, A26-A28). The version of a partition's node in the store is its partition epoch (N2).

Which command is obeyed:

- None of a controller with an older epoch than the newest one that the broker has heard of: STALE_CONTROLLER_EPOCH
  (A35). Of one controller the commands have growing numbers; a copy of the last one gets the same response again, and
  an older one is dropped, so that a late copy of an INIT deletes nothing.
- Of a partition, no state with an older leader epoch than the known one, or with an older version in the same epoch:
  FENCED_LEADER_EPOCH for that partition (A25).
- INIT also deletes every other replica, and the logs of all other partitions (A24, A34).

A topic with a known name and another id has been deleted and created again: the old replicas go first (N11).
"""

from __future__ import annotations

from protocol.broker.context import BrokerContext, log_name
from protocol.broker.replicas import ReplicaManager
from protocol.errors import ErrorCode
from protocol.events.store import CommandCarriedOut
from protocol.ids import NO_EPOCH, NodeId, TimeMs, TopicIdPartition, TopicPartition, partition_key
from protocol.messages.records import (
    ConfigRecord,
    PartitionRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.messages.v3 import (
    CommandResponse,
    CommandResult,
    ControllerCommand,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from protocol.metadata.partition import PartitionState
from protocol.v3.store.records import LeaderAndIsr, Stored


class CommandedMetadata:
    """Obeys commands; `states` has leader and ISR of each partition as the controller or this leader wrote them."""

    def __init__(self, context: BrokerContext, replica_manager: ReplicaManager) -> None:
        self.states: dict[TopicIdPartition, Stored] = {}
        self._context = context
        self._replica_manager = replica_manager
        self._controller_epoch = NO_EPOCH
        self._last_command = 0
        self._last_response: CommandResponse | None = None

    def obey(self, now_ms: TimeMs, sender: NodeId, request: ControllerCommand) -> bool:
        """Carries out a command and responds; returns whether it was new and of a present controller."""
        if request.controller_epoch < self._controller_epoch:
            self._respond(sender, request, (), ErrorCode.STALE_CONTROLLER_EPOCH)
            return False
        if request.controller_epoch == self._controller_epoch and request.correlation_id <= self._last_command:
            if request.correlation_id == self._last_command and self._last_response is not None:
                self._context.out.send(sender, self._last_response)
            return False
        self._controller_epoch, self._last_command = request.controller_epoch, request.correlation_id
        self._context.controller_id = request.controller_id
        if isinstance(request, LeaderAndIsrRequest):
            results = self._lead_and_follow(now_ms, request)
        else:
            assert isinstance(request, StopReplicaRequest)
            results = tuple(_result(part, self._stop(part)) for part in request.partitions)
            self._apply(now_ms)
        self._last_response = self._respond(sender, request, results, ErrorCode.NONE)
        return True

    def _respond(
        self, sender: NodeId, request: ControllerCommand, results: tuple[CommandResult, ...], error: ErrorCode
    ) -> CommandResponse:
        kind = LeaderAndIsrResponse if isinstance(request, LeaderAndIsrRequest) else StopReplicaResponse
        response = kind(correlation_id=request.correlation_id, error=error, partitions=results)
        is_init = isinstance(request, LeaderAndIsrRequest) and request.is_init
        named = request.partitions if isinstance(request, LeaderAndIsrRequest | StopReplicaRequest) else ()
        self._context.out.trace(
            CommandCarriedOut(
                command=type(request).__name__,
                controller=request.controller_id,
                controller_epoch=request.controller_epoch,
                is_init=is_init,
                partitions=tuple(str(TopicPartition(part.topic, part.partition_id)) for part in named),
                error=response.error.name,
            )
        )
        self._context.out.send(sender, response)
        return response

    def _lead_and_follow(self, now_ms: TimeMs, request: LeaderAndIsrRequest) -> tuple[CommandResult, ...]:
        if request.is_init:
            kept = {partition_key(part.topic_id, part.partition_id) for part in request.partitions}
            for key in [key for key, _ in self._context.image.partitions() if key not in kept]:
                self._forget(key)
        results = tuple(_result(part, self._take(part)) for part in request.partitions)
        self._apply(now_ms)
        if request.is_init:
            self._replica_manager.remove_stale_logs()
        return results

    def _take(self, part: LeaderAndIsrPartition) -> ErrorCode:
        key = partition_key(part.topic_id, part.partition_id)
        known = self._context.image.partition(key)
        if known is not None and is_older(part, known):
            return ErrorCode.FENCED_LEADER_EPOCH
        self.states[key] = Stored(
            LeaderAndIsr(
                leader=part.leader,
                leader_epoch=part.leader_epoch,
                isr=part.isr,
                controller=part.controller_id,
                controller_epoch=part.controller_epoch,
                is_unclean_leader=part.is_unclean_leader,
            ),
            part.version,
        )
        self._replay_topic(part)
        self._replay_state(key, part.replicas)
        return ErrorCode.NONE

    def _replay_topic(self, part: LeaderAndIsrPartition) -> None:
        """The topic with its configs, as far as the image lacks them."""
        image = self._context.image
        former = image.topic_ids.get(part.topic)
        if former is not None and former != part.topic_id:
            image.replay(RemoveTopicRecord(topic_id=former))
        if part.topic_id not in image.topics:
            image.replay(TopicRecord(name=part.topic, topic_id=part.topic_id))
            for config in part.configs:
                image.replay(ConfigRecord(topic_id=part.topic_id, name=config.name, value=config.value))

    def _replay_state(self, key: TopicIdPartition, replicas: tuple[int, ...]) -> None:
        stored = self.states[key]
        state = stored.state
        self._context.image.replay(
            PartitionRecord(
                topic_id=key.topic_id,
                partition_id=key.partition,
                replicas=replicas,
                isr=state.isr,
                leader=state.leader,
                leader_recovery_state=int(state.is_unclean_leader),
                leader_epoch=state.leader_epoch,
                partition_epoch=stored.version,
            )
        )

    def _stop(self, part: StopReplicaPartition) -> ErrorCode:
        key = partition_key(part.topic_id, part.partition_id)
        state = self._context.image.partition(key)
        if state is not None and state.leader_epoch > part.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if state is not None:
            self._forget(key)
        else:
            self._context.storage.delete_log(log_name(key))
        return ErrorCode.NONE

    def _forget(self, key: TopicIdPartition) -> None:
        self.states.pop(key, None)
        image = self._context.image
        image.replay(RemovePartitionRecord(topic_id=key.topic_id, partition_id=key.partition))
        if not image.topics[key.topic_id].partitions:
            image.replay(RemoveTopicRecord(topic_id=key.topic_id))

    def wrote(self, key: TopicIdPartition, stored: Stored) -> None:
        """This broker has written the ISR of a partition that it leads, or has found a newer one of its epoch."""
        known = self.states.get(key)
        state = self._context.image.partition(key)
        if known is not None and state is not None and known.version < stored.version:
            self.states[key] = stored
            self._replay_state(key, state.replicas)

    def _apply(self, now_ms: TimeMs) -> None:
        self._replica_manager.apply(self._context.image.take_delta(), now_ms)


def is_older(part: LeaderAndIsrPartition, known: PartitionState) -> bool:
    """Whether a command is older than the known state (A25), which this broker or a response may have renewed since."""
    return (part.leader_epoch, part.version) < (known.leader_epoch, known.partition_epoch)


def _result(part: LeaderAndIsrPartition | StopReplicaPartition, error: ErrorCode) -> CommandResult:
    return CommandResult(topic=part.topic, partition_id=part.partition_id, error=error)
