"""Sends a broker's ISR proposals to the controller (KIP-497; Kafka's `AlterPartitionManager`).

One AlterPartition request is in flight per broker; the next one carries all proposals made meanwhile (B15). A proposal
stays open, and counts in the maximal ISR, until a definite answer: it is sent again after a timeout or NOT_CONTROLLER
(B22) and withdrawn after a definite rejection (B19); after an epoch error the leader waits for the metadata that it has
not replayed yet.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.broker.context import BrokerContext, Replica
from protocol.broker.leadership import may_propose
from protocol.config import REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS
from protocol.errors import ErrorCode
from protocol.events.broker import IsrProposed
from protocol.ids import Offset, TimeMs, TopicIdPartition, partition_key
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionIsrProposal,
    PartitionIsrResult,
)
from protocol.metadata.partition import LeaderRecoveryState

ALTER_PARTITION_TIMER = "alter-partition"
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
