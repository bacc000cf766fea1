"""What a broker does for the partitions that it leads: append, answer followers, move the high watermark, keep the ISR.

docs/architecture.md ("Replication") follows a record with acks=all. A follower's fetch that finds nothing new is
delayed (Kafka's `DelayedFetch`) until the log or the high watermark moves. Such a follower is caught up.
"""

from __future__ import annotations

from protocol.broker import leadership as rules
from protocol.broker.context import BrokerContext, Replica
from protocol.broker.delayed_produce import MAX_DELAYED, AppendedBatch, DelayedProduces
from protocol.broker.fetch_sessions import FetcherKey, FetchSessions, refusal_of, result_of
from protocol.broker.flushing import Flusher
from protocol.broker.isr_manager import IsrManager, IsrShrink, apply_result
from protocol.broker.leadership import FollowerProgress, Leadership
from protocol.broker.reads import Reads
from protocol.broker.recovery import LeaderRecovery
from protocol.config import MIN_INSYNC_REPLICAS, REPLICA_LAG_MIN_MESSAGES, RETRY_BACKOFF_MS
from protocol.errors import ErrorCode, StorageError
from protocol.events.broker import HighWatermarkAdvanced, IsrCommitted, RecordsAppended
from protocol.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, NodeId, Offset, TimeMs, partition_key
from protocol.messages.base import changed
from protocol.messages.control import AlterPartitionResponse
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from protocol.metadata.partition import PartitionState

ISR_RETRY_TIMER = "isr-retry"
ACKS_ALL = -1


