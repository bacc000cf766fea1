"""The metrics of a node on Ray, from its messages, its trace events and its own counters; by `ray.util.metrics`.

Every Ray node serves the series of its nodes on its metrics port, for Prometheus to collect, under the names that
`protocol/metrics.py` declares, with the prefix `ray_` (and the suffix `_total` for counters). The tag `cluster` is the
cluster's id, `node` the node's name; the others are the declared labels. A controller's metrics have underscores where
their names have dots; its counters and summaries are exported as gauges too, so that a value of 0 is visible.

Measurements are queued at once, and turned into samples and exported every `EXPORT_MS`, at most `EXPORT_AT_ONCE` series
and `READ_AT_ONCE` trace events or replicas at a time, with `EXPORT_AGAIN_MS` between: a node that loses a peer emits
thousands of changes in one input, each costs many microseconds to export, and that would delay the node's reaction. The
same holds of the times of requests, each of which is one call to Ray's histogram.

Ray drops a gauge that is not set again for 20 s. So every `REPEAT_MS` the meter reads the node's state (`NodeReadings`)
and sets all gauges of it; the counts over all replicas of a broker follow at the end of such a pass. Every change of
these gauges comes with a trace event; without one since the last pass, what that pass has read is set again, so that
idle partitions cost nothing. What the state no longer has (a deleted topic, the partitions of a controller that is not
active any more) leaves the metrics port after these 20 s.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import Generic, TypeVar

from ray.util.metrics import Counter, Gauge, Histogram

from actors.clock import LoopClock
from actors.request_times import RequestTimes
from actors.samples import (
    PartitionSamples,
    Sample,
    ShownPartitions,
    Tags,
    broker_samples,
    lag_sample,
    leader_samples,
    log_end_sample,
    partition_samples,
)
from protocol import metrics
from protocol.broker.replica_gauges import ReplicaGauges
from protocol.contract import Node
from protocol.events.base import Trace
from protocol.events.broker import RecordsAppended
from protocol.events.controller import AlertRaised
from protocol.ids import NO_EPOCH, Epoch, NodeId, is_controller, node_name
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ProduceRequest
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode

_LOG = logging.getLogger(__name__)

EXPORT_MS = 1_000
EXPORT_AGAIN_MS = 50
EXPORT_AT_ONCE = 500
READ_AT_ONCE = 1_000
REPEAT_MS = 5_000
"""A quarter of the time after which Ray drops a gauge."""

Key = TypeVar("Key", bound=Hashable)


class NodeReadings:
    """Reads the gauges of a node from its state."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.shown = ShownPartitions()

    @property
    def is_controller(self) -> bool:
        return isinstance(self._node, ControllerNode)

    def of_controller(self) -> Mapping[str, int]:
        """The metrics of `CLUSTER_HELP` once the node has started; empty where it is no controller."""
        return self._node.metrics() if isinstance(self._node, ControllerNode) else {}

    def of_quorum_replica(self) -> Mapping[str, int]:
        """`QUORUM_REPLICA_METRICS` of a controller's or broker's replica of the metadata log; empty without one."""
        if not isinstance(self._node, ControllerNode | BrokerNode):
            return {}
        replica = self._node.replica
        values = (replica.leader, replica.epoch, replica.high_watermark, replica.log.end_offset)
        return dict(zip(metrics.QUORUM_REPLICA_METRICS, values, strict=True))

    def of_partitions(self) -> Iterator[tuple[Sample, ...]]:
        """For each of a broker's replicas its gauges, and then those over all of them; or the gauges of each partition
        in the metadata of the active controller. Empty for those that are not shown.
        """
        node = self._node
        if isinstance(node, BaseBroker):
            yield from self._of_replicas(node)
        elif isinstance(node, ControllerNode) and node.is_active:
            image = node.state.image
            keys = [key for key, _ in image.partitions()]
            self.shown.begin(len(keys))
            for key in keys:
                state = image.partition(key)
                if state is not None:
                    name, is_whole = image.name_of(key), len(state.isr) >= len(state.replicas)
                    admitted = self.shown.admits(name, is_whole)
                    yield tuple(partition_samples(name, len(state.isr), len(state.elr))) if admitted else ()

    def _of_replicas(self, broker: BaseBroker) -> Iterator[tuple[Sample, ...]]:
        counts = ReplicaGauges()
        replicas = list(broker.context.replicas.values())
        self.shown.begin(len(replicas))
        for replica in replicas:
            counts.add(broker.context, replica)
            led, log_end = replica.leadership, replica.log.end_offset
            if not self.shown.admits(replica.name, led is None or len(led.isr) >= len(led.replicas)):
                yield ()
            elif led is not None:
                yield tuple(leader_samples(replica.name, log_end, replica.log.high_watermark))
            else:
                yield (log_end_sample(replica.name, log_end), lag_sample(replica.name, 0))
        yield tuple(broker_samples(counts))


