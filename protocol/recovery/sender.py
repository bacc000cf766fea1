"""The Broker Request Sender: questions for logs, gathered per broker into as few requests as there can be.

Every broker has a queue of partitions to ask it for. What has gathered there goes into one GetReplicaLogInfo of at most
2,000 partitions (F20), and there is one request at a time on its way to each broker, so that a slow broker is not
buried, and what comes up meanwhile gathers. Answers, errors and silence all become `Answered` and `Unanswered` events;
nobody waits for anything here (F19). A broker from which something has failed is left alone for `retry.backoff.ms`,
twice as long with each further failure, up to `MAX_BACKOFF_MS` (F10, F21).

An answer that comes after its request was given up is an answer all the same: which ones count is the task's decision,
by epochs.
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
"""How long an answer is waited for before the question is asked again."""
MAX_BACKOFF_MS = 1_000


class Answered(NamedTuple):
    """A broker said this of one of its replicas, or with `info.error` why it could not."""

    broker: BrokerId
    broker_epoch: Epoch
    info: ReplicaLogInfo

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.info.topic_id, self.info.partition_id)


class Unanswered(NamedTuple):
    """A broker has not said anything of this partition: it refused the request, left it out, or was silent."""

    broker: BrokerId
    key: TopicIdPartition


Event = Answered | Unanswered


@dataclass(slots=True)
class _Lane:
    """One broker: what it is to be asked for, what it has been asked for in the request on its way (`correlation_id`,
    given up at `deadline_ms`), and until when it is left alone after how many `failures` in a row.
    """

    queue: dict[TopicIdPartition, None] = field(default_factory=dict)
    asked: dict[TopicIdPartition, None] | None = None
    correlation_id: int = 0
    deadline_ms: TimeMs = 0
    not_before_ms: TimeMs = 0
    failures: int = 0


class RequestSender:
    """See the module docstring. `backoff_ms` is the first pause after a failure."""

    def __init__(self, backoff_ms: int) -> None:
        self._backoff_ms = backoff_ms
        self._lanes: dict[BrokerId, _Lane] = {}
        self._correlation_id = 0

    def ask(self, broker: BrokerId, key: TopicIdPartition) -> None:
        """Has the broker asked for the partition, unless it is about to be."""
        lane = self._lanes.setdefault(broker, _Lane())
        if lane.asked is None or key not in lane.asked:
            lane.queue[key] = None

    def forget(self, key: TopicIdPartition) -> None:
        """Nobody is to be asked for the partition any more."""
        for lane in self._lanes.values():
            lane.queue.pop(key, None)

    def backs_off(self, broker: BrokerId, now_ms: TimeMs) -> None:
        """Something that the broker said does not do: it is asked again, but not at once."""
        lane = self._lanes.setdefault(broker, _Lane())
        if lane.not_before_ms <= now_ms:
            lane.not_before_ms = now_ms + min(self._backoff_ms << min(lane.failures, 16), MAX_BACKOFF_MS)
            lane.failures += 1

    def does_well(self, broker: BrokerId) -> None:
        """All that the broker said does: the next failure is again the first in a row."""
        self._lanes.setdefault(broker, _Lane()).failures = 0

    def requests(self, now_ms: TimeMs) -> list[tuple[BrokerId, GetReplicaLogInfoRequest]]:
        """The requests that may leave now."""
        leaving = []
        for broker, lane in sorted(self._lanes.items()):
            if lane.asked is None and lane.queue and lane.not_before_ms <= now_ms:
                leaving.append((broker, self._next_request(broker, lane, now_ms)))
        return leaving

    def _next_request(self, broker: BrokerId, lane: _Lane, now_ms: TimeMs) -> GetReplicaLogInfoRequest:
        self._correlation_id += 1
        lane.asked = dict.fromkeys(islice(lane.queue, MAX_PARTITIONS_PER_REQUEST))
        for key in lane.asked:
            del lane.queue[key]
        lane.correlation_id = self._correlation_id
        lane.deadline_ms = now_ms + REQUEST_TIMEOUT_MS
        return GetReplicaLogInfoRequest(
            correlation_id=self._correlation_id, broker_id=broker, topic_partitions=by_topic(lane.asked)
        )

    def answered(self, broker: BrokerId, response: GetReplicaLogInfoResponse) -> list[Event]:
        """What a broker's response comes to."""
        lane = self._lanes.setdefault(broker, _Lane())
        events: list[Event] = []
        if response.error is ErrorCode.NONE:
            events += [Answered(broker, response.broker_epoch, info) for info in response.log_info_list]
        if lane.asked is not None and response.correlation_id == lane.correlation_id:
            told = {event.key for event in events}
            events += [Unanswered(broker, key) for key in lane.asked if key not in told]
            lane.asked = None
        return events

    def given_up(self, now_ms: TimeMs) -> list[Event]:
        """What the silence of brokers comes to."""
        events: list[Event] = []
        for broker, lane in sorted(self._lanes.items()):
            if lane.asked is not None and lane.deadline_ms <= now_ms:
                events += [Unanswered(broker, key) for key in lane.asked]
                lane.asked = None
        return events

    def next_ms(self) -> TimeMs | None:
        """When there is something to do next; None: never, unless something happens."""
        times = [lane.deadline_ms for lane in self._lanes.values() if lane.asked is not None]
        times += [lane.not_before_ms for lane in self._lanes.values() if lane.asked is None and lane.queue]
        return min(times, default=None)


def by_topic(keys: Iterable[TopicIdPartition]) -> tuple[ReplicaLogInfoTopic, ...]:
    """Partitions as requests name them, topics in the order in which they come up."""
    topics: dict[str, list[int]] = {}
    for key in keys:
        topics.setdefault(key.topic_id, []).append(key.partition)
    return tuple(ReplicaLogInfoTopic(topic_id=topic, partitions=tuple(indexes)) for topic, indexes in topics.items())
