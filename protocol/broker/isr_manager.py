"""The ISR proposals of a broker: how they reach the controller (KIP-497; Kafka's `AlterPartitionManager`), and when a
leader proposes to remove a follower (Kafka's `maybeShrinkIsr`; A44, A47, M41).

One AlterPartition request is in flight per broker; the next one carries all proposals made meanwhile (B15). A proposal
stays open, and counts in the maximal ISR, until a definite answer: it is sent again after a timeout or NOT_CONTROLLER
(B22) and withdrawn after a definite rejection (B19); after an epoch error the leader waits for the metadata that it has
not replayed yet.

Two timers watch each follower N, for all partitions at once:

- `silent/N` is set again with every fetch or renewal of N. When it fires, N has not been heard of for
  `replica.lag.time.max.ms` and is removed from the ISRs of the partitions for which it had fetched. Where it has not
  fetched yet, it may have been a follower for a shorter time; there it counts from the beginning of the leader epoch.
- `lag/N` is set when a fetch of N is answered with records. When it fires, N is removed from the ISRs of partitions
  whose answered fetch was not followed by another one for `replica.lag.time.max.ms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from protocol.broker.context import BrokerContext, Replica
from protocol.broker.fetch_sessions import FetchSessions
from protocol.broker.fetcher import FETCH_PREFIX
from protocol.broker.leadership import Leadership, may_propose, out_of_sync_replicas
from protocol.config import REPLICA_LAG_TIME_MAX_MS, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from protocol.errors import ErrorCode
from protocol.events.broker import IsrProposed
from protocol.ids import NO_OFFSET, BrokerId, Offset, TimeMs, TopicIdPartition, partition_key
from protocol.kafka_rules import COMPLETE_FOLLOWER_KEPT
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionIsrProposal,
    PartitionIsrResult,
)
from protocol.metadata.partition import LeaderRecoveryState

ALTER_PARTITION_TIMER = "alter-partition"
SILENT_PREFIX = "silent/"
LAG_PREFIX = "lag/"
_WITHDRAWN = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class IsrManager:
    """Queues a broker's ISR proposals; `_in_flight` are those of the last request, which `submit` takes."""

    def __init__(
        self, context: BrokerContext, submit: Callable[[TimeMs, AlterPartitionRequest], None] | None = None
    ) -> None:
        self._context = context
        self._submit = submit or self._send_to_controller
        self._queue: dict[TopicIdPartition, PartitionIsrProposal] = {}
        self._in_flight: dict[TopicIdPartition, PartitionIsrProposal] = {}
        self._correlation_id = 0

    def propose(self, replica: Replica, isr: tuple[int, ...]) -> None:
        """Queues a proposal of `isr`, if this broker leads the partition and no proposal of it is in flight."""
        leadership = replica.leadership
        if leadership is None or not may_propose(leadership):
            return
        leadership.proposed_isr = isr
        self._context.has_queued = True
        epochs = {broker: progress.broker_epoch for broker, progress in leadership.followers.items()}
        epochs[self._context.me] = self._context.broker_epoch
        members = [BrokerState.unchecked(broker_id=each, broker_epoch=self._epoch_of(each, epochs)) for each in isr]
        self._queue[replica.key] = PartitionIsrProposal.unchecked(
            topic_id=replica.key.topic_id,
            partition_id=replica.key.partition,
            leader_epoch=leadership.leader_epoch,
            partition_epoch=leadership.partition_epoch,
            new_isr=tuple(members),
            leader_recovery_state=int(leadership.proposed_recovery_state),
        )
        self._context.out.trace(IsrProposed(replica.name, isr=isr, committed=leadership.isr))

    def _epoch_of(self, broker: int, epochs: dict[int, int]) -> int:
        """The broker epoch under which a member fetches (KIP-903); before its first fetch, the registered one."""
        epoch = epochs.get(broker, -1)
        known = self._context.image.broker_epoch(broker)
        return known if epoch < 0 and known is not None else epoch

    def send_queued(self, now_ms: TimeMs) -> None:
        """Sends the queued proposals unless a request is in flight; call at the end of an input that `has_queued`."""
        if not self._queue:
            return
        if any(self._is_open(key, item) for key, item in self._in_flight.items()):
            self._context.has_queued = True
        else:
            self._in_flight, self._queue = self._queue, {}
            self._send(now_ms)

    def _send(self, now_ms: TimeMs) -> None:
        self._correlation_id += 1
        context = self._context
        request = AlterPartitionRequest.unchecked(
            correlation_id=self._correlation_id,
            broker_id=context.me,
            broker_epoch=context.broker_epoch,
            partitions=tuple(self._in_flight.values()),
        )
        self._submit(now_ms, request)
        context.out.set_timer(ALTER_PARTITION_TIMER, now_ms + context.config.int_value(REQUEST_TIMEOUT_MS))

    def _send_to_controller(self, now_ms: TimeMs, request: AlterPartitionRequest) -> None:
        self._context.out.send(self._context.controller_id, request)

    def fire(self, now_ms: TimeMs, _: str = "") -> None:
        """After a timeout or back-off, or to a new controller: sends the open proposals again, unchanged (B22)."""
        self._in_flight = {key: item for key, item in self._in_flight.items() if self._is_open(key, item)}
        if self._in_flight:
            self._send(now_ms)

    def _is_open(self, key: TopicIdPartition, item: PartitionIsrProposal) -> bool:
        replica = self._context.replicas.get(key)
        if replica is None or replica.leadership is None or replica.leadership.proposed_isr is None:
            return False
        epochs = replica.leadership.leader_epoch, replica.leadership.partition_epoch
        return epochs == (item.leader_epoch, item.partition_epoch)

    def receive(self, response: AlterPartitionResponse, now_ms: TimeMs) -> list[tuple[Replica, PartitionIsrResult]]:
        """The results for open proposals, for the leader to apply; none for a response to an older request. After an
        error, or NOT_CONTROLLER, the proposals are sent again `retry.backoff.ms` later.
        """
        if response.correlation_id != self._correlation_id or not self._in_flight:
            return []
        retry_ms = now_ms + self._context.config.int_value(RETRY_BACKOFF_MS)
        if response.error is not ErrorCode.NONE:
            self._context.out.set_timer(ALTER_PARTITION_TIMER, retry_ms)
            return []
        answered, self._in_flight = self._in_flight, {}
        self._context.out.cancel_timer(ALTER_PARTITION_TIMER)
        results = []
        for result in response.partitions:
            key = partition_key(result.topic_id, result.partition_id)
            item = answered.get(key)
            if item is not None and result.error is ErrorCode.NOT_CONTROLLER:
                self._in_flight[key] = item
                self._context.out.set_timer(ALTER_PARTITION_TIMER, retry_ms)
            elif item is not None and self._is_open(key, item):
                results.append((self._context.replicas[key], result))
        return results


