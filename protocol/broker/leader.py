"""The leader's side: produce, answering fetches, moving the high watermark, keeping the ISR.

A fetch that finds nothing new is parked with its follower's progress until the log or the high watermark moves; then
its answer leaves by the follower's stream (`fetch_streams.py`). Parked means caught up. Two timers watch a follower:
`silent/N` fires when broker N has not fetched at all for `replica.lag.time.max.ms`; `lag/N` looks after partitions
whose wish has been answered and not renewed.
"""

from __future__ import annotations

from typing import Final

from protocol.broker import leadership as rules
from protocol.broker.context import BrokerContext, PendingProduce, Replica
from protocol.broker.fetch_streams import FetchStreams, StreamKey, refusal_of, result_of
from protocol.broker.fetcher import FETCH_PREFIX
from protocol.broker.flushing import Flusher
from protocol.broker.isr_manager import IsrManager, apply_result
from protocol.broker.leadership import FollowerProgress, Leadership
from protocol.broker.reads import Reads
from protocol.broker.recovery import LeaderRecovery
from protocol.config import (
    MIN_INSYNC_REPLICAS,
    REPLICA_LAG_TIME_MAX_MS,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
)
from protocol.errors import ErrorCode, StorageError
from protocol.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, NodeId, Offset, TimeMs, partition_key
from protocol.log.producer_state import ProducedBatch
from protocol.messages.batch import RecordBatch
from protocol.messages.control import AlterPartitionResponse
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.trusted import changed, trusted
from protocol.metadata.partition import PartitionState

_RESPONSE: Final = trusted(ProduceResponse)
SILENT_PREFIX = "silent/"
LAG_PREFIX = "lag/"
PRODUCE_TIMER = "produce-timeout"
ISR_RETRY_TIMER = "isr-retry"
ACKS_ALL = -1
MAX_PENDING = 4_096
"""Producers that may wait for the high watermark of one partition; the next one is told to come again."""


