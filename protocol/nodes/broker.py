"""The broker node: connects the parts of a broker (`protocol/broker`) to the contract's three entry points.

Two tables do the connecting: the class of a message gives its handler, `(now_ms, sender, message)`, and the kind of a
timer, which is its name up to the first slash, gives `(now_ms, rest of the name)`.

The node is an observer of the metadata log (`protocol.quorum`), which it keeps on its disk. It replays what the quorum
has committed into its metadata image, takes snapshots of the image, and takes the leader of the log for the active
controller. The replicas follow the image from when it contains the broker's own registration, so that they never take
roles of a former incarnation (Kafka's `BrokerMetadataPublisher`).

All handlers are methods of the node's parts, none of which knows the node: a node that its host drops is freed at once,
with everything that it held.

A StorageError in any input stops the broker there: effects emitted so far are carried out, nothing more is written or
acknowledged, and the process ends without a clean-shutdown file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from protocol.broker.context import BrokerContext
from protocol.broker.fetcher import Fetcher
from protocol.broker.isr_manager import IsrManager
from protocol.broker.lifecycle import (
    HEARTBEAT_TIMER,
    SHUTDOWN_TIMER,
    BrokerLifecycleManager,
    LifecycleEvent,
    LifecycleState,
)
from protocol.broker.recovery import DataLossHook, no_routine
from protocol.broker.replicas import ReplicaManager
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError, StorageError
from protocol.events.broker import MetadataPublished, StorageFailed
from protocol.ids import CLUSTER_ID, NO_LEADER, BrokerId, NodeId, TimeMs, is_controller
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionResponse, BrokerHeartbeatResponse, BrokerRegistrationResponse
from protocol.messages.data import FetchRenewal, FetchRequest
from protocol.messages.quorum import FetchSnapshotResponse, QuorumFetchResponse, QuorumResponse
from protocol.messages.recovery import GetReplicaLogInfoRequest
from protocol.metadata.authorizer import may_act_for_cluster
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS
from protocol.nodes.base_broker import STOPPED, BaseBroker
from protocol.nodes.metadata_feed import SnapshotGenerator, log_entries
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
_MAY_SEND: dict[type[Message], Callable[[MetadataImage, NodeId], bool]] = {
    **dict.fromkeys(_CONTROLLER_RESPONSES, lambda image, sender: is_controller(sender)),
    **dict.fromkeys(_CLUSTER_ACTION_REQUESTS, may_act_for_cluster),
}
"""Whether a sender is authorized for messages of a class; anyone is for the others."""


_CATCHING_UP: Final = LifecycleState.CATCHING_UP
_RUNNING: Final = LifecycleState.RUNNING


@dataclass(eq=False)
class BrokerMetadata:
    """Brings the parts of one broker to the state of its replica of the metadata log."""

    _context: BrokerContext
    _replica: QuorumReplica
    _snapshots: SnapshotGenerator
    _lifecycle: BrokerLifecycleManager
    _isr: IsrManager
    _fetcher: Fetcher
    _replica_manager: ReplicaManager

    def receive_registration(self, now_ms: TimeMs, sender: NodeId, response: BrokerRegistrationResponse) -> None:
        if self._lifecycle.accept_registration(sender, response):
            self._fetcher.broker_epoch_changed()
            self._publish(now_ms)
            self._lifecycle.fire_heartbeat(now_ms)

    def receive_quorum(self, now_ms: TimeMs, sender: NodeId, response: QuorumResponse) -> None:
        self._replica.receive(now_ms, sender, response)
        self.follow_quorum(now_ms)

    def follow_quorum(self, now_ms: TimeMs) -> None:
        """After an input of the metadata log's replica: follows a new controller, replays what has been committed."""
        replica, context = self._replica, self._context
        replica.settle(now_ms)
        if replica.leader not in (NO_LEADER, context.controller_id):
            context.controller_id = replica.leader
            self._lifecycle.fire_heartbeat(now_ms)
            self._isr.fire(now_ms)
        if context.image.next_offset < replica.high_watermark:
            for item in log_entries(replica, context.image.next_offset, replica.high_watermark):
                if item.is_snapshot:
                    context.image.load(item.records, item.next_offset)
                else:
                    for record in item.records:
                        context.image.replay(record)
            self._snapshots.take_if_due(now_ms, context.image)
            self._publish(now_ms)

    def _publish(self, now_ms: TimeMs) -> None:
        """Applies the image to the replicas, once it is complete and contains this broker's registration."""
        context, lifecycle = self._context, self._lifecycle
        image = context.image
        if not self._replica.is_caught_up or not 0 <= context.broker_epoch < image.next_offset:
            return
        if not lifecycle.has_published:
            lifecycle.has_published = True
            self._replica_manager.remove_stale_logs()
        self._replica_manager.apply(image.take_delta(), now_ms)
        context.out.trace(MetadataPublished(context.me, image.next_offset))
        unregistered = image.broker_epoch(context.me) != context.broker_epoch
        state = lifecycle.state
        if state is _CATCHING_UP or (state is _RUNNING and unregistered):
            lifecycle.fire_heartbeat(now_ms)