def apply_result(replica: Replica, result: PartitionIsrResult, replayed: Offset) -> bool:
    """Applies the controller's result for a partition; returns whether the committed ISR changed. A state beyond the
    metadata offset `replayed` is not applied: configs recorded before that state must take effect before it (M8).
    """
    leadership = replica.leadership
    if leadership is None:
        return False
    if result.error in _WITHDRAWN:
        leadership.proposed_isr = None
        return False
    if result.error is not ErrorCode.NONE or result.leader_epoch != leadership.leader_epoch:
        return False
    ahead = result.partition_epoch - leadership.partition_epoch
    if ahead < 0 or (ahead > 0 and result.metadata_offset > replayed):
        return False
    leadership.partition_epoch = result.partition_epoch
    leadership.isr = result.isr
    leadership.proposed_isr = None
    leadership.recovery_state = LeaderRecoveryState(result.leader_recovery_state)
    return True


class IsrShrink:
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_lag_timers"})

    def __init__(self, context: BrokerContext, isr_manager: IsrManager, fetch_sessions: FetchSessions) -> None:
        self._context = context
        self._isr = isr_manager
        self._fetch_sessions = fetch_sessions
        self._lag_ms = context.config.int_value(REPLICA_LAG_TIME_MAX_MS)
        self._lag_timers: set[BrokerId] = set()

    def watch_lag(self, follower: BrokerId, now_ms: TimeMs) -> None:
        self._set_lag_timer(follower, now_ms + self._lag_ms)

    def restart_silence(self, follower: BrokerId, now_ms: TimeMs) -> None:
        """The follower has fetched or renewed: its `silent/N` timer starts again."""
        name, renewal = f"{SILENT_PREFIX}{follower}", f"{FETCH_PREFIX}{self._context.me}"
        self._context.out.set_timer(name, now_ms + self._lag_ms, idle_with=follower, renewed_by=renewal)

    def fire_silent(self, now_ms: TimeMs, follower: str) -> None:
        """Drops the delayed fetches of a silent follower and proposes its removal from every ISR."""
        broker, is_in_isr = int(follower), False
        self._fetch_sessions.forget(broker)
        for replica in self._context.replicas.values():
            leadership = replica.leadership
            if leadership is not None and broker in leadership.followers:
                progress = leadership.followers[broker]
                progress.delayed_fetch = None
                self._shrink(replica, leadership, () if progress.end_offset == NO_OFFSET else (broker,), now_ms)
                is_in_isr = is_in_isr or broker in leadership.maximal_isr
        if is_in_isr:
            self._set_lag_timer(broker, now_ms + self._lag_ms // 2)

    def fire_lag(self, now_ms: TimeMs, follower: str) -> None:
        """Proposes removals where the follower is out of sync, again while one of its fetches is not followed up."""
        broker = int(follower)
        self._lag_timers.discard(broker)
        due: list[TimeMs] = []
        for replica in self._context.replicas.values():
            leadership = replica.leadership
            if leadership is not None and broker in leadership.maximal_isr and broker in leadership.followers:
                self._shrink(replica, leadership, (), now_ms)
                progress = leadership.followers[broker]
                if progress.delayed_fetch is None:
                    due.append(max(progress.last_caught_up_ms + self._lag_ms, now_ms + self._lag_ms // 2))
        if due:
            self._set_lag_timer(broker, min(due))

    def _shrink(self, replica: Replica, leadership: Leadership, silent: tuple[BrokerId, ...], now_ms: TimeMs) -> None:
        removed = out_of_sync_replicas(leadership, silent, now_ms, self._lag_ms)
        if COMPLETE_FOLLOWER_KEPT in self._context.config.kafka_rules:
            end, followers = replica.log.end_offset, leadership.followers
            removed = [broker for broker in removed if followers[broker].end_offset != end]
        if removed:
            self._isr.propose(replica, tuple(broker for broker in leadership.isr if broker not in removed))

    def _set_lag_timer(self, broker: BrokerId, at_ms: TimeMs) -> None:
        if broker not in self._lag_timers:
            self._lag_timers.add(broker)
            self._context.out.set_timer(f"{LAG_PREFIX}{broker}", at_ms)
