"""The states of a broker (KIP-631, KIP-966), the transitions between them, and the clean-shutdown file.

A broker registers with the controller and starts fenced. It replays the metadata log up to its own registration, is
unfenced, and runs. In controlled shutdown its heartbeats ask for permission to stop, which the controller grants after
it has moved the leaderships; then the broker flushes its logs and writes the clean-shutdown file with its broker epoch.
A broker whose disk fails stops at once, without that file.

The next incarnation sends the epoch of the file when it registers. If it equals the controller's, the shutdown was
clean and no record is lost (E21, E22). The file is deleted when it is read, so that it is valid for one restart (M16).
"""

from __future__ import annotations

import json
from enum import Enum

from protocol.contract import Storage
from protocol.errors import TransitionError
from protocol.ids import NO_EPOCH, Epoch
from protocol.values import direct

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
