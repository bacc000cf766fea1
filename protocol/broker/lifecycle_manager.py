"""A broker's dialogue with the controller: registration, heartbeats, controlled shutdown (Kafka's
`BrokerLifecycleManager`).

`lifecycle.py` defines the states; this module sends what each of them requires. The broker repeats its registration
until the controller accepts it (the session of a former incarnation may have to expire first), and sends heartbeats
every `broker.heartbeat.interval.ms` from then on. A heartbeat that is sent early restarts the interval.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from protocol.broker.context import BrokerContext
from protocol.broker.flushing import Flusher
from protocol.broker.lifecycle import (
    CONTROLLED_SHUTDOWN_TIMEOUT_MS,
    SHUTDOWN_HEARTBEAT_MS,
    LifecycleEvent,
    LifecycleState,
    next_state,
    take_clean_shutdown_epoch,
    write_clean_shutdown_epoch,
)
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS
from protocol.errors import ErrorCode
from protocol.events.broker import BrokerStateChanged
from protocol.ids import NO_EPOCH, NodeId, TimeMs
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

HEARTBEAT_TIMER = "heartbeat"
SHUTDOWN_TIMER = "shutdown-timeout"


class BrokerLifecycleManager:
    """The lifecycle of one broker, which may be unfenced once it `has_published`. `rng` generates incarnation ids."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_next_heartbeat_ms"})

    def __init__(self, context: BrokerContext, flusher: Flusher, rng: Random, rack: str | None) -> None:
        self.state = LifecycleState.NOT_RUNNING
        self.has_published = False
        self._context = context
        self._out = context.out
        self._flusher = flusher
        self._rng = rng
        self._rack = rack
        self._heartbeat_ms = context.config.int_value(BROKER_HEARTBEAT_INTERVAL_MS)
        self._incarnation_id = ""
        self._previous_epoch = NO_EPOCH
        self._correlation_id = 0
        self._next_heartbeat_ms: TimeMs = 0
        self._shutdown_begun = False

    def read_clean_shutdown(self) -> None:
        """Reads and deletes the clean-shutdown file, as the first action of a process. StorageError."""
        self._previous_epoch = take_clean_shutdown_epoch(self._context.storage)

    def start(self, now_ms: TimeMs) -> None:
        self.move(LifecycleEvent.STARTED)
        self._register_incarnation(now_ms)

    def move(self, event: LifecycleEvent) -> None:
        """Enters the state that the transition table gives. TransitionError where it gives none."""
        state = next_state(self.state, event)
        if state is not self.state:
            self.state = state
            self._out.trace(BrokerStateChanged(self._context.me, state.value))

    def _register_incarnation(self, now_ms: TimeMs) -> None:
        self._incarnation_id = f"{self._rng.getrandbits(128):032x}"
        self._register(now_ms)

    def _register(self, now_ms: TimeMs) -> None:
        request = BrokerRegistrationRequest.unchecked(
            correlation_id=self._next_correlation_id(),
            broker_id=self._context.me,
            incarnation_id=self._incarnation_id,
            previous_broker_epoch=self._previous_epoch,
            rack=self._rack,
        )
        self._out.send(self._context.controller_id, request)
        self._out.set_timer(HEARTBEAT_TIMER, now_ms + max(1, self._heartbeat_ms // 4))

    def accept_registration(self, controller: NodeId, response: BrokerRegistrationResponse) -> bool:
        """Takes over the broker epoch of an accepted registration; returns whether the response was one."""
        is_accepted = response.error is ErrorCode.NONE and self._is_to_this_incarnation(response)
        if self.state is not LifecycleState.REGISTERING or not is_accepted:
            return False
        self._context.broker_epoch = response.broker_epoch
        self._context.controller_id = controller
        self.move(LifecycleEvent.REGISTERED)
        return True

    def _is_to_this_incarnation(self, response: BrokerRegistrationResponse) -> bool:
        """False for a response to a former incarnation, whose epoch would claim records that may be lost."""
        return response.incarnation_id == self._incarnation_id

    def _next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def fire_heartbeat(self, now_ms: TimeMs, _: str = "") -> None:
        """Sends a heartbeat, or the registration again; also called when the controller must learn of a change."""
        if self.state is LifecycleState.REGISTERING:
            self._register(now_ms)
            return
        if self.state in (LifecycleState.NOT_RUNNING, LifecycleState.STOPPED):
            return
        request = BrokerHeartbeatRequest.unchecked(
            correlation_id=self._next_correlation_id(),
            broker_id=self._context.me,
            broker_epoch=self._context.broker_epoch,
            current_metadata_offset=self._context.image.next_offset,
            want_fence=not self.has_published,
            want_shut_down=self.state is LifecycleState.SHUTTING_DOWN,
        )
        self._out.send(self._context.controller_id, request)
        state = self.state  # heartbeats may be elided once the controller can have opened a session
        is_idle = state is LifecycleState.RUNNING or (state is LifecycleState.CATCHING_UP and self.has_published)
        self._next_heartbeat_ms = now_ms + self._heartbeat_ms
        idle_with = self._context.controller_id if is_idle else None
        self._out.set_timer(HEARTBEAT_TIMER, self._next_heartbeat_ms, idle_with=idle_with)

    def receive_heartbeat(self, now_ms: TimeMs, controller: NodeId, response: BrokerHeartbeatResponse) -> None:
        """Follows the controller's answer: fenced, unfenced, released, or unknown broker epoch."""
        is_to_this_epoch = response.broker_epoch in (NO_EPOCH, self._context.broker_epoch)
        if self.state is LifecycleState.REGISTERING or not is_to_this_epoch:
            return
        if response.error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self._register_again(now_ms)
        elif response.error is ErrorCode.NONE:
            if self.state is LifecycleState.SHUTTING_DOWN:
                self._continue_shutdown(now_ms, response)
            elif response.is_fenced:
                self._stay_fenced(now_ms, response)
            else:
                self.move(LifecycleEvent.UNFENCED)
        elif controller == self._context.controller_id:
            self._out.set_timer(HEARTBEAT_TIMER, now_ms + self._heartbeat_ms)

    def _stay_fenced(self, now_ms: TimeMs, response: BrokerHeartbeatResponse) -> None:
        """The broker is fenced: the controller has no session of it to renew, so that heartbeats count."""
        was_running = self.state is LifecycleState.RUNNING
        self.move(LifecycleEvent.FENCED)
        if was_running:
            self._out.set_timer(HEARTBEAT_TIMER, now_ms + self._heartbeat_ms)
        elif response.correlation_id == self._correlation_id:
            self._out.set_timer(HEARTBEAT_TIMER, self._next_heartbeat_ms)

    def _register_again(self, now_ms: TimeMs) -> None:
        """The controller does not know this broker epoch: registers a new incarnation, as after an unclean shutdown."""
        self.move(LifecycleEvent.EPOCH_LOST)
        if self.state is LifecycleState.REGISTERING:
            self._previous_epoch = NO_EPOCH
            self._register_incarnation(now_ms)
        else:
            self._out.cancel_timer(SHUTDOWN_TIMER)
            self._out.exit()

    def shut_down(self, now_ms: TimeMs, sender: NodeId, command: ShutdownCommand) -> None:
        """Begins controlled shutdown: the next heartbeats ask the controller to move this broker's leaderships."""
        if self.state is LifecycleState.SHUTTING_DOWN:
            return
        self.move(LifecycleEvent.SHUTDOWN_REQUESTED)
        if self.state is LifecycleState.STOPPED:
            self._out.exit()
            return
        self._out.set_timer(SHUTDOWN_TIMER, now_ms + CONTROLLED_SHUTDOWN_TIMEOUT_MS)
        self.fire_heartbeat(now_ms)

    def _continue_shutdown(self, now_ms: TimeMs, response: BrokerHeartbeatResponse) -> None:
        """Stops if the controller permits it; otherwise it has begun to move leaderships, and is asked again soon."""
        if response.should_shut_down:
            self._stop()
        elif not self._shutdown_begun:
            self._shutdown_begun = True
            self._out.set_timer(HEARTBEAT_TIMER, now_ms + min(SHUTDOWN_HEARTBEAT_MS, self._heartbeat_ms))

    def fire_shutdown_timeout(self, now_ms: TimeMs, _: str) -> None:
        """The controller has not given its permission in time: stops without it."""
        self._stop()

    def _stop(self) -> None:
        """Flushes everything, writes the clean-shutdown file, and exits (E22). StorageError."""
        self._flusher.flush_all()
        self._flusher.save_producers()
        write_clean_shutdown_epoch(self._context.storage, self._context.broker_epoch)
        self.move(LifecycleEvent.RELEASED)
        self._out.exit()
