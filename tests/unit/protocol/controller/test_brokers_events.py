"""What holds after any registrations, fencings and restarts. Examples: `testdata/broker_events.txt`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.metadata.partition import PartitionState
from tests.unit.protocol.controller.controller_script import ControllerScript


def script_of(min_isr: int = 2) -> ControllerScript:
    script = ControllerScript()
    script.run("cluster 0-2")
    script.run(f"topic min_isr={min_isr} leader_epoch=5 partition_epoch=9")
    return script


@given(st.lists(st.integers(0, 4), max_size=8))
def test_a_broker_epoch_is_the_offset_of_its_registration(order: list[int]) -> None:
    script = script_of()
    image = script.bench.state.image
    for broker in order:
        before = image.broker_epoch(broker)
        script.run(f"register {broker} unclean")
        epoch = image.broker_epoch(broker)
        assert epoch == image.next_offset - 1
        assert before is None or epoch > before


def well_formed(state: PartitionState, min_isr: int) -> None:
    """The shape that every state of a partition with ELR has."""
    isr, elr, known = set(state.isr), set(state.elr), set(state.last_known_elr)
    assert len(isr) == len(state.isr)
    assert not isr & elr
    assert not known & (isr | elr)
    assert isr | elr | known <= set(state.replicas)
    assert len(isr) < min_isr or not (elr or known)
    assert state.leader in isr if state.leader != -1 else not isr


@pytest.mark.covers("E13", "E14", "E17", "E23")
@settings(max_examples=150)
@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["fence", "unfence", "clean"]), st.integers(0, 2))))
def test_without_unclean_shutdowns_min_isr_replicas_can_always_lead(
    min_isr: int, events: list[tuple[str, int]]
) -> None:
    script = script_of(min_isr)
    for event, broker in events:
        apply_event(script, event, broker)
        state = script.bench.partition()
        well_formed(state, min_isr)
        assert len({*state.isr, *state.elr}) >= min_isr
        candidates = state.isr or state.elr
        assert (state.leader != -1) == any(map(script.bench.state.image.is_active, candidates))


@pytest.mark.covers("E20", "E23", "E26", "E27")
@settings(max_examples=150)
@given(
    st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["fence", "unfence", "clean", "unclean"]), st.integers(0, 2)))
)
def test_with_unclean_shutdowns_min_isr_replicas_stay_known(min_isr: int, events: list[tuple[str, int]]) -> None:
    script = script_of(min_isr)
    for event, broker in events:
        before = script.bench.partition()
        apply_event(script, event, broker)
        state = script.bench.partition()
        well_formed(state, min_isr)
        assert len({*state.isr, *state.elr, *state.last_known_elr}) >= min_isr
        assert state.leader_epoch - before.leader_epoch == (state.leader != before.leader)


def apply_event(script: ControllerScript, event: str, broker: int) -> None:
    """Unless the event cannot happen in the state of the broker."""
    if event == "unclean" or (event == "fence") is not script.bench.state.image.brokers[broker].fenced:
        script.run(f"{event} {broker}" if event.endswith("fence") else f"register {broker} {event}")
