"""How a broker of generation `v3` belongs to the cluster: session, registration, elections, shutdown (A5, A32, A34).

    NOT_RUNNING -- start --> REGISTERING -- own node in /brokers/ids --> CATCHING_UP -- first command --> RUNNING

When its session with the store is open, the broker creates its node in `/brokers/ids` with the id of the session as its
broker epoch (S1 says that an admin creates the node; Kafka's brokers create it), and takes part in the election of the
controller. The node of a former session may still be there: the broker watches it and waits. If the session expires
while the broker lives, the broker has lost its registration and controllership (A52). It keeps its roles, in which it
can commit nothing once the controller has elected others, opens another session, and registers as a new incarnation.

A departure from S1 E: the broker does not read its own state from the store when it starts. What the controller decides
between that read and the registration would be lost, so the controller sends everything, as its first command, INIT
(`controller/broker_changes.py`).

In controlled shutdown the broker asks the controller to move its leaderships away (B3), at most three times, flushes
its logs, and closes its session, which ends its registration at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.broker.context import BrokerContext
from protocol.broker.flushing import Flusher
from protocol.broker.lifecycle import LifecycleEvent, LifecycleState, next_state
from protocol.errors import ErrorCode
from protocol.events.broker import BrokerStateChanged
from protocol.ids import NO_NODE, NodeId, TimeMs, node_name
from protocol.messages.commands import ShutdownCommand
from protocol.messages.store import Create, GetData, StoreError, WatchKind
from protocol.messages.v3 import ControlledShutdownRequest, ControlledShutdownResponse
from protocol.v3.controller.election import Elected, Lost, create_roots, elect
from protocol.v3.controller.procedure import Procedure, error_of, read, write
from protocol.v3.controller.runner import Runner
from protocol.v3.controller.term import ControllerTerms
from protocol.v3.store import paths
from protocol.v3.store.client import StoreSession
from protocol.v3.store.records import BrokerNode

SHUTDOWN_TIMER = "shutdown-retry"
SHUTDOWN_RETRY_MS = 2_000
SHUTDOWN_ATTEMPTS = 3
"""As Kafka's `controlled.shutdown.max.retries`; then the broker stops with the leaderships that it has."""
PORT = 9092


