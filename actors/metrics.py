"""What a node on Ray measures: of its messages and trace events, and of itself; exported by `ray.util.metrics`.

Every Ray node serves its nodes' series on its metrics port, for Prometheus to collect, under the names below with
`ray_` in front (and `_total` behind, for counters). The series of a finished process stay there: `run` tells clusters
apart, `node` is the node's name. Partitions are tagged `topic` and `partition`.

`per partition` stands for the tags `run, node, topic, partition`.

| name | kind | tags | value |
|---|---|---|---|
| `isray_messages_sent` | counter | `run, node, type` | messages that the node sent, by message type |
| `isray_produce_requests` | counter | `run, node, acks` | produce requests that a broker took, by acks (0, 1, -1) |
| `isray_elections` | counter | per partition | leaders that the controller elected, the first one included (*) |
| `isray_isr_size` | gauge | per partition | brokers in the ISR, by the controller's record |
| `isray_elr_size` | gauge | per partition | eligible leader replicas, by the controller's record |
| `isray_high_watermark_lag` | gauge | per partition | uncommitted records at the leader; 0 on a follower |
| `kafka_controller_electable_leaders_count` | gauge | per partition | ISR and ELR together, by the same |
| `kafka_controller_...` | gauge | `run, node` | the controller's metrics, `protocol/controller/metrics.py` (**) |

(*) A restarted controller has not seen what came before it and counts from a partition's second change on.
(**) With underscores where the name there has dots. Counters and the parts of summaries are exported as gauges too, so
that they keep their names and that a 0 is there to be seen.

What is measured is noted at once, and looked at and exported every `EXPORT_MS`, at most `EXPORT_AT_ONCE` trace events
and series at a time: a node that loses a peer notes thousands of changes in one input, and each costs many
microseconds, which would hold up what the node has to do about it.

An `alert` trace event is written to the process's log as a warning besides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ray.util.metrics import Counter, Gauge

from actors.clock import Clock
from protocol.contract import Trace
from protocol.controller.metrics import CLUSTER_METRICS, ELECTABLE_LEADERS, alert_text
from protocol.ids import NO_LEADER, TopicPartition
from protocol.messages.base import Message
from protocol.messages.data import ProduceRequest

_LOG = logging.getLogger(__name__)

EXPORT_MS = 250
EXPORT_AGAIN_MS = 10
EXPORT_AT_ONCE = 500

MESSAGES_SENT = "isray_messages_sent"
PRODUCE_REQUESTS = "isray_produce_requests"
ELECTIONS = "isray_elections"
ISR_SIZE = "isray_isr_size"
ELR_SIZE = "isray_elr_size"
HIGH_WATERMARK_LAG = "isray_high_watermark_lag"

ELECTABLE_LEADERS_COUNT = ELECTABLE_LEADERS.replace(".", "_")

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    MESSAGES_SENT: ("messages that a node sent, by type", ("type",)),
    PRODUCE_REQUESTS: ("produce requests that a broker took, by acks", ("acks",)),
    ELECTIONS: ("leaders elected", ("topic", "partition")),
}
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ISR_SIZE: ("brokers in the ISR", ("topic", "partition")),
    ELR_SIZE: ("eligible leader replicas outside the ISR", ("topic", "partition")),
    HIGH_WATERMARK_LAG: ("records at the leader that are not committed", ("topic", "partition")),
    ELECTABLE_LEADERS_COUNT: ("brokers in ISR or ELR", ("topic", "partition")),
}


Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A counter grows by `value`, a gauge becomes it."""

    metric: str
    value: int
    tags: Tags


class Meter(Protocol):
    """Takes note of what a node sends, receives and traces, and of what it has become with every input."""

    def sent(self, message: Message) -> None: ...

    def received(self, message: Message) -> None: ...

    def traced(self, trace: Trace) -> None: ...

    def handled(self) -> None: ...


