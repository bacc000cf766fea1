"""The decision on a partition change: from a partition's state and a request to the record that changes it.

`decide` reads as the rules in order; each rule is a function below it:

1. a reassignment whose new replicas are in sync is completed;
2. ELR and last known ELR follow the ISR: a replica that leaves an ISR below min ISR stays eligible to lead, unless it
   returned from an unclean shutdown; then it is kept in the last known ELR (requirements E13-E15, E20, E23);
3. a leader is elected, or a user's designation is carried out: a user names the leader of a leaderless partition and
   accepts that records are lost, unless that replica is in ISR or ELR (F22-F24, C12);
4. a leader elected from the ELR becomes the whole ISR (E30); so does a leader elected uncleanly, which also empties the
   ELR and makes the partition RECOVERING (KIP-704);
5. the leader epoch rises when the leader changes or the assignment loses a replica. A smaller ISR or ELR alone does
   not raise it (E18, N29); the partition epoch rises with every record;
6. the last known leader is recorded for a partition whose ISR becomes empty (E24).

An election prefers, in this order (E29, E31, K5):

1. a replica that holds every committed record: a member of the ISR or, only when the ISR is empty, of the ELR. The
   present leader is kept while it qualifies (a PREFERRED election asks the first replica before it); otherwise the
   first that qualifies in the order of the assignment;
2. the last known leader, where the generation allows it; an unclean choice. Departure: it must be acceptable. Kafka's
   code of that time elected it whether it was alive or not (KAFKA-19522, N33);
3. in an UNCLEAN election, the first acceptable replica of the assignment, as in Kafka; the KIP asks for any (K6).

Sources: KIP-966, KIP-704, and Apache Kafka's partition change code of October 2024 (metadata version 4.0), from which
the vectors of `isray conformance` were recorded. The request selects one of four generations of the rules:

- without `elr_enabled` (`kip-497`): the ISR never becomes empty, its last member stays in it although it cannot lead
  (K4), and an ELR left by an older record is dropped at the next change (K10);
- `elr_enabled` with `use_last_known_leader` (`kip-966-elr`): Kafka's first phase, in which `last_known_elr` holds the
  last known leader and nothing else;
- `elr_enabled` alone: Kafka's code with the true last known ELR, and no last known leader;
- `elr_enabled` with `track_last_known_leader` (`kip-966`): as before, with the last known leader in a field of its
  own (N15) and with the rules of the KIP where Kafka's code departs from it. An election that leaves min ISR reached
  empties the ELR in the same record (E14, M7); ELR and last known ELR hold replicas of the new assignment only (E34);
  after an unclean election the last known ELR keeps all but the new leader until min ISR is reached (E23, N28).

The generations before `kip-966` decide as the release of Kafka that the request names (`protocol/kafka_release.py`).
Up to 4.2 a reassignment waits for the whole final assignment: an original replica that is down delays it. From 4.3 on
all adding replicas must be in sync, and all of the final assignment where fewer are added than removed. That alone
would complete with too few members for min ISR, so that writes are refused, or with a single copy. So `kip-966` also
asks for as many of the final assignment as its min ISR, at least two if it has two, and never lets a completion delete
copies that the final assignment does not replace (E32, M75, N31). From 4.1.1 on the last known leader is recorded by
any change that leaves the partition without a leader, in the place of rule 6.

Rules of Kafka's code that a request names (`protocol/kafka_rules.py`) decide in the place of the ones here. A broker
that the caller removes from the ISR because the broker failed, shut down or returned from an unclean shutdown must not
be acceptable as leader in the same request: the decision does not know the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from protocol.errors import UndecidableError
from protocol.ids import NO_LEADER, BrokerId
from protocol.kafka_release import ADDED_REPLICAS_COMPLETE, LAST_KNOWN_LEADER_BY_RECORD, NEWEST, KafkaRelease
from protocol.kafka_rules import (
    DEAD_LAST_KNOWN_LEADER_ELECTED,
    DEAD_ORIGINAL_IN_ISR,
    REMOVED_REPLICA_BLOCKS_LAST_KNOWN_LEADER,
    UNASSIGNED_LAST_KNOWN_LEADER_ELECTED,
    WITHDRAWN_REPLICA_AWAITED,
)
from protocol.messages.records import PartitionChangeRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, awaited_replicas, copies_of_completed
from protocol.values import direct, immutable

Brokers = tuple[BrokerId, ...]


@direct
class Election(Enum):
    """What an election may do to find a leader."""

    PREFERRED = "PREFERRED"
    ONLINE = "ONLINE"
    UNCLEAN = "UNCLEAN"


@immutable
class ChangeRequest:
    """The requested change of a partition, and the rules for it.

    `min_isr` is the effective min ISR of the present replicas (E8). `None` in a target leaves that part as it is;
    target replicas are never empty. `unclean_shutdown_replicas` registered after an unclean shutdown (E20).
    `designated_leader`, if not -1, leads a leaderless partition instead of an elected replica (F22, F23). Raises
    ValueError if `track_last_known_leader` comes with `use_last_known_leader` or without `elr_enabled`.
    """

    min_isr: int
    is_acceptable_leader: Callable[[BrokerId], bool]
    elr_enabled: bool
    use_last_known_leader: bool = False
    track_last_known_leader: bool = False
    election: Election = Election.ONLINE
    designated_leader: BrokerId = NO_LEADER
    target_isr: Brokers | None = None
    target_replicas: Brokers | None = None
    target_adding: Brokers | None = None
    target_removing: Brokers | None = None
    target_leader_recovery_state: int | None = None
    unclean_shutdown_replicas: Brokers | None = None
    kafka_rules: frozenset[str] = frozenset()
    kafka_release: KafkaRelease = NEWEST

    def __post_init__(self) -> None:
        if self.track_last_known_leader and (self.use_last_known_leader or not self.elr_enabled):
            raise ValueError("track_last_known_leader goes with elr_enabled and without use_last_known_leader")


class _Assignment(NamedTuple):
    replicas: Brokers
    isr: Brokers
    adding: Brokers
    removing: Brokers


class _Elected(NamedTuple):
    """The outcome: the leader (-1 if no replica may lead) and whether its log may lack committed records."""

    leader: BrokerId
    unclean: bool


class _Eligible(NamedTuple):
    """ELR and last known ELR as they are to be, each in ascending order where this module computed it."""

    elr: Brokers
    last_known_elr: Brokers


def decide(
    topic_id: str, partition_id: int, state: PartitionState, request: ChangeRequest
) -> PartitionChangeRecord | None:
    """The record that carries out the request as far as the rules allow, None if nothing changes. UndecidableError for
    a state on which Kafka's code throws, to which its rule `dead-original-in-isr` has led.
    """
    changes = changes_of(state, request)
    if not changes:
        return None
    return PartitionChangeRecord.unchecked(topic_id=topic_id, partition_id=partition_id, **changes)


def changes_of(state: PartitionState, request: ChangeRequest) -> dict[str, Any]:
    """The fields of the record that `decide` returns, which depend on all of a state but its epochs
    (`PartitionState.roles`); empty if nothing changes. UndecidableError as there.
    """
    target = _complete_reassignment(request, _target_assignment(state, request))
    eligible = _follow_isr(state, request, target)
    elected = _elect(state, request, target, eligible.elr)
    leader_changes = elected.leader != state.leader
    unclean = leader_changes and elected.unclean

    isr = target.isr
    if leader_changes and (unclean or elected.leader in eligible.elr):
        isr = (elected.leader,)
    eligible = _after_election(request, eligible, target, isr, unclean)

    changes: dict[str, Any] = {}
    if leader_changes or not set(target.replicas).issuperset(state.replicas):
        changes["leader"] = elected.leader
    if unclean or (isr != state.isr and (isr or request.elr_enabled)):
        changes["isr"] = isr
    if eligible.elr != state.elr:
        changes["eligible_leader_replicas"] = eligible.elr
    _change_last_known(changes, state, request, eligible.last_known_elr, elected.leader)
    _change_assignment(changes, state, target)
    _change_recovery_state(changes, state, request, unclean)
    return changes


def _target_or(wanted: Brokers | None, present: Brokers) -> Brokers:
    return present if wanted is None else wanted


def _target_assignment(state: PartitionState, request: ChangeRequest) -> _Assignment:
    return _Assignment(
        replicas=_target_or(request.target_replicas, state.replicas),
        isr=_target_or(request.target_isr, state.isr),
        adding=_target_or(request.target_adding, state.adding_replicas),
        removing=_target_or(request.target_removing, state.removing_replicas),
    )


def _min_isr(request: ChangeRequest, replicas: Brokers) -> int:
    """The effective min ISR of an assignment; Kafka's code uses that of the present assignment."""
    return min(request.min_isr, len(replicas)) if request.track_last_known_leader else request.min_isr


