"""The broker node: connects the parts of a broker (`protocol/broker`) to the contract's three entry points.

Two tables do the connecting: the class of a message gives its handler, `(now_ms, sender, message)`, and the kind of a
timer, which is its name up to the first slash, gives `(now_ms, rest of the name)`. After each input the node sends what
its parts have queued: fetch responses, fetch requests, and ISR proposals.

The node is an observer of the metadata log (`protocol.quorum`): it keeps the log on its disk and follows it
(`broker_metadata.py`). All handlers are methods of its parts, none of which knows the node: a node that its host drops
is freed at once, with everything that it held.

A StorageError in any input stops the broker there: effects emitted so far are carried out, nothing more is written or
acknowledged, and the process ends without a clean-shutdown file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar, Final

from protocol.broker.context import BrokerContext
from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.broker.fetch_streams import FETCH_WAIT_PREFIX, FetchStreams
from protocol.broker.fetcher import FETCH_PREFIX, Fetcher
from protocol.broker.flushing import CHECKPOINT_TIMER, FLUSH_PREFIX, RETENTION_TIMER, Flusher
from protocol.broker.isr_manager import ALTER_PARTITION_TIMER, IsrManager
from protocol.broker.isr_shrink import LAG_PREFIX, SILENT_PREFIX
from protocol.broker.leader import ISR_RETRY_TIMER, PartitionLeader
from protocol.broker.lifecycle import LifecycleEvent, LifecycleState
from protocol.broker.lifecycle_manager import HEARTBEAT_TIMER, SHUTDOWN_TIMER, BrokerLifecycleManager
from protocol.broker.reads import READ_TIMER, Reads
from protocol.broker.recovery import RECOVERY_PREFIX, DataLossHook, LeaderRecovery, no_routine
from protocol.broker.replicas import ReplicaManager
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError, StorageError
from protocol.events.broker import StorageFailed
from protocol.ids import CLUSTER_ID, NO_LEADER, BrokerId, NodeId, TimeMs, is_controller
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionResponse, BrokerHeartbeatResponse, BrokerRegistrationResponse
from protocol.messages.data import (
    ConsumeRequest,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ProduceRequest,
)
from protocol.messages.quorum import FetchSnapshotResponse, QuorumFetchResponse
from protocol.messages.recovery import GetReplicaLogInfoRequest
from protocol.metadata.authorizer import may_act_for_cluster
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS
from protocol.nodes.broker_metadata import BrokerMetadata
from protocol.nodes.broker_services import BrokerServices
from protocol.nodes.metadata_feed import SnapshotGenerator
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
_STOPPED: Final = LifecycleState.STOPPED
"""Every input reads it; Python 3.11 finds a global name in a tenth of the time of a member of an enumeration."""


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

    # Tables of the parts' methods, parts that only refer to others, and the metadata log, which the image shows.
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_handlers", "_timers", "_metadata", "_services", "replica"})

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
        self._metadata = BrokerMetadata(
            self._context,
            self.replica,
            self._snapshots,
            self._lifecycle,
            self._isr,
            self._fetcher,
            self._replica_manager,
        )
        self._services = BrokerServices(self._context, self._leader, self._reads, checksum)
        self._handlers = self._message_table()
        self._timers = self._timer_table()

    def _message_table(self) -> dict[type[Message], Callable[[TimeMs, NodeId, Any], None]]:
        return {
            BrokerRegistrationResponse: self._metadata.receive_registration,
            BrokerHeartbeatResponse: self._lifecycle.receive_heartbeat,
            QuorumFetchResponse: self._metadata.receive_quorum,
            FetchSnapshotResponse: self._metadata.receive_quorum,
            AlterPartitionResponse: self._leader.receive_alter_partition,
            FetchRequest: self._leader.fetch,
            FetchRenewal: self._leader.renew,
            FetchResponse: self._fetcher.receive,
            ProduceRequest: self._services.produce,
            ConsumeRequest: self._services.consume,
            ListOffsetsRequest: self._services.list_offsets,
            MetadataRequest: self._services.describe,
            GetReplicaLogInfoRequest: self._services.send_log_info,
            ShutdownCommand: self._lifecycle.shut_down,
            **dict.fromkeys(READ_ONLY_REQUESTS, self._services.answer_query),
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

    @property
    def streams(self) -> FetchStreams:
        """The fetch sessions that this broker serves, for observers."""
        return self._leader.streams

    @property
    def fetcher(self) -> Fetcher:
        """The fetch sessions of this broker as a follower, for observers."""
        return self._fetcher

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
            if self._lifecycle.state is not _STOPPED:
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
            elif self._lifecycle.state is not _STOPPED:
                if not self.replica.fire(now_ms, name):
                    raise ProtocolInvariantError(f"broker {self.node_id} has no timer {name!r}")
                self._metadata.follow_quorum(now_ms)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        """Sends what the parts have queued during one input."""
        context = self._context
        if context.has_queued and self._lifecycle.state is not _STOPPED:
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
