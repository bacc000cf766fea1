"""Mutants of unclean recovery: what is asked, what counts, who wins, and what the controller makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.faults import recipes
from experiments.faults.kinds.administration import Reassign
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.processes import Crash, Restart
from experiments.faults.schema import Fault
from experiments.hunt.mutants.mutant import Mutant
from experiments.hunt.mutants.patches import Original, around, constant
from experiments.hunt.mutants.scripts import END_MS, TOPIC, scripted
from protocol.config import UNCLEAN_RECOVERY_STRATEGY, UNCLEAN_RECOVERY_TIMEOUT_MS
from protocol.controller import partition_change, partition_election, recovery_decisions
from protocol.controller.recovery_decisions import RecoveryQuery
from protocol.controller.recovery_requests import RECOVERY_TIMER, RecoveryRequests
from protocol.ids import FIRST_CONTROLLER, NO_LEADER, RECOVERY_MANAGER, TopicIdPartition
from protocol.messages.recovery import PartitionRecovery, ReplicaAnswer
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.recovery import ranking
from protocol.recovery.task import RecoveryTask


def _keep_all_answers(original: object, self: RecoveryTask, recovery: PartitionRecovery, now_ms: int) -> None:
    self.recovery, self.requested_ms = recovery, now_ms


def _longer_first(original: object, answer: ReplicaAnswer) -> tuple[int, int]:
    return answer.log_end_offset, answer.last_written_leader_epoch


def _shorter_first(original: object, answer: ReplicaAnswer) -> tuple[int, int]:
    return answer.last_written_leader_epoch, -answer.log_end_offset


def _not_stated_again(original: Original, self: RecoveryRequests, now_ms: int, name: str) -> None:
    if name != RECOVERY_TIMER:
        original(self, now_ms, name)


def _count_from_one(original: Original, self: RecoveryRequests) -> object:
    self._incarnation = 0
    return original(self)


def _never_cancelled(original: Original, self: RecoveryRequests, now_ms: int, keys: Sequence[TopicIdPartition]) -> None:
    image = self._state.image
    states = ((key, image.partition(key)) for key in keys)
    original(self, now_ms, [key for key, state in states if state is not None and state.leader == NO_LEADER])


def _assigned_or_not(
    original: Original, state: PartitionState, request: partition_change.ChangeRequest, replicas: tuple[int, ...]
) -> object:
    return original(state, request, (*replicas, state.last_known_leader))


def _designated_anyway(
    original: Original, state: object, request: partition_change.ChangeRequest, target: object, elr: object
) -> object:
    if request.designated_leader != NO_LEADER:
        return partition_election.Elected(request.designated_leader, unclean=True)
    return original(state, request, target, elr)


def _only_active(
    original: Callable[..., tuple[int, ...]], image: MetadataImage, partition: PartitionState
) -> tuple[int, ...]:
    return tuple(broker for broker in original(image, partition) if image.is_active(broker))


def _first_only(original: Callable[..., RecoveryQuery | None], *args: object) -> RecoveryQuery | None:
    query = original(*args)
    return None if query is None else query._replace(replicas=query.replicas[:1])


def _unheard(broker: int, begin_ms: int, end_ms: int) -> Fault:
    """The broker's responses to the recovery manager are lost."""
    lasts_ms = end_ms - begin_ms
    return Cut(at_ms=begin_ms, duration_ms=lasts_ms, source=(broker,), target=(RECOVERY_MANAGER,), one_way=True)


LOST = (
    recipes.kill(2, 3_300, 8_000),
    recipes.kill(0, 5_500, 8_200),
    recipes.kill(1, 5_500, 8_400),
)
"""Broker 2 leaves the ISR first and lacks what is written then; brokers 0 and 1 end in the last known ELR."""
PROACTIVE = {UNCLEAN_RECOVERY_STRATEGY: "proactive"}

