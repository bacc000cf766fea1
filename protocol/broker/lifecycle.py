"""A broker's lifecycle (KIP-631, KIP-966): registration, fenced start, running, controlled shutdown, and the
clean-shutdown file.

A broker exists for the controller from its registration on. It starts fenced, catches up with the metadata log to its
own registration, asks to be unfenced, and runs. When told to shut down it says so with its heartbeats until the
controller has moved its leaderships and lets it go; then it flushes its logs and leaves a file with its broker epoch.
A broker whose disk fails stops at once and leaves none.
The next incarnation sends that epoch back: equal to the controller's, the shutdown was clean and what it held is all
there (E21, E22). The file is removed as soon as it is read, so that it vouches for one shutdown only (M16).
"""

from __future__ import annotations

import json
from enum import Enum

from protocol.contract import Storage
from protocol.errors import TransitionError
from protocol.ids import NO_EPOCH, Epoch

CLEAN_SHUTDOWN_FILE = "clean-shutdown.json"
SHUTDOWN_HEARTBEAT_MS = 50
"""How soon a broker that wants to go asks again after the first answer that it may not go yet."""
CONTROLLED_SHUTDOWN_TIMEOUT_MS = 300_000
"""How long a broker waits for the controller to let it go; then it stops by itself, still in good order (Kafka: five
minutes).
"""


class LifecycleState(Enum):
    """Where a broker is in its life."""

    NOT_RUNNING = "not running"
    REGISTERING = "registering"
    CATCHING_UP = "catching up"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting down"
    STOPPED = "stopped"


class LifecycleEvent(Enum):
    """What moves a broker on."""

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
    """The broker epoch that the last clean shutdown left, -1 without one or where the file is unreadable (M16).
    Removes the file.
    """
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
    """Leaves the clean-shutdown file; call it last, after all logs are flushed (G26, N35)."""
    storage.write_file(CLEAN_SHUTDOWN_FILE, json.dumps({"BrokerEpoch": str(broker_epoch)}).encode())