class PartitionSamples:
    """Turns the trace events of one node into samples; keeps what it needs of each partition's last one."""

    def __init__(self) -> None:
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._log_ends: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}

    def of(self, trace: Trace) -> Iterator[Sample]:
        """The samples of one trace event, often none."""
        partition, kind = trace.partition, trace.kind
        if partition is None:
            return
        tags = (("topic", partition.topic), ("partition", str(partition.partition)))
        if kind == "partition":
            yield from self._of_controller(partition, trace.detail, tags)
        elif kind in ("became_leader", "appended", "high_watermark"):
            for table, field in ((self._log_ends, "log_end"), (self._high_watermarks, "high_watermark")):
                if field in trace.detail:
                    table[partition] = _whole(trace.detail[field])
            yield Sample(HIGH_WATERMARK_LAG, self._log_ends[partition] - self._high_watermarks[partition], tags)
        elif kind == "became_follower":
            yield Sample(HIGH_WATERMARK_LAG, 0, tags)

    def _of_controller(
        self, partition: TopicPartition, detail: Mapping[str, object], tags: tuple[tuple[str, str], ...]
    ) -> Iterator[Sample]:
        epoch, is_new = _whole(detail["leader_epoch"]), detail["partition_epoch"] == 0
        known = self._leader_epochs.get(partition, -1 if is_new else epoch)
        if epoch > known and detail["leader"] != NO_LEADER:
            yield Sample(ELECTIONS, 1, tags)
        self._leader_epochs[partition] = epoch
        yield Sample(ISR_SIZE, _count(detail["isr"]), tags)
        yield Sample(ELR_SIZE, _count(detail["elr"]), tags)
        yield Sample(ELECTABLE_LEADERS_COUNT, _count(detail["isr"]) + _count(detail["elr"]), tags)


class Changes:
    """Which metrics of a node have another value than when last asked; `read` gives them all by name."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read
        self._last: Mapping[str, int] = {}

    def take(self) -> dict[str, int]:
        """The changed ones by name; at first all of them."""
        before, self._last = self._last, self._read()
        return {name: value for name, value in self._last.items() if before.get(name) != value}


class RayMeter:
    """A `Meter` that feeds `ray.util.metrics`; make it in the process that hosts the node. `clock` is the node's own;
    `read` gives the metrics that a controller keeps of itself, by the names of `CLUSTER_METRICS`; other nodes have
    none.
    """

    def __init__(self, run: str, node: str, clock: Clock, read: Callable[[], Mapping[str, int]] | None = None) -> None:
        default = {"run": run, "node": node}
        self._node = node
        self._clock = clock
        self._changes = None if read is None else Changes(read)
        names = CLUSTER_METRICS if read is not None else ()
        self._of_cluster = {name: Gauge(name.replace(".", "_"), name, ("run", "node")) for name in names}
        self._partitions = PartitionSamples()
        self._counters = {name: Counter(name, text, ("run", "node", *keys)) for name, (text, keys) in COUNTERS.items()}
        self._gauges = {name: Gauge(name, text, ("run", "node", *keys)) for name, (text, keys) in GAUGES.items()}
        for metric in (*self._counters.values(), *self._gauges.values(), *self._of_cluster.values()):
            metric.set_default_tags(default)
        self._traces: deque[Trace] = deque()
        self._noted: dict[tuple[str, Tags], int] = {}
        self._is_due = False

    def sent(self, message: Message) -> None:
        self._note(Sample(MESSAGES_SENT, 1, (("type", type(message).__name__),)))

    def received(self, message: Message) -> None:
        if isinstance(message, ProduceRequest):
            self._note(Sample(PRODUCE_REQUESTS, 1, (("acks", str(message.acks)),)))

    def traced(self, trace: Trace) -> None:
        if trace.kind == "alert":
            _LOG.warning("%s: %s", self._node, alert_text(trace.partition, trace.detail))
        self._traces.append(trace)

    def handled(self) -> None:
        """The node has handled an input, and may have changed."""
        if not self._is_due and (self._noted or self._traces or self._changes is not None):
            self._is_due = True
            self._clock.call_at(self._clock.now_ms() + EXPORT_MS, self._export)

    def _note(self, sample: Sample) -> None:
        series = (sample.metric, sample.tags)
        before = self._noted.get(series, 0) if sample.metric in self._counters else 0
        self._noted[series] = before + sample.value

    def _export(self) -> None:
        self._is_due = False
        if self._changes is not None:
            for name, value in self._changes.take().items():
                self._of_cluster[name].set(value)
        for _ in range(min(len(self._traces), EXPORT_AT_ONCE)):
            for sample in self._partitions.of(self._traces.popleft()):
                self._note(sample)
        for metric, tags in list(islice(self._noted, EXPORT_AT_ONCE)):
            value = self._noted.pop((metric, tags))
            if metric in self._counters:
                self._counters[metric].inc(value, dict(tags))
            else:
                self._gauges[metric].set(value, dict(tags))
        if self._noted or self._traces:
            self._is_due = True
            self._clock.call_at(self._clock.now_ms() + EXPORT_AGAIN_MS, self._export)


def _whole(value: object) -> int:
    assert isinstance(value, int), value
    return value


def _count(value: object) -> int:
    assert isinstance(value, tuple), value
    return len(value)
