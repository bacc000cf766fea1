"""The broker node: lifecycle with the controller, metadata fetch, and the replicas, behind the contract's three entry
points.

`lifecycle.py` says which states a broker passes through; this module sends what each state calls for. Registration is
tried until the controller accepts it (a former incarnation may still have its session). From then on heartbeats go
out every `broker.heartbeat.interval.ms`; the replicas see the first
image when it includes this broker's own registration.

The broker is an observer of the metadata log (`protocol.quorum`): it keeps it on its disk, replays what is committed,
and finds the active controller by it, which is the leader of the log. Whatever waits for a controller that is it no
more goes to the next one at once.

Where the disk fails (StorageError, out of whatever an input came to) the broker stops there: what it has said until
then leaves, nothing more is written or acknowledged, and the process ends without a clean-shutdown file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from protocol.broker.admission import consume_error, list_offsets_error, produce_error
from protocol.broker.context import BrokerContext
from protocol.broker.fetch_streams import FETCH_WAIT_PREFIX
from protocol.broker.fetcher import FETCH_PREFIX, Fetcher
from protocol.broker.flushing import CHECKPOINT_TIMER, FLUSH_PREFIX, RETENTION_TIMER, Flusher
from protocol.broker.isr_manager import ALTER_PARTITION_TIMER, IsrManager
from protocol.broker.leader import ISR_RETRY_TIMER, LAG_PREFIX, PRODUCE_TIMER, SILENT_PREFIX, LeaderSide
from protocol.broker.lifecycle import (
    CONTROLLED_SHUTDOWN_TIMEOUT_MS,
    SHUTDOWN_HEARTBEAT_MS,
    LifecycleEvent,
    LifecycleState,
    next_state,
    take_clean_shutdown_epoch,
    write_clean_shutdown_epoch,
)
from protocol.broker.log_info import replica_log_info
from protocol.broker.reads import READ_TIMER, Reads
from protocol.broker.recovery import RECOVERY_PREFIX, DataLossHook, LeaderRecovery, no_routine
from protocol.broker.replicas import ReplicaManager
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, METADATA_SNAPSHOT_BYTES, ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError, StorageError
from protocol.ids import CLUSTER_ID, NO_EPOCH, NO_LEADER, BrokerId, NodeId, TimeMs, is_controller
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.quorum import FetchSnapshotResponse, QuorumFetchResponse, QuorumResponse
from protocol.messages.recovery import GetReplicaLogInfoRequest
from protocol.messages.trusted import trusted
from protocol.metadata.authorizer import may_act_for_cluster
from protocol.metadata.describe import metadata_response
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS, answer
from protocol.nodes.metadata_feed import LogEntries, log_entries, snapshot_if_due
from protocol.nodes.refusals import refuse
from protocol.quorum.context import QuorumConfig
from protocol.quorum.replica import QuorumReplica

_HEARTBEAT: Final = trusted(BrokerHeartbeatRequest)
HEARTBEAT_TIMER = "heartbeat"
SHUTDOWN_TIMER = "shutdown-timeout"
_FROM_CONTROLLERS = frozenset(
    {
        BrokerRegistrationResponse,
        BrokerHeartbeatResponse,
        AlterPartitionResponse,
        QuorumFetchResponse,
        FetchSnapshotResponse,
    }
)
_OF_THE_CLUSTER = frozenset({FetchRequest, FetchRenewal, GetReplicaLogInfoRequest, ShutdownCommand})
"""What only the cluster's own nodes have reason to send, and the experiment (G8)."""


