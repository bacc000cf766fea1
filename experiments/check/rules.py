"""Rules of a partition and of the controllers' quorum that more than one check applies, each written once.

A rule says what is wrong in words, and nothing where nothing is; the check that applies it adds who did it and reports
it under its name. A rule takes what it compares from one of three sources that know a partition:

- the nodes of a simulated cluster (`truth.PartitionView`): the committed state and the one before it, and every replica
  at this moment;
- the store of `v3` (`v3_suite.Published`): every published state by its version, and what the nodes do;
- a recording (`check_events.py`): every committed state, and of a replica what its broker has reported;

or of two that know the controllers' quorum: the controllers of a cluster (`quorum_rules.py`), and all disks of the
quorum's own simulation (`experiments/hunt/quorum`). Without a source these names are those of a cluster and of a
recording:

| rule | name |
|---|---|
| `one_leader` | OneLeaderPerEpoch (in `v3`, too); OneControllerPerEpoch of `v3`; NeverTwoLeadersInSameEpoch of the
  quorum, in clusters OneQuorumLeaderPerEpoch |
| `leads_by_record` | MetadataLogMatching of recordings; OneLeaderPerEpoch of `v3` |
| `epoch_stays` | ValidReplicaState of recordings; OneLeaderPerEpoch of `v3`; NoIllegalState of the quorum |
| `leader_epoch_rises` | EpochsRise; LeaderEpochsRise of `v3`, whose epochs also rise by one |
| `epochs_rise` | EpochsRise |
| `leader_is_in_isr` | ValidControllerIsrAndElr; LeaderInIsr of `v3` |
| `isr_by_record` | MetadataLogMatching of recordings; LeaderUsesStoredIsr of `v3` |
| `waits_for_all` | ReplicationQuorumSuperset, in `v3`, too; no recording shows it |
| `clean_candidates` | RecoveryOnlyWithoutCleanCandidate; UncleanElectionIsLastResort of recordings |
| `has_committed` | LeaderCompleteness, in `v3`, too; LeaderCandidateCompleteness; HighWatermarkMonotone of a new
  leader; LeaderHasAllAckedValues of the quorum |
| `mark_is_in_log` | ValidReplicaState; NoIllegalState of the quorum |
| `mark_stays` | HighWatermarkMonotone, of the quorum, too; ValidReplicaState of a follower |
| `have_majority` | HighWatermarkHasMajority of the quorum, in clusters CommittedMetadataHasMajority |

Two names of one rule are those of two publications: the models of KIP-966 and of KRaft, and the design of `v3`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, MutableMapping
from typing import TypeVar

from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, BrokerId, Epoch, NodeId, Offset
from protocol.metadata.partition import PartitionState
from protocol.v3.store.records import LeaderAndIsr

Place = TypeVar("Place", bound=Hashable)
Voter = TypeVar("Voter")


AssignedState = PartitionState | PartitionChanged
"""A state with what the metadata log records."""
LedState = AssignedState | LeaderAndIsr
"""A state as far as all generations have it."""


# -- leaders and epochs ------------------------------------------------------------------------------------------------


def one_leader(leaders: MutableMapping[tuple[Place, Epoch], NodeId], place: Place, epoch: Epoch, node: NodeId) -> str:
    """In a place, a partition or the quorum, only the first node of an epoch, noted in `leaders`, ever leads in it."""
    first = leaders.setdefault((place, epoch), node)
    return "" if first == node else f"nodes {first} and {node} both lead in epoch {epoch}"


def epoch_stays(before: Epoch, epoch: Epoch) -> str:
    """The leader epoch that a replica knows never falls."""
    return f"went from leader epoch {before} back to {epoch}" if epoch < before else ""


def leads_by_record(recorded: Collection[BrokerId], epoch: Epoch, leader: BrokerId) -> str:
    """Whom a broker takes for the leader of an epoch, itself included, is `recorded` as its leader (A2, M35)."""
    return (
        "" if leader in recorded else f"takes {leader} for the leader of epoch {epoch}; committed is {sorted(recorded)}"
    )


def leader_epoch_rises(before: LedState, state: LedState) -> str:
    """The leader epoch never falls, and another leader has a higher one (A14, A16, E30)."""
    if state.leader_epoch < before.leader_epoch:
        return f"the leader epoch went from {before.leader_epoch} to {state.leader_epoch}"
    if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
        return f"leader {state.leader} follows {before.leader} in the same epoch {state.leader_epoch}"
    return ""


def epochs_rise(before: AssignedState, state: AssignedState) -> str:
    """The partition epoch rises with every change; the leader epoch as in `leader_epoch_rises`, and with every replica
    that is removed from the assignment, which is then fenced (E18, E30; Kafka's `PartitionChangeBuilder`). The states
    differ.
    """
    if state.partition_epoch <= before.partition_epoch:
        return f"the partition epoch went from {before.partition_epoch} to {state.partition_epoch}"
    removed = sorted(set(before.replicas).difference(state.replicas))
    wrong = leader_epoch_rises(before, state)
    if not wrong and removed and state.leader_epoch == before.leader_epoch:
        return f"the replicas {removed} are removed in leader epoch {state.leader_epoch}, which does not rise"
    return wrong


# -- in-sync replicas --------------------------------------------------------------------------------------------------


def leader_is_in_isr(state: LedState) -> str:
    """An ISR has no member twice, and the leader is one of them (A13, A14)."""
    if len(set(state.isr)) != len(state.isr):
        return f"ISR {state.isr} has a member twice"
    is_in = state.leader == NO_LEADER or state.leader in state.isr
    return "" if is_in else f"leader {state.leader} is not in the ISR {state.isr}"


def isr_by_record(recorded: Collection[tuple[BrokerId, ...]], epoch: Epoch, isr: Collection[BrokerId]) -> str:
    """The ISR that a leader uses at a partition epoch, also a deposed one, is `recorded` for it (A46)."""
    is_recorded = any(sorted(isr) == sorted(other) for other in recorded)
    return "" if is_recorded else f"takes {[*isr]} for the ISR at partition epoch {epoch}; committed is {[*recorded]}"


def waits_for_all(required: Iterable[BrokerId], counted: Collection[BrokerId]) -> str:
    """A leader that is not stale counts, for its high watermark, all that may be elected after it (B13, A48)."""
    missing = sorted(set(required).difference(counted))
    return f"counts with {counted}, and not with {missing}" if missing else ""


def clean_candidates(
    members: Iterable[BrokerId], replicas: Collection[BrokerId], is_active: Callable[[BrokerId], bool]
) -> list[BrokerId]:
    """The members of ISR and ELR that can lead: while there is one, no election is unclean (E29, F16, M72)."""
    return sorted({broker for broker in members if broker in replicas and is_active(broker)})


# -- logs --------------------------------------------------------------------------------------------------------------


def has_committed(end: Offset, committed: Offset) -> str:
    """A log that must have everything that was committed does not end before it."""
    return f"ends at {end}, committed is {committed}" if end < committed else ""


def committed_before(marks: Mapping[Epoch, Offset], epoch: Epoch, first: Epoch = 0) -> Offset:
    """What leaders of the epochs from `first` on and before `epoch` have committed, by the highest high watermark of
    each: a leader of `epoch` must have it, in whatever order this became known.
    """
    return max((mark for at, mark in marks.items() if first <= at < epoch), default=0)


def mark_is_in_log(mark: Offset, end: Offset, start: Offset = 0) -> str:
    """A high watermark lies within its log."""
    return "" if start <= mark <= end else f"has high watermark {mark} of a log {start}..{end}"


def mark_stays(before: Offset, mark: Offset) -> str:
    """The high watermark of a leader never falls within its leader epoch."""
    return f"moved its high watermark back from {before} to {mark}" if mark < before else ""


# -- the quorum --------------------------------------------------------------------------------------------------------


def majority(voters: Collection[object]) -> int:
    return len(voters) // 2 + 1


def have_majority(voters: Collection[Voter], has: Callable[[Voter], bool]) -> bool:
    """Whether a majority of the voters has something; what a leader of the quorum commits, a majority has (KIP-595)."""
    return sum(map(has, voters)) >= majority(voters)
