"""The broker node: connects the parts of a broker (`protocol/broker`) to the contract's three entry points.

Two tables do the connecting: the class of a message gives its handler, `(now_ms, sender, message)`, and the kind of a
timer, which is its name up to the first slash, gives `(now_ms, rest of the name)`. After each input the node sends what
its parts have queued: fetch responses, fetch requests, and ISR proposals.

The node is an observer of the metadata log (`protocol.quorum`): it keeps the log on its disk, replays what is committed
into the metadata image, and takes the leader of the log for the active controller. The replicas follow the image from
when it contains this broker's own registration.

A StorageError in any input stops the broker there: effects emitted so far are carried out, nothing more is written or
acknowledged, and the process ends without a clean-shutdown file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from protocol.broker.admission import consume_error, list_offsets_error, produce_error
from protocol.broker.context import BrokerContext
from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.broker.fetch_streams import FETCH_WAIT_PREFIX
from protocol.broker.fetcher import FETCH_PREFIX, Fetcher
from protocol.broker.flushing import CHECKPOINT_TIMER, FLUSH_PREFIX, RETENTION_TIMER, Flusher
from protocol.broker.isr_manager import ALTER_PARTITION_TIMER, IsrManager
from protocol.broker.isr_shrink import LAG_PREFIX, SILENT_PREFIX
from protocol.broker.leader import ISR_RETRY_TIMER, PartitionLeader
from protocol.broker.lifecycle import LifecycleEvent, LifecycleState
from protocol.broker.lifecycle_manager import HEARTBEAT_TIMER, SHUTDOWN_TIMER, BrokerLifecycleManager
from protocol.broker.log_info import replica_log_info
from protocol.broker.reads import READ_TIMER, Reads
from protocol.broker.recovery import RECOVERY_PREFIX, DataLossHook, LeaderRecovery, no_routine
from protocol.broker.replicas import ReplicaManager
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError, StorageError
from protocol.events.broker import MetadataPublished, StorageFailed
from protocol.ids import CLUSTER_ID, NO_LEADER, BrokerId, NodeId, TimeMs, is_controller
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionResponse, BrokerHeartbeatResponse, BrokerRegistrationResponse
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
from protocol.metadata.authorizer import may_act_for_cluster
from protocol.metadata.describe import metadata_response
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS, answer
from protocol.nodes.metadata_feed import LogEntries, SnapshotGenerator, log_entries
from protocol.nodes.refusals import refuse
from protocol.quorum.context import QuorumConfig
from protocol.quorum.replica import QuorumReplica

_CONTROLLER_RESPONSES = (
    BrokerRegistrationResponse,
    BrokerHeartbeatResponse,
    AlterPartitionResponse,
    QuorumFetchResponse,
    FetchSnapshotResponse,
)
"""Accepted from controllers only."""
_CLUSTER_ACTION_REQUESTS = (FetchRequest, FetchRenewal, GetReplicaLogInfoRequest, ShutdownCommand)
"""Accepted from nodes of the cluster and the experiment, and from clients with CLUSTER_ACTION (G8)."""


def _is_from_controller(image: MetadataImage, sender: NodeId) -> bool:
    return is_controller(sender)


_MAY_SEND: dict[type[Message], Callable[[MetadataImage, NodeId], bool]] = {
    **dict.fromkeys(_CONTROLLER_RESPONSES, _is_from_controller),
    **dict.fromkeys(_CLUSTER_ACTION_REQUESTS, may_act_for_cluster),
}
"""Whether a sender is authorized for messages of a class; anyone is for the others."""


class BrokerNode:
    """One broker.

    - `broker_id`, `controllers`: its node id, and the node ids of at least one controller to begin with.
    - `config`, `storage`: the cluster's config, and the disk that outlives the process.
    - `rng`: generates incarnation ids, and the jitter of the quorum's retries.
    - `rack`: the rack that it registers, if any.
    - `data_loss_hook`: the routine after an unclean election (KIP-704).
    - `checksum`: computes the CRC-32C by which batches of clients are checked; None skips the check.
    - `cluster_id`: the id that its quorum messages carry.
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
        self._checksum = checksum
        self._out = Outbox()
        quorum = QuorumConfig.of(config, controllers, cluster_id)
        self.replica = QuorumReplica(broker_id, quorum, storage, rng, self._out, can_vote=False)
        self._context = BrokerContext(
            broker_id, config, MetadataImage(config), storage, self._out, controller_id=controllers[0]
        )
        self._flusher = Flusher(self._context)
        self._lifecycle = BrokerLifecycleManager(self._context, self._flusher, rng, rack)
        self._isr = IsrManager(self._context)
        self._recovery = LeaderRecovery(self._context, self._isr, data_loss_hook)
        self._reads = Reads(self._context)
        self._leader = PartitionLeader(self._context, self._flusher, self._isr, self._recovery, self._reads)
        self._fetcher = Fetcher(self._context, self._flusher)
        self._replica_manager = ReplicaManager(self._context, self._flusher, self._leader, self._fetcher)
        self._snapshots = SnapshotGenerator(self.replica, config)
        self._handlers = self._message_table()
        self._timers = self._timer_table()

    def _message_table(self) -> dict[type[Message], Callable[[TimeMs, NodeId, Any], None]]:
        return {
            BrokerRegistrationResponse: self._receive_registration,
            BrokerHeartbeatResponse: self._lifecycle.receive_heartbeat,
            QuorumFetchResponse: self._receive_quorum,
            FetchSnapshotResponse: self._receive_quorum,
            AlterPartitionResponse: self._leader.receive_alter_partition,
            FetchRequest: self._leader.fetch,
            FetchRenewal: self._leader.renew,
            FetchResponse: self._fetcher.receive,
            ProduceRequest: self._produce,
            ConsumeRequest: self._consume,
            ListOffsetsRequest: self._list_offsets,
            MetadataRequest: self._describe,
            GetReplicaLogInfoRequest: self._send_log_info,
            ShutdownCommand: self._lifecycle.shut_down,
            **dict.fromkeys(READ_ONLY_REQUESTS, self._answer_query),
        }

    def _timer_table(self) -> dict[str, Callable[[TimeMs, str], None]]:
        return {
            HEARTBEAT_TIMER: self._lifecycle.fire_heartbeat,
            SHUTDOWN_TIMER: self._lifecycle.fire_shutdown_timeout,
            FETCH_PREFIX: self._fetcher.fire,
            FETCH_WAIT_PREFIX: self._leader.streams.fire,
            PRODUCE_TIMER: self._leader.delayed_produces.fire,
            LAG_PREFIX: self._leader.isr_shrink.fire_lag,
            SILENT_PREFIX: self._leader.isr_shrink.fire_silent,
            ISR_RETRY_TIMER: self._leader.fire_isr_retry,
            ALTER_PARTITION_TIMER: self._isr.fire,
            READ_TIMER: self._reads.fire,
            RECOVERY_PREFIX: self._recovery.fire,
            CHECKPOINT_TIMER: self._flusher.fire_checkpoint,
            FLUSH_PREFIX: self._flusher.fire_flush,
            RETENTION_TIMER: self._flusher.fire_retention,
        }

    # -- for observers -------------------------------------------------------------------------------------------------

    @property
    def context(self) -> BrokerContext:
        """Replicas and image, for hosts and checkers to read; never to change."""
        return self._context

    @property
    def state(self) -> LifecycleState:
        """Where the broker is in its lifecycle."""
        return self._lifecycle.state

    def flush_all(self) -> None:
        """Flushes every log to the disk, for an operator. StorageError where that fails."""
        self._flusher.flush_all()

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        """Opens the metadata log and registers the broker as a new incarnation."""
        try:
            self._lifecycle.read_clean_shutdown()
            self.replica.start(now_ms)
            self._snapshots.start(now_ms)
        except StorageError as error:
            return self._halt(error)
        if self.replica.leader != NO_LEADER:
            self._context.controller_id = self.replica.leader
        self._lifecycle.start(now_ms)
        return self._finish(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        """Hands a message to its handler; refuses it if the node does not serve it from this sender."""
        try:
            if self._lifecycle.state is not LifecycleState.STOPPED:
                kind = type(message)
                handler, may_send = self._handlers.get(kind), _MAY_SEND.get(kind)
                if handler is not None and (may_send is None or may_send(self._context.image, sender)):
                    handler(now_ms, sender, message)
                else:
                    refuse(self._out, sender, message, self._refusal_of(kind))
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _refusal_of(self, kind: type[Message]) -> ErrorCode:
        """The error for messages of a class that are not handled; the controller serves administrative changes."""
        if kind in self._handlers:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.NOT_CONTROLLER if issubclass(kind, AdminRequest) else ErrorCode.UNSUPPORTED_VERSION

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        """Hands a timer to its handler. ProtocolInvariantError if there is no such timer."""
        try:
            kind, slash, argument = name.partition("/")
            handler = self._timers.get(kind + slash)
            if handler is not None:
                handler(now_ms, argument)
            elif self._lifecycle.state is not LifecycleState.STOPPED:
                if not self.replica.fire(now_ms, name):
                    raise ProtocolInvariantError(f"broker {self.node_id} has no timer {name!r}")
                self._follow_quorum(now_ms)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        """Sends what the parts have queued during one input."""
        context = self._context
        if context.has_queued and self._lifecycle.state is not LifecycleState.STOPPED:
            context.has_queued = False
            self._leader.streams.flush(now_ms)
            self._fetcher.send_changed_fetches(now_ms)
            self._isr.send_queued(now_ms)
        return self._out.drain()

    def _halt(self, failure: StorageError) -> list[Effect]:
        """The disk has failed: stops the broker."""
        self._out.trace(StorageFailed(None, str(failure), halted=True))
        self._lifecycle.move(LifecycleEvent.DISK_FAILED)
        self._out.exit()
        return self._out.drain()

    # -- metadata ------------------------------------------------------------------------------------------------------

    def _receive_registration(self, now_ms: TimeMs, sender: NodeId, response: BrokerRegistrationResponse) -> None:
        if self._lifecycle.accept_registration(sender, response):
            self._fetcher.broker_epoch_changed()
            self._publish(now_ms)
            self._lifecycle.fire_heartbeat(now_ms)

    def _receive_quorum(self, now_ms: TimeMs, sender: NodeId, response: QuorumResponse) -> None:
        self.replica.receive(now_ms, sender, response)
        self._follow_quorum(now_ms)

    def _follow_quorum(self, now_ms: TimeMs) -> None:
        """After an input of the metadata log's replica: follows a new controller, replays what has been committed."""
        replica, context = self.replica, self._context
        replica.settle(now_ms)
        if replica.leader not in (NO_LEADER, context.controller_id):
            context.controller_id = replica.leader
            self._lifecycle.fire_heartbeat(now_ms)
            self._isr.fire(now_ms)
        if context.image.next_offset < replica.high_watermark:
            for item in log_entries(replica, context.image.next_offset, replica.high_watermark):
                self._replay(item)
            self._snapshots.take_if_due(now_ms, context.image)
            self._publish(now_ms)

    def _replay(self, item: LogEntries) -> None:
        image = self._context.image
        if item.is_snapshot:
            image.load(item.records, item.next_offset)
        else:
            for record in item.records:
                image.replay(record)

    def _publish(self, now_ms: TimeMs) -> None:
        """Applies the image to the replicas, once it is complete and contains this broker's registration, so that they
        never take roles of a former incarnation (Kafka's `BrokerMetadataPublisher`).
        """
        image, lifecycle = self._context.image, self._lifecycle
        if not self.replica.is_caught_up or not 0 <= self._context.broker_epoch < image.next_offset:
            return
        if not lifecycle.has_published:
            lifecycle.has_published = True
            self._replica_manager.remove_stale_logs()
        self._replica_manager.apply(image.take_delta(), now_ms)
        self._out.trace(MetadataPublished(self.node_id, image.next_offset))
        unregistered = image.broker_epoch(self.node_id) != self._context.broker_epoch
        state = lifecycle.state
        if state is LifecycleState.CATCHING_UP or (state is LifecycleState.RUNNING and unregistered):
            lifecycle.fire_heartbeat(now_ms)

    # -- requests of clients -------------------------------------------------------------------------------------------

    def _describe(self, now_ms: TimeMs, sender: NodeId, request: MetadataRequest) -> None:
        self._out.send(sender, metadata_response(self._context.image, request))

    def _answer_query(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        self._out.send(sender, answer(self._context.image, self._context.controller_id, request))

    def _send_log_info(self, now_ms: TimeMs, sender: NodeId, request: GetReplicaLogInfoRequest) -> None:
        self._out.send(sender, replica_log_info(self._context, request))

    def _produce(self, now_ms: TimeMs, sender: NodeId, request: ProduceRequest) -> None:
        error = produce_error(self._context.image, request, self._checksum, now_ms)
        if error is ErrorCode.NONE:
            self._leader.produce(now_ms, sender, request)
        elif request.acks != 0:
            self._out.send(sender, ProduceResponse(correlation_id=request.correlation_id, error=error))

    def _consume(self, now_ms: TimeMs, sender: NodeId, request: ConsumeRequest) -> None:
        error = consume_error(self._context.image, request)
        if error is ErrorCode.NONE:
            self._reads.consume(now_ms, sender, request)
        else:
            self._out.send(sender, ConsumeResponse(correlation_id=request.correlation_id, error=error))

    def _list_offsets(self, now_ms: TimeMs, sender: NodeId, request: ListOffsetsRequest) -> None:
        error = list_offsets_error(self._context.image, request)
        if error is ErrorCode.NONE:
            self._reads.list_offsets(sender, request)
        else:
            self._out.send(sender, ListOffsetsResponse(correlation_id=request.correlation_id, error=error))
