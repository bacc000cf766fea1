"""Each invariant of quorums, and each of their liveness properties, fires on a quorum that somebody has tampered with;
those that are asked of every replica fire on each, not on the leader alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from experiments.engines.port import Loss
from experiments.hunt.quorum import chaos, invariants
from experiments.hunt.quorum.chaos import Bias
from experiments.hunt.quorum.invariants import INVARIANTS, Invariant
from experiments.hunt.quorum.lab import CLUSTER, BrokenInvariantError, QuorumLab
from experiments.hunt.quorum.operator import Operator, change_request
from experiments.hunt.quorum.properties import PROPERTIES, missed
from protocol.ids import DRIVER, METADATA_LOG, NodeId
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterResponse,
    BeginQuorumEpochRequest,
    RemoveVoterRecord,
    VoteRequest,
)
from protocol.quorum import election
from protocol.quorum import replica as module
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet
from tests.sim.quorum_helpers import SOON_MS, leader, replica

NODES = (1000, 1001, 1002, 1003, 0)
"""Three voters that were added, one replica that was not, an observer."""
Tampering = Callable[[QuorumLab, pytest.MonkeyPatch], None]


def quorum() -> QuorumLab:
    """A quorum that has grown to three voters, and had a snapshot before the last of them came."""
    lab = QuorumLab("tampering", 4, observers=1)
    lab.start(*lab.disks)
    Operator(lab).grow(2)
    lab.append()
    assert lab.run_until(lab.is_settled, SOON_MS)
    for node in lab.nodes.values():
        node.replica.take_snapshot(node.replica.high_watermark, b"state")
    Operator(lab).grow(3)
    lab.append()
    assert lab.run_until(lab.is_settled, SOON_MS)
    return lab


def follower(lab: QuorumLab) -> QuorumReplica:
    return next(replica(lab, node) for node in (1000, 1001, 1002) if node != leader(lab).key.id)


def _epoch_falls(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.save(epoch=0)


def _leader_changes(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.save(leader=1003)


def _resigns_from_nothing(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.role = Role.RESIGNED


def _commits_beyond_its_end(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.high_watermark += 10


def _is_told_of_two_leaders(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    told = follower(lab)
    request = BeginQuorumEpochRequest(
        correlation_id=1,
        cluster_id=CLUSTER,
        voter_id=told.key.id,
        voter_uuid=told.key.uuid,
        leader_id=1003,
        leader_epoch=told.epoch,
    )
    lab.ask(told.key.id, request)


def _has_another_record(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    log = lab.disks[follower(lab).key.id].open_log(METADATA_LOG)
    [batch] = log.read(log.end_offset - 1, 1)
    log.truncate(batch.base_offset)
    log.append(batch.model_copy(update={"leader_epoch": batch.leader_epoch + 1}))


def _snapshot_of_another_epoch(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    log = follower(lab).log
    assert log.snapshot is not None
    log.snapshot = replace(log.snapshot, epoch=99)


def _follows_nobody(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.save(leader=-1)


def _resigned_in_the_epoch_of_another(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.role = Role.RESIGNED


def _candidate_under_a_leader(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.role = Role.CANDIDATE


def _leads_after_its_removal(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "_resign", lambda self, now_ms, leader, why: None)
    lab.ask(leader(lab).key.id, change_request(99, False, leader(lab).key))


def _snapshot_of_other_voters(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    log = follower(lab).log
    assert log.snapshot is not None
    log.snapshot = replace(log.snapshot, voters=VoterSet())


def _believes_in_another_leader(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.save(leader=1003)


def _leads_on_another_disk(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "_resign", lambda self, now_ms, leader, why: None)
    leader(lab)._context.save(uuid="another")


def _votes_twice(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    voter = replica(lab, 1003)
    lab.cut(*lab.disks)
    lab.cut(1003)
    for number, candidate in enumerate((1000, 1001), 1):
        request = VoteRequest(
            correlation_id=number,
            cluster_id=CLUSTER,
            candidate_id=candidate,
            candidate_uuid="u",
            candidate_epoch=9,
            voter_id=1003,
            voter_uuid=voter.key.uuid,
            last_offset_epoch=9,
            last_offset=99,
        )
        lab.ask(1003, request)
        lab.run_for(2)
        voter._context.save(voted=None)


def _leader_lacks_a_value(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    log = lab.disks[leader(lab).key.id].open_log(METADATA_LOG)
    log.truncate(log.end_offset - 1)


def _all_disks_are_lost(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in sorted(lab.nodes):
        lab.crash(node, Loss("all"))


def _commits_alone(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    found = leader(lab)
    lab.cut(found.key.id)
    lab.append()
    found._context.high_watermark = found.log.end_offset
    lab.append()


def _commits_what_others_have_not_flushed(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in (1000, 1001, 1002):
        monkeypatch.setattr(replica(lab, node).log, "flush", lambda: None)
    lab.append()


def _commits_a_record_of_another_epoch(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    found = leader(lab)
    lab.cut(found.key.id)
    lab.append()
    lab.cuts.clear()
    found._context.save(epoch=found.epoch + 1)
    found._context.high_watermark = found.log.end_offset


def _forgets_what_is_committed(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    follower(lab)._context.high_watermark = 0


def _makes_two_changes(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    found = leader(lab)
    lab.cut(found.key.id)
    for voter in found.voters.keys[:2]:
        found.append([RemoveVoterRecord(voter_id=voter.id, voter_uuid=voter.uuid)])
    lab.append()


def _changes_before_it_has_committed(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = leader(lab)
    lab.crash(first.key.id)
    second = leader(lab)
    lab.cut(second.key.id)
    second.append([RemoveVoterRecord(voter_id=first.key.id, voter_uuid=first.key.uuid)])


def _adds_who_lags(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.cut(1003)
    lab.append()
    key = replica(lab, 1003).key
    leader(lab).append([AddVoterRecord(voter_id=key.id, voter_uuid=key.uuid)])


def _adds_nobody(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    leader(lab).append([AddVoterRecord(voter_id=1007, voter_uuid="nobody's")])


def _leads_alone(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "_resign", lambda self, now_ms, leader, why: None)
    lab.cut(leader(lab).key.id)


def _acknowledges_at_once(lab: QuorumLab, monkeypatch: pytest.MonkeyPatch) -> None:
    found, request = leader(lab), change_request(99, True, replica(lab, 1003).key)
    lab.cut(found.key.id)
    lab.append()
    lab.ask(found.key.id, request)
    lab.run_for(2)
    found._context.out.send(DRIVER, AddVoterResponse(correlation_id=request.correlation_id))


TAMPERINGS: dict[type[Invariant], tuple[Tampering, ...]] = {
    invariants.NoIllegalState: (
        _epoch_falls,
        _leader_changes,
        _resigns_from_nothing,
        _commits_beyond_its_end,
        _is_told_of_two_leaders,
    ),
    invariants.NoLogDivergence: (_has_another_record, _snapshot_of_another_epoch),
    invariants.StatesMatchRoles: (
        _follows_nobody,
        _resigned_in_the_epoch_of_another,
        _candidate_under_a_leader,
        _leads_after_its_removal,
    ),
    invariants.ConfigMatchesLog: (_snapshot_of_other_voters,),
    invariants.NeverTwoLeadersInSameEpoch: (_believes_in_another_leader, _leads_on_another_disk),
    invariants.OneVotePerEpoch: (_votes_twice,),
    invariants.LeaderHasAllAckedValues: (_leader_lacks_a_value,),
    invariants.AckedValueNotLost: (_all_disks_are_lost,),
    invariants.HighWatermarkHasMajority: (
        _commits_alone,
        _commits_what_others_have_not_flushed,
        _commits_a_record_of_another_epoch,
    ),
    invariants.HighWatermarkMonotone: (_forgets_what_is_committed,),
    invariants.ChangesTakeTurns: (
        _makes_two_changes,
        _changes_before_it_has_committed,
        _adds_who_lags,
        _adds_nobody,
    ),
    invariants.AckedChangeIsCommitted: (_acknowledges_at_once,),
    invariants.CheckQuorumResign: (_leads_alone,),
}


def judged_by(lab: QuorumLab, kind: type[Invariant]) -> None:
    """Nothing but this invariant is asked from now on; it has seen every node."""
    lab.invariants = [kind(lab.truth)]
    lab.run_for(2_100)


def broken_by(lab: QuorumLab, act: Callable[[], None] = lambda: None) -> str:
    """The invariant that is broken in or soon after an act."""

    def acted() -> None:
        act()
        for node in lab.nodes:
            lab.look_at(node)
        lab.run_for(10_000)

    with pytest.raises(BrokenInvariantError) as found:
        acted()
    return found.value.invariant


@pytest.mark.parametrize(
    ("kind", "tamper"),
    [(kind, tamper) for kind, tampers in TAMPERINGS.items() for tamper in tampers],
    ids=lambda value: value.__name__.strip("_"),
)
def test_fires(kind: type[Invariant], tamper: Tampering, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = quorum()
    judged_by(lab, kind)
    assert broken_by(lab, lambda: tamper(lab, monkeypatch)) == kind.__name__


@pytest.mark.parametrize("kind", INVARIANTS, ids=lambda kind: kind.__name__)
def test_is_silent_while_nobody_tampers(kind: type[Invariant]) -> None:
    lab = quorum()
    judged_by(lab, kind)
    crashed, epoch = leader(lab).key.id, leader(lab).epoch
    lab.crash(crashed)
    lab.append()
    lab.run_for(10_000)
    assert leader(lab).key.id != crashed
    assert leader(lab).epoch > epoch


def test_every_invariant_is_tampered_with() -> None:
    assert set(TAMPERINGS) == set(INVARIANTS)


@pytest.mark.parametrize("node", NODES)
def test_the_voters_of_every_replica_are_compared_with_its_log(node: NodeId) -> None:
    lab = quorum()
    judged_by(lab, invariants.ConfigMatchesLog)
    replica(lab, node).log.voters = VoterHistory(VoterSet.of([ReplicaKey(1000, "nobody's")]))
    assert broken_by(lab) == "ConfigMatchesLog"


@pytest.mark.parametrize("node", [1003, 0])
@pytest.mark.parametrize("role", [Role.PROSPECTIVE, Role.LEADER])
def test_the_role_of_every_replica_is_compared_with_its_log(node: NodeId, role: Role) -> None:
    lab = quorum()
    judged_by(lab, invariants.StatesMatchRoles)
    lab.cut(node)
    replica(lab, node)._context.role = role
    assert broken_by(lab) == "StatesMatchRoles"


# -- what must come about ----------------------------------------------------------------------------------------------


def test_a_quorum_without_a_leader_or_a_majority_is_told() -> None:
    lab = quorum()
    assert missed(lab.truth) is None
    first = leader(lab)
    for node in (1000, 1001, 1002):
        if node != first.key.id:
            lab.crash(node)
    assert PROPERTIES["EventuallyLeaderElected"](lab.truth)
    lab.crash(first.key.id)
    assert (missed(lab.truth) or ("",))[0] == "EventuallyLeaderElected"


def test_a_value_that_is_neither_committed_nor_gone_is_told_and_so_is_one_that_is_there_twice() -> None:
    lab = quorum()
    lab.cut(leader(lab).key.id)
    lab.append()
    assert PROPERTIES["ValuesEventuallyAcked"](lab.truth)
    lab.heal()
    assert lab.run_until(lambda: missed(lab.truth) is None, SOON_MS)
    [text] = lab.truth.sent[-1:]
    lab.truth.committed.append((9, text))
    assert "2 times" in PROPERTIES["ValuesEventuallyAcked"](lab.truth)


def test_a_change_that_is_neither_committed_nor_gone_is_told() -> None:
    lab = quorum()
    first = leader(lab)
    lab.cut(first.key.id)
    lab.ask(first.key.id, change_request(99, False, follower(lab).key))
    lab.run_for(5)
    assert f"{first.key.id} has changes at" in PROPERTIES["ReconfigurationNotStuck"](lab.truth)


@pytest.mark.parametrize("node", NODES)
def test_a_change_that_one_replica_lacks_is_told_be_it_the_leader_or_not(node: NodeId) -> None:
    """The published model looks for it in the leader's log, as often as there are voters (ConfigAllOrNothing)."""
    lab = quorum()
    copy = lab.truth.copies[node]
    assert PROPERTIES["ReconfigurationNotStuck"](lab.truth) == ""
    copy.changes.popitem()
    assert f"{node} has not" in PROPERTIES["ReconfigurationNotStuck"](lab.truth)


@pytest.mark.parametrize("node", NODES)
def test_a_replica_that_is_behind_is_told(node: NodeId) -> None:
    lab = quorum()
    assert PROPERTIES["AllConverges"](lab.truth) == ""
    replica(lab, node)._context.high_watermark -= 1
    assert PROPERTIES["AllConverges"](lab.truth)
    lab.crash(node)
    assert "not all run" in PROPERTIES["AllConverges"](lab.truth)


def test_a_leader_that_is_deposed_by_one_who_comes_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = election.can_grant_vote

    def can_grant_vote(standing: object, candidate: ReplicaKey, log_end: object, *, pre_vote: bool) -> bool:
        return pre_vote or honest(standing, candidate, log_end, pre_vote=pre_vote)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "can_grant_vote", can_grant_vote)
    bias = Bias(sizes=(3,), static=True, faults=("snapshots",), steps=1)
    assert chaos.STAYS in {chaos.run(seed, bias).broken for seed in range(10)}
