"""The controller node: one event at a time, decide, append, replay, answer when it is committed.

Every change takes the same way: a handler plans records against the present state, the records are appended to the
metadata log and replayed, and what the node has to say about it (answers, what observers are told) is withheld until a
majority of the quorum has them. Nothing is changed that is not in the log.

Of the controllers one is *active*: the leader of the metadata log (`protocol.quorum`), from when the first record of
its epoch is committed, and with it all that came before, until its epoch ends. The others stand by: they replay what is
committed, so that they can take over at once, and refuse what changes anything with NOT_CONTROLLER. One that ceases to
be active forgets what it has replayed and builds its state anew from what is committed; requests whose answers it
withholds are refused, though a later leader may commit what they asked for. One that takes over tells observers of the
states that its predecessor may have left untold.

Sessions of brokers live in the memory of the active controller only: the next one gives every unfenced broker a full
session timeout to speak up. Heartbeats
and ISR proposals of a broker's life count once, and in the order in which they were sent (`sending_order.py`): a
heartbeat that was overtaken is answered and changes nothing, a proposal is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from protocol.config import BROKER_SESSION_TIMEOUT_MS, METADATA_SNAPSHOT_BYTES, ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.controller import alter_partition, brokers
from protocol.controller.administration import plan
from protocol.controller.broker_lives import BrokerLives
from protocol.controller.broker_requests import heartbeat_error, registration_error
from protocol.controller.context import ControllerState
from protocol.controller.features import bootstrap_records
from protocol.controller.heartbeats import BrokerControlState
from protocol.controller.metrics import ControllerMetrics
from protocol.controller.recoveries import TIMERS as RECOVERY_TIMERS
from protocol.controller.recoveries import Recoveries
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import (
    CLUSTER_ID,
    NO_EPOCH,
    NO_NODE,
    BrokerId,
    Epoch,
    NodeId,
    Offset,
    TimeMs,
    TopicIdPartition,
    is_controller,
    is_recovery_manager,
)
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.metadata_batch import pack_batch
from protocol.messages.partitions import ElectLeadersResponse
from protocol.messages.quorum import (
    AddVoterRequest,
    DescribeQuorumRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    QuorumRequest,
    QuorumResponse,
    RemoveVoterRequest,
)
from protocol.messages.records import MetadataRecord
from protocol.messages.recovery import RecoveryResults
from protocol.messages.trusted import trusted
from protocol.metadata.authorizer import may_act_for_cluster, may_administer_quorum
from protocol.metadata.describe import describe_topic
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.queries import answer
from protocol.nodes.controller_traces import tell_alert, tell_committed, tell_partition, tell_record
from protocol.nodes.metadata_feed import News, news, snapshot_if_due
from protocol.nodes.quorum_view import QuorumView, quorum_view
from protocol.nodes.refusals import refuse
from protocol.nodes.withheld import Withheld
from protocol.quorum.context import QuorumConfig
from protocol.quorum.describe import describe_quorum, quorum_gauges
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

_ANSWER: Final = trusted(BrokerHeartbeatResponse)
SESSION_PREFIX = "session/"
HEARTBEAT_TIMER = "heartbeat"
_OF_THE_CLUSTER = (
    BrokerHeartbeatRequest,
    AlterPartitionRequest,
    BrokerRegistrationRequest,
    RecoveryResults,
    ShutdownCommand,
)
"""What only the cluster's own nodes have reason to send, and the experiment (G8)."""


