"""The Broker Request Sender: queries for replica logs, batched per broker.

Every broker has a queue of partitions to query. The queue goes into one GetReplicaLogInfo request of at most 2,000
partitions (F20), and each broker has at most one request in flight, so that a slow broker is not flooded; no call
blocks (F19). After a failure a broker is not queried for `retry.backoff.ms`, twice as long after each further failure,
up to `MAX_BACKOFF_MS` (F10, F21).

A response that arrives after its timeout is used as well: the task decides by epochs which answers count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.ids import BrokerId, Epoch, TimeMs, TopicIdPartition
from protocol.messages.recovery import (
    MAX_PARTITIONS_PER_REQUEST,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
)

REQUEST_TIMEOUT_MS = 2_000
"""How long the sender waits for a response, in milliseconds, before the query is unanswered."""
MAX_BACKOFF_MS = 1_000


class Answered(NamedTuple):
    """A broker's answer for one of its replicas, or its error in `info.error`."""

    broker: BrokerId
    broker_epoch: Epoch
    info: ReplicaLogInfo

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.info.topic_id, self.info.partition_id)


class Unanswered(NamedTuple):
    """A broker has not answered for this partition: it refused the request, omitted the partition, or timed out."""

    broker: BrokerId
    key: TopicIdPartition


Event = Answered | Unanswered


@dataclass(slots=True)
class _BrokerQueue:
    """One broker: partitions to query and in flight until `deadline_ms`; the next request after `failures`."""

    queue: dict[TopicIdPartition, None] = field(default_factory=dict)
    in_flight: dict[TopicIdPartition, None] | None = None
    correlation_id: int = 0
    deadline_ms: TimeMs = 0
    not_before_ms: TimeMs = 0
    failures: int = 0


class RequestSender:
    """The queues of all brokers. `backoff_ms` is the pause after a first failure, in milliseconds."""

    def __init__(self, backoff_ms: int) -> None:
        self._backoff_ms = backoff_ms
        self._queues: dict[BrokerId, _BrokerQueue] = {}
        self._correlation_id = 0

    def query(self, broker: BrokerId, key: TopicIdPartition) -> None:
        """Queues a query of the broker for the partition, unless one is queued or in flight."""
        broker_queue = self._queues.setdefault(broker, _BrokerQueue())
        if broker_queue.in_flight is None or key not in broker_queue.in_flight:
            broker_queue.queue[key] = None

    def forget(self, key: TopicIdPartition) -> None:
        for broker_queue in self._queues.values():
            broker_queue.queue.pop(key, None)

    def back_off(self, broker: BrokerId, now_ms: TimeMs) -> None:
        """Delays the next request to the broker, after an answer that does not count or a failure."""
        broker_queue = self._queues.setdefault(broker, _BrokerQueue())
        if broker_queue.not_before_ms <= now_ms:
            broker_queue.not_before_ms = now_ms + min(
                self._backoff_ms << min(broker_queue.failures, 16), MAX_BACKOFF_MS
            )
            broker_queue.failures += 1

    def reset_backoff(self, broker: BrokerId) -> None:
        """Counts the next failure of the broker as the first in a row, after a response whose answers all count."""
        self._queues.setdefault(broker, _BrokerQueue()).failures = 0

    def requests(self, now_ms: TimeMs) -> list[tuple[BrokerId, GetReplicaLogInfoRequest]]:
        """The requests to send now, each with its broker; they are in flight from then on."""
        return [
            (broker, self._next_request(broker, broker_queue, now_ms))
            for broker, broker_queue in sorted(self._queues.items())
            if broker_queue.in_flight is None and broker_queue.queue and broker_queue.not_before_ms <= now_ms
        ]

    def _next_request(self, broker: BrokerId, broker_queue: _BrokerQueue, now_ms: TimeMs) -> GetReplicaLogInfoRequest:
        self._correlation_id += 1
        broker_queue.in_flight = dict.fromkeys(islice(broker_queue.queue, MAX_PARTITIONS_PER_REQUEST))
        for key in broker_queue.in_flight:
            del broker_queue.queue[key]
        broker_queue.correlation_id = self._correlation_id
        broker_queue.deadline_ms = now_ms + REQUEST_TIMEOUT_MS
        return GetReplicaLogInfoRequest(
            correlation_id=self._correlation_id, broker_id=broker, topic_partitions=by_topic(broker_queue.in_flight)
        )

    def answered(self, broker: BrokerId, response: GetReplicaLogInfoResponse) -> list[Event]:
        """The events of a response: one per answered partition, and one per partition left without answer."""
        broker_queue = self._queues.setdefault(broker, _BrokerQueue())
        events: list[Event] = []
        if response.error is ErrorCode.NONE:
            events += [Answered(broker, response.broker_epoch, info) for info in response.log_info_list]
        if broker_queue.in_flight is not None and response.correlation_id == broker_queue.correlation_id:
            answered = {event.key for event in events}
            events += [Unanswered(broker, key) for key in broker_queue.in_flight if key not in answered]
            broker_queue.in_flight = None
        return events

    def expire(self, now_ms: TimeMs) -> list[Event]:
        """The events of the requests whose deadline has passed."""
        events: list[Event] = []
        for broker, broker_queue in sorted(self._queues.items()):
            if broker_queue.in_flight is not None and broker_queue.deadline_ms <= now_ms:
                events += [Unanswered(broker, key) for key in broker_queue.in_flight]
                broker_queue.in_flight = None
        return events

    def next_due_ms(self) -> TimeMs | None:
        """When the next request is due or times out; None where neither is pending."""
        queues = self._queues.values()
        times = [each.deadline_ms for each in queues if each.in_flight is not None]
        times += [each.not_before_ms for each in queues if each.in_flight is None and each.queue]
        return min(times, default=None)


def by_topic(keys: Iterable[TopicIdPartition]) -> tuple[ReplicaLogInfoTopic, ...]:
    """The partitions grouped by topic, topics in the order of their first partition."""
    topics: dict[str, list[int]] = {}
    for key in keys:
        topics.setdefault(key.topic_id, []).append(key.partition)
    return tuple(ReplicaLogInfoTopic(topic_id=topic, partitions=tuple(indexes)) for topic, indexes in topics.items())