class BrokerNode:
    """One broker; see the module docstring. `rng` names its incarnations; `data_loss_hook` is what it runs for a
    partition that it leads after an unclean election; `checksum` is the function by which it judges batches of clients.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        controllers: Sequence[NodeId],
        config: ClusterConfig,
        storage: Storage,
        rng: Random,
        rack: str | None = None,
        data_loss_hook: DataLossHook = no_routine,
        checksum: Checksum | None = None,
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        self.node_id = broker_id
        self.config = config
        self.storage = storage
        self.state = LifecycleState.NOT_RUNNING
        self._rng = rng
        self._rack = rack
        self._checksum = checksum
        self._out = Outbox()
        quorum = QuorumConfig.of(config, controllers, cluster_id)
        self.replica = QuorumReplica(broker_id, quorum, storage, rng, self._out, can_vote=False)
        self._context = BrokerContext(
            broker_id, config, MetadataImage(config), storage, self._out, controller_id=controllers[0]
        )
        self._flusher = Flusher(self._context)
        self._isr = IsrManager(self._context)
        self._recovery = LeaderRecovery(self._context, self._isr, data_loss_hook)
        self._reads = Reads(self._context)
        self._leader = LeaderSide(self._context, self._flusher, self._isr, self._recovery, self._reads)
        self._fetcher = Fetcher(self._context, self._flusher)
        self._replica_manager = ReplicaManager(self._context, self._flusher, self._leader, self._fetcher)
        self._heartbeat_ms = config.int_value(BROKER_HEARTBEAT_INTERVAL_MS)
        self._snapshot_bytes = config.int_value(METADATA_SNAPSHOT_BYTES)
        self._incarnation_id = ""
        self._previous_epoch = NO_EPOCH
        self._correlation_id = 0
        self._published = False
        self._shutdown_begun = False
        self._handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], None]] = {
            BrokerRegistrationResponse: self._registered,
            BrokerHeartbeatResponse: self._heartbeat_answered,
            QuorumFetchResponse: self._quorum_answered,
            FetchSnapshotResponse: self._quorum_answered,
            AlterPartitionResponse: self._alter_partition_answered,
            FetchRequest: self._fetch,
            FetchRenewal: self._fetch_renewed,
            FetchResponse: self._fetched,
            ProduceRequest: self._produce,
            ConsumeRequest: self._consume,
            ListOffsetsRequest: self._list_offsets,
            MetadataRequest: self._describe,
            GetReplicaLogInfoRequest: self._tell_log_ends,
            ShutdownCommand: self._shut_down,
            **dict.fromkeys(READ_ONLY_REQUESTS, self._answer),
        }

    # -- what observers may ask ----------------------------------------------------------------------------------------

    @property
    def context(self) -> BrokerContext:
        """Replicas and image, for hosts and checkers to read; never to change."""
        return self._context

    def flush_all(self) -> None:
        """Flushes every log to the disk, for an operator. StorageError where that fails."""
        self._flusher.flush_all()

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        try:
            self._previous_epoch = take_clean_shutdown_epoch(self.storage)
            self.replica.start(now_ms)
        except StorageError as error:
            return self._halt(error)
        if self.replica.leader != NO_LEADER:
            self._context.controller_id = self.replica.leader
        self._incarnation_id = f"{self._rng.getrandbits(128):032x}"
        self._move(LifecycleEvent.STARTED)
        self._register(now_ms)
        return self._finish(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        try:
            if self.state is not LifecycleState.STOPPED:
                error = self._why_not(sender, type(message))
                if error is ErrorCode.NONE:
                    self._handlers[type(message)](now_ms, sender, message)
                else:
                    refuse(self._out, sender, message, error)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _why_not(self, sender: NodeId, kind: type[Message]) -> ErrorCode:
        """NONE, or why nothing of this kind is taken from the sender. Administration that changes something is the
        controller's to do.
        """
        if kind not in self._handlers:
            return ErrorCode.NOT_CONTROLLER if issubclass(kind, AdminRequest) else ErrorCode.UNSUPPORTED_VERSION
        allowed = True
        if kind in _FROM_CONTROLLERS:
            allowed = is_controller(sender)
        elif kind in _OF_THE_CLUSTER:
            allowed = may_act_for_cluster(self._context.image, sender)
        return ErrorCode.NONE if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        try:
            self._fire(now_ms, name)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _fire(self, now_ms: TimeMs, name: str) -> None:
        if name == HEARTBEAT_TIMER:
            self._beat(now_ms)
        elif name.startswith(FETCH_PREFIX):
            self._fetcher.fire(name, now_ms)
        elif name.startswith(FETCH_WAIT_PREFIX):
            self._leader.fire_fetch_wait(name, now_ms)
        elif name == ALTER_PARTITION_TIMER:
            self._isr.fire(now_ms)
        elif name == CHECKPOINT_TIMER:
            self._flusher.write_checkpoint()
        elif name.startswith(FLUSH_PREFIX):
            self._flusher.fire_flush(name)
        elif name == RETENTION_TIMER:
            self._flusher.fire_retention(now_ms)
        elif name.startswith(LAG_PREFIX):
            self._leader.fire_lag(name, now_ms)
        elif name.startswith(SILENT_PREFIX):
            self._leader.fire_silent(name, now_ms)
        elif name == PRODUCE_TIMER:
            self._leader.fire_produce_timeout(now_ms)
        elif name == READ_TIMER:
            self._reads.fire(now_ms)
        elif name == ISR_RETRY_TIMER:
            self._leader.fire_isr_retry()
        elif name.startswith(RECOVERY_PREFIX):
            self._recovery.fire(name)
        elif name == SHUTDOWN_TIMER:
            self._release()
        elif self.state is LifecycleState.STOPPED:
            return
        elif self.replica.fire(now_ms, name):
            self._follow_quorum(now_ms)
        else:
            raise ProtocolInvariantError(f"broker {self.node_id} has no timer {name!r}")

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        if self.state is not LifecycleState.STOPPED:
            self._leader.flush_answers(now_ms)
            self._fetcher.send_changed_fetches(now_ms)
            self._isr.send_queued(now_ms)
        return self._out.drain()

    def _halt(self, failure: StorageError) -> list[Effect]:
        """The disk has failed: the broker ends here."""
        self._out.trace("storage_error", None, reason=str(failure), halted=True)
        self._move(LifecycleEvent.DISK_FAILED)
        self._out.exit()
        return self._out.drain()

    def _move(self, event: LifecycleEvent) -> None:
        state = next_state(self.state, event)
        if state is not self.state:
            self.state = state
            self._out.trace("broker_state", None, broker=self.node_id, state=state.value)

    def _next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    # -- registration and heartbeats -----------------------------------------------------------------------------------

    def _register(self, now_ms: TimeMs) -> None:
        self._out.send(
            self._context.controller_id,
            BrokerRegistrationRequest(
                correlation_id=self._next_correlation_id(),
                broker_id=self.node_id,
                incarnation_id=self._incarnation_id,
                previous_broker_epoch=self._previous_epoch,
                rack=self._rack,
            ),
        )
        self._out.set_timer(HEARTBEAT_TIMER, now_ms + max(1, self._heartbeat_ms // 4))

    def _registered(self, now_ms: TimeMs, sender: NodeId, response: BrokerRegistrationResponse) -> None:
        is_accepted = response.error is ErrorCode.NONE and self._is_to_this_incarnation(response)
        if self.state is not LifecycleState.REGISTERING or not is_accepted:
            return
        self._context.broker_epoch = response.broker_epoch
        self._context.controller_id = sender
        self._move(LifecycleEvent.REGISTERED)
        self._fetcher.broker_epoch_changed()
        self._publish(now_ms)
        self._beat(now_ms)

    def _is_to_this_incarnation(self, response: BrokerRegistrationResponse) -> bool:
        """Or to a former one, whose epoch would vouch for a log that may be gone."""
        return response.incarnation_id == self._incarnation_id

    def _beat(self, now_ms: TimeMs) -> None:
        """The heartbeat timer is due, or something changed that the controller should know at once."""
        if self.state is LifecycleState.REGISTERING:
            self._register(now_ms)
            return
        if self.state in (LifecycleState.NOT_RUNNING, LifecycleState.STOPPED):
            return
        self._out.send(
            self._context.controller_id,
            _HEARTBEAT(
                correlation_id=self._next_correlation_id(),
                broker_id=self.node_id,
                broker_epoch=self._context.broker_epoch,
                current_metadata_offset=self._context.image.next_offset,
                want_fence=not self._published,
                want_shut_down=self.state is LifecycleState.SHUTTING_DOWN,
            ),
        )
        self._set_heartbeat_timer(now_ms)

    def _set_heartbeat_timer(self, now_ms: TimeMs, *, is_known: bool = True) -> None:
        """With `is_known` the controller knows of this broker's session as soon as it has the last heartbeat."""
        is_idle = is_known and self.state is LifecycleState.RUNNING
        idle_with = self._context.controller_id if is_idle else None
        self._out.set_timer(HEARTBEAT_TIMER, now_ms + self._heartbeat_ms, idle_with=idle_with)

    def _heartbeat_answered(self, now_ms: TimeMs, sender: NodeId, response: BrokerHeartbeatResponse) -> None:
        is_mine = response.broker_epoch in (NO_EPOCH, self._context.broker_epoch)
        if self.state is LifecycleState.REGISTERING or not is_mine:
            return
        if response.error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self._lose_epoch(now_ms)
        elif response.error is ErrorCode.NONE:
            if self.state is LifecycleState.SHUTTING_DOWN:
                self._shutdown_answered(now_ms, response)
                return
            before = self.state
            self._move(LifecycleEvent.FENCED if response.is_fenced else LifecycleEvent.UNFENCED)
            if self.state is not before and self.state is LifecycleState.CATCHING_UP:
                # The other way round the answer may be stale: only the next heartbeat shows whether all is idle.
                self._set_heartbeat_timer(now_ms)
        elif sender == self._context.controller_id:
            self._set_heartbeat_timer(now_ms, is_known=False)

    def _shutdown_answered(self, now_ms: TimeMs, response: BrokerHeartbeatResponse) -> None:
        """The broker may go, or the controller has begun to move its leaderships, which is done in a moment."""
        if response.should_shut_down:
            self._release()
        elif not self._shutdown_begun:
            self._shutdown_begun = True
            self._out.set_timer(HEARTBEAT_TIMER, now_ms + min(SHUTDOWN_HEARTBEAT_MS, self._heartbeat_ms))

    def _lose_epoch(self, now_ms: TimeMs) -> None:
        """The controller does not know this epoch (any more): register again, without a claim to a clean past."""
        self._move(LifecycleEvent.EPOCH_LOST)
        if self.state is LifecycleState.REGISTERING:
            self._previous_epoch = NO_EPOCH
            self._incarnation_id = f"{self._rng.getrandbits(128):032x}"
            self._register(now_ms)
        else:
            self._out.cancel_timer(SHUTDOWN_TIMER)
            self._out.exit()

    def _shut_down(self, now_ms: TimeMs, sender: NodeId, command: ShutdownCommand) -> None:
        if self.state is LifecycleState.SHUTTING_DOWN:
            return
        self._move(LifecycleEvent.SHUTDOWN_REQUESTED)
        if self.state is LifecycleState.STOPPED:
            self._out.exit()
            return
        self._out.set_timer(SHUTDOWN_TIMER, now_ms + CONTROLLED_SHUTDOWN_TIMEOUT_MS)
        self._beat(now_ms)

    def _release(self) -> None:
        """The controller lets the broker go: flush everything, vouch for it, leave (E22)."""
        self._flusher.flush_all()
        self._flusher.save_producers()
        write_clean_shutdown_epoch(self.storage, self._context.broker_epoch)
        self._move(LifecycleEvent.RELEASED)
        self._out.exit()

    # -- metadata ------------------------------------------------------------------------------------------------------

    def _quorum_answered(self, now_ms: TimeMs, sender: NodeId, response: QuorumResponse) -> None:
        self.replica.receive(now_ms, sender, response)
        self._follow_quorum(now_ms)

    def _follow_quorum(self, now_ms: TimeMs) -> None:
        """The replica of the metadata log has taken an input: there may be a new controller, or news in the log."""
        replica, context = self.replica, self._context
        replica.settle(now_ms)
        if replica.leader not in (NO_LEADER, context.controller_id):
            context.controller_id = replica.leader
            self._beat(now_ms)
            self._isr.controller_changed(now_ms)
        if context.image.next_offset < replica.high_watermark:
            for item in log_entries(replica, context.image.next_offset, replica.high_watermark):
                self._replay(item)
            snapshot_if_due(replica, context.image, self._snapshot_bytes)
            self._publish(now_ms)

    def _replay(self, item: LogEntries) -> None:
        image = self._context.image
        if item.is_snapshot:
            image.load(item.records, item.next_offset)
        else:
            for record in item.records:
                image.replay(record)

    def _publish(self, now_ms: TimeMs) -> None:
        """The replicas follow the image, when it is complete, and from when it includes this broker's own registration:
        they are to take the role that stands now.
        """
        image = self._context.image
        if not self.replica.is_caught_up or not 0 <= self._context.broker_epoch < image.next_offset:
            return
        first = not self._published
        if first:
            self._published = True
            self._replica_manager.remove_stale_logs()
        self._replica_manager.apply(image.take_delta(), now_ms)
        self._out.trace("metadata_published", None, broker=self.node_id, next_offset=image.next_offset)
        unregistered = image.broker_epoch(self.node_id) != self._context.broker_epoch
        if self.state is LifecycleState.CATCHING_UP or (self.state is LifecycleState.RUNNING and unregistered):
            self._beat(now_ms)

    def _describe(self, now_ms: TimeMs, sender: NodeId, request: MetadataRequest) -> None:
        self._out.send(sender, metadata_response(self._context.image, request))

    def _answer(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        self._out.send(sender, answer(self._context.image, self._context.controller_id, request))

    def _tell_log_ends(self, now_ms: TimeMs, sender: NodeId, request: GetReplicaLogInfoRequest) -> None:
        self._out.send(sender, replica_log_info(self._context, request))

    # -- data ----------------------------------------------------------------------------------------------------------

    def _produce(self, now_ms: TimeMs, sender: NodeId, request: ProduceRequest) -> None:
        error = produce_error(self._context.image, request, self._checksum, now_ms)
        if error is ErrorCode.NONE:
            self._leader.produce(sender, request, now_ms)
        elif request.acks != 0:
            self._out.send(sender, ProduceResponse(correlation_id=request.correlation_id, error=error))

    def _consume(self, now_ms: TimeMs, sender: NodeId, request: ConsumeRequest) -> None:
        error = consume_error(self._context.image, request)
        if error is ErrorCode.NONE:
            self._reads.consume(sender, request, now_ms)
        else:
            self._out.send(sender, ConsumeResponse(correlation_id=request.correlation_id, error=error))

    def _list_offsets(self, now_ms: TimeMs, sender: NodeId, request: ListOffsetsRequest) -> None:
        error = list_offsets_error(self._context.image, request)
        if error is ErrorCode.NONE:
            self._reads.list_offsets(sender, request)
        else:
            self._out.send(sender, ListOffsetsResponse(correlation_id=request.correlation_id, error=error))

    def _fetch(self, now_ms: TimeMs, sender: NodeId, request: FetchRequest) -> None:
        self._leader.fetch(sender, request, now_ms)

    def _fetch_renewed(self, now_ms: TimeMs, sender: NodeId, renewal: FetchRenewal) -> None:
        self._leader.renewed(sender, renewal, now_ms)

    def _fetched(self, now_ms: TimeMs, sender: NodeId, response: FetchResponse) -> None:
        self._fetcher.receive(sender, response, now_ms)

    def _alter_partition_answered(self, now_ms: TimeMs, sender: NodeId, response: AlterPartitionResponse) -> None:
        self._leader.alter_partition_answered(response, now_ms)
