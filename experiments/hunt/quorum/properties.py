"""What must come about once nothing is broken any more: the liveness properties of the published model of KRaft with
reconfiguration, and two of what its operator expects.

| in the model | here |
|---|---|
| EventuallyLeaderElected | the same |
| ValuesEventuallyAcked | the same: each value is committed once, or is nowhere |
| ReconfigurationNotStuck | the same: each change is committed everywhere, or is nowhere; asked of every replica's log,
  while the model's ConfigAllOrNothing looks into the leader's log for each of the voters |

`AllConverges` is that every replica follows the leader and has all that it has; `EveryChangeIsAnswered` is the
operator's. Each says what is wrong in words, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from experiments.hunt.quorum.truth import Truth, is_counted, majority
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica

FOLLOWING = frozenset({Role.LEADER, Role.FOLLOWER})


def newest_leader(truth: Truth) -> QuorumReplica | None:
    """The running leader of the newest epoch."""
    leading = [replica for replica in truth.running.values() if replica.is_leader]
    return max(leading, key=lambda replica: replica.epoch, default=None)


def leader_elected(truth: Truth) -> str:
    """A leader that a majority of its voters follows."""
    leader = newest_leader(truth)
    if leader is None:
        return f"nobody leads: {_standing(truth)}"
    voters = frozenset(leader.voters.keys)
    following = [
        replica
        for replica in truth.running.values()
        if is_counted(replica.key, voters) and (replica.epoch, replica.leader) == (leader.epoch, leader.key.id)
    ]
    return "" if len(following) >= majority(voters) else f"{leader.key} has no majority: {_standing(truth)}"


def all_converge(truth: Truth) -> str:
    leader = newest_leader(truth)
    if leader is None or len(truth.running) < len(truth.disks):
        return f"not all run: {_standing(truth)}"
    end = leader.log.end_offset
    for replica in truth.running.values():
        ends = {replica.high_watermark, replica.log.end_offset}
        if replica.epoch != leader.epoch or replica.role not in FOLLOWING or ends != {end}:
            return f"the leader's log ends at {end}: {_standing(truth)}"
    return ""


def values_acked(truth: Truth) -> str:
    committed = Counter(text for _, text in truth.committed)
    for text in truth.sent:
        if committed[text] > 1:
            return f"{text!r} is committed {committed[text]} times"
    for node, copy in truth.copies.items():
        if copy.matched < copy.end:
            return f"{node} has {copy.end - copy.matched} values that are not committed, and {len(truth.committed)} are"
    return ""


def reconfiguration_not_stuck(truth: Truth) -> str:
    for node, copy in truth.copies.items():
        above = sorted(offset for offset in copy.changes if truth.changes.get(offset) != copy.changes[offset])
        if above:
            return f"{node} has changes at {above} that are not committed"
        missing = sorted(offset for offset in truth.changes if copy.start <= offset and offset not in copy.changes)
        if missing or copy.history.latest != truth.voters:
            return f"{node} has not the committed changes at {missing}; voters {_keys(copy.history.latest)}"
    return ""


def _standing(truth: Truth) -> str:
    return "; ".join(
        f"{replica.key.id} {replica.role} {replica.epoch} of {replica.leader}, {replica.high_watermark} of "
        f"{replica.log.end_offset}"
        for replica in truth.running.values()
    )


def _keys(voters: frozenset[object]) -> str:
    return ", ".join(sorted(map(str, voters)))


PROPERTIES: Mapping[str, Callable[[Truth], str]] = {
    "EventuallyLeaderElected": leader_elected,
    "ReconfigurationNotStuck": reconfiguration_not_stuck,
    "ValuesEventuallyAcked": values_acked,
    "AllConverges": all_converge,
}
"""The first that does not hold tells most of what is wrong."""


def missed(truth: Truth) -> tuple[str, str] | None:
    """The first property that does not hold, with what is wrong."""
    return next(((name, wrong) for name, holds in PROPERTIES.items() if (wrong := holds(truth))), None)