def _complete_reassignment(request: ChangeRequest, target: _Assignment) -> _Assignment:
    """The assignment without its removing replicas, once the replicas that the reassignment waits for are in the ISR
    (E32) and the ISR is large enough for the final assignment (M75); unchanged before.
    """
    removing = target.removing
    if not removing and not target.adding:
        return target
    isr = tuple(broker for broker in target.isr if broker not in removing)
    replicas = tuple(broker for broker in target.replicas if broker not in removing)
    awaited, needed = set(replicas), 0
    if request.track_last_known_leader or request.kafka_release.has(ADDED_REPLICAS_COMPLETE):
        awaited = awaited_replicas(target.replicas, target.adding, removing)
        if WITHDRAWN_REPLICA_AWAITED in request.kafka_rules:
            awaited.update(target.adding)
    if request.track_last_known_leader:
        needed = copies_of_completed(request.min_isr, len(replicas), removing)
    if not replicas or not awaited.issubset(isr) or len(isr) < needed:
        return target
    return _Assignment(replicas, isr, adding=(), removing=())


def _follow_isr(state: PartitionState, request: ChangeRequest, target: _Assignment) -> _Eligible:
    """ELR and last known ELR for the new ISR, before the election."""
    if not request.elr_enabled:
        return _Eligible(state.elr, state.last_known_elr)
    isr = target.isr
    if len(isr) >= _min_isr(request, target.replicas):
        return _Eligible((), ())
    unclean = request.unclean_shutdown_replicas or ()
    eligible = {*state.isr, *state.elr}.difference(isr)
    known = eligible.union(state.last_known_elr).difference(isr)
    if request.track_last_known_leader:
        eligible.intersection_update(target.replicas)
        known.intersection_update(target.replicas)
    elr = eligible.difference(unclean)
    return _Eligible(tuple(sorted(elr)), tuple(sorted(known - elr)))


