"""The decisions on one partition, as tables. Brokers 1, 2, 3 are assigned, 1 is preferred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.messages.control import BrokerState, PartitionIsrProposal
from protocol.v3.controller import decisions
from protocol.v3.controller.decisions import Author, Brokers, Choice
from protocol.v3.store.records import LeaderAndIsr, Stored

REPLICAS = (1, 2, 3)


def state(leader: int, *isr: int, unclean: bool = False) -> LeaderAndIsr:
    return LeaderAndIsr(
        leader=leader, leader_epoch=5, isr=isr, controller=9, controller_epoch=1, is_unclean_leader=unclean
    )


def alive(*live: int, leaving: tuple[int, ...] = ()) -> Brokers:
    return Brokers({broker: 100 + broker for broker in live}, frozenset(leaving))


@pytest.mark.covers("A12", "A13", "A14", "A15", "C3", "C4", "C6")
@pytest.mark.parametrize(
    ("present", "live", "wanted"),
    [
        (state(1, 1, 2, 3), alive(1, 2, 3), None),
        (state(1, 1, 2, 3), alive(1, 2), Choice(1, (1, 2), False)),
        (state(1, 1, 2, 3, unclean=True), alive(1, 2), Choice(1, (1, 2), True)),
        (state(1, 1, 2, 3), alive(2, 3), Choice(2, (2, 3), False)),
        (state(3, 3, 1, 2), alive(1, 2), Choice(1, (1, 2), False)),
        (state(1, 1, 3), alive(2, 3), Choice(3, (3,), False)),
        (state(1, 1, 3, unclean=True), alive(2, 3), Choice(3, (3,), False)),
        (state(1, 1), alive(2, 3), Choice(2, (2,), True)),
        (state(1, 1, 2), alive(7), Choice(-1, (1, 2), False)),
        (state(-1, 1, 2), alive(7), None),
        (state(-1, 1, 2, unclean=True), alive(2), Choice(2, (2,), False)),
        (state(-1, 1, 2), alive(3), Choice(3, (3,), True)),
        (state(1, 1, 2, 3), alive(2, 3, leaving=(2,)), Choice(3, (2, 3), False)),
        (state(1, 1, 2), alive(2, leaving=(2,)), Choice(2, (2,), False)),
        (state(1, 1, 4), alive(2, 4), Choice(4, (4,), False)),
    ],
)
def test_after_a_broker_change(present: LeaderAndIsr, live: Brokers, wanted: Choice | None) -> None:
    assert decisions.after_broker_change(present, REPLICAS, live, unclean_allowed=True) == wanted
    if wanted is not None:
        assert decisions.is_affected(present, live)


def test_without_unclean_elections_the_partition_waits_for_its_isr() -> None:
    choice = decisions.after_broker_change(state(1, 1), REPLICAS, alive(2, 3), unclean_allowed=False)
    assert choice == Choice(-1, (1,), False)


@pytest.mark.covers("A13", "A14")
@given(
    st.sampled_from([-1, 1, 2, 3]),
    st.lists(st.sampled_from(REPLICAS), unique=True, min_size=1),
    st.sets(st.sampled_from([1, 2, 3, 7])),
    st.booleans(),
)
def test_a_leader_is_alive_and_in_the_isr_and_unclean_only_if_no_isr_member_is_alive(
    leader: int, isr: list[int], live: set[int], flag: bool
) -> None:
    present = state(leader, *isr, unclean=flag)
    choice = decisions.after_broker_change(present, REPLICAS, alive(*live), unclean_allowed=True)
    if choice is None:
        assert leader not in live or leader in isr
        return
    if choice.leader != -1:
        assert choice.leader in choice.isr
        assert live.issuperset(choice.isr)
        assert set(choice.isr) <= set(isr) or not live & set(isr)
    if choice.leader not in (leader, -1):
        assert choice.is_unclean_leader is not bool(live & set(isr))


@pytest.mark.covers("A16", "A35")
def test_every_decision_has_a_leader_epoch_and_an_author() -> None:
    after = decisions.decided(state(1, 1, 2), Choice(2, (2,), True), Author(7, 3))
    assert (after.leader, after.isr, after.is_unclean_leader) == (2, (2,), True)
    assert (after.leader_epoch, after.controller, after.controller_epoch) == (6, 7, 3)


@pytest.mark.covers("A19")
@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        (alive(1, 2, 3), Choice(1, (1, 2, 3), False)),
        (alive(3, 2), Choice(2, (2, 3), False)),
        (alive(1, 2, leaving=(1,)), Choice(2, (1, 2), False)),
        (alive(7), None),
    ],
)
def test_the_first_state(live: Brokers, wanted: Choice | None) -> None:
    assert decisions.initial(REPLICAS, live) == wanted


@pytest.mark.parametrize(
    ("present", "live", "wanted"),
    [
        (state(2, 2, 1), alive(1, 2), Choice(1, (2, 1), False)),
        (state(2, 2, 1, unclean=True), alive(1, 2), Choice(1, (2, 1), False)),
        (state(1, 1, 2), alive(1, 2), ErrorCode.ELECTION_NOT_NEEDED),
        (state(2, 2, 3), alive(1, 2, 3), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (state(2, 2, 1), alive(2), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (state(2, 2, 1), alive(1, 2, leaving=(1,)), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ],
)
def test_a_preferred_election(present: LeaderAndIsr, live: Brokers, wanted: Choice | ErrorCode) -> None:
    assert decisions.preferred(present, REPLICAS, live) == wanted


@pytest.mark.parametrize(
    ("present", "live", "wanted"),
    [
        (state(-1, 1), alive(3, 2), Choice(2, (2,), True)),
        (state(-1, 1), alive(1, 2), Choice(1, (1,), False)),
        (state(-1, 1), alive(7), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (state(1, 1), alive(1, 2), ErrorCode.ELECTION_NOT_NEEDED),
    ],
)
def test_an_unclean_election(present: LeaderAndIsr, live: Brokers, wanted: Choice | ErrorCode) -> None:
    assert decisions.unclean(present, REPLICAS, live) == wanted


@pytest.mark.covers("B3")
@pytest.mark.parametrize(
    ("present", "live", "wanted"),
    [
        (state(2, 2, 3), alive(1, 2, 3), Choice(3, (3,), False)),
        (state(1, 1, 2, unclean=True), alive(1, 2), Choice(1, (1,), True)),
        (state(2, 2), alive(1, 2), None),
        (state(2, 2, 3), alive(2), None),
        (state(1, 1, 3), alive(1, 2, 3), None),
        (state(2, 2, 1, 3), alive(1, 2, 3, leaving=(1, 2)), Choice(3, (1, 3), False)),
    ],
)
def test_a_broker_leaves(present: LeaderAndIsr, live: Brokers, wanted: Choice | None) -> None:
    assert decisions.without(present, REPLICAS, 2, live) == wanted


@pytest.mark.covers("A40", "A41", "N8")
@pytest.mark.parametrize(
    ("present", "target", "live", "min_isr", "wanted"),
    [
        (state(1, 1, 2, 3), (1, 2, 4), alive(1, 2, 3, 4), 1, None),
        (state(1, 1, 2, 3, 4), (1, 2, 4), alive(1, 2, 3, 4), 1, Choice(1, (1, 2, 4), False)),
        (state(1, 1, 4), (1, 2, 4), alive(1, 4), 1, Choice(1, (1, 4), False)),
        (state(1, 1, 4), (1, 2, 4), alive(1, 4), 3, None),
        (state(1, 1, 4), (1, 4), alive(1, 4), 3, Choice(1, (1, 4), False)),
        (state(3, 3, 4), (4, 1), alive(1, 3, 4), 1, None),
        (state(3, 3, 4), (4, 1, 2), alive(1, 3, 4), 1, None),
        (state(3, 1, 3, 4), (4, 1, 2), alive(1, 3, 4), 1, Choice(4, (4, 1), False)),
        (state(3, 3, 4, unclean=True), (4,), alive(1, 3, 4), 1, Choice(4, (4,), False)),
        (state(1, 1, 2), (2, 3), alive(1, 2), 1, None),
        (state(1, 1, 2, 3), (2, 3), alive(1, 2, 3), 1, Choice(2, (2, 3), False)),
        (state(1, 1, 4), (2, 3, 1), alive(1, 4), 1, Choice(1, (1,), False)),
        (state(3, 3, 4), (4, 1), alive(1, 3), 1, None),
        (state(3, 3), (1, 2), alive(1, 2, 3), 1, None),
        (state(1, 1, 2, 3), (3, 2, 1), alive(1, 2, 3), 1, Choice(1, (3, 2, 1), False)),
        (state(1, 1, 2, 4, unclean=True), (1, 4), alive(1, 2, 4), 1, Choice(1, (1, 4), True)),
    ],
)
def test_the_end_of_a_reassignment(
    present: LeaderAndIsr, target: tuple[int, ...], live: Brokers, min_isr: int, wanted: Choice | None
) -> None:
    assert decisions.reassigned(present, REPLICAS, target, live, min_isr) == wanted


def test_the_holders_of_a_partition() -> None:
    assert decisions.holders(Stored(state(1, 1, 5), 0), (1, 2), (2, 4)) == (1, 2, 4, 5)
    assert decisions.holders(None, (1, 2), ()) == (1, 2)


def proposal(*isr: int, **changes: int) -> PartitionIsrProposal:
    values = {"leader_epoch": 5, "partition_epoch": 8, "leader_recovery_state": 0} | changes
    members = tuple(BrokerState(broker_id=broker, broker_epoch=100 + broker) for broker in isr)
    return PartitionIsrProposal(topic_id="T", partition_id=0, new_isr=members, **values)


@pytest.mark.covers("B6", "B19", "B20", "B23", "M52", "M53")
@pytest.mark.parametrize(
    ("sender", "found", "wanted"),
    [
        (1, proposal(1, 2), ErrorCode.NONE),
        (1, proposal(1, 2, 4), ErrorCode.NONE),
        (1, proposal(1, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (1, proposal(1, leader_epoch=6), ErrorCode.NOT_CONTROLLER),
        (1, proposal(1, partition_epoch=7), ErrorCode.INVALID_UPDATE_VERSION),
        (1, proposal(1, partition_epoch=9), ErrorCode.NOT_CONTROLLER),
        (2, proposal(1, 2), ErrorCode.INVALID_REQUEST),
        (1, proposal(2), ErrorCode.INVALID_REQUEST),
        (1, proposal(1, 1), ErrorCode.INVALID_REQUEST),
        (1, proposal(1, 7), ErrorCode.INVALID_REQUEST),
        (1, proposal(1, 2, leader_recovery_state=1), ErrorCode.INVALID_REQUEST),
        (1, proposal(1, 3), ErrorCode.INELIGIBLE_REPLICA),
        (1, proposal(1, 5), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_proposals_of_a_leader(sender: int, found: PartitionIsrProposal, wanted: ErrorCode) -> None:
    """Broker 3 is dead, 5 is in controlled shutdown."""
    stored = Stored(state(1, 1, 2), 8)
    live = alive(1, 2, 4, 5, leaving=(5,))
    assert decisions.check_proposal(stored, sender, found, (1, 2, 3, 4, 5), live) is wanted


@pytest.mark.covers("B20", "M53")
def test_a_broker_is_admitted_only_in_the_incarnation_that_fetched() -> None:
    stored, live = Stored(state(1, 1, 2), 8), Brokers({1: 101, 2: 999})
    assert decisions.check_proposal(stored, 1, proposal(1, 2), REPLICAS, live) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.covers("C5", "C6")
@pytest.mark.parametrize(("flag", "wanted"), [(0, False), (1, True)])
def test_an_accepted_proposal_keeps_the_leader_epoch_and_may_clear_the_flag(flag: int, wanted: bool) -> None:
    before = state(1, 1, unclean=True)
    after = decisions.proposed(before, proposal(1, 2, leader_recovery_state=flag), Author(7, 3))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 5, (1, 2))
    assert after.is_unclean_leader is wanted
