"""The broker node of generation `v3`: the replicas of the other generations, commanded by a controller that is one of
the brokers, with the cluster's metadata in a store (S1). docs/architecture.md ("The brokers of `v3`") names its parts.

As in `nodes/broker.py`, a table gives the handler of each message, and one that of each timer. What a broker sends to
itself, such as commands while it is the controller, it receives at once, after the input that caused it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from protocol.broker.context import BrokerContext
from protocol.broker.isr_manager import IsrManager
from protocol.broker.lifecycle import LifecycleState
from protocol.broker.recovery import DataLossHook, no_routine
from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Send, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError, StorageError
from protocol.events.broker import StorageFailed
from protocol.ids import BrokerId, NodeId, TimeMs, is_broker, is_store
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse
from protocol.messages.data import FetchRenewal, FetchRequest, FetchResponse
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
from protocol.nodes.base_broker import STOPPED, BaseBroker
from protocol.nodes.refusals import refuse
from protocol.v3.broker.isr_writer import NOTIFY_TIMER, IsrWriter
from protocol.v3.broker.membership import SHUTDOWN_TIMER, Membership
from protocol.v3.broker.metadata import CommandedMetadata
from protocol.v3.controller.administration import Administration
from protocol.v3.controller.runner import PAUSE, RUNNER_PREFIX, Runner, SessionOutlet
from protocol.v3.controller.term import COMMAND_TIMER, TERM, ControllerTerms
from protocol.v3.store.client import CONNECT_PREFIX, SILENCE_PREFIX, StoreSession
from protocol.v3.store.sessions import PING_PREFIX
from protocol.v3.store.settings import StoreSettings

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


class V3BrokerNode(BaseBroker):
    """One broker of a cluster with a store; the arguments are those of `BrokerNode`, and the store's settings."""

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
        out = Outbox()
        context = BrokerContext(broker_id, config, MetadataImage(config), storage, out)
        self._writer = IsrWriter(context)
        super().__init__(context, IsrManager(context, self._writer.submit), data_loss_hook, checksum)
        self._membership = Membership(context, self._flusher)
        self._session = session = StoreSession(settings.session_timeout_ms, self._membership, out, rng)
        self._runners = {
            name: Runner(SessionOutlet(name, [session], out), {}) for name in ("membership", "isr", "admin")
        }
        self._controller = ControllerTerms(broker_id, config, settings, session, out, rng)
        self._metadata = CommandedMetadata(context, self._replica_manager)
        self._admin = Administration(config, self._controller, self._runners["admin"], out, rng)
        self._membership.session, self._membership.controller = session, self._controller
        self._membership.runner, self._membership.on_new_epoch = self._runners["membership"], self._new_epoch
        self._controller.on_deposed = self._membership.elect
        self._writer.runner, self._writer.metadata = self._runners["isr"], self._metadata
        self._writer.on_result = self._leader.receive_alter_partition
        self._handlers |= self._message_table()
        self._timers |= self._timer_table()

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
            ControlledShutdownRequest: self._controller.shut_down,
            ControlledShutdownResponse: self._membership.receive_shutdown,
            ShutdownCommand: self._membership.shut_down,
        }

    def _timer_table(self) -> dict[str, Callable[[TimeMs, str], None]]:
        return {
            RUNNER_PREFIX: self._fire_runner,
            COMMAND_TIMER: self._controller.fire_commands,
            NOTIFY_TIMER: self._writer.fire,
            SHUTDOWN_TIMER: self._membership.fire_shutdown,
            **dict.fromkeys((CONNECT_PREFIX, PING_PREFIX, SILENCE_PREFIX), self._fire_session),
        }

    @property
    def state(self) -> LifecycleState:
        return self._membership.state

    @property
    def controller(self) -> ControllerTerms:
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

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self._membership.start(now_ms)
        return self._finish(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        try:
            self._receive(now_ms, sender, message)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> None:
        if self.state is STOPPED:
            return
        kind = type(message)
        handler = self._handlers.get(kind)
        if isinstance(message, StoreMessage):
            if is_store(sender) and not self._session.receive(now_ms, message):
                self._controller.receive_store(now_ms, message)
        elif handler is not None and (is_broker(sender) or kind not in _FROM_BROKERS):
            handler(now_ms, sender, message)
        elif isinstance(message, AdminRequest):
            self._admin.handle(now_ms, sender, message)
        else:
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if handler is not None else ErrorCode.UNSUPPORTED_VERSION
            refuse(self._out, sender, message, error)

    def _obey(self, now_ms: TimeMs, sender: NodeId, request: ControllerCommand) -> None:
        if self._metadata.obey(now_ms, sender, request):
            self._membership.commanded()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        kind, slash, argument = name.partition("/")
        handler = self._timers.get(kind + slash)
        if handler is None:
            raise ProtocolInvariantError(f"broker {self.node_id} has no timer {name!r}")
        try:
            if self.state is not STOPPED:
                handler(now_ms, name if handler == self._fire_session else argument)
            return self._finish(now_ms)
        except StorageError as failure:
            return self._halt(failure)

    def _fire_session(self, now_ms: TimeMs, name: str) -> None:
        if not self._session.fire(now_ms, name):
            self._controller.fire_session(now_ms, name)

    def _fire_runner(self, now_ms: TimeMs, name: str) -> None:
        name, _, timer = name.partition("/")
        runner = self._all_runners().get(name)
        if runner is not None:
            runner.fired(now_ms, timer)

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        """Sends what the parts have queued during one input, and handles what the broker has sent to itself."""
        done: list[Effect] = []
        while True:
            self._send_queued(now_ms)
            self._controller.settle(now_ms)
            effects = self._out.drain()
            own = [effect for effect in effects if type(effect) is Send and effect.to == self.node_id]
            done += [effect for effect in effects if type(effect) is not Send or effect.to != self.node_id]
            if not own:
                return done
            for effect in own:
                self._receive(now_ms, self.node_id, effect.message)

    def _halt(self, failure: StorageError) -> list[Effect]:
        self._out.trace(StorageFailed(None, str(failure), halted=True))
        self._membership.halt()
        return [effect for effect in self._out.drain() if type(effect) is not Send or effect.to != self.node_id]