def _elect(state: PartitionState, request: ChangeRequest, target: _Assignment, elr: Brokers) -> _Elected:
    last_known, designated = NO_LEADER, request.designated_leader
    if not _has_complete_replica(request, target, elr):
        last_known = _last_known_leader(state, request, target.replicas)
        # Kafka's code elects the last known leader dead or alive, a recorded "none" (-1) like any other.
        recorded = last_known != NO_LEADER or state.last_known_elr == (NO_LEADER,)
        dead_or_alive = DEAD_LAST_KNOWN_LEADER_ELECTED in request.kafka_rules and request.use_last_known_leader
        if recorded and dead_or_alive and designated == NO_LEADER:
            return _Elected(last_known, unclean=True)
    if request.designated_leader != NO_LEADER and state.leader == NO_LEADER:
        if designated not in target.replicas or not request.is_acceptable_leader(designated):
            return _Elected(NO_LEADER, unclean=False)
        return _Elected(designated, unclean=designated not in target.isr + elr)
    return _elect_candidate(request, target.replicas, target.isr or elr, state.leader, last_known)


def _elect_candidate(
    request: ChangeRequest, replicas: Brokers, complete: Brokers, present: BrokerId, last_known: BrokerId
) -> _Elected:
    """`last_known` is the last known leader, -1 where it may not be elected."""
    is_acceptable, election = request.is_acceptable_leader, request.election
    order = (*replicas[:1], present, *replicas[1:]) if election is Election.PREFERRED else (present, *replicas)
    for broker in order:
        if broker in complete and is_acceptable(broker):
            return _Elected(broker, unclean=False)
    if last_known != NO_LEADER and is_acceptable(last_known):
        return _Elected(last_known, unclean=True)
    if election is Election.UNCLEAN:
        for broker in replicas:
            if is_acceptable(broker):
                return _Elected(broker, unclean=True)
    return _Elected(NO_LEADER, unclean=False)


