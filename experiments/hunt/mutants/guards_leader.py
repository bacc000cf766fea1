"""Guards of leaders: the ISR and its proposals, the high watermark, responses to producers and consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from experiments.faults import recipes
from experiments.faults.controls import OPERATOR
from experiments.faults.kinds.administration import Configure
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.mutants.mutant import Mutant, PlanFocus
from experiments.hunt.mutants.patches import Original, Patch, around, as_property, constant, with_arguments
from experiments.hunt.mutants.scripts import BROKERS, END_MS, TOPIC, scripted
from protocol.broker import admission, isr_manager, leader, leadership, reads
from protocol.broker.context import Replica
from protocol.broker.delayed_produce import DelayedProduces
from protocol.broker.fetch_sessions import FetcherKey
from protocol.broker.isr_manager import IsrManager
from protocol.broker.leader import PartitionLeader
from protocol.broker.leadership import Leadership
from protocol.config import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    DELIVERY_TIMEOUT_MS,
    MIN_INSYNC_REPLICAS,
    REPLICA_LAG_TIME_MAX_MS,
    REQUEST_TIMEOUT_MS,
    SUPER_USERS,
    UNCLEAN_LEADER_HOOK,
)
from protocol.errors import ErrorCode
from protocol.ids import TimeMs
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeRequest, FetchPartition, ProduceRequest, ProduceResponse
from protocol.metadata.partition import LeaderRecoveryState, PartitionState

QUORUM = ("ReplicationQuorumSuperset", "LeaderCandidateCompleteness", "LeaderCompleteness")
STORED = ("LeaderCandidateCompleteness", "LeaderCompleteness", "NoCommittedRecordLostGlobally", "History.LostRecord")

LEADERS_CHANGE = PlanFocus(
    Bias(themes=("handovers", "controller gone")), why="Leaders change while records are in flight."
)


def _count_what_is_sent(
    original: Original, progress: object, fetch_offset: int, broker_epoch: int, leader_end: int, now_ms: TimeMs
) -> object:
    return original(progress, leader_end, broker_epoch, leader_end, now_ms)


def _presumed_complete(
    original: Callable[..., Leadership], state: PartitionState, me: int, log_end: int, now_ms: TimeMs
) -> Leadership:
    found = original(state, me, log_end, now_ms)
    for broker in state.isr:
        if broker != me:
            found.followers[broker].end_offset = log_end
    return found


def _join_without_catching_up(
    original: object, found: Leadership, broker: int, high_watermark: int, is_eligible: Callable[[int, int], bool]
) -> bool:
    free = leadership.may_propose(found) and broker not in found.isr
    return free and is_eligible(broker, found.followers[broker].broker_epoch)


def _epoch_of_metadata(original: object, self: IsrManager, broker: int, epochs: dict[int, int]) -> int:
    known = self._context.image.broker_epoch(broker)
    return -1 if known is None else known


def _give_up(original: object, self: IsrManager, now_ms: TimeMs, timer: str = "") -> None:
    for key in self._in_flight:
        replica = self._context.replicas.get(key)
        if replica is not None and replica.leadership is not None:
            replica.leadership.proposed_isr = None
    self._in_flight = {}


def _count_before_comparing(
    original: Original,
    self: PartitionLeader,
    replica: Replica,
    stream: FetcherKey,
    epoch: int,
    fetch: FetchPartition,
    now_ms: TimeMs,
) -> None:
    found = self._leadership(replica)
    leadership.record_fetch(found.followers[stream[0]], fetch.fetch_offset, epoch, replica.log.end_offset, now_ms)
    self.advance_high_watermark(replica, now_ms)
    original(self, replica, stream, epoch, fetch, now_ms)


def _any_leader_epoch(
    original: Original, self: PartitionLeader, replica: Replica | None, follower: int, epoch: int, fetch: FetchPartition
) -> object:
    if replica is not None and fetch.current_leader_epoch < replica.leader_epoch:
        fetch = replace(fetch, current_leader_epoch=replica.leader_epoch)
    return original(self, replica, follower, epoch, fetch)


def _answer_at_once(
    original: object,
    self: DelayedProduces,
    replica: Replica,
    client: int,
    request: ProduceRequest,
    batch: RecordBatch,
    now_ms: TimeMs,
) -> None:
    number, base_offset = request.correlation_id, batch.base_offset
    self._context.out.send(client, ProduceResponse(correlation_id=number, base_offset=base_offset))


def _acknowledge_failure(
    original: Original,
    self: PartitionLeader,
    client: int,
    request: ProduceRequest,
    error: ErrorCode,
    base_offset: int = -1,
) -> None:
    replica = self._context.replica_named(request.topic, request.partition)
    if error is ErrorCode.KAFKA_STORAGE_ERROR and replica is not None:
        number, offset = request.correlation_id, replica.log.end_offset
        self._context.out.send(client, ProduceResponse(correlation_id=number, base_offset=offset))
    else:
        original(self, client, request, error, base_offset)


def _show_everything(original: Original, log: ReplicaLog, request: ConsumeRequest, max_bytes: int) -> object:
    before = log.high_watermark
    log.high_watermark = log.end_offset
    try:
        return original(log, request, max_bytes)
    finally:
        log.high_watermark = before


GUARDS: tuple[Mutant, ...] = (
    Mutant(
        name="maximal-isr-not-used",
        guard="The high watermark counts with the committed ISR and the proposal in flight together (B13, B14).",
        instead="It counts with the committed ISR alone.",
        expected=QUORUM,
        patches=(as_property(Leadership, "maximal_isr", lambda self: self.isr),),
    ),
    Mutant(
        name="high-watermark-over-proposed-isr",
        guard="A smaller ISR that is only proposed does not let the high watermark move (B13).",
        instead="The proposal counts as if it were committed.",
        expected=QUORUM,
        patches=(as_property(Leadership, "maximal_isr", lambda self: self.proposed_isr or self.isr),),
    ),
    Mutant(
        name="high-watermark-below-min-isr",
        guard="The high watermark does not move while the ISR is smaller than min ISR (E1, E2).",
        instead="It moves with an ISR of any size.",
        expected=(*STORED, "HighWatermarkMonotone", "LogMatching", "ConsistentRead"),
        patches=(
            with_arguments(leadership, "high_watermark_target", min_isr=lambda _: 0, needs_min_isr=lambda _: False),
        ),
    ),
    Mutant(
        name="followers-presumed-complete",
        guard="To a new leader a follower's log end is unknown until it fetches in the new epoch (A27, N5).",
        instead="It takes ISR members to have the leader's whole log.",
        expected=(*STORED, "LogMatching", "ConsistentRead"),
        patches=(around(leadership, "begin", _presumed_complete),),
        focus=LEADERS_CHANGE,
    ),
    Mutant(
        name="expansion-without-catching-up",
        guard="A follower is proposed for the ISR when it has all committed records (N5, B6).",
        instead="It is proposed as soon as it fetches.",
        expected=STORED,
        patches=(around(leadership, "may_join", _join_without_catching_up),),
    ),
    Mutant(
        name="expansion-while-recovering",
        guard="A leader proposes no follower for the ISR while the partition is RECOVERING (C11).",
        instead="Followers join as at any other time.",
        expected=("RecoveringLeaderIsAlone",),
        patches=(
            with_arguments(
                leadership,
                "may_join",
                leadership=lambda old: replace(old, recovery_state=LeaderRecoveryState.RECOVERED),
            ),
        ),
        focus=scripted(
            "All brokers restart, and the leader that is elected uncleanly has a slow data-loss routine.",
            *(recipes.kill(broker, 3_000, 3_001) for broker in BROKERS),
            config={UNCLEAN_LEADER_HOOK: "experiments.scenarios.hooks:wait_10s"},
        ),
    ),
    Mutant(
        name="expansion-before-epoch-start",
        guard="A follower is proposed for the ISR when it has reached the start of this leader epoch (N5).",
        instead="Reaching the leader's own high watermark is enough, which may lag behind what was committed.",
        expected=STORED,
        patches=(with_arguments(leadership, "may_join", leadership=lambda old: replace(old, epoch_start_offset=0)),),
        focus=scripted(
            "A new leader does not know its predecessor's high watermark, and a follower lacks the records.",
            recipes.lose_fetch_responses(1, BROKERS, 3_000, 6_000),
            recipes.lose_fetch_responses(2, BROKERS, 3_000, END_MS),
            recipes.lose_proposals(0, 5_000, 7_000),
            recipes.lose_fetch_responses(1, BROKERS, 6_800, 8_300),
            recipes.kill(0, 8_200, END_MS),
        ),
    ),
    Mutant(
        name="two-proposals-in-flight",
        guard="One proposal is in flight per partition (B21).",
        instead="Another one replaces it, and the maximal ISR no longer includes the first.",
        expected=QUORUM,
        patches=(
            constant(leadership, "may_propose", True),
            constant(isr_manager, "may_propose", True),
        ),
        focus=scripted(
            "Another follower catches up while the leader waits for the response to its first proposal.",
            recipes.lose_fetch_responses(2, range(4), 3_000, 5_600),
            recipes.lose_fetch_responses(3, range(4), 3_000, 6_500),
            recipes.lose_metadata(0, 5_500, END_MS),
            recipes.lose_proposal_responses(0, 5_500, END_MS),
            brokers=4,
            replicas=4,
        ),
    ),
    Mutant(
        name="proposal-given-up-on-silence",
        guard="A proposal stays pending until the controller has responded (B22).",
        instead="It is dropped when the request times out.",
        expected=QUORUM,
        patches=(around(IsrManager, "fire", _give_up),),
        focus=scripted(
            "The leader does not learn that its proposal was committed.",
            recipes.lose_fetch_responses(2, BROKERS, 3_000, 5_600),
            recipes.cut_from_controller(0, 5_500, END_MS),
            recipes.lose_fetch_responses(2, BROKERS, 6_400, END_MS),
        ),
    ),
    Mutant(
        name="proposal-given-up-on-epoch-error",
        guard="After an epoch error the proposal stays pending until the metadata shows its outcome (B19).",
        instead="It is dropped, although an earlier copy of it may have been committed.",
        expected=QUORUM,
        patches=(
            Patch(
                isr_manager,
                "_WITHDRAWN",
                lambda original: original | {ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH},
            ),
        ),
        focus=scripted(
            "The response to a proposal is lost; the repeated proposal gets an epoch error.",
            recipes.lose_fetch_responses(2, BROKERS, 3_000, 5_600),
            recipes.lose_metadata(0, 5_500, END_MS),
            recipes.lose_proposal_responses(0, 5_500, 6_600),
            recipes.lose_fetch_responses(2, BROKERS, 6_400, END_MS),
        ),
    ),
    Mutant(
        name="isr-adopted-before-its-configs",
        guard="A response that is newer than the replayed metadata is ignored; the metadata log brings its state (M8).",
        instead="The new ISR counts at once, with a min ISR that is no longer valid.",
        expected=STORED,
        patches=(with_arguments(leader, "apply_result", replayed=lambda _: 2**62),),
        focus=scripted(
            "The leader has not read that min ISR was raised when its smaller ISR is committed.",
            recipes.lose_fetch_responses(1, BROKERS, 3_000, END_MS),
            recipes.lose_metadata(0, 3_500, END_MS),
            Configure(at_ms=4_000, duration_ms=END_MS - 4_000, topic=TOPIC, config={MIN_INSYNC_REPLICAS: 2}),
            replicas=2,
            min_isr=1,
        ),
    ),
    Mutant(
        name="expansion-with-former-broker-epoch",
        guard="A proposal names the broker epoch under which a member has fetched (KIP-903, B6).",
        instead="It names the epoch in the metadata, with a log end of a former incarnation.",
        expected=STORED,
        patches=(
            around(IsrManager, "_epoch_of", _epoch_of_metadata),
            around(
                PartitionLeader, "_is_eligible", lambda _, self, broker, epoch: self._context.image.is_active(broker)
            ),
        ),
        focus=scripted(
            "A caught-up follower loses its log and registers again, and its first fetch is lost.",
            recipes.fail_power(2, 8_000, 8_100),
            recipes.lose_fetch_requests(2, BROKERS, 8_050, END_MS),
            send_every_ms=5_000,
            config={REPLICA_LAG_TIME_MAX_MS: 8_000},
        ),
    ),
    Mutant(
        name="log-end-taken-before-divergence",
        guard="A follower's log end counts once its log agrees with the leader's up to there (M43, N1).",
        instead="It counts as the fetch request has it.",
        expected=(*STORED, "LogMatching", "ConsistentRead", "AllConverges"),
        patches=(around(PartitionLeader, "_accept_fetch", _count_before_comparing),),
    ),
    Mutant(
        name="fetch-from-old-leader-epoch-accepted",
        guard="A fetch of an older leader epoch is refused with FENCED_LEADER_EPOCH (A26, KIP-320).",
        instead="It is processed like any other.",
        expected=("ValidReplicaState", *STORED),
        patches=(around(PartitionLeader, "_fetch_error", _any_leader_epoch),),
        focus=scripted(
            "Leadership moves away and back while a follower does not receive the metadata.",
            recipes.cut_from_controller(2, 3_000, END_MS),
            recipes.lose_heartbeats(0, 3_200, 6_000),
            elect_at_ms=(8_000, 10_000),
        ),
    ),
    Mutant(
        name="acks-all-answered-at-append",
        guard="An acks=all produce is acknowledged when the high watermark has passed the batch (E5).",
        instead="It is acknowledged as soon as the leader has appended.",
        expected=("History.LostRecord", "History.MovedRecord"),
        patches=(around(DelayedProduces, "delay", _answer_at_once),),
        focus=LEADERS_CHANGE,
    ),
    Mutant(
        name="failed-append-acknowledged",
        guard="A batch that could not be written to disk is refused with KAFKA_STORAGE_ERROR (KIP-112).",
        instead="It is acknowledged at the offset that it would have had.",
        expected=("History.LostRecord", "History.MovedRecord"),
        patches=(around(PartitionLeader, "_refuse_produce", _acknowledge_failure),),
        focus=PlanFocus(Bias(themes=("full disks",)), why="Disks run full."),
    ),
    Mutant(
        name="reads-beyond-high-watermark",
        guard="A consumer reads nothing at or above the high watermark (E7).",
        instead="It reads the leader's whole log.",
        expected=("History.VanishedRead", "History.ReadsDiffer", "History.ReadBeyondHighWatermark"),
        patches=(around(reads, "read", _show_everything),),
        focus=PlanFocus(
            Bias(themes=("deposed writer",), config={REQUEST_TIMEOUT_MS: 1_000, DELIVERY_TIMEOUT_MS: 1_500}),
            why="Leaders are deposed with records that no other replica has and that their producer gives up.",
        ),
    ),
    Mutant(
        name="writes-not-authorized",
        guard="A leader appends what the principal of the request may write (G32).",
        instead="It appends what anyone sends.",
        expected=("WritesAreAuthorized",),
        patches=(constant(admission, "may", True),),
        focus=PlanFocus(
            Bias(
                weights={"deny": 1},
                config={
                    AUTHORIZER_CLASS_NAME: "standard",
                    SUPER_USERS: OPERATOR,
                    ALLOW_EVERYONE_IF_NO_ACL_FOUND: True,
                },
            ),
            why="The client is denied to write, to read or to elect, for a time.",
        ),
    ),
    Mutant(
        name="records-sent-counted-as-held",
        guard="A follower's log end is the offset from which it fetches (E1).",
        instead="It is the leader's log end, up to which records are about to be sent.",
        expected=("LeadersCountWhatFollowersHold", *STORED),
        patches=(around(leadership, "record_fetch", _count_what_is_sent),),
    ),
)
