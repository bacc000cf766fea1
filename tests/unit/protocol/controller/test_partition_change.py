"""The partition change decision, over generated states. Its rules: `testdata/decision/partition_change.txt`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change
from tests.unit.protocol.controller.decision_script import KIP_966


def change(
    state: PartitionState,
    generation: dict[str, bool],
    alive: tuple[int, ...] = (1, 2, 3),
    min_isr: int = 2,
    **fields: Any,
) -> PartitionChangeRecord | None:
    request = ChangeRequest(min_isr=min_isr, is_acceptable_leader=frozenset(alive).__contains__, **generation, **fields)
    return decide("topic", 0, state, request)


def after(state: PartitionState, *arguments: Any, **fields: Any) -> PartitionState:
    record = change(state, *arguments, **fields)
    return state if record is None else replay_change(state, record)


@pytest.mark.parametrize("switches", [{"elr_enabled": False}, {"elr_enabled": True, "use_last_known_leader": True}])
def test_two_places_for_the_last_known_leader_are_refused(switches: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="track_last_known_leader"):
        ChangeRequest(min_isr=1, is_acceptable_leader=bool, track_last_known_leader=True, **switches)


brokers = st.integers(0, 4)


@st.composite
def live_partitions(draw: st.DrawFn) -> tuple[PartitionState, dict[str, Any]]:
    """A well-formed `kip-966` state and a request in which the replicas that leave the ISR cannot lead."""
    replicas = tuple(draw(st.lists(brokers, min_size=1, max_size=5, unique=True)))
    some = st.lists(st.sampled_from(replicas), unique=True)
    min_isr = draw(st.integers(1, len(replicas)))
    isr = tuple(draw(some))
    short = len(isr) < min_isr
    elr = tuple(sorted(set(draw(some)) - set(isr))) if short else ()
    known = tuple(sorted(set(draw(some)) - {*isr, *elr})) if short else ()
    leader = draw(st.sampled_from((*isr, -1)))
    last_known_leader = draw(st.sampled_from((*replicas, -1))) if leader == -1 else -1
    state = PartitionState(
        replicas, isr, elr, known, leader=leader, leader_epoch=3, partition_epoch=7, last_known_leader=last_known_leader
    )
    target_isr = draw(st.none() | some.map(tuple))
    leaving = set(isr) - set(isr if target_isr is None else target_isr)
    reassignment = draw(st.sampled_from(("target_adding", "target_removing", None)))
    fields = {
        "min_isr": min_isr,
        "alive": tuple(set(draw(some)) - leaving),
        "target_isr": target_isr,
        "election": draw(st.sampled_from(Election)),
        "unclean_shutdown_replicas": draw(st.none() | some.map(tuple)),
        "target_leader_recovery_state": draw(st.none() | st.sampled_from(LeaderRecoveryState)),
    }
    return state, fields if reassignment is None else fields | {reassignment: tuple(draw(some))}


@pytest.mark.covers("E13", "E14", "E23", "E34")
@given(live_partitions())
def test_the_state_stays_well_formed(case: tuple[PartitionState, dict[str, Any]]) -> None:
    state, fields = case
    found = after(state, KIP_966, **fields)
    replicas, isr, elr, known = (set(part) for part in (found.replicas, found.isr, found.elr, found.last_known_elr))
    assert isr | elr | known <= replicas
    assert not isr & elr
    assert not isr & known
    assert not elr & known
    assert found.leader in (*isr, -1)
    if len(isr) >= min(fields["min_isr"], len(replicas)):
        assert not elr
        assert not known


@given(live_partitions())
def test_epochs_rise_with_every_change(case: tuple[PartitionState, dict[str, Any]]) -> None:
    state, fields = case
    record = change(state, KIP_966, **fields)
    found = state if record is None else replay_change(state, record)
    assert (found.partition_epoch - state.partition_epoch) == (record is not None)
    assert found.leader_epoch - state.leader_epoch in (0, 1)
    if found.leader != state.leader:
        assert found.leader_epoch == state.leader_epoch + 1


@given(live_partitions())
def test_only_acceptable_replicas_are_elected_and_clean_leaders_are_complete(
    case: tuple[PartitionState, dict[str, Any]],
) -> None:
    state, fields = case
    found = after(state, KIP_966, **fields)
    if found.leader == -1:
        return
    assert found.leader in fields["alive"]
    was_complete = {*state.isr, *state.elr, *(fields["target_isr"] or ())}
    if found.leader not in was_complete:
        assert found.isr == (found.leader,)
        assert found.last_known_leader == -1


@given(live_partitions())
def test_without_targets_a_second_decision_changes_nothing(case: tuple[PartitionState, dict[str, Any]]) -> None:
    state, fields = case
    online = {"min_isr": fields["min_isr"], "alive": fields["alive"]}
    assert change(after(state, KIP_966, **online), KIP_966, **online) is None


@given(live_partitions())
def test_only_a_leaderless_partition_has_a_last_known_leader(case: tuple[PartitionState, dict[str, Any]]) -> None:
    state, fields = case
    found = after(state, KIP_966, **fields)
    if found.leader != -1:
        assert found.last_known_leader == -1
    elif state.isr and not found.isr:
        assert found.last_known_leader in state.isr