class Membership:
    """Session owner of one broker. `on_new_epoch` is called when the broker has another broker epoch."""

    def __init__(self, context: BrokerContext, flusher: Flusher) -> None:
        self.state = LifecycleState.NOT_RUNNING
        self.session: StoreSession
        self.controller: ControllerTerms
        self.runner: Runner
        self.on_new_epoch: Callable[[TimeMs], None] | None = None
        self._context = context
        self._flusher = flusher
        self._is_registered = False
        self._is_commanded = False
        self._shutdown_requests = 0

    def start(self, now_ms: TimeMs) -> None:
        self._move(LifecycleEvent.STARTED)
        self.session.start(now_ms)

    def _move(self, event: LifecycleEvent) -> None:
        state = next_state(self.state, event)
        if state is not self.state:
            self.state = state
            self._context.out.trace(BrokerStateChanged(self._context.me, state.value))

    def session_opened(self, now_ms: TimeMs) -> None:
        """Registers under a new broker epoch."""
        self._context.broker_epoch = self.session.session_id
        if self.on_new_epoch is not None:
            self.on_new_epoch(now_ms)
        self._register(now_ms)

    def session_expired(self, now_ms: TimeMs) -> None:
        """The store has ended the registration and the controllership of this broker."""
        self._is_registered = self._is_commanded = False
        self.runner.abort(now_ms)
        self.controller.end(now_ms)
        if self.state in (LifecycleState.CATCHING_UP, LifecycleState.RUNNING, LifecycleState.SHUTTING_DOWN):
            self._move(LifecycleEvent.EPOCH_LOST)
        if self.state is LifecycleState.STOPPED:
            self._context.out.exit()

    def watch_fired(self, now_ms: TimeMs, kind: WatchKind, path: str) -> None:
        """A watch has fired: of the election, of this broker's former node, or of the controller."""
        if path == paths.CONTROLLER:
            self.elect(now_ms)
            return
        if path == paths.broker(self._context.me) and not self._is_registered:
            self._register(now_ms)
        self.controller.watch_fired(now_ms, path)

    def _register(self, now_ms: TimeMs) -> None:
        self.runner.call(now_ms, "registration", self._registration, self._registered)

    def _registration(self) -> Procedure[bool]:
        """Creates this broker's node; False if that of a former session is there, and watched."""
        path, epoch = paths.broker(self._context.me), self._context.broker_epoch
        own = BrokerNode(host=node_name(self._context.me), port=PORT, broker_epoch=epoch)
        yield from create_roots()
        while True:
            (unit,) = yield from write(((Create(path=path, data=own.encode(), ephemeral=True),),), is_fenced=False)
            if error_of(unit) is not StoreError.NODE_EXISTS:
                return True
            (found,) = yield from read((GetData(path=path, watch=True),))
            if not found.error:
                return found.data == own.encode()

    def _registered(self, now_ms: TimeMs, is_registered: bool | None) -> None:
        if not is_registered or self.state is LifecycleState.STOPPED:
            return
        self._is_registered = True
        if self.state is LifecycleState.REGISTERING:
            self._move(LifecycleEvent.REGISTERED)
        self._serve_if_ready()
        self.elect(now_ms)

    def commanded(self) -> None:
        """The controller has sent this incarnation a command."""
        self._is_commanded = True
        self._serve_if_ready()

    def _serve_if_ready(self) -> None:
        if self._is_registered and self._is_commanded and self.state is LifecycleState.CATCHING_UP:
            self._move(LifecycleEvent.UNFENCED)

    def elect(self, now_ms: TimeMs) -> None:
        if self._is_registered:
            race = partial(elect, self._context.me, self._context.broker_epoch)
            self.runner.call(now_ms, "election", race, self._elected)

    def _elected(self, now_ms: TimeMs, result: Elected | Lost | None) -> None:
        if isinstance(result, Elected):
            self._context.controller_id = self._context.me
            self.controller.begin(now_ms, result)
        elif isinstance(result, Lost):
            self.controller.end(now_ms)
            if result.controller != NO_NODE:
                self._context.controller_id = result.controller

    def shut_down(self, now_ms: TimeMs, sender: NodeId, command: ShutdownCommand) -> None:
        if self.state is LifecycleState.SHUTTING_DOWN:
            return
        self._move(LifecycleEvent.SHUTDOWN_REQUESTED)
        if self.state is LifecycleState.STOPPED:
            self._stop(now_ms)
        else:
            self.fire_shutdown(now_ms, "")

    def fire_shutdown(self, now_ms: TimeMs, _: str) -> None:
        """Asks the controller to move the leaderships, or stops if it has been asked often enough."""
        if self._shutdown_requests == SHUTDOWN_ATTEMPTS:
            self._release(now_ms)
            return
        self._shutdown_requests += 1
        context, number = self._context, self._shutdown_requests
        if context.controller_id != NO_NODE:
            epoch = context.broker_epoch
            request = ControlledShutdownRequest(correlation_id=number, broker_id=context.me, broker_epoch=epoch)
            context.out.send(context.controller_id, request)
        context.out.set_timer(SHUTDOWN_TIMER, now_ms + SHUTDOWN_RETRY_MS)

    def receive_shutdown(self, now_ms: TimeMs, sender: NodeId, response: ControlledShutdownResponse) -> None:
        """The controller has moved what it can."""
        if self.state is LifecycleState.SHUTTING_DOWN and response.error is ErrorCode.NONE:
            self._release(now_ms)

    def _release(self, now_ms: TimeMs) -> None:
        self._context.out.cancel_timer(SHUTDOWN_TIMER)
        self._flusher.flush_all()
        self._flusher.save_producers()
        self._move(LifecycleEvent.RELEASED)
        self._stop(now_ms)

    def _stop(self, now_ms: TimeMs) -> None:
        self.controller.end(now_ms)
        self.session.close()
        self._context.out.exit()

    def halt(self) -> None:
        """The disk has failed: the process ends, and its session expires."""
        self._move(LifecycleEvent.DISK_FAILED)
        self._context.out.exit()