class Changes(Generic[Key]):
    """Finds the gauges whose value has changed since the last call."""

    def __init__(self) -> None:
        self._last: Mapping[Key, int] = {}

    def take(self, values: Mapping[Key, int]) -> dict[Key, int]:
        """The changed ones of all values; all of them at the first call."""
        before, self._last = self._last, values
        return {key: value for key, value in values.items() if before.get(key) != value}

    def repeat(self) -> None:
        """Has the next call return all values."""
        self._last = {}


class RayMeter:
    """Receives what a node sends, receives and traces, and the end of each input. `cluster` is the label of its series.
    `clock` is the host's, `now_s` a monotonic clock that measures requests.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        clock: LoopClock,
        readings: NodeReadings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        default = {"cluster": cluster, "node": node}
        self._node = node
        self._clock = clock
        self._readings = readings
        self._changes = Changes[str]()
        self._of_controller = {
            name: Gauge(name.replace(".", "_"), metrics.CLUSTER_HELP[name], tuple(default))
            for name in (metrics.CLUSTER_HELP if readings.is_controller else ())
        }
        self._partitions = PartitionSamples(readings.shown)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        for name, declared in metrics.NODE_METRICS.items():
            if declared.kind == "counter":
                self._counters[name] = Counter(name, declared.help, (*default, *declared.labels))
            elif declared.kind == "gauge":
                self._gauges[name] = Gauge(name, declared.help, (*default, *declared.labels))
        requests = metrics.NODE_METRICS[metrics.REQUEST_MS]
        self._request_ms = Histogram(
            requests.name, requests.help, list(metrics.REQUEST_MS_BOUNDS), (*default, *requests.labels)
        )
        exported = (*self._counters.values(), *self._gauges.values(), *self._of_controller.values(), self._request_ms)
        for metric in exported:
            metric.set_default_tags(default)
        self._now_s = now_s
        self._times = RequestTimes()
        self._traces: deque[Trace] = deque()
        self._samples: dict[tuple[str, Tags], int] = {}
        self._repeated: Iterator[tuple[Sample, ...]] = iter(())
        self._last_pass: list[tuple[Sample, ...]] | None = None
        self._has_changed = False
        self._type_tags: dict[type[Message], Tags] = {}
        self._repeat_at_ms = 0
        self._is_scheduled = False
        self._has_stopped = False

    def stop(self) -> None:
        self._has_stopped = True

    def arrival(self) -> float:
        """The time at which a frame arrives, for `record_received`."""
        return self._now_s()

    def record_sent(self, to: NodeId, message: Message) -> None:
        kind = type(message)
        tags = self._type_tags.get(kind)
        if tags is None:
            tags = self._type_tags[kind] = (("type", kind.__name__),)
        self._count(metrics.MESSAGES_SENT, 1, tags)
        self._times.sent(to, message, self._now_s())

    def record_received(self, sender: NodeId, message: Message, arrived_s: float) -> None:
        """Begins the input that hands a message to the node; `arrived_s` is the `arrival` of its frame."""
        self._times.received(sender, message, arrived_s)
        if isinstance(message, ProduceRequest):
            self._count(metrics.PRODUCE_REQUESTS, 1, (("acks", str(message.acks)),))

    def record_kafka_produce(self, request: ProduceRequest, is_appended: bool) -> None:
        """A batch of a client of Kafka's, which a listener has handed to the node."""
        self._count(metrics.PRODUCE_REQUESTS, 1, (("acks", str(request.acks)),))
        if is_appended:
            self._count_appended(request.topic, request.batch)

    def _count_appended(self, topic: str, batch: RecordBatch) -> None:
        tags = (("topic", topic),)
        self._count(metrics.BYTES_IN, batch.size_bytes, tags)
        self._count(metrics.MESSAGES_IN, batch.record_count, tags)

    def record_trace(self, trace: Trace) -> None:
        """Also writes an alert to the process's log."""
        if isinstance(trace, AlertRaised):
            _LOG.warning("%s: %s", self._node, trace.text())
        if isinstance(trace, RecordsAppended) and (batch := self._times.batch_of(trace)) is not None:
            self._count_appended(trace.partition.topic, batch)
        self._traces.append(trace)
        self._has_changed = True

    def end_input(self) -> None:
        """Begins the repetition with the first input, and schedules the next export if there is anything to export."""
        if self._repeat_at_ms == 0:
            self._schedule_repeat()
        has_news = self._samples or self._traces or self._of_controller or self._times.has_any
        if not self._is_scheduled and has_news:
            self._schedule_export(EXPORT_MS)

    def _schedule_repeat(self) -> None:
        self._repeat_at_ms = self._clock.now_ms() + REPEAT_MS
        self._clock.call_at(self._repeat_at_ms, self._repeat)

    def _repeat(self) -> None:
        if self._has_stopped:
            return
        self._changes.repeat()
        is_known = self._last_pass is not None and not self._has_changed
        self._repeated = iter(self._last_pass or ()) if is_known else self._read_partitions()
        self._schedule_repeat()
        if not self._is_scheduled:
            self._schedule_export(0)

    def _read_partitions(self) -> Iterator[tuple[Sample, ...]]:
        """Reads the gauges of the partitions from the state, and keeps them once all have been read."""
        self._has_changed, self._last_pass = False, None
        found = []
        for samples in self._readings.of_partitions():
            if samples:
                found.append(samples)
            yield samples
        self._last_pass = found

    def _schedule_export(self, after_ms: int) -> None:
        self._is_scheduled = True
        self._clock.call_at(self._clock.now_ms() + after_ms, self._export)

    def _add(self, sample: Sample) -> None:
        if sample.metric in self._counters:
            self._count(sample.metric, sample.value, sample.tags)
        else:
            self._samples[sample.metric, sample.tags] = sample.value

    def _count(self, metric: str, increment: int, tags: Tags) -> None:
        series = (metric, tags)
        self._samples[series] = self._samples.get(series, 0) + increment

    def _export(self) -> None:
        if self._has_stopped:
            return
        self._is_scheduled = False
        states = {**self._readings.of_controller(), **self._readings.of_quorum_replica()}
        for name, value in self._changes.take(states).items():
            (self._of_controller.get(name) or self._gauges[name]).set(value)
        is_repeating = self._repeat_some()
        for _ in range(min(len(self._traces), READ_AT_ONCE)):
            for sample in self._partitions.samples_of(self._traces.popleft()):
                self._add(sample)
        for metric, tags in list(islice(self._samples, EXPORT_AT_ONCE)):
            value = self._samples.pop((metric, tags))
            if metric in self._counters:
                self._counters[metric].inc(value, dict(tags))
            else:
                self._gauges[metric].set(value, dict(tags))
        for kind, ms in self._times.take(EXPORT_AT_ONCE):
            self._request_ms.observe(ms, {"request": kind})
        if self._samples or self._traces or is_repeating or self._times.has_any:
            self._schedule_export(EXPORT_AGAIN_MS)

    def _repeat_some(self) -> bool:
        """Sets the next gauges of the state; whether there may be more."""
        exported = 0
        for _ in range(READ_AT_ONCE):
            samples = next(self._repeated, None)
            if samples is None:
                return False
            for sample in samples:
                self._gauges[sample.metric].set(sample.value, dict(sample.tags))
            exported += len(samples)
            if exported >= EXPORT_AT_ONCE:
                break
        return True


