"""The broker node of generation `v3`: the replicas of the other generations, commanded by a controller that is one of
the brokers, with the cluster's metadata in a store (S1).

Its parts beside those of `protocol/broker`:

| part | what |
|---|---|
| `store_membership.py` | session with the store, registration, elections, controlled shutdown |
| `store_metadata.py` | commands of the controller become changes of this broker's replicas |
| `store_isr.py` | writes the ISRs of the partitions that this broker leads, or asks the controller to |
| `store_controller.py` | the controller, while this broker is it |
| `store_admin.py` | requests of admins, while this broker is the controller |
| `store_calls.py` | runs their procedures on the session |

As in `broker.py`, a table gives the handler of each message, and one that of each timer. What a broker sends to itself,
such as commands while it is the controller, it receives at once, after the input that caused it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

from protocol.broker.context import BrokerContext
from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.broker.fetch_streams import FETCH_WAIT_PREFIX
from protocol.broker.fetcher import FETCH_PREFIX, Fetcher
from protocol.broker.flushing import CHECKPOINT_TIMER, FLUSH_PREFIX, RETENTION_TIMER, Flusher
from protocol.broker.isr_manager import ALTER_PARTITION_TIMER, IsrManager
from protocol.broker.isr_shrink import LAG_PREFIX, SILENT_PREFIX
from protocol.broker.leader import ISR_RETRY_TIMER, PartitionLeader
from protocol.broker.lifecycle import LifecycleState
from protocol.broker.reads import READ_TIMER, Reads
from protocol.broker.recovery import RECOVERY_PREFIX, DataLossHook, LeaderRecovery, no_routine
from protocol.broker.replicas import ReplicaManager
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Send, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError, StorageError
from protocol.events.broker import StorageFailed
from protocol.ids import BrokerId, NodeId, TimeMs, is_broker, is_store
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse
from protocol.messages.data import (
    ConsumeRequest,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ProduceRequest,
)
from protocol.messages.store import StoreMessage
from protocol.messages.v3 import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerCommand,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from protocol.metadata.image import MetadataImage
from protocol.nodes.broker_services import BrokerServices
from protocol.nodes.refusals import refuse
from protocol.nodes.store_admin import StoreAdministration
from protocol.nodes.store_calls import RUNNER_PREFIX, Moment, SessionOutlet
from protocol.nodes.store_controller import COMMAND_TIMER, TERM, StoreController
from protocol.nodes.store_isr import NOTIFY_TIMER, IsrWriter
from protocol.nodes.store_membership import SHUTDOWN_TIMER, StoreMembership
from protocol.nodes.store_metadata import StoreMetadata
from protocol.zookeeper.runner import PAUSE, Runner
from protocol.zookeeper.session import CONNECT_PREFIX, SILENCE_PREFIX, StoreSession
from protocol.zookeeper.sessions import PING_PREFIX
from protocol.zookeeper.settings import StoreSettings

_FROM_BROKERS = frozenset(
    {
        LeaderAndIsrRequest,
        StopReplicaRequest,
        LeaderAndIsrResponse,
        StopReplicaResponse,
        AlterPartitionRequest,
        AlterPartitionResponse,
        ControlledShutdownRequest,
        ControlledShutdownResponse,
        FetchRequest,
        FetchRenewal,
        FetchResponse,
    }
)
"""Accepted from brokers only (B9, G8)."""


class StoreBrokerNode:
    """One broker of a cluster with a store; the arguments are those of `BrokerNode`, and the store's settings."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_handlers", "_timers", "_services"})

    def __init__(
        self,
        broker_id: BrokerId,
        config: ClusterConfig,
        settings: StoreSettings,
        storage: Storage,
        rng: Random,
        data_loss_hook: DataLossHook = no_routine,
        checksum: Checksum | None = None,
    ) -> None:
        self.node_id = broker_id
        self.config = config
        self.storage = storage
        self._out = Outbox()
        self._moment = Moment()
        self._context = BrokerContext(broker_id, config, MetadataImage(config), storage, self._out)
        self._flusher = Flusher(self._context)
        self._membership = StoreMembership(self._context, self._flusher, self._moment)
        session = StoreSession(settings.session_timeout_ms, self._membership, self._out, rng)
        self._session = session
        self._runners = {name: self._runner(name) for name in ("membership", "isr", "admin")}
        self._controller = StoreController(broker_id, config, settings, session, self._out, self._moment, rng)
        self._writer = IsrWriter(self._context, self._runners["isr"], self._moment)
        self._isr = IsrManager(self._context, self._writer.submit)
        self._recovery = LeaderRecovery(self._context, self._isr, data_loss_hook)
        self._reads = Reads(self._context)
        self._leader = PartitionLeader(self._context, self._flusher, self._isr, self._recovery, self._reads)
        self._fetcher = Fetcher(self._context, self._flusher)
        replica_manager = ReplicaManager(self._context, self._flusher, self._leader, self._fetcher)
        self._metadata = StoreMetadata(self._context, replica_manager)
        self._services = BrokerServices(self._context, self._leader, self._reads, checksum)
        self._admin = StoreAdministration(config, self._controller, self._runners["admin"], self._out, rng)
        self._connect()
        self._handlers = self._message_table()
        self._timers = self._timer_table()

    def _runner(self, name: str) -> Runner:
        outlet = SessionOutlet(name, [self._session], self._out, self._moment)
        return outlet.attach(Runner(outlet, {}))

    def _connect(self) -> None:
        """Gives the parts what they need of each other."""
        membership = self._membership
        membership.session, membership.controller = self._session, self._controller
        membership.runner = self._runners["membership"]
        membership.on_new_epoch = self._new_epoch
        self._controller.on_deposed = membership.elect
        self._writer.metadata = self._metadata
        self._writer.on_result = self._leader.receive_alter_partition

    def _new_epoch(self, now_ms: TimeMs) -> None:
        self._fetcher.broker_epoch_changed()
        self._writer.registered()
        self._isr.fire(now_ms)

    def _message_table(self) -> dict[type[Message], Callable[[TimeMs, NodeId, Any], None]]:
        return {
            LeaderAndIsrRequest: self._obey,
            StopReplicaRequest: self._obey,
            LeaderAndIsrResponse: self._controller.receive_response,
            StopReplicaResponse: self._controller.receive_response,
            AlterPartitionRequest: self._controller.alter_partition,
            AlterPartitionResponse: self._leader.receive_alter_partition,
            ControlledShutdownRequest: self._controller.shut_down,
            ControlledShutdownResponse: self._membership.receive_shutdown,
            FetchRequest: self._leader.fetch,
            FetchRenewal: self._leader.renew,
            FetchResponse: self._fetcher.receive,
            ProduceRequest: self._services.produce,
            ConsumeRequest: self._services.consume,
            ListOffsetsRequest: self._services.list_offsets,
            MetadataRequest: self._services.describe,
            ShutdownCommand: self._membership.shut_down,
        }

    def _timer_table(self) -> dict[str, Callable[[TimeMs, str], None]]:
        return {
            RUNNER_PREFIX: self._fire_runner,
            COMMAND_TIMER: self._controller.fire_commands,
            NOTIFY_TIMER: self._writer.fire,
            SHUTDOWN_TIMER: self._membership.fire_shutdown,
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
            **dict.fromkeys((CONNECT_PREFIX, PING_PREFIX, SILENCE_PREFIX), self._fire_session),
        }

    # -- for observers -------------------------------------------------------------------------------------------------

    @property
    def context(self) -> BrokerContext:
        """Replicas and image, for hosts and checkers to read; never to change."""
        return self._context

    @property
    def state(self) -> LifecycleState:
        """Where the broker is in its lifecycle."""
        return self._membership.state

    @property
    def controller(self) -> StoreController:
        """The controller's part, which has a term while this broker is the controller."""
        return self._controller

    @property
    def is_suspended(self) -> bool:
        """Whether a procedure has begun and not ended, so that the state is not only in attributes."""
        return any(not runner.is_idle for runner in self._all_runners().values())

    @property
    def pause_timers(self) -> tuple[str, ...]:
        """The timers that procedures wait for."""
        runners = self._all_runners()
        return tuple(f"{RUNNER_PREFIX}{name}/{PAUSE}" for name, runner in runners.items() if runner.is_pausing)

    def _all_runners(self) -> dict[str, Runner]:
        term = self._controller.term
        return self._runners if term is None else {**self._runners, TERM: term.runner}

    def flush_all(self) -> None:
        """Flushes every log to the disk, for an operator. StorageError where that fails."""
        self._flusher.flush_all()

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        """Opens a session with the store."""
        self._moment.now_ms = now_ms
        self._membership.start(now_ms)
        return self._finish(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        """Hands a message to its handler; refuses it if the node does not serve it from this sender."""
        self._moment.now_ms = now_ms
        try:
            self._receive(now_ms, sender, message)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> None:
        if self.state is LifecycleState.STOPPED:
            return
        kind = type(message)
        handler = self._handlers.get(kind)
        if isinstance(message, StoreMessage):
            self._receive_store(now_ms, sender, message)
        elif handler is not None and (is_broker(sender) or kind not in _FROM_BROKERS):
            handler(now_ms, sender, message)
        elif isinstance(message, AdminRequest):
            self._admin.handle(now_ms, sender, message)
        else:
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if handler is not None else ErrorCode.UNSUPPORTED_VERSION
            refuse(self._out, sender, message, error)

    def _receive_store(self, now_ms: TimeMs, sender: NodeId, message: StoreMessage) -> None:
        """A message for none of the sessions is of an older connection, and is dropped."""
        if is_store(sender) and not self._session.receive(now_ms, message):
            self._controller.receive_store(now_ms, message)

    def _obey(self, now_ms: TimeMs, sender: NodeId, request: ControllerCommand) -> None:
        if self._metadata.obey(now_ms, sender, request):
            self._membership.commanded()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        """Hands a timer to its handler. ProtocolInvariantError if there is no such timer."""
        self._moment.now_ms = now_ms
        kind, slash, argument = name.partition("/")
        handler = self._timers.get(kind + slash)
        if handler is None:
            raise ProtocolInvariantError(f"broker {self.node_id} has no timer {name!r}")
        try:
            if self.state is not LifecycleState.STOPPED:
                handler(now_ms, name if handler == self._fire_session else argument)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _fire_session(self, now_ms: TimeMs, name: str) -> None:
        if not self._session.fire(now_ms, name):
            self._controller.fire_session(now_ms, name)

    def _fire_runner(self, now_ms: TimeMs, name: str) -> None:
        runner, _, timer = name.partition("/")
        if runner == TERM:
            self._controller.fire_runner(timer)
        else:
            self._runners[runner].fired(timer)

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        """Sends what the parts have queued during one input, and handles what the broker has sent to itself."""
        done: list[Effect] = []
        while True:
            context = self._context
            if context.has_queued and self.state is not LifecycleState.STOPPED:
                context.has_queued = False
                self._leader.streams.flush(now_ms)
                self._fetcher.send_changed_fetches(now_ms)
                self._isr.send_queued(now_ms)
            self._controller.settle(now_ms)
            effects = self._out.drain()
            own = [effect for effect in effects if type(effect) is Send and effect.to == self.node_id]
            done += [effect for effect in effects if type(effect) is not Send or effect.to != self.node_id]
            if not own:
                return done
            for effect in own:
                self._receive(now_ms, self.node_id, effect.message)

    def _halt(self, failure: StorageError) -> list[Effect]:
        """The disk has failed: stops the broker."""
        self._out.trace(StorageFailed(None, str(failure), halted=True))
        self._membership.halt()
        return [effect for effect in self._out.drain() if type(effect) is not Send or effect.to != self.node_id]
