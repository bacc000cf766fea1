"""The lifecycle of a broker: the transition table and the clean-shutdown file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimStorage
from protocol.broker.lifecycle import (
    CLEAN_SHUTDOWN_FILE,
    TRANSITIONS,
    LifecycleEvent,
    LifecycleState,
    next_state,
    take_clean_shutdown_epoch,
    write_clean_shutdown_epoch,
)
from protocol.errors import TransitionError

S, E = LifecycleState, LifecycleEvent

SEQUENCES = {
    "start to stop": (
        [E.STARTED, E.REGISTERED, E.UNFENCED, E.SHUTDOWN_REQUESTED, E.RELEASED],
        [S.REGISTERING, S.CATCHING_UP, S.RUNNING, S.SHUTTING_DOWN, S.STOPPED],
    ),
    "fenced for a while": (
        [E.STARTED, E.REGISTERED, E.FENCED, E.UNFENCED, E.FENCED, E.UNFENCED],
        [S.REGISTERING, S.CATCHING_UP, S.CATCHING_UP, S.RUNNING, S.CATCHING_UP, S.RUNNING],
    ),
    "its epoch is lost": (
        [E.STARTED, E.REGISTERED, E.UNFENCED, E.EPOCH_LOST, E.REGISTERED],
        [S.REGISTERING, S.CATCHING_UP, S.RUNNING, S.REGISTERING, S.CATCHING_UP],
    ),
    "its disk fails": (
        [E.STARTED, E.REGISTERED, E.UNFENCED, E.DISK_FAILED],
        [S.REGISTERING, S.CATCHING_UP, S.RUNNING, S.STOPPED],
    ),
    "stopped before it was registered": ([E.STARTED, E.SHUTDOWN_REQUESTED], [S.REGISTERING, S.STOPPED]),
    "fenced while it shuts down": (
        [E.STARTED, E.REGISTERED, E.SHUTDOWN_REQUESTED, E.FENCED, E.UNFENCED, E.RELEASED],
        [S.REGISTERING, S.CATCHING_UP, S.SHUTTING_DOWN, S.SHUTTING_DOWN, S.SHUTTING_DOWN, S.STOPPED],
    ),
}


@pytest.mark.parametrize(("events", "states"), SEQUENCES.values(), ids=SEQUENCES)
def test_sequences_of_lifecycle_events(events: list[LifecycleEvent], states: list[LifecycleState]) -> None:
    state, found = S.NOT_RUNNING, []
    for event in events:
        state = next_state(state, event)
        found.append(state)
    assert found == states


@pytest.mark.parametrize("state", LifecycleState)
@pytest.mark.parametrize("event", LifecycleEvent)
def test_transitions_outside_the_table_are_refused(state: LifecycleState, event: LifecycleEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(TransitionError, match=f"{state.value}.*{event.value}"):
            next_state(state, event)


def test_stopped_is_the_end_and_only_a_start_begins() -> None:
    assert not [event for state, event in TRANSITIONS if state is S.STOPPED]
    assert [event for state, event in TRANSITIONS if state is S.NOT_RUNNING] == [E.STARTED, E.DISK_FAILED]
    assert [key for key, state in TRANSITIONS.items() if state is S.RUNNING] == [
        (S.CATCHING_UP, E.UNFENCED),
        (S.RUNNING, E.UNFENCED),
    ], "a broker runs only once the controller has unfenced it"


@given(st.integers(-1, 2**63 - 1))
@pytest.mark.covers("E22", "G26")
def test_the_epoch_of_a_clean_shutdown_is_read_once(broker_epoch: int) -> None:
    storage = SimStorage()
    write_clean_shutdown_epoch(storage, broker_epoch)
    assert take_clean_shutdown_epoch(storage) == broker_epoch
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is None
    assert take_clean_shutdown_epoch(storage) == -1, "it is valid for one restart"


@pytest.mark.covers("G26", "N35")
def test_the_file_has_the_format_of_kip_966() -> None:
    storage = SimStorage()
    write_clean_shutdown_epoch(storage, 41)
    data = storage.read_file(CLEAN_SHUTDOWN_FILE)
    assert data is not None
    assert json.loads(data) == {"BrokerEpoch": "41"}


@pytest.mark.covers("N35")
@pytest.mark.parametrize("data", [b'{"BrokerEpoch":"41"}', b'{"BrokerEpoch": 41}'])
def test_text_and_number_are_both_read(data: bytes) -> None:
    storage = SimStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, data)
    assert take_clean_shutdown_epoch(storage) == 41


@pytest.mark.covers("M16", "G26")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"BrokerEpoch":"4',
        b'{"BrokerEpoch":""}',
        b'{"BrokerEpoch":"x"}',
        b'{"BrokerEpoch":null}',
        b'{"BrokerEpoch":[1]}',
        b'{"BrokerEpoch":1e999}',
        b'{"Epoch":"1"}',
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
    ],
)
def test_an_unreadable_file_is_an_unclean_shutdown_and_is_deleted(data: bytes) -> None:
    storage = SimStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, data)
    assert take_clean_shutdown_epoch(storage) == -1
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is None


@given(st.binary(max_size=40))
@pytest.mark.covers("M16")
def test_reading_any_content_of_the_file_does_not_fail(data: bytes) -> None:
    storage = SimStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, data)
    assert isinstance(take_clean_shutdown_epoch(storage), int)
    assert storage.read_file(CLEAN_SHUTDOWN_FILE) is None