def _has_complete_replica(request: ChangeRequest, target: _Assignment, elr: Brokers) -> bool:
    """Whether a replica is in ISR or ELR; only for one of Kafka's rules a member of the ELR need not be assigned."""
    if REMOVED_REPLICA_BLOCKS_LAST_KNOWN_LEADER in request.kafka_rules:
        return bool(target.isr or elr)
    return bool(target.isr) or not set(elr).isdisjoint(target.replicas)


def _last_known_leader(state: PartitionState, request: ChangeRequest, replicas: Brokers) -> BrokerId:
    """The last known leader that may be elected, or -1. In `last_known_elr` it is the only member: several members are
    a last known ELR (E24, K5). In its own field it is a candidate only in an election that a user allows to be unclean.
    """
    known = NO_LEADER
    if request.track_last_known_leader:
        known = state.last_known_leader if request.election is Election.UNCLEAN else NO_LEADER
    elif request.elr_enabled and request.use_last_known_leader and len(state.last_known_elr) == 1:
        known = state.last_known_elr[0]
    if known != NO_LEADER and known not in replicas and DEAD_ORIGINAL_IN_ISR in request.kafka_rules:
        raise UndecidableError(f"the last known leader {known} is none of the replicas {list(replicas)}")
    is_candidate = known in replicas or UNASSIGNED_LAST_KNOWN_LEADER_ELECTED in request.kafka_rules
    return known if is_candidate else NO_LEADER


def _after_election(
    request: ChangeRequest, eligible: _Eligible, target: _Assignment, isr: Brokers, unclean: bool
) -> _Eligible:
    """ELR and last known ELR after an election left `isr`; other members of the target ISR, complete, join the ELR."""
    if not request.elr_enabled:
        return _Eligible((), ())
    if request.track_last_known_leader and len(isr) >= _min_isr(request, target.replicas):
        return _Eligible((), ())
    if isr == target.isr:
        return eligible
    complete = {*eligible.elr, *target.isr}.difference(isr)
    if not unclean:
        return eligible._replace(elr=tuple(sorted(complete)))
    if request.track_last_known_leader:
        return _Eligible((), tuple(sorted(complete.union(eligible.last_known_elr).difference(isr))))
    return _Eligible((), ())


def _change_last_known(
    changes: dict[str, Any], state: PartitionState, request: ChangeRequest, last_known_elr: Brokers, leader: BrokerId
) -> None:
    """Last known ELR and last known leader, each in the field in which the generation records it."""
    isr_becomes_empty = changes.get("isr") == ()
    known = state.last_known_elr
    if not request.use_last_known_leader:
        known = last_known_elr
    elif request.elr_enabled:
        named, is_lost = leader, isr_becomes_empty
        if request.kafka_release.has(LAST_KNOWN_LEADER_BY_RECORD):
            named = changes.get("leader", NO_LEADER)
            is_lost = "leader" in changes and named == NO_LEADER and not known
        if is_lost:
            known = (state.leader,)
        elif named != NO_LEADER:
            known = ()
    if known != state.last_known_elr:
        changes["last_known_elr"] = known
    if request.track_last_known_leader:
        last_known = state.last_known_leader
        if leader != NO_LEADER:
            last_known = NO_LEADER
        elif isr_becomes_empty:
            last_known = state.isr[0] if state.leader == NO_LEADER else state.leader
        if last_known != state.last_known_leader:
            changes["last_known_leader"] = last_known


def _change_assignment(changes: dict[str, Any], state: PartitionState, target: _Assignment) -> None:
    if target.replicas != state.replicas:
        changes["replicas"] = target.replicas
    if target.removing != state.removing_replicas:
        changes["removing_replicas"] = target.removing
    if target.adding != state.adding_replicas:
        changes["adding_replicas"] = target.adding


def _change_recovery_state(
    changes: dict[str, Any], state: PartitionState, request: ChangeRequest, unclean: bool
) -> None:
    """RECOVERING from an unclean election until the leader clears it; a clean election leaves it as it is (N13)."""
    wanted = request.target_leader_recovery_state
    if wanted is None or wanted == state.leader_recovery_state:
        wanted = LeaderRecoveryState.RECOVERING if unclean else state.leader_recovery_state
    if wanted != state.leader_recovery_state:
        changes["leader_recovery_state"] = int(wanted)
