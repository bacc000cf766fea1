"""Topics that are deleted and created again under the same name during a run.

What an earlier incarnation of a topic has acknowledged is promised no more, and must not come back. Which incarnation
took a record is not always known: a leader that has not read of the deletion goes on. An incarnation is *settled* when
all brokers run and know the topic under its new id; what a client begins from then on concerns this incarnation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from experiments.check.engine import CheckedEngine
from experiments.check.history import FinalPartition
from protocol.events.base import Trace
from protocol.events.controller import TopicDeleted
from protocol.events.store import StoreChanged
from protocol.ids import NodeId, TimeMs
from protocol.nodes.base_broker import BaseBroker
from protocol.v3.store import paths

LOOK_EVERY_MS = 100


class TopicIncarnations:
    """Follows the incarnations of `topics` on one cluster. `acknowledged` returns the acknowledged sends to a topic."""

    def __init__(self, engine: CheckedEngine, topics: Collection[str], acknowledged: Callable[[str], set[int]]) -> None:
        self._topics = topics
        self._engine = engine
        self._acknowledged = acknowledged
        self._settled_ms: dict[str, TimeMs] = {}
        self._unsettled: dict[str, None] = {}
        self._past: dict[str, set[int]] = {}
        self._deletions: Counter[str] = Counter()
        engine.cluster.trace_observers.append(self._observe)

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, TopicDeleted) and trace.topic in self._topics:
            deletions = self._engine.suite.truth.deletions[trace.topic]
            if deletions != self._deletions[trace.topic]:
                self._deletions[trace.topic] = deletions
                self._has_ended(now_ms, trace.topic)
        elif isinstance(trace, StoreChanged) and trace.version < 0:
            root, names = paths.locate(trace.path)
            if root == paths.TOPICS and len(names) == 1 and names[0] in self._topics:
                self._has_ended(now_ms, names[0])

    def _has_ended(self, now_ms: TimeMs, topic: str) -> None:
        self._past.setdefault(topic, set()).update(self._acknowledged(topic))
        if not self._unsettled:
            self._engine.cluster.call_at(now_ms, self._look)
        self._unsettled[topic] = None

    def _look(self) -> None:
        now_ms = self._engine.cluster.now_ms
        for topic in [topic for topic in self._unsettled if self._is_known(topic)]:
            del self._unsettled[topic]
            self._settled_ms[topic] = now_ms
        if self._unsettled:
            self._engine.cluster.call_at(now_ms + LOOK_EVERY_MS, self._look)

    def _is_known(self, topic: str) -> bool:
        """Whether all brokers know the topic of this name that the active controller has; in `v3`, where a broker knows
        the topics that it has replicas of, whether no broker knows another one.
        """
        engine, nodes = self._engine, self._engine.cluster.nodes
        brokers = [node for broker in engine.spec.broker_ids if isinstance(node := nodes.get(broker), BaseBroker)]
        if len(brokers) < len(engine.spec.broker_ids):
            return False
        known = {broker.context.image.topic_ids.get(topic) for broker in brokers}
        if engine.spec.has_store_metadata:
            topic_id = engine.store_view().topic_ids.get(topic)
            return topic_id is not None and topic_id in known <= {topic_id, None}
        active = engine.active_node()
        topic_id = None if active is None else active.state.image.topic_ids.get(topic)
        return topic_id is not None and known == {topic_id}

    def are_settled(self) -> bool:
        return not self._unsettled

    def precedes(self, topic: str, at_ms: TimeMs) -> bool:
        """Whether what began at that time may concern an earlier incarnation of the topic."""
        return at_ms <= self._settled_ms.get(topic, -1)

    def returned(self, finals: Iterable[FinalPartition]) -> Iterator[str]:
        """Records in the final logs that had been acknowledged when the topic was deleted, in words."""
        for final in finals:
            past = self._past.get(final.partition.topic, set())
            for run in final.replicas[final.leader]:
                if run.send in past:
                    yield f"{final.partition} has records of send {run.send}, which ended before the topic was deleted"
