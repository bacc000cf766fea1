"""The rules of a partition's leader: high watermark, who may join the ISR, who must leave it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.broker.leadership import (
    FollowerProgress,
    Leadership,
    adopt,
    begin,
    high_watermark_target,
    may_join,
    out_of_sync_replicas,
    record_fetch,
)
from protocol.messages.data import FetchPartition
from protocol.metadata.partition import LeaderRecoveryState, PartitionState

ME = 0
LAG_MS = 100
STATE = PartitionState(replicas=(0, 1, 2, 3), isr=(0, 1, 2), leader=0, leader_epoch=5, partition_epoch=9)
FETCH = FetchPartition(topic_id="T", partition_id=0, current_leader_epoch=5, fetch_offset=7)


def leading(
    isr: tuple[int, ...], ends: dict[int, int] | None = None, proposed: tuple[int, ...] | None = None, start: int = 0
) -> Leadership:
    """Broker 0 leads replicas 0 to 3; `ends` are the followers' log ends, -1 for one that has not fetched."""
    leadership = begin(replace(STATE, isr=isr), ME, start, now_ms=0)
    leadership.proposed_isr = proposed
    for broker, end_offset in (ends or {}).items():
        leadership.followers[broker].end_offset = end_offset
        leadership.followers[broker].broker_epoch = broker
    return leadership


def target(leadership: Leadership, log_end: int, min_isr: int = 1, needs_min_isr: bool = True) -> int:
    return high_watermark_target(leadership, ME, log_end, min_isr, needs_min_isr)


HIGH_WATERMARKS = {
    "smallest log end of the ISR": (leading((0, 1, 2), {1: 8, 2: 6, 3: 1}), 10, 2, 6),
    "the leader's own log end counts": (leading((0, 1), {1: 12}), 10, 2, 10),
    "the leader alone": (leading((0,), {1: 3}), 10, 1, 10),
    "a member that has not fetched in this epoch": (leading((0, 1, 2), {1: 8}), 10, 2, -1),
    "shrink in flight: the leaving member still counts": (leading((0, 1, 2), {1: 8, 2: 3}, (0, 1)), 10, 2, 3),
    "expand in flight: the joining member counts already": (leading((0, 1), {1: 8, 2: 5}, (0, 1, 2)), 10, 2, 5),
    "both in flight: everyone counts": (leading((0, 1, 2), {1: 8, 2: 6, 3: 4}, (0, 1, 3)), 10, 2, 4),
    "committed ISR below min ISR": (leading((0,), {1: 10}), 10, 2, -1),
    "proposal would reach min ISR, the committed ISR does not": (leading((0,), {1: 10, 3: 10}, (0, 3)), 10, 2, -1),
    "committed ISR reaches min ISR, the proposal does not": (leading((0, 1), {1: 9}, (0,)), 10, 2, 9),
}


@pytest.mark.covers("E1", "E2", "E3", "B11", "B12", "B13", "B14", "M12")
@pytest.mark.parametrize(
    ("leadership", "log_end", "min_isr", "expected"), HIGH_WATERMARKS.values(), ids=HIGH_WATERMARKS
)
def test_high_watermark_target(leadership: Leadership, log_end: int, min_isr: int, expected: int) -> None:
    assert target(leadership, log_end, min_isr) == expected


@pytest.mark.covers("N7")
def test_without_the_min_isr_rule_a_lone_leader_moves_the_high_watermark_by_itself() -> None:
    leadership = leading((0,))
    assert target(leadership, 10, min_isr=2, needs_min_isr=False) == 10
    assert target(leadership, 10, min_isr=2, needs_min_isr=True) == -1


@pytest.mark.covers("M11")
def test_the_high_watermark_waits_for_a_fenced_member_until_the_leader_learns_of_it() -> None:
    leadership = leading((0, 1), {1: 4})
    assert target(leadership, 9, min_isr=2) == 4
    record_fetch(leadership.followers[1], 9, 1, 9, now_ms=1)
    assert target(leadership, 9, min_isr=2) == 9


SUBSETS = st.sets(st.integers(1, 3)).map(lambda followers: (0, *sorted(followers)))