class ClusterMeter:
    """Exports `POLLED_METRICS` for the cluster with this id, from the process that polls its nodes and learns of each
    death: only the process that has set a gauge can set it again. `now_s` is a monotonic clock.
    """

    def __init__(self, cluster: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._now_s = now_s
        self._gauges = {name: Gauge(name, it.help, ("cluster", "node")) for name, it in metrics.POLLED_METRICS.items()}
        self._changes = Changes[tuple[str, NodeId]]()
        self._repeat_at_s = 0.0

    def update(self, nodes: Mapping[NodeId, Epoch | None]) -> None:
        """Sets the gauges that have changed, and all of them every `REPEAT_MS`. `nodes` are those that have been
        started, each with the epoch in which it was the active controller when it last reported, NO_EPOCH if it was
        not, None if it has ended. One of an older epoch has been replaced, though it may not know it.
        """
        newest = max((epoch for epoch in nodes.values() if epoch is not None), default=NO_EPOCH)
        values = {(metrics.NODE_RUNNING, node): int(epoch is not None) for node, epoch in nodes.items()}
        values |= {
            (metrics.ACTIVE_CONTROLLER, node): int(epoch == newest != NO_EPOCH)
            for node, epoch in nodes.items()
            if is_controller(node)
        }
        if self._now_s() >= self._repeat_at_s:
            self._changes.repeat()
            self._repeat_at_s = self._now_s() + REPEAT_MS / 1000
        for (name, node), value in self._changes.take(values).items():
            self._gauges[name].set(value, {"cluster": self._cluster, "node": node_name(node)})
