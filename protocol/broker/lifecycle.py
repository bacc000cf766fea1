"""The lifecycle of a broker: its states and their transitions, its dialogue with the controller, and the clean-shutdown
file (KIP-631, KIP-966; Kafka's `BrokerLifecycleManager`).

A broker registers with the controller and starts fenced. It repeats its registration until the controller accepts it
(the session of a former incarnation may have to expire first), and sends heartbeats every
`broker.heartbeat.interval.ms` from then on. A heartbeat that is sent early restarts the interval. The broker replays
the metadata log up to its own registration, is unfenced, and runs. In controlled shutdown its heartbeats ask for
permission to stop, which the controller grants after it has moved the leaderships; then the broker flushes its logs and
writes the clean-shutdown file with its broker epoch. A broker whose disk fails stops at once, without that file.

The next incarnation sends the epoch of the file when it registers. If it equals the controller's, the shutdown was
clean and no record is lost (E21, E22). The file is deleted when it is read, so that it is valid for one restart (M16).
"""

from __future__ import annotations

import json
from enum import Enum
from random import Random
from typing import ClassVar

from protocol.broker.context import BrokerContext
from protocol.broker.flushing import Flusher
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS
from protocol.contract import Storage
from protocol.errors import ErrorCode, TransitionError
from protocol.events.broker import BrokerStateChanged
from protocol.ids import NO_EPOCH, Epoch, NodeId, TimeMs
from protocol.kafka_rules import NEW_DIRECTORY_RULES
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    NEW_DISK,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.values import direct

HEARTBEAT_TIMER = "heartbeat"
SHUTDOWN_TIMER = "shutdown-timeout"
CLEAN_SHUTDOWN_FILE = "clean-shutdown.json"
SHUTDOWN_HEARTBEAT_MS = 50
"""Interval until the second heartbeat of a controlled shutdown, after the first was not granted."""
CONTROLLED_SHUTDOWN_TIMEOUT_MS = 300_000
"""How long a broker waits for the controller's permission; then it stops without it, but cleanly (Kafka: 5 minutes)."""


@direct
class LifecycleState(Enum):
    """The states of a broker process (Kafka's `BrokerState`)."""

    NOT_RUNNING = "not running"
    REGISTERING = "registering"
    CATCHING_UP = "catching up"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"
    STOPPED = "stopped"


@direct
class LifecycleEvent(Enum):
    STARTED = "started"
    REGISTERED = "registered"
    UNFENCED = "unfenced"
    FENCED = "fenced"
    SHUTDOWN_REQUESTED = "shutdown requested"
    RELEASED = "released"
    EPOCH_LOST = "epoch lost"
    DISK_FAILED = "disk failed"


_S, _E = LifecycleState, LifecycleEvent
TRANSITIONS: dict[tuple[LifecycleState, LifecycleEvent], LifecycleState] = {
    (_S.NOT_RUNNING, _E.STARTED): _S.REGISTERING,
    (_S.REGISTERING, _E.REGISTERED): _S.CATCHING_UP,
    (_S.REGISTERING, _E.SHUTDOWN_REQUESTED): _S.STOPPED,
    (_S.CATCHING_UP, _E.UNFENCED): _S.RUNNING,
    (_S.CATCHING_UP, _E.FENCED): _S.CATCHING_UP,
    (_S.CATCHING_UP, _E.SHUTDOWN_REQUESTED): _S.SHUTTING_DOWN,
    (_S.CATCHING_UP, _E.EPOCH_LOST): _S.REGISTERING,
    (_S.RUNNING, _E.UNFENCED): _S.RUNNING,
    (_S.RUNNING, _E.FENCED): _S.CATCHING_UP,
    (_S.RUNNING, _E.SHUTDOWN_REQUESTED): _S.SHUTTING_DOWN,
    (_S.RUNNING, _E.EPOCH_LOST): _S.REGISTERING,
    (_S.SHUTTING_DOWN, _E.UNFENCED): _S.SHUTTING_DOWN,
    (_S.SHUTTING_DOWN, _E.FENCED): _S.SHUTTING_DOWN,
    (_S.SHUTTING_DOWN, _E.SHUTDOWN_REQUESTED): _S.SHUTTING_DOWN,
    (_S.SHUTTING_DOWN, _E.RELEASED): _S.STOPPED,
    (_S.SHUTTING_DOWN, _E.EPOCH_LOST): _S.STOPPED,
    **{(state, _E.DISK_FAILED): _S.STOPPED for state in _S if state is not _S.STOPPED},
}


def next_state(state: LifecycleState, event: LifecycleEvent) -> LifecycleState:
    """The state after an event; TransitionError where the table has none."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise TransitionError(f"a broker that is {state.value} cannot take '{event.value}'") from None


def take_clean_shutdown_epoch(storage: Storage) -> Epoch:
    """Reads and deletes the clean-shutdown file. Returns its broker epoch, -1 without a readable file (M16)."""
    data = storage.read_file(CLEAN_SHUTDOWN_FILE)
    if data is None:
        return NO_EPOCH
    storage.delete_file(CLEAN_SHUTDOWN_FILE)
    try:
        epoch = json.loads(data)["BrokerEpoch"]
        return int(epoch)
    except (ValueError, KeyError, TypeError, OverflowError):
        return NO_EPOCH


def write_clean_shutdown_epoch(storage: Storage, broker_epoch: Epoch) -> None:
    """Writes the clean-shutdown file; call last, after all logs are flushed (G26, N35)."""
    storage.write_file(CLEAN_SHUTDOWN_FILE, json.dumps({"BrokerEpoch": str(broker_epoch)}).encode())


class BrokerLifecycleManager:
    """The lifecycle of one broker, which may be unfenced once it `has_published`. `rng` generates incarnation ids."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_next_heartbeat_ms"})

    def __init__(
        self, context: BrokerContext, flusher: Flusher, rng: Random, rack: str | None, endpoint: str | None
    ) -> None:
        self.state = LifecycleState.NOT_RUNNING
        self.has_published = False
        self._context = context
        self._out = context.out
        self._flusher = flusher
        self._rng = rng
        self._rack = rack
        self._endpoint = endpoint
        self._heartbeat_ms = context.config.int_value(BROKER_HEARTBEAT_INTERVAL_MS)
        self._incarnation_id = ""
        self._previous_epoch = NO_EPOCH
        self._correlation_id = 0
        self._next_heartbeat_ms: TimeMs = 0
        self._shutdown_begun = False

    def read_clean_shutdown(self) -> None:
        """Reads and deletes the clean-shutdown file, as the first action of a process. StorageError."""
        storage, rules = self._context.storage, self._context.config.kafka_rules
        is_new = not rules.isdisjoint(NEW_DIRECTORY_RULES) and not storage.log_names()
        self._previous_epoch = NEW_DISK if is_new else take_clean_shutdown_epoch(storage)

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
            endpoint=self._endpoint,
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
        self._stop()

    def _stop(self) -> None:
        """Flushes everything, writes the clean-shutdown file, and exits (E22). StorageError."""
        self._flusher.flush_all()
        self._flusher.save_producers()
        write_clean_shutdown_epoch(self._context.storage, self._context.broker_epoch)
        self.move(LifecycleEvent.RELEASED)
        self._out.exit()