class ControllerNode:
    """One of a cluster's controllers; see the module docstring. `replica` is its replica of the metadata log."""

    def __init__(
        self,
        controller_id: NodeId,
        controllers: Sequence[NodeId],
        config: ClusterConfig,
        storage: Storage,
        rng: Random,
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        self.node_id = controller_id
        self.config = config
        self.storage = storage
        self._rng = rng
        self._is_sole = len(controllers) == 1
        self._out = Outbox()
        self._quorum_out = Outbox()
        quorum = QuorumConfig.of(config, controllers, cluster_id)
        self.replica = QuorumReplica(controller_id, quorum, storage, rng, self._quorum_out)
        self._session_ms = config.int_value(BROKER_SESSION_TIMEOUT_MS)
        self._snapshot_bytes = config.int_value(METADATA_SNAPSHOT_BYTES)
        self._active_epoch: Epoch = NO_EPOCH
        self._withheld = Withheld()
        self._sessions: set[BrokerId] = set()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Knows nothing."""
        self.state = ControllerState(self.config, self._rng)
        self._recoveries = Recoveries(self.state, self._out)
        self._metrics = ControllerMetrics(self.state, self._quorum_gauges, self._recoveries)
        self._records: list[MetadataRecord] = []
        self.first_record: Offset = 0
        self._sessions.clear()
        self.lives = BrokerLives(self.state)

    @property
    def is_active(self) -> bool:
        """Whether this is the controller that changes anything; see the module docstring."""
        return self._active_epoch != NO_EPOCH

    @property
    def active_epoch(self) -> Epoch:
        """The epoch of the metadata log in which it is active, -1 where it is not."""
        return self._active_epoch

    @property
    def quorum(self) -> QuorumView:
        """Its part in the quorum."""
        return quorum_view(self.replica, self.is_active)

    @property
    def records(self) -> Sequence[MetadataRecord]:
        """What is committed of the metadata log from the offset `first_record` on, for checkers to read."""
        committed = self.replica.high_watermark - self.first_record
        return self._records if committed == len(self._records) else self._records[:committed]

    def metrics(self) -> Mapping[str, int]:
        """The metrics of the cluster by name; units and meaning in `protocol/controller/metrics.py`."""
        return self._metrics.values()

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self.replica.start(now_ms)
        return self._finish(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        self._metrics.now_ms = now_ms
        if isinstance(message, QuorumRequest | QuorumResponse):
            if self._may_replicate(sender, message):
                self.replica.receive(now_ms, sender, message)
                if self.is_active and isinstance(message, QuorumFetchRequest):
                    self._note_fetch(message)
            else:
                refuse(self._out, sender, message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elif isinstance(message, _OF_THE_CLUSTER) and not may_act_for_cluster(self.state.image, sender):
            refuse(self._out, sender, message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elif isinstance(message, ShutdownCommand):
            self.replica.shut_down()
            self._out.exit()
        elif isinstance(message, AddVoterRequest | RemoveVoterRequest | DescribeQuorumRequest):
            self._administer_quorum(now_ms, sender, message)
        elif isinstance(message, MetadataRequest):
            self._out.send(sender, describe_topic(self.state.image, message))
        elif isinstance(message, AdminRequest) and message.READ_ONLY:
            self._out.send(sender, answer(self.state.image, self.replica.leader, message))
        elif self.is_active:
            self._act(now_ms, sender, message)
        else:
            refuse(self._out, sender, message, ErrorCode.NOT_CONTROLLER)
        return self._finish(now_ms, sender, message)

    def _may_replicate(self, sender: NodeId, message: Message) -> bool:
        """Votes are between controllers; who fetches the log must be of the cluster."""
        is_fetch = isinstance(message, QuorumFetchRequest | FetchSnapshotRequest)
        return is_controller(sender) or (is_fetch and may_act_for_cluster(self.state.image, sender))

    def _administer_quorum(
        self, now_ms: TimeMs, sender: NodeId, request: AddVoterRequest | RemoveVoterRequest | DescribeQuorumRequest
    ) -> None:
        if not may_administer_quorum(self.state.image, request):
            refuse(self._out, sender, request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elif isinstance(request, DescribeQuorumRequest):
            self._out.send(sender, describe_quorum(self.replica, now_ms, request))
        else:
            self.replica.receive(now_ms, sender, request)

    def _quorum_gauges(self) -> Sequence[int]:
        return quorum_gauges(self.replica, self._metrics.now_ms)

    def _note_fetch(self, request: QuorumFetchRequest) -> None:
        """A broker has on its disk, and has applied, what it knows to be committed; if the log has taken its fetch."""
        shown = self.replica.fetched_end_offset(ReplicaKey(request.replica_id, request.replica_uuid))
        if request.replica_id in self.state.image.brokers and request.fetch_offset <= shown:
            self.lives.note_applied(request.replica_id, min(request.fetch_offset, request.high_watermark))

    def _act(self, now_ms: TimeMs, sender: NodeId, message: Message) -> None:
        """A message to the active controller."""
        if isinstance(message, BrokerHeartbeatRequest):
            self._heartbeat(now_ms, sender, message)
        elif isinstance(message, AlterPartitionRequest):
            self._alter_partition(sender, message)
        elif isinstance(message, BrokerRegistrationRequest):
            self._register(now_ms, sender, message)
        elif isinstance(message, AdminRequest):
            self._administer(now_ms, sender, message)
        elif isinstance(message, RecoveryResults) and is_recovery_manager(sender):
            self._elect_recovered(message)
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        self._metrics.now_ms = now_ms
        if name in RECOVERY_TIMERS:
            self._recoveries.fire(now_ms, name)
        elif name.startswith(SESSION_PREFIX):
            self._session_over(name)
        elif not self.replica.fire(now_ms, name):
            raise ProtocolInvariantError(f"controller {self.node_id} has no timer {name!r}")
        return self._finish(now_ms)

    def _finish(self, now_ms: TimeMs, sender: NodeId = NO_NODE, request: Message | None = None) -> list[Effect]:
        """What every event ends with: what it appended is durable, and what is committed is known."""
        self.replica.settle(now_ms)
        self._follow_quorum(now_ms)
        if self.is_active:
            self._recoveries.settle(now_ms)
            self._metrics.settle(self.lives.applied)
        snapshot_if_due(self.replica, self.state.image, self._snapshot_bytes)
        said = self._withheld.pass_on(
            self._out.drain(), self.state.image.next_offset, self.replica.high_watermark, sender, request
        )
        return said + self._quorum_out.drain()

    # -- active and standing by ----------------------------------------------------------------------------------------

    def _follow_quorum(self, now_ms: TimeMs) -> None:
        """Takes the part that the replica has in the quorum, and replays what is new for that part."""
        replica = self.replica
        if self.is_active:
            if replica.is_leader and replica.epoch == self._active_epoch:
                self._replay_log(replica.log.end_offset, tell=True)
                return
            self._stand_down()
        leader_state = replica.leader_state
        tell = leader_state is not None and not self._is_sole
        self._replay_log(replica.high_watermark, tell=tell)
        if leader_state is not None and replica.high_watermark > leader_state.start_offset:
            self._replay_log(replica.log.end_offset, tell=tell)
            self._take_over(now_ms)

    def _replay_log(self, end_offset: Offset, *, tell: bool = False) -> None:
        """Replays the log below `end_offset`, as far as that is not done. With `tell` observers hear of it: it is about
        the quorum, or a leader that was not active yet has committed what its predecessor may have left untold.
        """
        if self.state.image.next_offset >= end_offset:
            return
        for item in news(self.replica, self.state.image.next_offset, end_offset):
            if item.is_snapshot:
                self._load(item)
                continue
            if tell:
                tell_committed(self._out, self.state.image, item.next_offset)
            for key in self._replay(item.records, tell=tell):
                if tell:
                    tell_partition(self._out, self.state.image, key)

    def _load(self, snapshot: News) -> None:
        self._begin_anew()
        self._replay(snapshot.records, tell=False)
        self._records.clear()
        self.first_record = self.state.image.next_offset = snapshot.next_offset

    def _take_over(self, now_ms: TimeMs) -> None:
        """Is active from now on."""
        self._active_epoch = self.replica.epoch
        image = self.state.image
        if not image.is_bootstrapped:
            self._append(bootstrap_records(self.state))
            self.replica.settle(now_ms)
        self._metrics.begin(now_ms)
        for broker, registration in sorted(image.brokers.items()):
            if not registration.fenced:
                self._touch(broker, now_ms)
        self._out.trace("controller_started", None, next_offset=image.next_offset)

    def _stand_down(self) -> None:
        """Is active no more: what it has done since the last commit never was, as far as it knows."""
        self._active_epoch = NO_EPOCH
        for broker in sorted(self._sessions):
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")
        answered = self._recoveries.abandon()
        for sender, request in self._withheld.drop():
            if (sender, getattr(request, "correlation_id", None)) not in answered:
                refuse(self._out, sender, request, ErrorCode.NOT_CONTROLLER)
        self._out.trace("controller_resigned", None, next_offset=self.replica.high_watermark)
        self._begin_anew()

    def _session_over(self, name: str) -> None:
        broker = int(name.removeprefix(SESSION_PREFIX))
        self._sessions.discard(broker)
        registration = self.state.image.brokers.get(broker)
        if registration is not None and not registration.fenced:
            self._out.trace("session_expired", None, broker=broker)
            self._fence(broker, registration.broker_epoch)

    # -- the one way to change anything --------------------------------------------------------------------------------

    def _write(self, records: Sequence[MetadataRecord]) -> None:
        """Appends and replays a batch of records."""
        if not records:
            return
        tell_committed(self._out, self.state.image, self.state.image.next_offset + len(records))
        for key in self._append(records):
            tell_partition(self._out, self.state.image, key)
        for alert in self._metrics.take_alerts():
            tell_alert(self._out, self.state.image, alert)

    def _append(self, records: Sequence[MetadataRecord]) -> dict[TopicIdPartition, None]:
        """Appends records to the log, in the versions of the feature levels in force, and replays them; the partitions
        that they have changed.
        """
        image = self.state.image
        end_offset = self.replica.append(records, pack_batch(records, image.feature_levels))
        if end_offset != image.next_offset + len(records):
            raise ProtocolInvariantError(f"controller {self.node_id} at {image.next_offset} appends below {end_offset}")
        return self._replay(records, tell=True)

    def _replay(self, records: Sequence[MetadataRecord], *, tell: bool) -> dict[TopicIdPartition, None]:
        changed: dict[TopicIdPartition, None] = {}
        for record in records:
            delta = self.state.replay(record)
            self._metrics.replayed(record, delta)
            self._recoveries.replayed(delta)
            self._records.append(record)
            changed.update(delta.partitions)
            if tell:
                tell_record(self._out, self.state.image, record, delta)
            for broker in delta.brokers:
                if broker not in self.state.image.brokers:
                    self._end_session(broker)
        return changed

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _touch(self, broker: BrokerId, now_ms: TimeMs) -> None:
        """The broker has a session from now."""
        self._sessions.add(broker)
        self._out.set_timer(
            f"{SESSION_PREFIX}{broker}", now_ms + self._session_ms, idle_with=broker, renewed_by=HEARTBEAT_TIMER
        )

    def _end_session(self, broker: BrokerId) -> None:
        self.lives.forget(broker)
        if broker in self._sessions:
            self._sessions.discard(broker)
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")

    def _register(self, now_ms: TimeMs, sender: NodeId, request: BrokerRegistrationRequest) -> None:
        broker = request.broker_id
        known = self.state.image.brokers.get(broker)
        error, epoch = registration_error(self.state.image, request, broker in self._sessions), NO_EPOCH
        if error is ErrorCode.NONE and known is not None and known.incarnation_id == request.incarnation_id:
            epoch = known.broker_epoch
        elif error is ErrorCode.NONE:
            self.lives.forget(broker)
            records = brokers.register(
                self.state, broker, request.incarnation_id, request.previous_broker_epoch, request.rack
            )
            self._write(records)
            epoch = self.state.image.brokers[broker].broker_epoch
        self._out.send(
            sender,
            BrokerRegistrationResponse(
                correlation_id=request.correlation_id,
                error=error,
                incarnation_id=request.incarnation_id,
                broker_epoch=epoch,
            ),
        )

    def _heartbeat(self, now_ms: TimeMs, sender: NodeId, request: BrokerHeartbeatRequest) -> None:
        broker = request.broker_id
        error = heartbeat_error(self.state.image, request)
        if error is not ErrorCode.NONE:
            self._out.trace("refused", None, message="BrokerHeartbeatRequest", sender=sender, error=error.name)
            number, epoch = request.correlation_id, request.broker_epoch
            self._out.send(sender, BrokerHeartbeatResponse(correlation_id=number, error=error, broker_epoch=epoch))
            return
        registration = self.state.image.brokers[broker]
        target = None
        if self.lives.heartbeats.takes(broker, request.correlation_id):
            target = self._follow_heartbeat(now_ms, request, registration)
        self._out.send(
            sender,
            _ANSWER(
                correlation_id=request.correlation_id,
                broker_epoch=request.broker_epoch,
                is_caught_up=request.current_metadata_offset > registration.broker_epoch,
                is_fenced=self.state.image.brokers[broker].fenced,
                should_shut_down=target is BrokerControlState.SHUTDOWN_NOW,
            ),
        )

    def _follow_heartbeat(
        self, now_ms: TimeMs, request: BrokerHeartbeatRequest, registration: BrokerRegistration
    ) -> BrokerControlState:
        """The state to which the heartbeat moves the broker."""
        broker = request.broker_id
        self.lives.note_applied(broker, request.current_metadata_offset)
        state, target = self.lives.control_state(broker), self.lives.next_state(request)
        if target is not state:
            self._change_control_state(broker, registration.broker_epoch, target)
        if not self.state.image.brokers[broker].fenced:
            self._touch(broker, now_ms)
        return target

    def _change_control_state(self, broker: BrokerId, epoch: int, target: BrokerControlState) -> None:
        if target is BrokerControlState.UNFENCED:
            self._write(brokers.unfence(self.state, broker, epoch))
        elif target is BrokerControlState.CONTROLLED_SHUTDOWN:
            self._write(brokers.begin_controlled_shutdown(self.state, broker, epoch))
            self.lives.shutdown_offsets[broker] = self.state.image.next_offset
            self._metrics.shutdown_began(broker)
        elif not self.state.image.brokers[broker].fenced:
            if target is BrokerControlState.SHUTDOWN_NOW:
                self._metrics.shutdown_ended(broker)
            self._fence(broker, epoch)
            self._sessions.discard(broker)
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")

    def _fence(self, broker: BrokerId, epoch: Epoch) -> None:
        self.lives.shutdown_offsets.pop(broker, None)
        led = self.state.has_leaderships(broker)
        records = brokers.fence(self.state, broker, epoch)
        self._write(records)
        if led:
            self._metrics.failed_over(len(records))

    # -- partitions and administration ---------------------------------------------------------------------------------

    def _alter_partition(self, sender: NodeId, request: AlterPartitionRequest) -> None:
        if self.state.image.broker_epoch(request.broker_id) != request.broker_epoch:
            error = ErrorCode.STALE_BROKER_EPOCH
            self._out.send(sender, AlterPartitionResponse(correlation_id=request.correlation_id, error=error))
            return
        if not self.lives.proposals.takes(request.broker_id, request.correlation_id):
            refuse(self._out, sender, request, ErrorCode.INVALID_REQUEST)
            return
        self._metrics.altered(len(request.partitions))
        errors, records = alter_partition.decide(self.state, request)
        self._write(records)
        results = tuple(
            alter_partition.result(self.state.image, request.broker_id, proposal, error)
            for proposal, error in zip(request.partitions, errors, strict=True)
        )
        self._out.send(sender, AlterPartitionResponse(correlation_id=request.correlation_id, partitions=results))

    def _administer(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        planned = plan(self.state, request)
        self._write(planned.records)
        if planned.awaited is not None and isinstance(planned.response, ElectLeadersResponse):
            self._recoveries.await_elections(now_ms, sender, planned.response, planned.awaited)
        else:
            self._out.send(sender, planned.response)

    def _elect_recovered(self, message: RecoveryResults) -> None:
        records = self._recoveries.take(message)
        self._write(records)
        self._metrics.recovered(len(records))