@pytest.mark.covers("E1", "E3", "B13", "N21")
@given(SUBSETS, st.none() | SUBSETS, st.lists(st.integers(-1, 9), min_size=3, max_size=3), st.integers(1, 4))
def test_every_record_below_the_target_is_on_the_maximal_isr(
    isr: tuple[int, ...], proposed: tuple[int, ...] | None, ends: list[int], min_isr: int
) -> None:
    leadership = leading(isr, dict(enumerate(ends, 1)), proposed)
    assert set(leadership.maximal_isr) == {*isr, *(proposed or ())}
    assert len(set(leadership.maximal_isr)) == len(leadership.maximal_isr)
    found = target(leadership, 9, min_isr)
    holders = [9 if broker == ME else ends[broker - 1] for broker in leadership.maximal_isr]
    if len(isr) < min_isr:
        assert found == -1
    else:
        assert found == min(holders)


JOINING = {
    "caught up": (leading((0, 1), {2: 6}), 6, True, True),
    "ahead of the high watermark": (leading((0, 1), {2: 9}), 6, True, True),
    "below the high watermark": (leading((0, 1), {2: 5}), 6, True, False),
    "below the start of this leader epoch": (leading((0, 1), {2: 6}, start=7), 6, True, False),
    "at the start of this leader epoch": (leading((0, 1), {2: 7}, start=7), 6, True, True),
    "no fetch in this epoch": (leading((0, 1)), 0, True, False),
    "not eligible in the metadata": (leading((0, 1), {2: 6}), 6, False, False),
    "in the ISR already": (leading((0, 1, 2), {2: 6}), 6, True, False),
    "a proposal in flight": (leading((0, 1), {2: 6}, (0,)), 6, True, False),
}


@pytest.mark.covers("N5", "A45", "B6", "B21")
@pytest.mark.parametrize(("leadership", "high_watermark", "eligible", "expected"), JOINING.values(), ids=JOINING)
def test_who_may_join(leadership: Leadership, high_watermark: int, eligible: bool, expected: bool) -> None:
    assert may_join(leadership, 2, high_watermark, lambda broker, epoch: eligible) is expected


@pytest.mark.covers("B6", "M53")
def test_eligibility_is_asked_for_the_epoch_that_the_follower_fetched_under() -> None:
    leadership = leading((0, 1), {2: 6})
    record_fetch(leadership.followers[2], 6, broker_epoch=17, leader_end=6, now_ms=0)
    assert may_join(leadership, 2, 6, lambda broker, epoch: (broker, epoch) == (2, 17))
    assert not may_join(leadership, 2, 6, lambda broker, epoch: (broker, epoch) == (2, 18))


@pytest.mark.covers("C11")
def test_no_follower_may_join_a_recovering_leader() -> None:
    leadership = leading((0,), {2: 6})
    leadership.recovery_state = LeaderRecoveryState.RECOVERING
    assert not may_join(leadership, 2, 6, lambda broker, epoch: True)


def progress(last_caught_up_ms: int, parked: bool = False) -> FollowerProgress:
    return FollowerProgress(end_offset=5, last_caught_up_ms=last_caught_up_ms, delayed_fetch=FETCH if parked else None)


LAGGING = {
    "caught up in time": (progress(901), (), []),
    "caught up too long ago": (progress(900), (), [1]),
    "parked at the log end": (progress(0, parked=True), (), []),
    "silent": (progress(901), (1,), [1]),
    "parked and then silent": (progress(901, parked=True), (1,), [1]),
    "another one is silent": (progress(901), (2,), []),
}


@pytest.mark.covers("A44", "A47", "M41")
@pytest.mark.parametrize(("of_broker_1", "silent", "expected"), LAGGING.values(), ids=LAGGING)
def test_out_of_sync_replicas(of_broker_1: FollowerProgress, silent: tuple[int, ...], expected: list[int]) -> None:
    leadership = leading((0, 1))
    leadership.followers[1] = of_broker_1
    assert out_of_sync_replicas(leadership, silent, now_ms=1_000, lag_time_max_ms=LAG_MS) == expected
    leadership.proposed_isr = (0, 1)
    assert out_of_sync_replicas(leadership, silent, now_ms=1_000, lag_time_max_ms=LAG_MS) == [], (
        "a proposal is in flight"
    )


