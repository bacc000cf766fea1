"""Liveness properties: what must hold some time after all faults were healed. Three are those of the published TLA+
model of KRaft with reconfiguration (Vanlightly/kafka-tlaplus, kraft/kip_853):

| in the model | here |
|---|---|
| EventuallyLeaderElected | the same |
| ValuesEventuallyAcked | the same: each value is committed once or is in no log |
| ReconfigurationNotStuck | the same: each change is committed everywhere or is in no log. It is checked on the log of
  every replica; the model's ConfigAllOrNothing checks the leader's log once per voter |

`AllConverges` adds that every replica follows the leader and has its whole log, committed. Each function returns a
description of the violation, empty if the property holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from experiments.check.rules import majority
from experiments.hunt.quorum.global_view import GlobalView, is_voter_of, list_keys
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica


def newest_leader(view: GlobalView) -> QuorumReplica | None:
    """The running leader of the newest epoch."""
    leading = [replica for replica in view.running.values() if replica.is_leader]
    return max(leading, key=lambda replica: replica.epoch, default=None)


def leader_elected(view: GlobalView) -> str:
    """A leader exists, and a majority of its voters follows it."""
    leader = newest_leader(view)
    if leader is None:
        return f"no leader: {_describe_replicas(view)}"
    voters = frozenset(leader.voters.keys)
    following = [
        replica
        for replica in view.running.values()
        if is_voter_of(replica.key, voters) and (replica.epoch, replica.leader) == (leader.epoch, leader.key.id)
    ]
    return "" if len(following) >= majority(voters) else f"{leader.key} has no majority: {_describe_replicas(view)}"


def all_converge(view: GlobalView) -> str:
    """Every node runs, is in the leader's epoch, and has the leader's log, committed up to its end."""
    leader = newest_leader(view)
    if leader is None or len(view.running) < len(view.disks):
        return f"not all replicas run: {_describe_replicas(view)}"
    end = leader.log.end_offset
    for replica in view.running.values():
        ends = {replica.high_watermark, replica.log.end_offset}
        follows = replica.epoch == leader.epoch and replica.role in (Role.LEADER, Role.FOLLOWER)
        if not follows or ends != {end}:
            return f"the leader's log ends at {end}: {_describe_replicas(view)}"
    return ""


def values_acked(view: GlobalView) -> str:
    """No value is committed twice, and no log has values that are not committed."""
    committed = Counter(text for _, text in view.committed)
    if repeated := [text for text in view.sent if committed[text] > 1]:
        return f"{repeated[0]!r} is committed {committed[repeated[0]]} times"
    for node, copy in view.copies.items():
        if copy.matched < copy.end:
            return f"{node} has {copy.end - copy.matched} values that are not committed, and {len(view.committed)} are"
    return ""


def reconfiguration_not_stuck(view: GlobalView) -> str:
    """Every log has exactly the committed changes of the voters, and the committed voter set."""
    for node, copy in view.copies.items():
        above = sorted(offset for offset in copy.changes if view.changes.get(offset) != copy.changes[offset])
        if above:
            return f"{node} has changes at {above} that are not committed"
        missing = sorted(offset for offset in view.changes if copy.start <= offset and offset not in copy.changes)
        if missing or copy.history.latest != view.voters:
            return f"{node} lacks the committed changes at {missing}; voters {list_keys(copy.history.latest)}"
    return ""


def _describe_replicas(view: GlobalView) -> str:
    return "; ".join(
        f"{replica.key.id} {replica.role} {replica.epoch} of {replica.leader}, {replica.high_watermark} of "
        f"{replica.log.end_offset}"
        for replica in view.running.values()
    )


LIVENESS: Mapping[str, Callable[[GlobalView], str]] = {
    "EventuallyLeaderElected": leader_elected,
    "ReconfigurationNotStuck": reconfiguration_not_stuck,
    "ValuesEventuallyAcked": values_acked,
    "AllConverges": all_converge,
}
"""By name, most informative first."""


def first_violation(view: GlobalView) -> tuple[str, str] | None:
    """The name of the first property that does not hold and the description of its violation, None if all hold."""
    return next(((name, violation) for name, holds in LIVENESS.items() if (violation := holds(view))), None)