GUARDS: tuple[Mutant, ...] = (
    Mutant(
        name="recovery-responses-of-any-incarnation",
        guard="A response counts if it is from the incarnation under which its broker is registered (F8).",
        instead="It counts from any incarnation.",
        expected=("RecoveryElectsRespondent",),
        patches=(
            constant(RecoveryTask, "_is_of_registered_incarnation", True),
            around(RecoveryTask, "update", _keep_all_answers),
            constant(recovery_decisions, "_incarnations_are_registered", True),
        ),
        focus=scripted(
            "A broker responds and restarts while the response of another, required one is lost.",
            *LOST,
            _unheard(1, 7_000, 14_000),
            recipes.kill(2, 9_500, 9_800),
        ),
    ),
    Mutant(
        name="recovery-responses-of-any-leader-epoch",
        guard="A response counts if its replica knows the partition's leader epoch (F9).",
        instead="It counts with any leader epoch.",
        expected=("RecoveryResponsesAreCurrent",),
        patches=(constant(RecoveryTask, "_knows_leader_epoch", True),),
        focus=scripted(
            "The only remaining replica learns late that there is no leader, after the recovery has waited its time.",
            recipes.isolate(2, (0, 1), 2_500, END_MS),
            recipes.kill(0, 6_500, END_MS),
            recipes.kill(1, 6_500, END_MS),
            recipes.disturb((FIRST_CONTROLLER,), (2,), "delay", 6_500, END_MS, delay_ms=400, only="metadata"),
            config={**PROACTIVE, UNCLEAN_RECOVERY_TIMEOUT_MS: 100},
        ),
    ),
    Mutant(
        name="recovery-does-not-wait-for-the-last-known-elr",
        guard="A balanced recovery waits until all members of the last known ELR have responded (F11).",
        instead="It elects from those that have responded by the deadline.",
        expected=("RecoveryHasRequiredResponses",),
        patches=(
            constant(RecoveryTask, "_has_required", True),
            constant(recovery_decisions, "_all_required_answered", True),
        ),
        focus=scripted("The responses of a required replica are lost.", *LOST, _unheard(1, 7_000, END_MS)),
    ),
    Mutant(
        name="recovery-does-not-wait-for-fenced-replicas",
        guard="Until its timeout a proactive recovery waits for all that may hold more, fenced ones too (F12).",
        instead="It elects as soon as all active replicas have responded.",
        expected=("RecoveryHasRequiredResponses",),
        patches=(around(recovery_decisions, "_holders", _only_active),),
        focus=scripted("A replica that lacks records is back before the others.", *LOST, config=PROACTIVE),
    ),
    Mutant(
        name="recovery-queries-one-replica",
        guard="A recovery queries all active replicas (F7).",
        instead="It queries the first active one.",
        expected=("RecoveryLeavesNothingReachable",),
        patches=(around(recovery_decisions, "query_for", _first_only),),
        focus=scripted("A replica that lacks records is back before the others.", *LOST, config=PROACTIVE),
    ),
    Mutant(
        name="recovery-decided-by-adding-replicas",
        guard="Replicas that a reassignment adds do not decide a recovery alone (M62).",
        instead="They count as replicas that may hold the most.",
        expected=("RecoveryHearsHolder",),
        patches=(constant(recovery_decisions, "_is_only_adding", False),),
        focus=scripted(
            "A partition without leader is reassigned to brokers that have nothing of its log.",
            recipes.kill(0, 3_300, 13_000),
            recipes.kill(1, 3_300, 13_500),
            Reassign(at_ms=6_000, duration_ms=END_MS - 6_000, topic=TOPIC, partition=0, replicas=(2, 3)),
            brokers=4,
            replicas=2,
            config={**PROACTIVE, UNCLEAN_RECOVERY_TIMEOUT_MS: 2_000},
        ),
    ),
    Mutant(
        name="last-known-leader-outside-the-assignment",
        guard="The last known leader is elected if it is a replica of the present assignment (E24).",
        instead="It is elected also when a cancelled reassignment has removed it.",
        expected=("ValidControllerIsrAndElr",),
        patches=(around(partition_change, "_last_known_leader", _assigned_or_not),),
        focus=scripted(
            "An adding replica leads and fails last; the reassignment is cancelled while a recovery waits.",
            recipes.kill(4, 3_000, END_MS),
            Reassign(at_ms=3_500, duration_ms=8_000, topic=TOPIC, partition=0, replicas=(3, 4)),
            recipes.kill(1, 5_000, END_MS),
            recipes.kill(0, 5_500, 9_000),
            recipes.kill(3, 8_500, 12_000),
            brokers=5,
            replicas=2,
            elect_uncleanly_at_ms=(13_000,),
            config={**PROACTIVE, UNCLEAN_RECOVERY_TIMEOUT_MS: 10_000},
        ),
    ),
    Mutant(
        name="recovery-longer-log-beats-higher-epoch",
        guard="The highest leader epoch wins, and the longest log of that epoch (F5, M61).",
        instead="The longest log wins.",
        expected=("RecoveryElectsLongestLog",),
        patches=(around(ranking, "_rank", _longer_first),),
        focus=scripted(
            "A leader that is cut off goes on appending; the next leader loses the end of its log.",
            recipes.isolate(0, (1, 2, FIRST_CONTROLLER), 3_500, 9_000),
            Cut(source=(1,), target=(2,), at_ms=4_900, duration_ms=2_000),
            Crash(node=1, at_ms=6_000, duration_ms=3_500, loses="records", count=20),
            recipes.kill(2, 6_000, 9_700),
            send_every_ms=100,
        ),
    ),
    Mutant(
        name="recovery-shortest-log-wins",
        guard="The longest log of the highest leader epoch wins (F5).",
        instead="The shortest wins.",
        expected=("RecoveryElectsLongestLog",),
        patches=(around(ranking, "_rank", _shorter_first),),
        focus=scripted("The replicas of a leaderless partition have logs of different lengths.", *LOST),
    ),
    Mutant(
        name="recovery-outlasts-a-clean-election",
        guard="The election of a leader ends the recovery, and its result is ignored (F16, M72).",
        instead="The recovery goes on and elects.",
        expected=("RecoveryOnlyWithoutCleanCandidate", "RecoveryResponsesAreCurrent"),
        patches=(
            around(RecoveryRequests, "_reconcile", _never_cancelled),
            constant(recovery_decisions, "_is_still_leaderless", True),
            around(partition_change, "_elect", _designated_anyway),
        ),
        focus=scripted(
            "A member of the ELR restarts before the response of the only other replica arrives.",
            recipes.kill(2, 2_500, 10_000),
            recipes.kill(1, 5_000, END_MS),
            Restart(at_ms=7_500, duration_ms=4_500, node=0),
            recipes.disturb((2,), (RECOVERY_MANAGER,), "delay", 9_000, 14_000, delay_ms=4_000, only="recoveries"),
            config=PROACTIVE,
        ),
    ),
    Mutant(
        name="recovery-not-requested-again",
        guard="The controller repeats its request for running recoveries (F14, M70).",
        instead="It sends each request once.",
        expected=("AllConverges",),
        patches=(around(RecoveryRequests, "fire", _not_stated_again),),
        focus=scripted(
            "The recovery manager is down when recoveries are requested.",
            *LOST,
            recipes.kill(RECOVERY_MANAGER, 7_000, 12_000),
        ),
    ),
    Mutant(
        name="recovery-survives-the-controller",
        guard="A new controller begins new recoveries (F15, M68).",
        instead="It reuses the ids of the former controller, and the responses that the manager has for them.",
        expected=("RecoveryIdsAreUnique",),
        patches=(around(RecoveryRequests, "_next_id", _count_from_one),),
        focus=scripted(
            "The controller restarts in the middle of a recovery.",
            *LOST,
            _unheard(1, 7_000, 14_000),
            recipes.kill(FIRST_CONTROLLER, 10_500, 11_000),
        ),
    ),
)