class BrokerNode(BaseBroker):
    """One broker.

    - `broker_id`, `controllers`: its node id, and the node ids of at least one controller to begin with.
    - `config`, `storage`: the cluster's config, and the disk that outlives the process.
    - `rng`: generates incarnation ids, and the jitter of the quorum's retries.
    - `rack`: the rack that it registers, if any.
    - `data_loss_hook`, `checksum`: as in `BaseBroker`.
    - `cluster_id`: the id that its quorum messages carry.
    - `endpoint`: the `HOST:PORT` of its listener for Kafka's clients, which it registers; None without one.
    """

    # A part that only refers to others, and the metadata log, which the image shows.
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_metadata", "replica"})

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
        endpoint: str | None = None,
    ) -> None:
        out = Outbox()
        context = BrokerContext(broker_id, config, MetadataImage(config), storage, out, controller_id=controllers[0])
        super().__init__(context, IsrManager(context), data_loss_hook, checksum)
        quorum = QuorumConfig.of(config, controllers, cluster_id)
        self.replica = QuorumReplica(broker_id, quorum, storage, rng, out, can_vote=False)
        self._lifecycle = BrokerLifecycleManager(context, self._flusher, rng, rack, endpoint)
        self._snapshots = SnapshotGenerator(self.replica, config)
        self._metadata = BrokerMetadata(
            context, self.replica, self._snapshots, self._lifecycle, self._isr, self._fetcher, self._replica_manager
        )
        self._handlers |= {
            BrokerRegistrationResponse: self._metadata.receive_registration,
            BrokerHeartbeatResponse: self._lifecycle.receive_heartbeat,
            QuorumFetchResponse: self._metadata.receive_quorum,
            FetchSnapshotResponse: self._metadata.receive_quorum,
            GetReplicaLogInfoRequest: self._services.send_log_info,
            ShutdownCommand: self._lifecycle.shut_down,
            **dict.fromkeys(READ_ONLY_REQUESTS, self._services.answer_query),
        }
        self._timers[HEARTBEAT_TIMER] = self._lifecycle.fire_heartbeat
        self._timers[SHUTDOWN_TIMER] = self._lifecycle.fire_shutdown_timeout

    @property
    def state(self) -> LifecycleState:
        return self._lifecycle.state

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
        try:
            if self._lifecycle.state is not STOPPED:
                kind = type(message)
                handler, may_send = self._handlers.get(kind), _MAY_SEND.get(kind)
                if handler is not None and (may_send is None or may_send(self._context.image, sender)):
                    handler(now_ms, sender, message)
                else:
                    is_change = isinstance(message, AdminRequest)  # the controller serves it
                    unknown = ErrorCode.NOT_CONTROLLER if is_change else ErrorCode.UNSUPPORTED_VERSION
                    error = unknown if handler is None else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    refuse(self._out, sender, message, error)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        try:
            kind, slash, argument = name.partition("/")
            handler = self._timers.get(kind + slash)
            if handler is not None:
                handler(now_ms, argument)
            elif self._lifecycle.state is not STOPPED:
                if not self.replica.fire(now_ms, name):
                    raise ProtocolInvariantError(f"broker {self.node_id} has no timer {name!r}")
                self._metadata.follow_quorum(now_ms)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _halt(self, failure: StorageError) -> list[Effect]:
        self._out.trace(StorageFailed(None, str(failure), halted=True))
        self._lifecycle.move(LifecycleEvent.DISK_FAILED)
        self._out.exit()
        return self._out.drain()