class LeaderSide:
    """Everything that a broker does for the partitions that it leads."""

    def __init__(
        self,
        context: BrokerContext,
        flusher: Flusher,
        isr_manager: IsrManager,
        recovery: LeaderRecovery,
        reads: Reads,
    ) -> None:
        self._context = context
        self._flusher = flusher
        self._isr = isr_manager
        self._recovery = recovery
        self._lag_ms = context.config.int_value(REPLICA_LAG_TIME_MAX_MS)
        self._lag_armed: set[BrokerId] = set()
        self._streams = FetchStreams(context)
        self._reads = reads
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
            stream = (broker, progress.fetcher)
            fetch = self._streams.withdraw(stream, replica.key) or progress.parked_fetch
            if fetch is not None:
                self._streams.answer(stream, refusal_of(fetch, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for pending in replica.pending:
            self._answer_produce(pending, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica.pending.clear()
        self._reads.resign(replica)
        self._recovery.resign(replica)
        replica.leadership = None

    def adopt(self, replica: Replica, state: PartitionState, now_ms: TimeMs) -> None:
        """The metadata has a state of this leader epoch; takes it over if it is newer than what the leader knows."""
        leadership = self._leadership(replica)
        gone = [(broker, p.fetcher) for broker, p in leadership.followers.items() if broker not in state.replicas]
        if rules.adopt(leadership, state, self._context.me):
            for stream in gone:
                self._streams.withdraw(stream, replica.key)
            self.isr_committed(replica, now_ms)

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
        self._reads.high_watermark_moved(replica)
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
        replica, acks = self._context.replica_named(request.topic, request.partition), request.acks
        error = ErrorCode.NONE
        if replica is None or replica.leadership is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif acks == ACKS_ALL and len(replica.leadership.isr) < self._min_isr(replica):
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        elif acks == ACKS_ALL and len(replica.pending) >= MAX_PENDING:
            error = ErrorCode.BROKER_NOT_AVAILABLE
        if error is not ErrorCode.NONE or replica is None:
            self._refuse_produce(client, request, error)
            return
        leadership = self._leadership(replica)
        error, duplicate = replica.log.producers.check(request.batch)
        if duplicate is not None:
            self._appended_before(replica, client, request, duplicate, now_ms)
            return
        if error is not ErrorCode.NONE:
            self._refuse_produce(client, request, error)
            return
        base_offset = replica.log.end_offset
        try:
            batch = self._append(replica, leadership.leader_epoch, request, now_ms)
        except StorageError:
            stored_at = base_offset if replica.log.end_offset > base_offset else NO_OFFSET
            self._refuse_produce(client, request, ErrorCode.KAFKA_STORAGE_ERROR, stored_at)
            raise
        if acks == 1:
            self._context.out.send(
                client, _RESPONSE(correlation_id=request.correlation_id, base_offset=batch.base_offset)
            )
        elif acks == ACKS_ALL:
            self._wait_for_high_watermark(replica, client, request, batch, now_ms)
        self._answer_parked(replica, now_ms)
        self.advance(replica, now_ms)

    def _append(self, replica: Replica, leader_epoch: Epoch, request: ProduceRequest, now_ms: TimeMs) -> RecordBatch:
        """The batch as it is in the log now."""
        batch = replica.log.append_as_leader(request.batch, leader_epoch)
        self._context.out.trace(
            "appended", replica.name, log_end=replica.log.end_offset, leader_epoch=leader_epoch, acks=request.acks
        )
        self._flusher.appended(replica, now_ms)
        return batch

    def _refuse_produce(
        self, client: NodeId, request: ProduceRequest, error: ErrorCode, base_offset: Offset = NO_OFFSET
    ) -> None:
        """Answers with an error; with the offset of a batch that is in the log none the less."""
        if request.acks != 0:
            number = request.correlation_id
            self._context.out.send(client, _RESPONSE(correlation_id=number, error=error, base_offset=base_offset))

    def _appended_before(
        self, replica: Replica, client: NodeId, request: ProduceRequest, first: ProducedBatch, now_ms: TimeMs
    ) -> None:
        """The batch is a repetition: it is answered as the first one is, and when that one is."""
        if request.acks == ACKS_ALL and first.next_offset > replica.log.high_watermark:
            self._wait_for_high_watermark(replica, client, request, first, now_ms)
        elif request.acks != 0:
            number, base_offset = request.correlation_id, first.base_offset
            self._context.out.send(client, _RESPONSE(correlation_id=number, base_offset=base_offset))

    def _wait_for_high_watermark(
        self,
        replica: Replica,
        client: NodeId,
        request: ProduceRequest,
        batch: RecordBatch | ProducedBatch,
        now_ms: TimeMs,
    ) -> None:
        """Parks a producer, in order of the offsets that are waited for."""
        deadline_ms = now_ms + self._context.config.int_value(REQUEST_TIMEOUT_MS)
        number = request.correlation_id
        waiting = PendingProduce(batch.next_offset, batch.base_offset, client, number, deadline_ms)
        pending, place = replica.pending, len(replica.pending)
        while place and pending[place - 1].required_offset > waiting.required_offset:
            place -= 1
        pending.insert(place, waiting)
        self._arm_produce_timer(deadline_ms)

    def _complete_produces(self, replica: Replica) -> None:
        enough = len(self._leadership(replica).isr) >= self._min_isr(replica)
        error = ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        while replica.pending and replica.pending[0].required_offset <= replica.log.high_watermark:
            self._answer_produce(replica.pending.popleft(), error)

    def _answer_produce(self, pending: PendingProduce, error: ErrorCode) -> None:
        self._context.out.send(
            pending.client,
            _RESPONSE(correlation_id=pending.correlation_id, error=error, base_offset=pending.base_offset),
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
            for pending in [item for item in replica.pending if item.deadline_ms <= now_ms]:
                replica.pending.remove(pending)
                self._answer_produce(pending, ErrorCode.REQUEST_TIMED_OUT)
            waiting += [item.deadline_ms for item in replica.pending]
        if waiting:
            self._arm_produce_timer(min(waiting))

    # -- fetch ---------------------------------------------------------------------------------------------------------

    def fetch(self, follower: BrokerId, request: FetchRequest, now_ms: TimeMs) -> None:
        """Takes a follower's wishes. Those of a former life of the follower are ignored."""
        stream, leads = (follower, request.fetcher), False
        if not self._streams.greet(stream, request):
            return
        replica_epoch, begins = request.replica_epoch, request.number == 0
        for fetch in request.partitions:
            key = partition_key(fetch.topic_id, fetch.partition_id)
            replica = self._context.replicas.get(key)
            error = self._fetch_error(replica, follower, replica_epoch, fetch)
            if replica is None or error is not ErrorCode.NONE:
                self._streams.withdraw(stream, key)
                self._streams.answer(stream, refusal_of(fetch, error, None if replica is None else replica.log))
                continue
            leads = True
            progress = self._leadership(replica).followers[follower]
            if begins or not rules.is_overtaken(progress, fetch.fetch_offset, replica_epoch):
                self._accept_fetch(replica, stream, replica_epoch, fetch, now_ms)
        if leads:
            self._streams.leads(stream)
            self._has_spoken(follower, now_ms)

    def renewed(self, follower: BrokerId, renewal: FetchRenewal, now_ms: TimeMs) -> None:
        """A follower's wishes stand as they are, unless something was lost."""
        if self._streams.renew((follower, renewal.fetcher), renewal):
            self._has_spoken(follower, now_ms)

    def _has_spoken(self, follower: BrokerId, now_ms: TimeMs) -> None:
        self._context.out.set_timer(
            f"{SILENT_PREFIX}{follower}",
            now_ms + self._lag_ms,
            idle_with=follower,
            renewed_by=f"{FETCH_PREFIX}{self._context.me}",
        )

    def _fetch_error(
        self, replica: Replica | None, follower: BrokerId, broker_epoch: Epoch, fetch: FetchPartition
    ) -> ErrorCode:
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        registered = self._context.image.broker_epoch(follower)
        if registered is not None and broker_epoch < registered:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader_epoch = fetch.current_leader_epoch
        if leader_epoch < replica.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch > replica.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if replica.leadership is None or follower not in replica.leadership.followers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        fetch_offset, last_epoch = fetch.fetch_offset, fetch.last_fetched_epoch
        is_behind = fetch_offset < replica.log.start_offset
        is_ahead = last_epoch == NO_EPOCH and fetch_offset > replica.log.end_offset
        is_strange = replica.log.has_forgotten(last_epoch)
        return ErrorCode.OFFSET_OUT_OF_RANGE if is_behind or is_ahead or is_strange else ErrorCode.NONE

    def _accept_fetch(
        self, replica: Replica, stream: StreamKey, broker_epoch: Epoch, fetch: FetchPartition, now_ms: TimeMs
    ) -> None:
        leadership, log, follower = self._leadership(replica), replica.log, stream[0]
        progress = leadership.followers[follower]
        progress.parked_fetch, progress.fetcher = None, stream[1]
        fetch_offset = fetch.fetch_offset
        diverging = log.divergence(fetch_offset, fetch.last_fetched_epoch)
        if diverging is not None:
            self._streams.withdraw(stream, replica.key)
            self._streams.answer(stream, FetchPartitionResult.to(fetch, diverging_epoch=diverging))
            return
        rules.note_fetch(progress, fetch_offset, broker_epoch, log.end_offset, now_ms)
        if rules.may_join(leadership, follower, log.high_watermark, self._is_eligible):
            self._isr.propose(replica, (*leadership.isr, follower))
        self.advance(replica, now_ms)
        if fetch_offset >= log.end_offset:
            self._streams.withdraw(stream, replica.key)
        progress.parked_fetch = fetch
        self._answer_if_news(replica, follower, progress, now_ms)

    def _is_eligible(self, broker: BrokerId, broker_epoch: Epoch) -> bool:
        image = self._context.image
        return image.is_active(broker) and image.broker_epoch(broker) == broker_epoch

    def _answer_parked(self, replica: Replica, now_ms: TimeMs) -> None:
        for broker, progress in self._leadership(replica).followers.items():
            if progress.parked_fetch is not None:
                progress.last_caught_up_ms = now_ms
                self._answer_if_news(replica, broker, progress, now_ms)

    def _answer_if_news(self, replica: Replica, broker: BrokerId, progress: FollowerProgress, now_ms: TimeMs) -> None:
        fetch, log = progress.parked_fetch, replica.log
        if fetch is None:
            return
        is_at_end = fetch.fetch_offset >= log.end_offset
        if is_at_end and fetch.high_watermark >= log.high_watermark:
            return
        if is_at_end:
            progress.parked_fetch = changed(fetch, high_watermark=log.high_watermark)
            self._streams.answer((broker, progress.fetcher), result_of(fetch, log))
            return
        progress.parked_fetch = None
        self._streams.ready((broker, progress.fetcher), replica.key, fetch)
        if broker in self._leadership(replica).maximal_isr:
            self._arm_lag(broker, now_ms + self._lag_ms)

    def fire_fetch_wait(self, name: str, now_ms: TimeMs) -> None:
        """A stream has waited long enough for more records."""
        self._streams.fire(name, now_ms)

    def flush_answers(self, now_ms: TimeMs) -> None:
        """Sends the answers collected during one input, and what else may leave: one message per stream."""
        self._streams.flush(now_ms)

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
            if progress.parked_fetch is not None and rules.may_join(
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
        self._streams.forget(broker)
        for replica in self._context.replicas.values():
            if replica.leadership is not None and broker in replica.leadership.followers:
                replica.leadership.followers[broker].parked_fetch = None
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
            if progress.parked_fetch is None:
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
