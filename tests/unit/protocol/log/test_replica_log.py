"""The replica log: epochs, divergence and truncation, the high watermark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.log.replica_log import ReplicaLog
from tests.unit.protocol.broker.test_divergence import TABLE, Case
from tests.unit.protocol.node_helpers import batch


def log_of(*epochs: int, sizes: tuple[int, ...] = ()) -> ReplicaLog:
    """A log with one batch per epoch, of one record each or of `sizes` records."""
    log = ReplicaLog(SimLog())
    for index, epoch in enumerate(epochs):
        log.append_as_leader(batch(sizes[index] if sizes else 1, payload=f"{epoch}/{index}".encode()), epoch)
    return log


def content(log: ReplicaLog) -> list[tuple[int, int, int, bytes]]:
    stored = log.storage.read(0, 1 << 30) if log.end_offset else ()
    return [(b.base_offset, b.leader_epoch, b.record_count, b.payload) for b in stored]


def epochs_in(log: ReplicaLog) -> list[tuple[int, int]]:
    """(epoch, start offset) according to the stored batches."""
    starts: dict[int, int] = {}
    for base_offset, epoch, _, _ in content(log):
        starts.setdefault(epoch, base_offset)
    return list(starts.items())


def fetch_once(leader: ReplicaLog, follower: ReplicaLog, max_bytes: int = 1 << 20) -> int | None:
    """One fetch of the follower: the offset to which it truncated, None if it appended."""
    diverging = leader.divergence(follower.end_offset, follower.latest_epoch)
    if diverging is not None:
        offset = follower.truncation_offset(diverging)
        follower.truncate(offset)
        return offset
    if follower.end_offset < leader.end_offset:
        follower.append_as_follower(leader.storage.read(follower.end_offset, max_bytes))
    return None


@pytest.mark.covers("M43", "N1")
@TABLE
def test_divergence_is_found_and_truncated(case: Case) -> None:
    leading, following = log_of(*case.leader), log_of(*case.follower)
    assert fetch_once(leading, following) == case.cut
    assert following.end_offset == (len(case.leader) if case.cut is None else case.cut)
    while fetch_once(leading, following) is not None or following.end_offset < leading.end_offset:
        pass
    assert [epoch for _, epoch, _, _ in content(following)] == list(case.leader)


@pytest.mark.covers("M43")
def test_an_empty_follower_never_diverges_and_an_empty_leader_truncates_everything() -> None:
    assert log_of(1, 2).divergence(0, -1) is None
    assert log_of().divergence(0, -1) is None
    follower = log_of(1, 1)
    assert fetch_once(log_of(), follower) == 0
    assert (follower.end_offset, follower.latest_epoch) == (0, -1)


@st.composite
def related_logs(draw: st.DrawFn) -> tuple[ReplicaLog, ReplicaLog]:
    """Two logs that real leaders could have left behind: a common prefix, then a tail of epochs of each one's own.

    A leader epoch has one leader, so no epoch occurs in both tails; the last epoch of the prefix may go on in one.
    """
    prefix = sorted(draw(st.lists(st.integers(0, 3), max_size=5)))
    last = prefix[-1] if prefix else 0
    owner = draw(st.sampled_from([0, 1]))
    tails = [
        sorted(
            draw(st.lists(st.integers(last, last + 8).filter(lambda e, side=side: _owner(e, last, owner) == side)))[:5]
        )
        for side in (0, 1)
    ]
    sizes = draw(st.lists(st.integers(1, 3), min_size=len(prefix), max_size=len(prefix)))
    logs = []
    for tail in tails:
        own = draw(st.lists(st.integers(1, 3), min_size=len(tail), max_size=len(tail)))
        logs.append(log_of(*prefix, *tail, sizes=(*sizes, *own)))
    return logs[0], logs[1]


def _owner(epoch: int, last: int, owner_of_last: int) -> int:
    return owner_of_last if epoch == last else epoch % 2


@pytest.mark.covers("M43", "N1")
@given(related_logs(), st.integers(1, 64))
def test_a_follower_converges_to_the_leaders_log_in_a_few_rounds(
    logs: tuple[ReplicaLog, ReplicaLog], max_bytes: int
) -> None:
    leader, follower = logs
    shared = _common_prefix(leader, follower)
    rounds = len(content(leader)) + len(content(follower)) + 1
    for _ in range(rounds):
        fetch_once(leader, follower, max_bytes)
        assert _common_prefix(leader, follower) >= shared, "nothing that both had is dropped"
    assert content(follower) == content(leader)
    assert follower.epochs.entries() == leader.epochs.entries() == epochs_in(leader)


def _common_prefix(one: ReplicaLog, other: ReplicaLog) -> int:
    """The offset up to which two logs are equal."""
    end = 0
    for mine, theirs in zip(content(one), content(other), strict=False):
        if mine != theirs:
            break
        end = mine[0] + mine[2]
    return end


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=8), st.integers(0, 24))
def test_the_epoch_cache_matches_the_log_after_any_truncation(steps: list[tuple[int, int]], end_offset: int) -> None:
    epoch, log = 0, ReplicaLog(SimLog())
    for rise, count in steps:
        epoch += rise
        log.append_as_leader(batch(count), epoch)
    assert log.epochs.entries() == epochs_in(log)
    log.truncate(end_offset)
    assert log.epochs.entries() == epochs_in(log)
    assert log.latest_epoch == (epochs_in(log)[-1][0] if log.end_offset else -1)


@given(st.lists(st.integers(0, 3), max_size=8))
def test_a_reopened_log_is_the_same(rises: list[int]) -> None:
    epoch, log = 0, ReplicaLog(SimLog())
    for rise in rises:
        epoch += rise
        log.append_as_leader(batch(2), epoch)
    again = ReplicaLog(log.storage, high_watermark=1)
    assert again.epochs.entries() == log.epochs.entries()
    assert (again.end_offset, again.high_watermark) == (log.end_offset, min(1, log.end_offset))


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, 0)), (0, (-1, 0)), (1, (1, 2)), (2, (1, 2)), (3, (3, 3)), (4, (3, 3)), (5, (5, 5)), (9, (5, 5))],
)
@pytest.mark.covers("M43")
def test_end_offset_of_an_epoch_is_where_the_next_begins(epoch: int, expected: tuple[int, int]) -> None:
    log = log_of(1, 1, 3, 5, 5)
    assert log.epochs.end_offset_for(epoch, log.end_offset) == expected


def test_the_leader_stamps_offset_and_epoch() -> None:
    log = log_of(1, 1)
    stamped = log.append_as_leader(batch(3, base_offset=99, leader_epoch=99, payload=b"p"), leader_epoch=4)
    assert (stamped.base_offset, stamped.leader_epoch, stamped.record_count, stamped.payload) == (2, 4, 3, b"p")
    assert (log.end_offset, log.latest_epoch) == (5, 4)


@pytest.mark.covers("N6")
@given(st.lists(st.integers(-1, 12), max_size=12))
def test_the_high_watermark_never_moves_back_nor_beyond_the_log_end(targets: list[int]) -> None:
    log, before = log_of(*[1] * 8), 0
    for target in targets:
        moved = log.advance_high_watermark(target)
        assert log.high_watermark == max(before, min(target, 8))
        assert moved == (log.high_watermark > before)
        before = log.high_watermark


@pytest.mark.covers("N6")
def test_only_a_truncation_below_it_lowers_the_high_watermark() -> None:
    log = log_of(1, 1, 1, 1)
    log.advance_high_watermark(3)
    log.truncate(3)
    assert log.high_watermark == 3
    log.truncate(1)
    assert (log.high_watermark, log.end_offset) == (1, 1)


@pytest.mark.parametrize(("checkpoint", "expected"), [(0, 0), (2, 2), (9, 3)])
def test_a_checkpoint_beyond_the_log_end_is_lowered_to_it(checkpoint: int, expected: int) -> None:
    assert ReplicaLog(log_of(1, 1, 1).storage, checkpoint).high_watermark == expected


@pytest.mark.covers("N1")
def test_truncation_by_epoch_keeps_records_above_a_stale_high_watermark() -> None:
    leader, follower = log_of(1, 1), log_of(1, 1)
    assert follower.high_watermark == 0
    assert fetch_once(leader, follower) is None
    assert follower.end_offset == 2