@pytest.mark.covers("A44")
def test_all_out_of_sync_replicas_leave_together_and_the_leader_never_does() -> None:
    leadership = leading((0, 1, 2))
    assert out_of_sync_replicas(leadership, (), LAG_MS - 1, LAG_MS) == []
    assert out_of_sync_replicas(leadership, (), LAG_MS, LAG_MS) == [1, 2]
    assert out_of_sync_replicas(leadership, (0, 3), LAG_MS - 1, LAG_MS) == [], "3 is not in the ISR"


@pytest.mark.covers("M40", "A44")
def test_a_follower_that_reaches_the_former_log_end_is_caught_up_as_of_its_last_fetch() -> None:
    follower = FollowerProgress()
    record_fetch(follower, 0, 1, leader_end=10, now_ms=100)
    assert follower.last_caught_up_ms == 0
    record_fetch(follower, 10, 1, leader_end=20, now_ms=200)
    assert follower.last_caught_up_ms == 100, "it has reached what the log end was when it last fetched"
    record_fetch(follower, 15, 1, leader_end=30, now_ms=300)
    assert follower.last_caught_up_ms == 100, "10 further records in one round trip are too many for it"
    record_fetch(follower, 30, 1, leader_end=30, now_ms=400)
    assert follower.last_caught_up_ms == 400
    assert (follower.end_offset, follower.last_fetch_ms, follower.leader_end_at_last_fetch) == (30, 400, 30)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_the_caught_up_time_never_moves_back_nor_into_the_future(rounds: list[tuple[int, int]]) -> None:
    follower, end, leader_end, before = FollowerProgress(), 0, 0, 0
    for now_ms, (fetched, produced) in enumerate(rounds):
        leader_end += produced
        end = min(end + fetched, leader_end)
        record_fetch(follower, end, 1, leader_end, now_ms)
        assert before <= follower.last_caught_up_ms <= now_ms
        assert end < leader_end or follower.last_caught_up_ms == now_ms
        before = follower.last_caught_up_ms


def test_a_new_leader_counts_its_isr_as_caught_up_and_knows_no_log_ends() -> None:
    leadership = begin(STATE, ME, 8, now_ms=1_000)
    assert {broker: p.last_caught_up_ms for broker, p in leadership.followers.items()} == {1: 1_000, 2: 1_000, 3: 0}
    assert {p.end_offset for p in leadership.followers.values()} == {-1}
    assert (leadership.leader_epoch, leadership.partition_epoch, leadership.epoch_start_offset) == (5, 9, 8)
    assert (leadership.isr, leadership.maximal_isr) == ((0, 1, 2), (0, 1, 2))


@pytest.mark.covers("B18")
def test_newer_committed_state_voids_the_proposal_in_flight() -> None:
    leadership = leading((0, 1), {1: 4, 2: 4}, proposed=(0, 1, 2))
    newer = replace(STATE, isr=(0,), partition_epoch=10, replicas=(0, 1, 4))
    assert adopt(leadership, newer, ME)
    assert (leadership.isr, leadership.maximal_isr, leadership.proposed_isr) == ((0,), (0,), None)
    assert leadership.partition_epoch == 10
    assert sorted(leadership.followers) == [1, 4]
    assert leadership.followers[1].end_offset == 4, "what is known of a follower stays known"


@pytest.mark.covers("B18", "N3")
@pytest.mark.parametrize("partition_epoch", [8, 9])
def test_state_that_is_not_newer_changes_nothing(partition_epoch: int) -> None:
    leadership = leading((0, 1), proposed=(0, 1, 2))
    assert not adopt(leadership, replace(STATE, isr=(0,), partition_epoch=partition_epoch), ME)
    assert (leadership.isr, leadership.proposed_isr, leadership.partition_epoch) == ((0, 1), (0, 1, 2), 9)
