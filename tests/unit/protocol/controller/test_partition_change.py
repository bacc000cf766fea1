"""The partition change decision: tables for its rules, one generation each, and properties over generated states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change

KIP_497 = {"elr_enabled": False}
KIP_966_ELR = {"elr_enabled": True, "use_last_known_leader": True}
KIP_966 = {"elr_enabled": True, "track_last_known_leader": True}
KIP_966_UNTRACKED = {"elr_enabled": True}
WITH_ELR = [KIP_966_ELR, KIP_966, KIP_966_UNTRACKED]
ALL = [KIP_497, *WITH_ELR]
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING


def partition(isr: tuple[int, ...], **fields: Any) -> PartitionState:
    """Replicas 1, 2, 3, led by the first ISR member (-1 if there is none), at leader epoch 5 and partition epoch 9."""
    defaults = {"replicas": (1, 2, 3), "leader": isr[0] if isr else -1, "leader_epoch": 5, "partition_epoch": 9}
    return PartitionState(isr=isr, **defaults | fields)


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


@pytest.mark.parametrize("generation", ALL)
@pytest.mark.parametrize("election", Election)
def test_a_decision_without_changes_makes_no_record(generation: dict[str, bool], election: Election) -> None:
    assert change(partition((1, 2, 3)), generation, election=election) is None


@pytest.mark.covers("E13", "E15", "M9")
@pytest.mark.parametrize("generation", WITH_ELR)
def test_only_replicas_that_leave_an_isr_below_min_isr_are_eligible(generation: dict[str, bool]) -> None:
    first = after(partition((1, 2, 3)), generation, target_isr=(1, 2))
    assert (first.isr, first.elr) == ((1, 2), ())
    second = after(first, generation, target_isr=(1,))
    assert (second.isr, second.elr) == ((1,), (2,))


@pytest.mark.covers("E12")
@pytest.mark.parametrize("generation", WITH_ELR)
def test_the_isr_may_become_empty_and_the_partition_leaderless(generation: dict[str, bool]) -> None:
    found = after(partition((1,), elr=(2,)), generation, alive=(3,), target_isr=())
    assert (found.leader, found.isr, found.elr) == (-1, (), (1, 2))


@pytest.mark.covers("K4", "E12")
def test_without_elr_the_last_isr_member_stays_in_the_isr() -> None:
    found = after(partition((1,)), KIP_497, alive=(2, 3), target_isr=())
    assert (found.leader, found.isr, found.elr, found.leader_epoch) == (-1, (1,), (), 6)
    assert after(found, KIP_497, alive=(1, 2, 3)).leader == 1


@pytest.mark.covers("E14", "M10")
@pytest.mark.parametrize("generation", WITH_ELR)
def test_reaching_min_isr_empties_the_elr_in_the_same_record(generation: dict[str, bool]) -> None:
    state = partition((1,), elr=(2,))
    record = change(state, generation, target_isr=(1, 3))
    assert record is not None
    assert (record.isr, record.eligible_leader_replicas) == ((1, 3), ())
    lost = after(replay_change(state, record), generation, alive=(2,), target_isr=())
    assert lost.leader == -1, "2 is no longer electable"


@pytest.mark.covers("E14", "M7")
def test_lower_min_isr_keeps_the_elr_until_an_election_reaches_it() -> None:
    leaderless = partition((), elr=(1, 2), last_known_elr=(3,))
    assert change(leaderless, KIP_966, alive=(), min_isr=1) is None
    found = after(leaderless, KIP_966, alive=(1,), min_isr=1)
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (1, (1,), (), ())


@pytest.mark.covers("E20", "E18", "N29")
@pytest.mark.parametrize("generation", [KIP_966, KIP_966_UNTRACKED])
def test_unclean_registration_moves_an_elr_member_without_a_leader_epoch(generation: dict[str, bool]) -> None:
    found = after(partition((1,), elr=(2,)), generation, alive=(1, 3), unclean_shutdown_replicas=(2,))
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (1, (1,), (), (2,))
    assert (found.leader_epoch, found.partition_epoch) == (5, 10)


@pytest.mark.covers("E20", "N29")
def test_unclean_registration_of_the_last_isr_member_raises_the_leader_epoch() -> None:
    found = after(partition((1,), elr=(2,)), KIP_966, alive=(), target_isr=(), unclean_shutdown_replicas=(1,))
    assert (found.leader, found.elr, found.last_known_elr, found.leader_epoch) == (-1, (2,), (1,), 6)


@pytest.mark.covers("E23")
@pytest.mark.parametrize(
    ("target_isr", "expected"),
    [((1,), (2, 3)), ((1, 2), ()), ((1, 2, 3), ())],
    ids=["below min ISR", "min ISR reached", "all in sync"],
)
@pytest.mark.parametrize("generation", [KIP_966, KIP_966_UNTRACKED])
def test_last_known_elr_lasts_until_min_isr_is_reached(
    generation: dict[str, bool], target_isr: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    state = partition((1,), last_known_elr=(2, 3))
    assert after(state, generation, target_isr=target_isr).last_known_elr == expected


@pytest.mark.covers("E23")
def test_last_known_elr_excludes_isr_and_elr() -> None:
    state = partition((1, 4), replicas=(1, 2, 3, 4), elr=(2,), last_known_elr=(3,))
    found = after(state, KIP_966, alive=(1, 2, 3, 4), min_isr=3, target_isr=(1, 3), unclean_shutdown_replicas=(2,))
    assert (found.isr, found.elr, found.last_known_elr) == ((1, 3), (4,), (2,))


@pytest.mark.covers("E24", "N15")
@pytest.mark.parametrize(
    ("generation", "last_known_leader", "last_known_elr"),
    [(KIP_966, 1, ()), (KIP_966_ELR, -1, (1,)), (KIP_966_UNTRACKED, -1, ())],
)
def test_the_last_leader_is_recorded_when_it_is_fenced(
    generation: dict[str, bool], last_known_leader: int, last_known_elr: tuple[int, ...]
) -> None:
    found = after(partition((1,), elr=(2,)), generation, alive=(), target_isr=())
    assert (found.leader, found.last_known_leader, found.last_known_elr) == (-1, last_known_leader, last_known_elr)


@pytest.mark.covers("E24")
def test_a_leaderless_isr_that_empties_leaves_its_member_as_last_known_leader() -> None:
    found = after(partition((2,), leader=-1), KIP_966, alive=(), target_isr=())
    assert (found.last_known_leader, found.elr) == (2, (2,))


@pytest.mark.covers("E24", "M20")
def test_an_election_clears_the_last_known_leader_and_a_filled_isr_records_none() -> None:
    still_in_sync = after(partition((1, 2)), KIP_966, alive=(2,), target_isr=(2,))
    assert (still_in_sync.leader, still_in_sync.last_known_leader) == (2, -1)
    leaderless = after(still_in_sync, KIP_966, alive=(), target_isr=())
    assert leaderless.last_known_leader == 2
    led_by_another = after(leaderless, KIP_966, alive=(1,))
    assert (led_by_another.leader, led_by_another.last_known_leader) == (1, -1)


@pytest.mark.covers("F25", "K5", "N12")
@pytest.mark.parametrize("election", [Election.ONLINE, Election.PREFERRED])
def test_with_recovery_the_last_known_leader_is_not_elected(election: Election) -> None:
    state = partition((), last_known_leader=2)
    assert change(state, KIP_966, alive=(1, 2, 3), election=election) is None
    assert after(state, KIP_966, alive=(1, 2, 3), election=Election.UNCLEAN).leader == 2


@pytest.mark.covers("E24", "M18", "N33")
@pytest.mark.parametrize("election", [Election.ONLINE, Election.PREFERRED])
def test_with_isr_and_elr_empty_only_the_last_known_leader_is_elected(election: Election) -> None:
    state = partition((), last_known_elr=(2,))
    assert change(state, KIP_966_ELR, alive=(1, 3), election=election) is None, "neither a dead one nor another"
    found = after(state, KIP_966_ELR, alive=(1, 2, 3), election=election)
    assert (found.leader, found.isr, found.leader_recovery_state) == (2, (2,), RECOVERING)
    assert (found.last_known_leader, found.last_known_elr, found.leader_epoch) == (-1, (), 6)


def test_the_last_known_leader_waits_while_the_elr_has_members() -> None:
    assert change(partition((), elr=(3,), last_known_leader=2), KIP_966, alive=(1, 2)) is None


def test_an_untracked_last_known_leader_is_neither_kept_nor_elected() -> None:
    assert change(partition((), last_known_leader=2), KIP_966_UNTRACKED, alive=(2,)) is None
    assert after(partition((1,)), KIP_966_UNTRACKED, alive=(), target_isr=()).last_known_leader == -1


def test_a_last_known_elr_of_several_names_no_last_known_leader() -> None:
    assert change(partition((), last_known_elr=(1, 2)), KIP_966_ELR, alive=(1, 2, 3)) is None


@pytest.mark.covers("E29", "E30", "E31")
@pytest.mark.parametrize(
    ("state", "alive", "target_isr", "leader", "isr", "elr"),
    [
        pytest.param(partition((1, 2, 3)), (2, 3), (2, 3), 2, (2, 3), (), id="another ISR member"),
        pytest.param(partition((1,), elr=(3,)), (2, 3), (), 3, (3,), (1,), id="unfenced ELR member"),
        pytest.param(partition((1, 2), elr=()), (2, 3), (2,), 2, (2,), (1,), id="ISR before ELR"),
        pytest.param(partition((), elr=(1, 2)), (2, 3), None, 2, (2,), (1,), id="leaderless, ELR member unfenced"),
        pytest.param(partition((2,), leader=-1), (2,), None, 2, (2,), (), id="leaderless, ISR member unfenced"),
        pytest.param(partition((), elr=(1, 2)), (3,), None, -1, (), (1, 2), id="no eligible replica is unfenced"),
        pytest.param(partition((2, 1)), (1, 2, 3), None, 2, (2, 1), (), id="a good leader stays"),
    ],
)
@pytest.mark.parametrize("generation", [KIP_966, KIP_966_UNTRACKED])
def test_clean_election_order(
    generation: dict[str, bool],
    state: PartitionState,
    alive: tuple[int, ...],
    target_isr: tuple[int, ...] | None,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
) -> None:
    found = after(state, generation, alive=alive, target_isr=target_isr)
    assert (found.leader, found.isr, found.elr) == (leader, isr, elr)
    assert found.leader_epoch == state.leader_epoch + (leader != state.leader)
    assert found.leader_recovery_state is RECOVERED


@pytest.mark.parametrize(
    ("alive", "leader"), [((1, 2, 3), 1), ((2, 3), 3), ((2,), 2)], ids=["preferred", "present", "another"]
)
def test_preferred_election_asks_the_first_replica_then_the_present_leader(alive: tuple[int, ...], leader: int) -> None:
    found = after(partition((3, 2, 1)), KIP_966, alive=alive, election=Election.PREFERRED)
    assert found.leader == leader


@pytest.mark.covers("C3")
@pytest.mark.parametrize("generation", ALL)
def test_unclean_election_takes_the_first_acceptable_replica_and_recovers(generation: dict[str, bool]) -> None:
    state = partition((3,), leader=-1) if generation is KIP_497 else partition((), elr=(3,))
    assert change(state, generation, alive=(1, 2), election=Election.ONLINE) is None
    found = after(state, generation, alive=(2, 1), election=Election.UNCLEAN)
    assert (found.leader, found.isr, found.elr, found.leader_recovery_state) == (1, (1,), (), RECOVERING)


@pytest.mark.covers("N28")
def test_last_known_elr_outlives_an_unclean_election_without_the_new_leader() -> None:
    state = partition((), last_known_elr=(1, 2, 3))
    assert after(state, KIP_966, alive=(2,), election=Election.UNCLEAN).last_known_elr == (1, 3)
    assert after(state, KIP_966, alive=(2,), min_isr=1, election=Election.UNCLEAN).last_known_elr == ()
    assert after(state, KIP_966_UNTRACKED, alive=(2,), election=Election.UNCLEAN).last_known_elr == ()


@pytest.mark.covers("N13", "C6")
@pytest.mark.parametrize(
    ("wanted", "alive", "expected"),
    [(None, (1, 2, 3), RECOVERING), (None, (2, 3), RECOVERING), (RECOVERED, (1, 2, 3), RECOVERED)],
    ids=["ISR change", "clean election", "the leader reports it"],
)
def test_recovering_lasts_until_the_leader_clears_it(
    wanted: LeaderRecoveryState | None, alive: tuple[int, ...], expected: LeaderRecoveryState
) -> None:
    state = partition((1, 2, 3), leader_recovery_state=RECOVERING)
    fields = {"target_isr": (1, 2) if 1 in alive else (2, 3), "target_leader_recovery_state": wanted}
    assert after(state, KIP_966, alive=alive, **fields).leader_recovery_state is expected


@pytest.mark.parametrize("generation", ALL)
def test_a_smaller_isr_alone_raises_the_partition_epoch_only(generation: dict[str, bool]) -> None:
    found = after(partition((1, 2, 3)), generation, target_isr=(1, 2))
    assert (found.leader_epoch, found.partition_epoch) == (5, 10)


@pytest.mark.parametrize(
    ("isr", "replicas", "leader_epoch"),
    [((1, 2, 3), (1, 2, 3, 4), 5), ((1, 2, 4), (1, 2, 4), 6)],
    ids=["waits for 4", "3 leaves"],
)
def test_a_reassignment_is_completed_when_its_replicas_are_in_sync(
    isr: tuple[int, ...], replicas: tuple[int, ...], leader_epoch: int
) -> None:
    state = partition((1, 2, 3), replicas=(1, 2, 3, 4), adding_replicas=(4,), removing_replicas=(3,))
    found = after(state, KIP_966, alive=(1, 2, 3, 4), target_isr=isr)
    in_progress = 4 in replicas and 3 in replicas
    assert (found.replicas, found.leader_epoch, bool(found.adding_replicas)) == (replicas, leader_epoch, in_progress)
    assert found.removing_replicas == ((3,) if in_progress else ())


@pytest.mark.covers("E34", "M76")
def test_a_completed_reassignment_leaves_no_removed_replica_eligible() -> None:
    state = partition((1,), elr=(3,), last_known_elr=(2,), adding_replicas=(4,), removing_replicas=(2, 3))
    state = replace(state, replicas=(1, 2, 3, 4))
    found = after(state, KIP_966, alive=(1, 4), min_isr=3, target_isr=(1, 4))
    assert (found.replicas, found.isr, found.elr, found.last_known_elr) == ((1, 4), (1, 4), (), ())


@pytest.mark.covers("E34")
def test_an_assignment_that_shrinks_takes_its_replicas_out_of_elr_and_last_known_elr() -> None:
    state = partition((1,), replicas=(1, 2, 3, 4, 5), elr=(3,), last_known_elr=(2, 4))
    found = after(state, KIP_966, alive=(1,), target_replicas=(1, 2, 5))
    assert (found.elr, found.last_known_elr, found.leader_epoch) == ((), (2,), 6)


@pytest.mark.covers("E24", "E34")
@pytest.mark.parametrize(
    ("generation", "fields"),
    [
        (KIP_966, {"last_known_leader": 3, "election": Election.UNCLEAN}),
        (KIP_966_ELR, {"last_known_elr": (3,), "election": Election.ONLINE}),
    ],
)
def test_a_last_known_leader_outside_the_assignment_is_not_elected(
    generation: dict[str, bool], fields: dict[str, Any]
) -> None:
    """Broker 3 is the only one alive; it is elected as long as it is a replica."""
    known = dict(fields)
    election = known.pop("election")
    state = partition((), **known)
    assert after(state, generation, alive=(3,), election=election).leader == 3
    assert after(state, generation, alive=(3,), election=election, target_replicas=(1, 2)).leader == -1


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


def test_an_elr_without_replicas_does_not_exclude_the_last_known_leader() -> None:
    state = partition((), replicas=(1,), elr=(2, 3), last_known_elr=(1,))
    found = after(state, KIP_966_ELR)
    assert (found.leader, found.isr) == (1, (1,))
