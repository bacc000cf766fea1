"""The leader's side: produce, answering fetches, moving the high watermark, keeping the ISR.

A fetch that finds nothing new is parked with its follower's progress and answered when the log or the high watermark
moves. Parked means caught up. Two timers watch a follower: `silent/N` fires when broker N has not fetched at all for
`replica.lag.time.max.ms`; `lag/N` looks after partitions whose wish has been answered and not renewed.
"""

from __future__ import annotations

from typing import Any

from protocol.broker import leadership as rules
from protocol.broker.context import BrokerContext, PendingProduce, Replica
from protocol.broker.fetcher import FETCH_PREFIX
from protocol.broker.flushing import Flusher
from protocol.broker.isr_manager import IsrManager, apply_result
from protocol.broker.leadership import FollowerProgress, Leadership
from protocol.broker.recovery import LeaderRecovery
from protocol.config import (
    MIN_INSYNC_REPLICAS,
    REPLICA_FETCH_MAX_BYTES,
    REPLICA_LAG_TIME_MAX_MS,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
)
from protocol.errors import ErrorCode
from protocol.ids import BrokerId, Epoch, NodeId, TimeMs, TopicIdPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.control import AlterPartitionResponse
from protocol.messages.data import (
    ConsumeRequest,
    ConsumeResponse,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

SILENT_PREFIX = "silent/"
LAG_PREFIX = "lag/"
PRODUCE_TIMER = "produce-timeout"
ISR_RETRY_TIMER = "isr-retry"
ACKS_ALL = -1


class LeaderSide:
    """Everything that a broker does for the partitions that it leads."""

    def __init__(
        self, context: BrokerContext, flusher: Flusher, isr_manager: IsrManager, recovery: LeaderRecovery
    ) -> None:
        self._context = context
        self._flusher = flusher
        self._isr = isr_manager
        self._recovery = recovery
        self._lag_ms = context.config.int_value(REPLICA_LAG_TIME_MAX_MS)
        self._max_bytes = context.config.int_value(REPLICA_FETCH_MAX_BYTES)
        self._lag_armed: set[BrokerId] = set()
        self._answers: dict[BrokerId, list[FetchPartitionResult]] = {}
        self._produce_armed = False

    # -- leadership ----------------------------------------------------------------------------------------------------

    def lead(self, replica: Replica, now_ms: TimeMs) -> None:
        """The replica has become leader of a new leader epoch; `replica.leadership` is fresh."""
        leadership = self._leadership(replica)
        for broker in leadership.isr:
            if broker != self._context.me:
                self._arm_lag(broker, now_ms + self._lag_ms)
        self._recovery.lead(replica, leadership, now_ms)
        self.advance(replica, now_ms)

    def resign(self, replica: Replica) -> None:
        """The replica leads no more: parked fetches and waiting producers are told so."""
        leadership = self._leadership(replica)
        for broker, progress in leadership.followers.items():
            if progress.wish is not None:
                self._refuse(broker, progress.wish, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for pending in replica.pending:
            self._answer_produce(pending, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica.pending.clear()
        self._recovery.resign(replica)
        replica.leadership = None

    def advance(self, replica: Replica, now_ms: TimeMs) -> None:
        """Moves the high watermark as far as it may go, answers producers that waited for it and followers that do
        not know it.
        """
        leadership, log = self._leadership(replica), replica.log
        target = rules.high_watermark_target(
            leadership,
            self._context.me,
            log.end_offset,
            self._min_isr(replica),
            self._context.image.features.high_watermark_needs_min_isr,
        )
        if not log.advance_high_watermark(target):
            return
        self._context.out.trace(
            "high_watermark", replica.name, high_watermark=log.high_watermark, leader_epoch=leadership.leader_epoch
        )
        self._flusher.high_watermark_moved(now_ms)
        self._complete_produces(replica)
        self._answer_parked(replica, now_ms)

    def _leadership(self, replica: Replica) -> Leadership:
        assert replica.leadership is not None, replica.name
        return replica.leadership

    def _min_isr(self, replica: Replica) -> int:
        replicas = self._leadership(replica).replicas
        return self._context.image.min_isr(replica.key.topic_id, MIN_INSYNC_REPLICAS, len(replicas))

    # -- produce -------------------------------------------------------------------------------------------------------

    def produce(self, client: NodeId, request: ProduceRequest, now_ms: TimeMs) -> None:
        """Appends a batch and answers as `acks` asks (E5, E6). The request has been admitted (`admission.py`)."""
        replica = self._context.replica_named(request.topic, request.partition)
        error = ErrorCode.NONE
        if replica is None or replica.leadership is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif request.acks == ACKS_ALL and len(replica.leadership.isr) < self._min_isr(replica):
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        if error is not ErrorCode.NONE or replica is None:
            if request.acks != 0:
                self._context.out.send(client, ProduceResponse(correlation_id=request.correlation_id, error=error))
            return
        leadership = self._leadership(replica)
        batch = replica.log.append_as_leader(request.batch, leadership.leader_epoch)
        self._context.out.trace(
            "appended", replica.name, log_end=batch.next_offset, leader_epoch=leadership.leader_epoch, acks=request.acks
        )
        self._flusher.appended(replica, now_ms)
        if request.acks == 1:
            self._context.out.send(
                client, ProduceResponse(correlation_id=request.correlation_id, base_offset=batch.base_offset)
            )
        elif request.acks == ACKS_ALL:
            deadline_ms = now_ms + self._context.config.int_value(REQUEST_TIMEOUT_MS)
            replica.pending.append(
                PendingProduce(batch.next_offset, batch.base_offset, client, request.correlation_id, deadline_ms)
            )
            self._arm_produce_timer(deadline_ms)
        self._answer_parked(replica, now_ms)
        self.advance(replica, now_ms)

    def _complete_produces(self, replica: Replica) -> None:
        enough = len(self._leadership(replica).isr) >= self._min_isr(replica)
        error = ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        while replica.pending and replica.pending[0].required_offset <= replica.log.high_watermark:
            self._answer_produce(replica.pending.popleft(), error)

    def _answer_produce(self, pending: PendingProduce, error: ErrorCode) -> None:
        self._context.out.send(
            pending.client,
            ProduceResponse(correlation_id=pending.correlation_id, error=error, base_offset=pending.base_offset),
        )

    def _arm_produce_timer(self, deadline_ms: TimeMs) -> None:
        if not self._produce_armed:
            self._produce_armed = True
            self._context.out.set_timer(PRODUCE_TIMER, deadline_ms)

    def fire_produce_timeout(self, now_ms: TimeMs) -> None:
        """Answers the producers whose time is up; the records stay in the log and may still be committed."""
        self._produce_armed = False
        waiting = []
        for replica in self._context.replicas.values():
            while replica.pending and replica.pending[0].deadline_ms <= now_ms:
                self._answer_produce(replica.pending.popleft(), ErrorCode.REQUEST_TIMED_OUT)
            if replica.pending:
                waiting.append(replica.pending[0].deadline_ms)
        if waiting:
            self._arm_produce_timer(min(waiting))

    def consume(self, client: NodeId, request: ConsumeRequest) -> None:
        """A consumer's read: between high watermark and log end there is nothing to see and no error; behind the log
        end it is out of range (A31, E7). An answer is never larger than a replica's fetch may be. The request has been
        admitted (`admission.py`).
        """
        replica = self._context.replica_named(request.topic, request.partition)
        if replica is None or replica.leadership is None:
            response = ConsumeResponse(correlation_id=request.correlation_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif request.fetch_offset > replica.log.end_offset:
            response = ConsumeResponse(correlation_id=request.correlation_id, error=ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            limit = replica.log.high_watermark
            batches: tuple[RecordBatch, ...] = ()
            if request.fetch_offset < limit:
                stored = replica.log.storage.read(request.fetch_offset, min(request.max_bytes, self._max_bytes))
                batches = tuple(batch for batch in stored if batch.next_offset <= limit)
            response = ConsumeResponse(correlation_id=request.correlation_id, high_watermark=limit, batches=batches)
        self._context.out.send(client, response)

    # -- fetch ---------------------------------------------------------------------------------------------------------

    def fetch(self, follower: BrokerId, request: FetchRequest, now_ms: TimeMs) -> None:
        """Takes a follower's wishes."""
        leads = False
        for wish in request.partitions:
            replica = self._context.replicas.get(TopicIdPartition(wish.topic_id, wish.partition_id))
            error = self._fetch_error(replica, follower, request.replica_epoch, wish)
            if replica is None or error is not ErrorCode.NONE:
                self._refuse(follower, wish, error)
            else:
                leads = True
                self._take_wish(replica, follower, request.replica_epoch, wish, now_ms)
        if leads:
            self._context.out.set_timer(
                f"{SILENT_PREFIX}{follower}",
                now_ms + self._lag_ms,
                idle_with=follower,
                renewed_by=f"{FETCH_PREFIX}{self._context.me}",
            )

    def _fetch_error(
        self, replica: Replica | None, follower: BrokerId, broker_epoch: Epoch, wish: FetchPartition
    ) -> ErrorCode:
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        registered = self._context.image.broker_epoch(follower)
        if registered is not None and broker_epoch < registered:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if wish.current_leader_epoch < replica.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if wish.current_leader_epoch > replica.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if replica.leadership is None or follower not in replica.leadership.followers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if wish.fetch_offset >= 0 else ErrorCode.OFFSET_OUT_OF_RANGE

    def _take_wish(
        self, replica: Replica, follower: BrokerId, broker_epoch: Epoch, wish: FetchPartition, now_ms: TimeMs
    ) -> None:
        leadership, log = self._leadership(replica), replica.log
        diverging = log.divergence(wish.fetch_offset, wish.last_fetched_epoch)
        if diverging is not None:
            leadership.followers[follower].wish = None
            self._answer(follower, wish, FetchPartitionResult(**self._echo(wish), diverging_epoch=diverging))
            return
        progress = leadership.followers[follower]
        rules.note_fetch(progress, wish.fetch_offset, broker_epoch, log.end_offset, now_ms)
        progress.wish = None
        if rules.may_join(leadership, follower, log.high_watermark, self._is_eligible):
            self._isr.propose(replica, (*leadership.isr, follower))
        self.advance(replica, now_ms)
        progress.wish = wish
        self._answer_if_news(replica, follower, progress, now_ms)

    def _is_eligible(self, broker: BrokerId, broker_epoch: Epoch) -> bool:
        image = self._context.image
        return image.is_active(broker) and image.broker_epoch(broker) == broker_epoch

    def _answer_parked(self, replica: Replica, now_ms: TimeMs) -> None:
        for broker, progress in self._leadership(replica).followers.items():
            if progress.wish is not None:
                progress.last_caught_up_ms = now_ms
                self._answer_if_news(replica, broker, progress, now_ms)

    def _answer_if_news(self, replica: Replica, broker: BrokerId, progress: FollowerProgress, now_ms: TimeMs) -> None:
        wish, log = progress.wish, replica.log
        if wish is None or (wish.fetch_offset >= log.end_offset and wish.high_watermark >= log.high_watermark):
            return
        batches: tuple[RecordBatch, ...] = ()
        if wish.fetch_offset < log.end_offset:
            batches = tuple(log.storage.read(wish.fetch_offset, self._max_bytes))
            if broker in self._leadership(replica).maximal_isr:
                self._arm_lag(broker, now_ms + self._lag_ms)
        result = FetchPartitionResult(**self._echo(wish), high_watermark=log.high_watermark, batches=batches)
        progress.wish = None
        self._answer(broker, wish, result)

    def _echo(self, wish: FetchPartition) -> dict[str, Any]:
        return {
            "topic_id": wish.topic_id,
            "partition_id": wish.partition_id,
            "fetch_offset": wish.fetch_offset,
            "leader_epoch": wish.current_leader_epoch,
        }

    def _refuse(self, broker: BrokerId, wish: FetchPartition, error: ErrorCode) -> None:
        self._answer(broker, wish, FetchPartitionResult(**self._echo(wish), error=error))

    def _answer(self, broker: BrokerId, wish: FetchPartition, result: FetchPartitionResult) -> None:
        self._answers.setdefault(broker, []).append(result)

    def flush_answers(self) -> None:
        """Sends the answers collected during one input, one message per follower."""
        if self._answers:
            answers, self._answers = self._answers, {}
            for broker, results in answers.items():
                self._context.out.send(broker, FetchResponse(partitions=tuple(results)))

    # -- ISR -----------------------------------------------------------------------------------------------------------

    def alter_partition_answered(self, response: AlterPartitionResponse, now_ms: TimeMs) -> None:
        """The controller has spoken: adopt, then see what the new ISR allows."""
        for replica, result in self._isr.receive(response, now_ms):
            if apply_result(replica, result, self._context.image.next_offset):
                self.isr_committed(replica, now_ms)
            elif self._leadership(replica).proposed_isr is None:
                self.advance(replica, now_ms)
                backoff_ms = self._context.config.int_value(RETRY_BACKOFF_MS)
                self._context.out.set_timer(ISR_RETRY_TIMER, now_ms + backoff_ms)

    def isr_committed(self, replica: Replica, now_ms: TimeMs) -> None:
        """The committed ISR (or min ISR) has changed: the high watermark may move, followers may now join."""
        leadership = self._leadership(replica)
        self._context.out.trace(
            "isr_committed", replica.name, isr=leadership.isr, partition_epoch=leadership.partition_epoch
        )
        self.advance(replica, now_ms)
        self._recovery.propose(replica, leadership)
        self._propose_joins(replica)

    def _propose_joins(self, replica: Replica) -> None:
        """Followers need not fetch again to be let in: a parked fetch is as good as a new one."""
        leadership = self._leadership(replica)
        for broker, progress in leadership.followers.items():
            if progress.wish is not None and rules.may_join(
                leadership, broker, replica.log.high_watermark, self._is_eligible
            ):
                self._isr.propose(replica, (*leadership.isr, broker))

    def fire_isr_retry(self) -> None:
        """A proposal was withdrawn a moment ago; what stood in its way may have passed without a sign."""
        for replica in self._context.replicas.values():
            if replica.leadership is not None:
                self._recovery.propose(replica, replica.leadership)
                self._propose_joins(replica)

    def fire_silent(self, name: str, now_ms: TimeMs) -> None:
        """A follower has been silent: every ISR that it is in goes on without it."""
        broker = int(name.removeprefix(SILENT_PREFIX))
        for replica in self._context.replicas.values():
            if replica.leadership is not None and broker in replica.leadership.followers:
                replica.leadership.followers[broker].wish = None
                self._shrink(replica, (broker,), now_ms)
        self._arm_lag(broker, now_ms + self._lag_ms // 2)

    def fire_lag(self, name: str, now_ms: TimeMs) -> None:
        """Looks for answered wishes that were never renewed, and comes again for those that still may be."""
        broker = int(name.removeprefix(LAG_PREFIX))
        self._lag_armed.discard(broker)
        due: list[TimeMs] = []
        for replica in self._context.replicas.values():
            leadership = replica.leadership
            if leadership is None or broker not in leadership.maximal_isr or broker not in leadership.followers:
                continue
            progress = leadership.followers[broker]
            self._shrink(replica, (), now_ms)
            if progress.wish is None:
                due.append(max(progress.last_caught_up_ms + self._lag_ms, now_ms + self._lag_ms // 2))
        if due:
            self._arm_lag(broker, min(due))

    def _shrink(self, replica: Replica, silent: tuple[BrokerId, ...], now_ms: TimeMs) -> None:
        leadership = self._leadership(replica)
        late = rules.lagging(leadership, silent, now_ms, self._lag_ms)
        if late:
            self._isr.propose(replica, tuple(broker for broker in leadership.isr if broker not in late))

    def _arm_lag(self, broker: BrokerId, at_ms: TimeMs) -> None:
        if broker not in self._lag_armed:
            self._lag_armed.add(broker)
            self._context.out.set_timer(f"{LAG_PREFIX}{broker}", at_ms)
