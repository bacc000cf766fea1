"""Guards of logs and fetching: truncation, fetch sessions, retention, and what a log knows of its producers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from experiments.faults import recipes
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.mutants.guards_leader import LEADERS_CHANGE
from experiments.hunt.mutants.mutant import Mutant, PlanFocus
from experiments.hunt.mutants.patches import Original, around, constant, with_arguments
from experiments.hunt.mutants.scripts import BROKERS, END_MS, scripted
from protocol.broker import fetch_sessions, fetcher, flushing
from protocol.broker.context import Replica
from protocol.broker.fetch_sessions import FetcherKey, FetchSessions
from protocol.broker.fetcher import Fetcher
from protocol.broker.replicas import ReplicaManager
from protocol.client.partition_sender import PartitionSender, ProducerBatch
from protocol.config import ENABLE_IDEMPOTENCE, REPLICA_LAG_TIME_MAX_MS
from protocol.errors import ErrorCode
from protocol.ids import TimeMs, TopicIdPartition
from protocol.log import producer_state
from protocol.log.producer_state import ProducerState
from protocol.log.replica_log import ReplicaLog
from protocol.messages.base import changed
from protocol.messages.batch import NO_SEQUENCE, RecordBatch
from protocol.messages.data import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
)
from protocol.metadata.partition import PartitionState

STORED = ("LeaderCandidateCompleteness", "LeaderCompleteness", "NoCommittedRecordLostGlobally", "History.LostRecord")
DIVERGED = ("LogMatching", "ConsistentRead", "History.ReplicasDiffer", *STORED)
STALLED = ("AllConverges", "EveryCommandIsAnswered")
SESSIONS = PlanFocus(
    Bias(partitions=5, themes=("sessions",)),
    why="Single fetch requests and responses of followers with several partitions are lost, delayed or duplicated.",
)
REPEATS = PlanFocus(
    Bias(themes=("producer trouble", "all restart"), config={ENABLE_IDEMPOTENCE: True}),
    why="Responses to the producer are lost, and it repeats batches that are in the log.",
)
RESTARTS = PlanFocus(
    Bias(themes=("all restart",), config={ENABLE_IDEMPOTENCE: True}),
    why="All brokers restart while the producer waits for responses.",
)
OVERTAKEN = PlanFocus(
    Bias(themes=("deposed writer",)), why="Leaders are deposed with records that no other replica has."
)

OVERTAKEN_TWICE = scripted(
    "A deposed leader receives the diverging epoch of its log twice.",
    recipes.isolate(0, (1, 2, *recipes.CONTROLLER), 6_400, 10_000),
    recipes.disturb((1, 2), (0,), "duplicate", 9_950, END_MS, only="fetches", delay_ms=2_000),
    send_every_ms=5_000,
)
OVERTAKEN_BY_EPOCHS = scripted(
    "A response of a leader that lacks a record arrives after the record was committed.",
    recipes.lose_heartbeats(0, 3_000, 5_800),
    recipes.isolate(0, recipes.CLIENT, 7_400, 13_000),
    recipes.lose_fetch_responses(0, (0, 1), 7_400, 8_600),
    recipes.lose_fetch_responses(1, BROKERS, 7_850, 8_850),
    recipes.disturb((0,), (2,), "delay", 7_850, 8_700, only="fetches", delay_ms=4_000),
    recipes.lose_heartbeats(0, 6_900, 9_500),
    send_every_ms=5_000,
    elect_at_ms=(7_900, 10_800),
)


def _check_as_present_epoch(
    original: Callable[[ProducerState, RecordBatch], object], self: ProducerState, batch: RecordBatch
) -> object:
    entry = self.entry(batch.producer_id)
    is_former = entry is not None and batch.producer_epoch == entry.epoch - 1
    return original(self, changed(batch, producer_epoch=batch.producer_epoch + is_former))


def _count_any(original: Original, self: Fetcher, leader: int, response: FetchResponse) -> None:
    session = self._sessions.get((leader, response.fetcher))
    if session is not None and session.number == response.session and response.partitions:
        session.answers += 1
    else:
        original(self, leader, response)


def _keep_log(original: Original, self: ReplicaManager, key: TopicIdPartition) -> None:
    replica = self._context.replicas.get(key)
    if replica is not None:
        self._end_role(replica)
        del self._context.replicas[key]


def _truncate_to_high_watermark(original: Original, self: Fetcher, replica: Replica) -> None:
    replica.log.truncate(replica.log.high_watermark)
    original(self, replica)


def _own_end(original: object, self: ReplicaLog, diverging: EpochEndOffset) -> int:
    return self._end_offset_for(diverging.leader_epoch)[1]


def _take_any_session(original: Original, self: FetchSessions, stream: FetcherKey, request: FetchRequest) -> object:
    state = self._sessions.get(stream)
    if state is not None and 0 < request.session < state.session:
        return True
    return original(self, stream, request)


def _count_answers_blindly(original: Original, self: Fetcher, leader: int, response: FetchResponse) -> None:
    session = self._sessions.get((leader, response.fetcher))
    if session is not None and response.number > session.answers:
        session.answers = response.number
    original(self, leader, response)


def _with_all_answers(renewal: FetchRenewal) -> FetchRenewal:
    return replace(renewal, answers=2**31 - 1)


def _any_offset(original: object, replica: Replica, result: FetchPartitionResult) -> bool:
    return replica.fetch_state is not None and result.leader_epoch == replica.leader_epoch


def _any_record_before(original: Original, self: FetchPartitionResult, fetch: FetchPartition) -> object:
    return original(replace(self, last_fetched_epoch=fetch.last_fetched_epoch), fetch)


def _any_epoch_of_leader(original: Original, self: FetchPartitionResult, fetch: FetchPartition) -> object:
    return original(replace(self, leader_epoch=fetch.current_leader_epoch), fetch)


def _keep_fetch_state(
    original: Original, self: ReplicaManager, key: TopicIdPartition, state: PartitionState, now_ms: TimeMs
) -> None:
    replica = self._context.replicas.get(key)
    if replica is not None and replica.fetch_state is not None and replica.leader_id == state.leader:
        replica.leader_epoch = state.leader_epoch
    else:
        original(self, key, state, now_ms)


def _delete_uncommitted(original: Original, self: ReplicaLog, offset: int) -> object:
    before, self.high_watermark = self.high_watermark, self.end_offset
    try:
        return original(self, offset)
    finally:
        self.high_watermark = before


def _move_back(original: object, self: ReplicaLog, offset: int) -> bool:
    offset = min(offset, self.end_offset)
    if offset < self.start_offset or offset == self.high_watermark:
        return False
    self.high_watermark = offset
    return True


def _beyond_the_end(original: object, self: ReplicaLog, offset: int) -> bool:
    if offset <= self.high_watermark:
        return False
    self.high_watermark = offset
    return True


_Checked = tuple[ErrorCode, object]


def _duplicates_pass(original: Callable[..., _Checked], entry: object, batch: RecordBatch) -> _Checked:
    error, first = original(entry, batch)
    passes = first is not None or error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    return (ErrorCode.NONE, None) if passes else (error, first)


def _renumber(original: Original, self: PartitionSender, now_ms: TimeMs, batch: ProducerBatch) -> None:
    batch.sequence = NO_SEQUENCE
    original(self, now_ms, batch)


GUARDS: tuple[Mutant, ...] = (
    Mutant(
        name="truncation-skipped",
        guard="A follower whose log diverges from the leader's truncates to the point of divergence (N1, M43).",
        instead="The leader responds as if the logs agreed.",
        expected=(*DIVERGED, *STALLED),
        patches=(constant(ReplicaLog, "divergence", None),),
        focus=OVERTAKEN,
    ),
    Mutant(
        name="truncation-to-high-watermark",
        guard="A follower truncates by leader epoch, not to its own high watermark (N1, KIP-101).",
        instead="It truncates to its high watermark whenever it becomes a follower.",
        expected=STORED,
        patches=(around(Fetcher, "follow", _truncate_to_high_watermark),),
        focus=LEADERS_CHANGE,
    ),
    Mutant(
        name="truncation-to-the-own-end-only",
        guard="A follower truncates to the smaller of the two ends of the last common epoch (M43, KIP-279).",
        instead="It truncates to its own end, and keeps records that the leader does not have.",
        expected=(*DIVERGED, *STALLED),
        patches=(around(ReplicaLog, "truncation_offset", _own_end),),
        focus=OVERTAKEN,
    ),
    Mutant(
        name="fetch-state-outlives-its-leader-epoch",
        guard="A follower begins a new fetch state in every leader epoch, also with the same leader (A26, KIP-320).",
        instead="It continues with the fetch state of the former epoch.",
        expected=("ValidFetcherState", *STALLED),
        patches=(around(ReplicaManager, "_apply_partition", _keep_fetch_state),),
    ),
    Mutant(
        name="fetch-after-a-lost-one-accepted",
        guard="A fetch whose predecessor in its session was lost is refused (KIP-227).",
        instead="It is accepted, and the leader never learns the fetch state in the lost one.",
        expected=STALLED,
        patches=(
            around(
                fetch_sessions,
                "_is_next_request",
                lambda original, state, session, number: session == state.session and number >= state.requests,
            ),
            with_arguments(fetch_sessions, "_refusal_of_session", requests=lambda _: 0),
        ),
        focus=scripted(
            "Some fetches of a follower of several partitions are lost.",
            recipes.disturb((2,), (0, 1), "lose", 5_000, 8_000, only="fetches", per_mille=300),
            partitions=6,
            send_every_ms=50,
        ),
    ),
    Mutant(
        name="fetch-of-a-former-session-accepted",
        guard="A fetch of a former session is dropped (KIP-227).",
        instead="A late one replaces the follower's fetch state and log end by older ones.",
        expected=(*STALLED, *STORED),
        patches=(around(FetchSessions, "accept_request", _take_any_session),),
        focus=PlanFocus(
            Bias(brokers=3, replicas=3, min_isr=2, partitions=5, themes=("sessions",)),
            why="Every broker follows several partitions, and single fetches are delayed and overtaken.",
        ),
    ),
    Mutant(
        name="responses-not-counted",
        guard="Leader and follower number the responses of a session; a lost one ends the session (KIP-227).",
        instead="The follower waits for the lost response.",
        expected=STALLED,
        patches=(
            around(Fetcher, "_count", _count_answers_blindly),
            with_arguments(FetchSessions, "accept_renewal", renewal=_with_all_answers),
        ),
        focus=SESSIONS,
    ),
    Mutant(
        name="lost-requests-not-reported",
        guard="A leader that misses requests of a session, or the session, responds with an error (KIP-227).",
        instead="It does not respond.",
        expected=STALLED,
        patches=(constant(fetch_sessions, "_refusal_of_session", ErrorCode.NONE),),
        focus=SESSIONS,
    ),
    Mutant(
        name="response-to-another-offset-accepted",
        guard="A response must match the fetch state: same epoch, same offset, same record before it (A26).",
        instead="A response to any fetch of the epoch is accepted.",
        expected=("ProtocolInvariantError", *DIVERGED),
        patches=(around(fetcher, "answers_fetch_state", _any_offset),),
        focus=SESSIONS,
    ),
    Mutant(
        name="response-from-before-truncation-accepted",
        guard="A response is accepted if the record before its offset is the follower's own (A26, N1).",
        instead="A truncation is repeated when the log has reached the same offset again.",
        expected=STORED,
        patches=(around(FetchPartitionResult, "answers", _any_record_before),),
        focus=OVERTAKEN_TWICE,
    ),
    Mutant(
        name="response-of-a-former-leader-epoch-accepted",
        guard="A response is accepted in the leader epoch of its request only (A26, N1).",
        instead="A response of a former epoch of the same leader truncates records that were committed since.",
        expected=STORED,
        patches=(around(FetchPartitionResult, "answers", _any_epoch_of_leader),),
        focus=OVERTAKEN_BY_EPOCHS,
    ),
    Mutant(
        name="retention-of-uncommitted-records",
        guard="Nothing at or above the high watermark is deleted.",
        instead="Old segments are deleted although followers lack them.",
        expected=("ValidReplicaState", *STORED),
        patches=(
            around(ReplicaLog, "delete_segments_before", _delete_uncommitted),
            with_arguments(flushing, "retained_from", high_watermark=lambda _: 2**62),
        ),
        focus=PlanFocus(Bias(themes=("short segments",)), why="Segments are small and short-lived, and followers lag."),
    ),
    Mutant(
        name="high-watermark-moves-back",
        guard="The high watermark never moves back (N6).",
        instead="It moves back when a follower's log end does.",
        expected=("ValidReplicaState", "HighWatermarkMonotone", *STALLED),
        patches=(around(ReplicaLog, "advance_high_watermark", _move_back),),
        focus=scripted(
            "A member of the ISR restarts without its records before the leader has read of its restart.",
            recipes.lose_metadata(0, 3_000, END_MS),
            recipes.fail_power(2, 3_500, 3_600),
            config={REPLICA_LAG_TIME_MAX_MS: 8_000},
        ),
    ),
    Mutant(
        name="high-watermark-beyond-log-end",
        guard="A replica's high watermark is at most its log end.",
        instead="A follower takes the leader's high watermark as it is.",
        expected=("ValidReplicaState", "IndexError", *DIVERGED),
        patches=(around(ReplicaLog, "advance_high_watermark", _beyond_the_end),),
    ),
    Mutant(
        name="duplicate-not-recognised",
        guard="A batch that is in the log already is acknowledged and not appended (KIP-98).",
        instead="It is appended again.",
        expected=("OneCopyPerSequence", "History.DuplicatedRecord", "History.ReorderedRecords"),
        patches=(around(producer_state, "_check_sequence", _duplicates_pass),),
        focus=REPEATS,
    ),
    Mutant(
        name="sequences-not-compared",
        guard="A batch is appended if its sequence number follows the producer's last one (KIP-98).",
        instead="It is appended in the order of arrival.",
        expected=("OneCopyPerSequence", "History.ReorderedRecords", "History.DuplicatedRecord"),
        patches=(constant(ProducerState, "check", (ErrorCode.NONE, None)),),
        focus=PlanFocus(
            Bias(themes=("producer trouble",), config={ENABLE_IDEMPOTENCE: True}),
            why="Single batches of many in flight are lost.",
        ),
    ),
    Mutant(
        name="former-producer-epoch-accepted",
        guard="A batch of an older producer epoch than the log's is refused with INVALID_PRODUCER_EPOCH (KIP-98).",
        instead="One of the epoch before counts as one of the present epoch.",
        expected=("ProducerEpochsRise", "OneCopyPerSequence", "History.DuplicatedRecord", "History.ReorderedRecords"),
        patches=(around(ProducerState, "check", _check_as_present_epoch),),
        focus=PlanFocus(
            Bias(themes=("former producer epochs",)),
            why="A producer continues with its next epoch while copies of earlier batches arrive.",
        ),
    ),
    Mutant(
        name="producers-not-rebuilt-at-restart",
        guard="The producer state is rebuilt from the log when it is opened (KIP-98).",
        instead="It stays empty, and repeated batches count as new.",
        expected=("OneCopyPerSequence", "History.DuplicatedRecord", "History.ReorderedRecords"),
        patches=(constant(ReplicaLog, "_scan_producers", None),),
        focus=RESTARTS,
    ),
    Mutant(
        name="producers-not-rebuilt-at-truncation",
        guard="Truncation also truncates the producer state (KIP-98).",
        instead="A truncated batch counts as stored, and its repetition is acknowledged.",
        expected=("History.LostRecord", "History.MovedRecord", "History.ReorderedRecords", *STALLED),
        patches=(around(ProducerState, "truncate", lambda original, self, end_offset: True),),
        focus=scripted(
            "A leader is deposed, truncates, and leads again before its producer has found another leader.",
            recipes.isolate(1, recipes.CLIENT, 2_900, 11_000),
            recipes.isolate(2, recipes.CLIENT, 2_900, 11_000),
            recipes.isolate(0, (1, 2, *recipes.CONTROLLER), 3_000, 6_000),
            elect_at_ms=(8_000, 9_000),
        ),
    ),
    Mutant(
        name="retry-gets-a-new-sequence-number",
        guard="A batch that is sent again keeps its sequence number (KIP-98).",
        instead="It gets the next one, and counts as another batch.",
        expected=("History.DuplicatedRecord", "History.ReorderedRecords", *STALLED),
        patches=(around(PartitionSender, "_send", _renumber),),
        focus=REPEATS,
    ),
    Mutant(
        name="logs-of-removed-replicas-kept",
        guard="A replica that is removed from a broker is deleted from its disk (A34, M36).",
        instead="Its log stays, also that of a deleted topic.",
        expected=("OnlyAssignedLogs",),
        patches=(around(ReplicaManager, "_remove", _keep_log),),
        focus=PlanFocus(Bias(weights={"recreate_topic": 1}), why="Topics are deleted and created again."),
    ),
    Mutant(
        name="response-counted-twice",
        guard="A follower counts a response of its fetch session if it is the next one (KIP-227).",
        instead="It counts every copy of it, and may count on after one was lost.",
        expected=("FetchSessionsAgree",),
        patches=(around(Fetcher, "_count", _count_any),),
        focus=SESSIONS,
    ),
)
