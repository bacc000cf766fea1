"""Each safety invariant and liveness property fires when a test tampers with a quorum; those that are checked on every
replica fire on each, not only on the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from experiments.engines.port import Loss
from experiments.hunt.quorum import chaos, safety
from experiments.hunt.quorum.chaos import ChaosBias
from experiments.hunt.quorum.harness import CLUSTER, PropertyViolatedError, QuorumHarness
from experiments.hunt.quorum.liveness import LIVENESS, first_violation
from experiments.hunt.quorum.operator import Operator, change_request
from experiments.hunt.quorum.safety import SAFETY_INVARIANTS, SafetyInvariant
from protocol.ids import DRIVER, METADATA_LOG, NodeId
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterResponse,
    BeginQuorumEpochRequest,
    RemoveVoterRecord,
)
from protocol.quorum import context, election
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet
from tests.sim.quorum_helpers import SOON_MS, follower, leader, replica, started, vote_request

NODES = (1000, 1001, 1002, 1003, 0)
"""Three voters, a controller that is an observer, and a broker."""
Tampering = Callable[[QuorumHarness, pytest.MonkeyPatch], None]


def quorum() -> QuorumHarness:
    """A quorum that grew to three voters and took a snapshot before the third was added."""
    harness = started("tampering", 4, observers=1)
    Operator(harness).grow(2)
    harness.append()
    assert harness.run_until(harness.is_settled, SOON_MS)
    for node in harness.nodes.values():
        node.replica.take_snapshot(node.replica.high_watermark, b"state")
    Operator(harness).grow(3)
    harness.append()
    assert harness.run_until(harness.is_settled, SOON_MS)
    return harness


def save(**state: object) -> Tampering:
    """Changes the durable election state of a follower."""
    return lambda harness, _: follower(harness)._context.save(**state)


def enter(role: Role) -> Tampering:
    def tamper(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        follower(harness)._context.role = role

    return tamper


def set_high_watermark(beyond_log_end: int) -> Tampering:
    def tamper(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        follower(harness)._context.high_watermark = follower(harness).log.end_offset + beyond_log_end

    return tamper


def change_snapshot(**fields: Any) -> Tampering:
    def tamper(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        log = follower(harness).log
        assert log.snapshot is not None
        log.snapshot = replace(log.snapshot, **fields)

    return tamper


def _announce_second_leader(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    target = follower(harness)
    request = BeginQuorumEpochRequest(
        correlation_id=1,
        cluster_id=CLUSTER,
        voter_id=target.key.id,
        voter_uuid=target.key.uuid,
        leader_id=1003,
        leader_epoch=target.epoch,
    )
    harness.submit(target.key.id, request)


def _replace_record(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    log = harness.disks[follower(harness).key.id].open_log(METADATA_LOG)
    [batch] = log.read(log.end_offset - 1, 1)
    log.truncate(batch.base_offset)
    log.append(replace(batch, leader_epoch=batch.leader_epoch + 1))


def _lead_after_removal(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "_resign", lambda self, now_ms, leader, why: None)
    harness.submit(leader(harness).key.id, change_request(99, False, leader(harness).key))


def _lead_on_another_disk(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "_resign", lambda self, now_ms, leader, why: None)
    leader(harness)._context.save(uuid="another")


def _vote_twice(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    voter = replica(harness, 1003)
    harness.cut(*harness.disks)
    harness.cut(1003)
    for candidate in (1000, 1001):
        harness.submit(1003, vote_request(ReplicaKey(candidate, "u"), 9, voter.key, (9, 99)))
        harness.run_for(2)
        voter._context.save(voted=None)


def _truncate_leader(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    log = harness.disks[leader(harness).key.id].open_log(METADATA_LOG)
    log.truncate(log.end_offset - 1)


def _lose_all_disks(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in sorted(harness.nodes):
        harness.crash(node, Loss("all"))


def _commit_without_majority(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    found = leader(harness)
    harness.cut(found.key.id)
    harness.append()
    found._context.high_watermark = found.log.end_offset
    harness.append()


def _commit_unflushed_records(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in (1000, 1001, 1002):
        monkeypatch.setattr(replica(harness, node).log, "flush", lambda: None)
    harness.append()


def _commit_record_of_earlier_epoch(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    found = leader(harness)
    harness.cut(found.key.id)
    harness.append()
    harness.cuts = frozenset()
    found._context.save(epoch=found.epoch + 1)
    found._context.high_watermark = found.log.end_offset


def _append_two_changes(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    found = leader(harness)
    harness.cut(found.key.id)
    for voter in found.voters.keys[:2]:
        found.append(harness.now_ms, [RemoveVoterRecord(voter_id=voter.id, voter_uuid=voter.uuid)])
    harness.append()


def _change_before_commit_in_epoch(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    first = leader(harness)
    harness.crash(first.key.id)
    second = leader(harness)
    harness.cut(second.key.id)
    second.append(harness.now_ms, [RemoveVoterRecord(voter_id=first.key.id, voter_uuid=first.key.uuid)])


def _add_lagging_replica(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.cut(1003)
    harness.append()
    key = replica(harness, 1003).key
    leader(harness).append(harness.now_ms, [AddVoterRecord(voter_id=key.id, voter_uuid=key.uuid)])


def _add_unknown_replica(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    leader(harness).append(harness.now_ms, [AddVoterRecord(voter_id=1007, voter_uuid="unknown")])


def _lead_without_majority(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "_resign", lambda self, now_ms, leader, why: None)
    harness.cut(leader(harness).key.id)


def _acknowledge_uncommitted_change(harness: QuorumHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    found, request = leader(harness), change_request(99, True, replica(harness, 1003).key)
    harness.cut(found.key.id)
    harness.append()
    harness.submit(found.key.id, request)
    harness.run_for(2)
    found._context.out.send(DRIVER, AddVoterResponse(correlation_id=request.correlation_id))


TAMPERINGS: list[tuple[type[SafetyInvariant], str, Tampering]] = [
    (safety.NoIllegalState, "the epoch decreases", save(epoch=0)),
    (safety.NoIllegalState, "the leader of an epoch changes", save(leader=1003)),
    (safety.NoIllegalState, "a follower resigns", enter(Role.RESIGNED)),
    (safety.NoIllegalState, "the high watermark is above the log end", set_high_watermark(10)),
    (safety.NoIllegalState, "a second leader is announced", _announce_second_leader),
    (safety.NoLogDivergence, "a record is replaced", _replace_record),
    (safety.NoLogDivergence, "the epoch of a snapshot changes", change_snapshot(epoch=99)),
    (safety.StatesMatchRoles, "a follower has no leader", save(leader=-1)),
    (safety.StatesMatchRoles, "a replica resigns in the epoch of another", enter(Role.RESIGNED)),
    (safety.StatesMatchRoles, "a candidate knows a leader", enter(Role.CANDIDATE)),
    (safety.StatesMatchRoles, "a removed replica leads", _lead_after_removal),
    (safety.ConfigMatchesLog, "the voters of a snapshot change", change_snapshot(voters=VoterSet())),
    (safety.NeverTwoLeadersInSameEpoch, "a follower has another leader", save(leader=1003)),
    (safety.NeverTwoLeadersInSameEpoch, "the leader has another disk", _lead_on_another_disk),
    (safety.OneVotePerEpoch, "a replica votes twice", _vote_twice),
    (safety.LeaderHasAllAckedValues, "the leader truncates its log", _truncate_leader),
    (safety.AckedValueNotLost, "all disks are lost", _lose_all_disks),
    (safety.HighWatermarkHasMajority, "a leader commits without a majority", _commit_without_majority),
    (safety.HighWatermarkHasMajority, "a leader commits unflushed records", _commit_unflushed_records),
    (safety.HighWatermarkHasMajority, "a record of an earlier epoch is committed", _commit_record_of_earlier_epoch),
    (safety.HighWatermarkMonotone, "the high watermark decreases", set_high_watermark(-1)),
    (safety.ChangesTakeTurns, "two changes are uncommitted", _append_two_changes),
    (safety.ChangesTakeTurns, "a change comes before a commit in the epoch", _change_before_commit_in_epoch),
    (safety.ChangesTakeTurns, "a lagging replica is added", _add_lagging_replica),
    (safety.ChangesTakeTurns, "an unknown replica is added", _add_unknown_replica),
    (safety.AckedChangeIsCommitted, "an uncommitted change is acknowledged", _acknowledge_uncommitted_change),
    (safety.CheckQuorumResign, "a leader without a majority stays", _lead_without_majority),
]


def use_invariant(harness: QuorumHarness, kind: type[SafetyInvariant]) -> None:
    """Checks only this invariant from now on, after it has seen every node."""
    harness.invariants = [kind(harness.view)]
    harness.run_for(2_100)


def violated_by(harness: QuorumHarness, act: Callable[[], None] = lambda: None) -> str:
    """The invariant that is violated during or soon after `act`."""

    def acted() -> None:
        act()
        for node in harness.nodes:
            harness.observe(node)
        harness.run_for(10_000)

    with pytest.raises(PropertyViolatedError) as found:
        acted()
    return found.value.name


@pytest.mark.parametrize(
    ("kind", "tamper"), [(kind, tamper) for kind, _, tamper in TAMPERINGS], ids=[what for _, what, _ in TAMPERINGS]
)
def test_fires(kind: type[SafetyInvariant], tamper: Tampering, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = quorum()
    use_invariant(harness, kind)
    assert violated_by(harness, lambda: tamper(harness, monkeypatch)) == kind.__name__


@pytest.mark.parametrize("kind", SAFETY_INVARIANTS, ids=lambda kind: kind.__name__)
def test_does_not_fire_without_tampering(kind: type[SafetyInvariant]) -> None:
    harness = quorum()
    use_invariant(harness, kind)
    crashed, epoch = leader(harness).key.id, leader(harness).epoch
    harness.crash(crashed)
    harness.append()
    harness.run_for(10_000)
    assert leader(harness).key.id != crashed
    assert leader(harness).epoch > epoch


def test_every_invariant_is_tampered_with() -> None:
    assert {kind for kind, _, _ in TAMPERINGS} == set(SAFETY_INVARIANTS)


@pytest.mark.parametrize("node", NODES)
def test_the_voters_of_every_replica_are_compared_with_its_log(node: NodeId) -> None:
    harness = quorum()
    use_invariant(harness, safety.ConfigMatchesLog)
    replica(harness, node).log.voters = VoterHistory(VoterSet.of([ReplicaKey(1000, "unknown")]))
    assert violated_by(harness) == "ConfigMatchesLog"


@pytest.mark.parametrize("node", [1003, 0])
@pytest.mark.parametrize("role", [Role.PROSPECTIVE, Role.LEADER])
def test_the_role_of_every_replica_is_compared_with_its_log(node: NodeId, role: Role) -> None:
    harness = quorum()
    use_invariant(harness, safety.StatesMatchRoles)
    harness.cut(node)
    replica(harness, node)._context.role = role
    assert violated_by(harness) == "StatesMatchRoles"


# -- what must come about ----------------------------------------------------------------------------------------------


def test_a_missing_leader_or_majority_is_reported() -> None:
    harness = quorum()
    assert first_violation(harness.view) is None
    first = leader(harness)
    for node in (1000, 1001, 1002):
        if node != first.key.id:
            harness.crash(node)
    assert LIVENESS["EventuallyLeaderElected"](harness.view)
    harness.crash(first.key.id)
    assert (first_violation(harness.view) or ("",))[0] == "EventuallyLeaderElected"


def test_uncommitted_and_duplicated_values_are_reported() -> None:
    harness = quorum()
    harness.cut(leader(harness).key.id)
    harness.append()
    assert LIVENESS["ValuesEventuallyAcked"](harness.view)
    harness.heal()
    assert harness.run_until(lambda: first_violation(harness.view) is None, SOON_MS)
    [text] = harness.view.sent[-1:]
    harness.view.committed.append((9, text))
    assert "2 times" in LIVENESS["ValuesEventuallyAcked"](harness.view)


def test_an_uncommitted_voter_change_is_reported() -> None:
    harness = quorum()
    first = leader(harness)
    harness.cut(first.key.id)
    harness.submit(first.key.id, change_request(99, False, follower(harness).key))
    harness.run_for(5)
    assert f"{first.key.id} has changes at" in LIVENESS["ReconfigurationNotStuck"](harness.view)


@pytest.mark.parametrize("node", NODES)
def test_a_voter_change_that_any_replica_lacks_is_reported(node: NodeId) -> None:
    """The published model checks the leader's log only, once per voter (ConfigAllOrNothing)."""
    harness = quorum()
    copy = harness.view.copies[node]
    assert LIVENESS["ReconfigurationNotStuck"](harness.view) == ""
    copy.changes.popitem()
    assert f"{node} lacks the committed" in LIVENESS["ReconfigurationNotStuck"](harness.view)


@pytest.mark.parametrize("node", NODES)
def test_a_lagging_replica_is_reported(node: NodeId) -> None:
    harness = quorum()
    assert LIVENESS["AllConverges"](harness.view) == ""
    replica(harness, node)._context.high_watermark -= 1
    assert LIVENESS["AllConverges"](harness.view)
    harness.crash(node)
    assert "not all replicas run" in LIVENESS["AllConverges"](harness.view)


def test_a_healthy_leader_deposed_by_a_returning_voter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = election.can_grant_vote

    def can_grant_vote(state: object, candidate: ReplicaKey, log_end: object, *, pre_vote: bool) -> bool:
        return pre_vote or original(state, candidate, log_end, pre_vote=pre_vote)  # type: ignore[arg-type]

    monkeypatch.setattr(context, "can_grant_vote", can_grant_vote)
    bias = ChaosBias(sizes=(3,), static=True, faults=("snapshots",), steps=1)
    assert chaos.HEALTHY_LEADER_STAYS in {chaos.run(seed, bias).violation for seed in range(10)}