class PartitionLeader:
    """Handlers take `(now_ms, sender, message)`, or `(now_ms, what follows the slash of a timer's name)`."""

    def __init__(
        self, context: BrokerContext, flusher: Flusher, isr_manager: IsrManager, recovery: LeaderRecovery, reads: Reads
    ) -> None:
        self._context = context
        self._flusher = flusher
        self._isr = isr_manager
        self._recovery = recovery
        self._reads = reads
        self._min_lag = context.config.int_value(REPLICA_LAG_MIN_MESSAGES)
        self.delayed_produces = DelayedProduces(context)
        self.fetch_sessions = FetchSessions(context)
        self.isr_shrink = IsrShrink(context, isr_manager, self.fetch_sessions)

    # -- leadership ----------------------------------------------------------------------------------------------------

    def lead(self, replica: Replica, now_ms: TimeMs) -> None:
        """Begins to lead in a new leader epoch, with a new `replica.leadership`."""
        leadership = self._leadership(replica)
        for broker in leadership.isr:
            if broker != self._context.me:
                self.isr_shrink.watch_lag(broker, now_ms)
        self._recovery.lead(replica, leadership, now_ms)
        self.advance_high_watermark(replica, now_ms)

    def resign(self, replica: Replica) -> None:
        """Stops leading: delayed fetches, delayed produce requests and waiting reads get NOT_LEADER_OR_FOLLOWER."""
        leadership = self._leadership(replica)
        for broker, progress in leadership.followers.items():
            fetcher = (broker, progress.fetcher)
            fetch = self.fetch_sessions.withdraw(fetcher, replica.key) or progress.delayed_fetch
            if fetch is not None:
                self.fetch_sessions.answer(fetcher, refusal_of(fetch, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.delayed_produces.fail(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._reads.resign(replica)
        self._recovery.resign(replica)
        replica.leadership = None

    def adopt(self, replica: Replica, state: PartitionState, now_ms: TimeMs) -> None:
        """Takes over a state of this leader epoch from the metadata log, if it is newer than the leader's."""
        leadership = self._leadership(replica)
        gone = [(broker, p.fetcher) for broker, p in leadership.followers.items() if broker not in state.replicas]
        if rules.adopt(leadership, state, self._context.me):
            for fetcher in gone:
                self.fetch_sessions.withdraw(fetcher, replica.key)
            self.isr_committed(replica, now_ms)

    def advance_high_watermark(self, replica: Replica, now_ms: TimeMs) -> None:
        """Moves the high watermark as far as maximal ISR and min ISR allow (E1-E3), and answers what waited for it."""
        leadership, log, features = self._leadership(replica), replica.log, self._context.image.features
        if log.high_watermark >= log.end_offset and not features.high_watermark_moves_back:
            return
        min_isr, needs_min_isr = self._min_isr(replica), features.high_watermark_needs_min_isr
        target = rules.high_watermark_target(leadership, self._context.me, log.end_offset, min_isr, needs_min_isr)
        moves_back = features.high_watermark_moves_back and target >= 0
        move = log.set_high_watermark if moves_back else log.advance_high_watermark
        if not move(target):
            return
        self._context.out.trace(HighWatermarkAdvanced(replica.name, log.high_watermark, leadership.leader_epoch))
        self._flusher.high_watermark_moved(now_ms)
        is_enough = len(leadership.isr) >= min_isr
        error = ErrorCode.NONE if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self.delayed_produces.complete(replica, error)
        self._reads.high_watermark_moved(replica)
        self._complete_delayed_fetches(replica, now_ms)

    def _leadership(self, replica: Replica) -> Leadership:
        assert replica.leadership is not None, replica.name
        return replica.leadership

    def _min_isr(self, replica: Replica) -> int:
        replicas = self._leadership(replica).replicas
        return self._context.image.min_isr(replica.key.topic_id, MIN_INSYNC_REPLICAS, len(replicas))

    # -- produce -------------------------------------------------------------------------------------------------------

    def produce(self, now_ms: TimeMs, client: NodeId, request: ProduceRequest) -> None:
        """Appends a valid batch. Answers with acks=1, or with acks=all when it is committed (E5, E6). StorageError."""
        replica, acks = self._context.replica_named(request.topic, request.partition), request.acks
        if replica is None or replica.leadership is None:
            self._respond(client, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        duplicate, log, epoch = None, replica.log, replica.leadership.leader_epoch
        if acks == ACKS_ALL and len(replica.leadership.isr) < self._min_isr(replica):
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        elif acks == ACKS_ALL and len(replica.delayed_produces) >= MAX_DELAYED:
            error = ErrorCode.BROKER_NOT_AVAILABLE
        else:
            error, duplicate = log.producers.check(request.batch)
        if error is not ErrorCode.NONE:
            self._respond(client, request, error)
            return
        if duplicate is not None:
            self._answer_appended(replica, client, request, duplicate, now_ms)
            return
        base_offset = log.end_offset
        try:
            batch = log.append_as_leader(request.batch, epoch)
            self._context.out.trace(RecordsAppended(replica.name, log.end_offset, epoch, acks))
            self._flusher.appended(replica, now_ms)
        except StorageError:
            stored_at = base_offset if log.end_offset > base_offset else NO_OFFSET
            self._respond(client, request, ErrorCode.KAFKA_STORAGE_ERROR, stored_at)
            raise
        self._answer_appended(replica, client, request, batch, now_ms)
        self._complete_delayed_fetches(replica, now_ms)
        self.advance_high_watermark(replica, now_ms)

    def _answer_appended(
        self, replica: Replica, client: NodeId, request: ProduceRequest, batch: AppendedBatch, now_ms: TimeMs
    ) -> None:
        """Answers with the offset of a batch in the log, which may be a former copy; with acks=all once committed."""
        if request.acks == ACKS_ALL and batch.next_offset > replica.log.high_watermark:
            self.delayed_produces.delay(replica, client, request, batch, now_ms)
        else:
            self._respond(client, request, ErrorCode.NONE, batch.base_offset)

    def _respond(
        self, client: NodeId, request: ProduceRequest, error: ErrorCode, base_offset: Offset = NO_OFFSET
    ) -> None:
        """Responds unless acks is 0. With an error, `base_offset` is set if the log has the batch nevertheless."""
        if request.acks != 0:
            number = request.correlation_id
            response = ProduceResponse.unchecked(correlation_id=number, error=error, base_offset=base_offset)
            self._context.out.send(client, response)

    # -- fetch ---------------------------------------------------------------------------------------------------------

    def fetch(self, now_ms: TimeMs, follower: BrokerId, request: FetchRequest) -> None:
        """Delays each fetch state of a request, or answers it. Requests of former incarnations are ignored."""
        fetcher, leads = (follower, request.fetcher), False
        if not self.fetch_sessions.accept_request(fetcher, request):
            return
        replica_epoch, begins = request.replica_epoch, request.number == 0
        for fetch in request.partitions:
            key = partition_key(fetch.topic_id, fetch.partition_id)
            replica = self._context.replicas.get(key)
            error = self._fetch_error(replica, follower, replica_epoch, fetch)
            if replica is None or error is not ErrorCode.NONE:
                self.fetch_sessions.withdraw(fetcher, key)
                self.fetch_sessions.answer(fetcher, refusal_of(fetch, error, None if replica is None else replica.log))
                continue
            leads = True
            progress = self._leadership(replica).followers[follower]
            if begins or not rules.is_stale_fetch(progress, fetch.fetch_offset, replica_epoch):
                self._accept_fetch(replica, fetcher, replica_epoch, fetch, now_ms)
        if leads:
            self.fetch_sessions.mark_led(fetcher)
            self.isr_shrink.restart_silence(follower, now_ms)

    def renew(self, now_ms: TimeMs, follower: BrokerId, renewal: FetchRenewal) -> None:
        """A follower renews a fetch session: its delayed fetches stay as they are, unless a message was lost."""
        if self.fetch_sessions.accept_renewal((follower, renewal.fetcher), renewal):
            self.isr_shrink.restart_silence(follower, now_ms)

    def _fetch_error(
        self, replica: Replica | None, follower: BrokerId, broker_epoch: Epoch, fetch: FetchPartition
    ) -> ErrorCode:
        """NONE, or why the leader does not serve this fetch (A26, KIP-320, KIP-903)."""
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
        fetch_offset, last_epoch, log = fetch.fetch_offset, fetch.last_fetched_epoch, replica.log
        is_beyond_end = last_epoch == NO_EPOCH and fetch_offset > log.end_offset
        is_out_of_range = fetch_offset < log.start_offset or is_beyond_end or log.has_forgotten(last_epoch)
        return ErrorCode.OFFSET_OUT_OF_RANGE if is_out_of_range else ErrorCode.NONE

    def _accept_fetch(
        self, replica: Replica, fetcher: FetcherKey, broker_epoch: Epoch, fetch: FetchPartition, now_ms: TimeMs
    ) -> None:
        """Answers with the diverging epoch, if the logs differ below `fetch_offset` (KIP-595); else records the
        follower's log end, may propose it for the ISR, moves the high watermark, and delays or answers the fetch.
        """
        leadership, log, follower = self._leadership(replica), replica.log, fetcher[0]
        progress = leadership.followers[follower]
        progress.delayed_fetch, progress.fetcher = None, fetcher[1]
        fetch_offset = fetch.fetch_offset
        diverging = log.divergence(fetch_offset, fetch.last_fetched_epoch)
        if diverging is not None:
            self.fetch_sessions.withdraw(fetcher, replica.key)
            self.fetch_sessions.answer(fetcher, FetchPartitionResult.to(fetch, diverging_epoch=diverging))
            return
        rules.record_fetch(progress, fetch_offset, broker_epoch, log.end_offset, now_ms)
        if self._may_join(replica, follower):
            self._isr.propose(replica, (*leadership.isr, follower))
        self.advance_high_watermark(replica, now_ms)
        if fetch_offset >= log.end_offset:
            self.fetch_sessions.withdraw(fetcher, replica.key)
        progress.delayed_fetch = fetch
        self._complete_delayed_fetch(replica, follower, progress, fetch, now_ms)

    def _may_join(self, replica: Replica, broker: BrokerId) -> bool:
        leadership, log = self._leadership(replica), replica.log
        if self._context.image.features.admits_lagging_followers:
            return rules.may_join_lagging(leadership, broker, log.end_offset, self._min_lag)
        return rules.may_join(leadership, broker, log.high_watermark, self._is_eligible)

    def _is_eligible(self, broker: BrokerId, broker_epoch: Epoch) -> bool:
        """Whether a broker may join an ISR: active, and fetching under its registered broker epoch (N5, B6)."""
        image = self._context.image
        return image.is_active(broker) and image.broker_epoch(broker) == broker_epoch

    def _complete_delayed_fetches(self, replica: Replica, now_ms: TimeMs) -> None:
        for broker, progress in self._leadership(replica).followers.items():
            if progress.delayed_fetch is not None:
                progress.last_caught_up_ms = now_ms
                self._complete_delayed_fetch(replica, broker, progress, progress.delayed_fetch, now_ms)

    def _complete_delayed_fetch(
        self, replica: Replica, broker: BrokerId, progress: FollowerProgress, fetch: FetchPartition, now_ms: TimeMs
    ) -> None:
        """Completes a delayed fetch with records; answers one with a newer high watermark, and delays it again."""
        log = replica.log
        if fetch.fetch_offset < log.end_offset:
            progress.delayed_fetch = None
            self.fetch_sessions.enqueue((broker, progress.fetcher), replica.key, fetch)
            if broker in self._leadership(replica).maximal_isr:
                self.isr_shrink.watch_lag(broker, now_ms)
        elif fetch.high_watermark < log.high_watermark:
            progress.delayed_fetch = changed(fetch, high_watermark=log.high_watermark)
            self.fetch_sessions.answer((broker, progress.fetcher), result_of(fetch, log))

    # -- ISR -----------------------------------------------------------------------------------------------------------

    def receive_alter_partition(self, now_ms: TimeMs, controller: NodeId, response: AlterPartitionResponse) -> None:
        """Takes over the committed ISR; after a definite rejection proposes again `retry.backoff.ms` later."""
        for replica, result in self._isr.receive(response, now_ms):
            if apply_result(replica, result, self._context.image.next_offset):
                self.isr_committed(replica, now_ms)
            elif self._leadership(replica).proposed_isr is None:
                self.advance_high_watermark(replica, now_ms)
                backoff_ms = self._context.config.int_value(RETRY_BACKOFF_MS)
                self._context.out.set_timer(ISR_RETRY_TIMER, now_ms + backoff_ms)

    def isr_committed(self, replica: Replica, now_ms: TimeMs) -> None:
        """Committed ISR, min ISR or a broker's state has changed: the high watermark may move, followers may join."""
        leadership = self._leadership(replica)
        self._context.out.trace(IsrCommitted(replica.name, leadership.isr, leadership.partition_epoch))
        self.advance_high_watermark(replica, now_ms)
        self._recovery.propose(replica, leadership)
        self._propose_joins(replica)

    def _propose_joins(self, replica: Replica) -> None:
        """Proposes to add followers to the ISR that have a delayed fetch; they need not fetch once more."""
        leadership = self._leadership(replica)
        for broker, progress in leadership.followers.items():
            if progress.delayed_fetch is not None and self._may_join(replica, broker):
                self._isr.propose(replica, (*leadership.isr, broker))

    def fire_isr_retry(self, now_ms: TimeMs, _: str) -> None:
        """Proposes again, after the back-off, what the controller has rejected, where it still applies."""
        for replica in self._context.replicas.values():
            if replica.leadership is not None:
                self._recovery.propose(replica, replica.leadership)
                self._propose_joins(replica)
