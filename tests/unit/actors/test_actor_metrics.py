"""The metrics of trace events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from actors import metrics
from actors.metrics import Changes, ClusterMeter, NodeReadings, RayMeter
from actors.request_times import MAX_PENDING, RequestTimes
from actors.samples import PartitionSamples, Sample, ShownPartitions, lag_sample
from protocol.events.base import Trace
from protocol.events.broker import (
    BecameFollower,
    BecameLeader,
    BrokerStateChanged,
    HighWatermarkAdvanced,
    IsrCommitted,
    IsrProposed,
    LogReset,
    LogTruncated,
    MetadataPublished,
    RecordsAppended,
    RecordsFetched,
)
from protocol.events.controller import AlertRaised
from protocol.ids import NO_EPOCH, NO_LEADER, NodeId, TopicPartition
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.base import Request
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeRequest, ConsumeResponse, ProduceRequest, ProduceResponse
from protocol.metrics import (
    ACTIVE_CONTROLLER,
    BYTES_IN,
    CLUSTER_HELP,
    CLUSTER_METRICS,
    ELECTIONS,
    HIGH_WATERMARK_LAG,
    ISR_EXPANDS,
    MAX_PARTITION_SERIES,
    MESSAGES_IN,
    NODE_METRICS,
    NODE_RUNNING,
    OFFLINE,
    RAFT_LEADER,
    REQUEST_MS,
)
from tests.unit.partition_events import partition_changed

T0 = TopicPartition("t", 0)


class FakeClock:
    """A clock whose scheduled calls the test makes."""

    def __init__(self) -> None:
        self.due: list[tuple[int, Callable[[], None]]] = []
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    def call_at(self, at_ms: int, action: Callable[[], None]) -> Any:
        self.due.append((at_ms, action))

    def call_soon(self, action: Callable[[], None]) -> None:
        raise AssertionError

    def ring(self) -> int:
        """Makes the first of the scheduled calls; returns its time."""
        first = min(range(len(self.due)), key=lambda index: self.due[index][0])
        self.time_ms, action = self.due.pop(first)
        action()
        return self.time_ms


class FakeReadings(NodeReadings):
    """The gauges of a node, as the test sets them."""

    def __init__(self) -> None:
        self.shown = ShownPartitions()
        self.controller: dict[str, int] = {}
        self.quorum: dict[str, int] = {}
        self.partitions: list[Sample] = []

    @property
    def is_controller(self) -> bool:
        return bool(self.controller)

    def of_controller(self) -> Mapping[str, int]:
        return dict(self.controller)

    def of_quorum_replica(self) -> Mapping[str, int]:
        return dict(self.quorum)

    def of_partitions(self) -> Iterator[tuple[Sample, ...]]:
        return iter([(sample,) for sample in self.partitions])


def values(samples: PartitionSamples, trace: Trace) -> dict[str, int]:
    found = list(samples.samples_of(trace))
    assert all(sample.tags == (("topic", "t"), ("partition", "0")) for sample in found)
    return {sample.metric.removeprefix("isray_"): sample.value for sample in found}


ELECTABLE = "kafka_controller_electable_leaders_count"


def change(
    samples: PartitionSamples, leader: int, leader_epoch: int, partition_epoch: int, isr: int, elr: int = 0
) -> dict[str, int]:
    isr_ids, elr_ids = tuple(range(isr)), tuple(range(elr))
    return values(samples, partition_changed("t", leader, leader_epoch, partition_epoch, isr_ids, elr_ids))


def test_an_election_is_a_leader_in_a_new_epoch() -> None:
    samples = PartitionSamples()
    assert change(samples, 0, 0, 0, isr=3) == {"elections": 1, "isr_size": 3, "elr_size": 0, ELECTABLE: 3}
    assert change(samples, 0, 0, 1, isr=2) == {"isr_size": 2, "elr_size": 0, ELECTABLE: 2}
    assert change(samples, -1, 1, 2, isr=0, elr=2) == {"isr_size": 0, "elr_size": 2, ELECTABLE: 2}
    assert change(samples, 2, 2, 3, isr=1, elr=1) == {"elections": 1, "isr_size": 1, "elr_size": 1, ELECTABLE: 2}


def test_a_restarted_controller_does_not_take_the_first_change_it_sees_for_an_election() -> None:
    samples = PartitionSamples()
    assert "elections" not in change(samples, 1, 4, 9, isr=2)
    assert change(samples, 2, 5, 10, isr=1)["elections"] == 1


def test_the_lag_is_the_leaders_log_above_its_high_watermark_and_0_on_a_follower() -> None:
    samples = PartitionSamples()

    def ends(log_end: int, high_watermark: int) -> dict[str, int]:
        lag = log_end - high_watermark
        return {"kafka_log_log_end_offset": log_end, "high_watermark": high_watermark, "high_watermark_lag": lag}

    assert values(samples, BecameLeader(T0, leader_epoch=1, log_end=7, high_watermark=5)) == ends(7, 5)
    assert values(samples, RecordsAppended(T0, log_end=9, leader_epoch=1, acks=1)) == ends(9, 5)
    assert values(samples, HighWatermarkAdvanced(T0, high_watermark=9, leader_epoch=1)) == ends(9, 9)
    assert values(samples, RecordsAppended(T0, log_end=10, leader_epoch=1, acks=1)) == ends(10, 9)
    assert values(samples, BecameFollower(T0, leader=2, leader_epoch=2)) == {"high_watermark_lag": 0}


def test_the_log_end_of_a_follower_is_that_of_its_last_fetch_truncation_or_reset() -> None:
    samples = PartitionSamples()
    assert values(samples, RecordsFetched(T0, log_end=3, leader_epoch=1)) == {"kafka_log_log_end_offset": 3}
    truncated = LogTruncated(T0, to_offset=2, log_end=3, high_watermark=2)
    assert values(samples, truncated) == {"kafka_log_log_end_offset": 2}
    assert values(samples, LogReset(T0, to_offset=40, log_end=2)) == {"kafka_log_log_end_offset": 40}


def isr_changes(*traces: Trace) -> list[str]:
    samples = PartitionSamples()
    return [sample.metric.rpartition("_")[2] for trace in traces for sample in samples.samples_of(trace)]


def test_a_leader_counts_the_changes_of_the_isr_that_it_proposed_and_the_controller_committed() -> None:
    shrinks = (IsrProposed(T0, isr=(0, 1), committed=(0, 1, 2)), IsrCommitted(T0, isr=(0, 1), partition_epoch=1))
    expands = (IsrProposed(T0, isr=(0, 1, 2), committed=(0, 1)), IsrCommitted(T0, isr=(1, 0, 2), partition_epoch=2))
    assert isr_changes(*shrinks, *expands) == ["shrinks", "expands"]
    assert isr_changes(*shrinks, shrinks[1]) == ["shrinks"], "once for each proposal"
    assert isr_changes(shrinks[1]) == [], "a change that the controller makes by itself"
    other = IsrCommitted(T0, isr=(0,), partition_epoch=1)
    assert isr_changes(shrinks[0], other, shrinks[1]) == [], "another change has voided the proposal"
    assert isr_changes(shrinks[0], BecameFollower(T0, leader=1, leader_epoch=3), shrinks[1]) == ["lag"]


def test_a_node_with_many_partitions_has_series_of_those_only_whose_isr_lacks_a_replica() -> None:
    shown, elsewhere = ShownPartitions(), TopicPartition("u", 0)
    shown.begin(MAX_PARTITION_SERIES)
    assert shown.admits(T0, is_whole=True)
    shown.begin(MAX_PARTITION_SERIES + 1)
    assert [shown.admits(T0, is_whole=False), shown.admits(elsewhere, is_whole=True)] == [True, False]
    samples = PartitionSamples(shown)
    events: list[Trace] = []
    for partition in (T0, elsewhere):
        events += [RecordsFetched(partition, log_end=3, leader_epoch=1), LogTruncated(partition, 2, 3, 2)]
        events += [
            BecameLeader(partition, leader_epoch=2, log_end=2, high_watermark=2),
            BecameFollower(partition, 0, 3),
        ]
    found = [sample.tags for event in events for sample in samples.samples_of(event)]
    assert found == [lag_sample(T0, 0).tags] * 6
    elected = partition_changed("u", 0, 0, 0, (0, 1))
    assert list(samples.samples_of(elected)) == [Sample(ELECTIONS, 1, (("topic", "u"), ("partition", "")))], (
        "counted for the topic"
    )
    proposed, committed = IsrProposed(elsewhere, (0, 1), (0,)), IsrCommitted(elsewhere, (0, 1), partition_epoch=1)
    assert [list(samples.samples_of(event)) for event in (proposed, committed)] == [[], [Sample(ISR_EXPANDS, 1, ())]]


def test_the_series_of_partitions_that_lack_replicas_are_bounded_too() -> None:
    shown = ShownPartitions()
    shown.begin(MAX_PARTITION_SERIES + 2)
    admitted = [shown.admits(TopicPartition("t", number), is_whole=False) for number in range(MAX_PARTITION_SERIES + 2)]
    assert admitted == [True] * MAX_PARTITION_SERIES + [False] * 2


@pytest.mark.parametrize(
    "trace",
    [
        BrokerStateChanged(0, "running"),
        MetadataPublished(0, next_offset=4),
    ],
)
def test_other_events_have_no_samples(trace: Trace) -> None:
    assert values(PartitionSamples(), trace) == {}


def test_only_changed_metrics_are_exported() -> None:
    changes = Changes[str]()
    assert changes.take({"a": 0, "b": 0}) == {"a": 0, "b": 0}, "a 0 is to be seen"
    assert changes.take({"a": 0, "b": 2}) == {"b": 2}
    assert changes.take({"a": 0, "b": 2}) == {}


@pytest.mark.covers("I8")
def test_an_alert_is_a_warning_in_the_log_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    meter = RayMeter("run", "controller-1000", FakeClock(), FakeReadings())
    with caplog.at_level(logging.WARNING):
        meter.record_trace(AlertRaised(T0, "offline_partition", leader=NO_LEADER, leader_epoch=3))
        meter.record_trace(HighWatermarkAdvanced(T0, high_watermark=0, leader_epoch=0))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == "controller-1000: t-0 is offline: it has no leader"


class FakeGauge:
    """A gauge that records the values it was set to, by its name."""

    values: ClassVar[dict[str, list[int]]] = {}
    tagged: ClassVar[list[tuple[str, int, dict[str, str]]]] = []

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name = name
        assert description
        assert tag_keys
        self.set_to = self.values.setdefault(name, [])

    def set_default_tags(self, tags: dict[str, str]) -> None:
        assert tags == {"cluster": "r", "node": "n"}

    def set(self, value: int, tags: dict[str, str] | None = None) -> None:
        self.set_to.append(value)
        self.tagged.append((self.name, value, tags or {}))

    inc = set


def test_the_metrics_of_a_controller_are_gauges_with_underscores_for_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "Gauge", FakeGauge)
    readings, clock = FakeReadings(), FakeClock()
    stands = readings.controller = dict.fromkeys(CLUSTER_HELP, 0)
    meter = RayMeter("r", "n", clock, readings)
    meter.end_input()
    clock.ring()
    stands["kafka.controller.offline_partitions_count"] = 4
    for _ in range(2):
        meter.end_input()
        meter.end_input()
        clock.ring()
    found = {name: values for name, values in FakeGauge.values.items() if values}
    expected = {name.replace(".", "_"): [0] for name in CLUSTER_METRICS}
    assert found == expected | {"kafka_controller_offline_partitions_count": [0, 4]}


def test_all_gauges_of_the_nodes_state_are_set_again_and_again_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "Gauge", FakeGauge)
    monkeypatch.setattr(metrics, "EXPORT_AT_ONCE", 2)
    FakeGauge.tagged.clear()
    readings, clock = FakeReadings(), FakeClock()
    readings.controller = {OFFLINE: 1}
    meter = RayMeter("r", "n", clock, readings)
    meter.end_input()
    clock.ring()
    assert [(name, value) for name, value, _ in FakeGauge.tagged] == [("kafka_controller_offline_partitions_count", 1)]
    FakeGauge.tagged.clear()
    readings.partitions = [lag_sample(TopicPartition("t", number), number) for number in range(3)]
    assert clock.ring() == metrics.REPEAT_MS
    for _ in range(2):
        clock.ring()
    lags = [value for name, value, _ in FakeGauge.tagged if name == HIGH_WATERMARK_LAG]
    assert (len(FakeGauge.tagged), lags) == (4, [0, 1, 2])
    del readings.partitions[1:]
    FakeGauge.tagged.clear()
    while clock.ring() < 4 * metrics.REPEAT_MS:
        pass
    assert [value for name, value, _ in FakeGauge.tagged if name == HIGH_WATERMARK_LAG] == [0, 1, 2] * 2, "as last read"
    assert [name for name, _, _ in FakeGauge.tagged].count("kafka_controller_offline_partitions_count") == 2
    meter.record_trace(MetadataPublished(0, next_offset=4))
    FakeGauge.tagged.clear()
    while clock.ring() < 6 * metrics.REPEAT_MS:
        pass
    assert [value for name, value, _ in FakeGauge.tagged if name == HIGH_WATERMARK_LAG] == [0, 1, 2, 0], "read again"
    assert [name for name, _, _ in FakeGauge.tagged].count("kafka_controller_offline_partitions_count") == 2


def test_nodes_other_than_controllers_have_no_controller_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGauge.values.clear()
    monkeypatch.setattr(metrics, "Gauge", FakeGauge)
    RayMeter("r", "n", FakeClock(), FakeReadings()).end_input()
    assert set(FakeGauge.values) == {it.name for it in NODE_METRICS.values() if it.kind == "gauge"}


def test_counters_add_up_gauges_keep_the_last_value_and_both_are_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Gauge", "Counter"):
        monkeypatch.setattr(metrics, kind, FakeGauge)
    FakeGauge.tagged.clear()
    clock = FakeClock()
    meter = RayMeter("r", "n", clock, FakeReadings())
    for log_end in (5, 7):
        meter.record_sent(0, MetadataRequest(correlation_id=1, topic="t"))
        meter.record_trace(BecameLeader(T0, leader_epoch=1, log_end=log_end, high_watermark=4))
        meter.end_input()
    assert FakeGauge.tagged == []
    assert clock.ring() == metrics.EXPORT_MS
    sent = ("isray_messages_sent", 2, {"type": "MetadataRequest"})
    offsets = (("kafka_log_log_end_offset", 7), ("isray_high_watermark", 4), ("isray_high_watermark_lag", 3))
    assert FakeGauge.tagged == [sent, *((name, value, {"topic": "t", "partition": "0"}) for name, value in offsets)]
    assert [at_ms for at_ms, _ in clock.due] == [metrics.REPEAT_MS]


def test_what_a_quorum_replica_knows_is_exported_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "Gauge", FakeGauge)
    FakeGauge.tagged.clear()
    readings, clock = FakeReadings(), FakeClock()
    meter = RayMeter("r", "n", clock, readings)
    for leader in (-1, 1000, 1000):
        readings.quorum = {RAFT_LEADER: leader}
        meter.record_trace(BrokerStateChanged(0, "running"))
        meter.end_input()
        clock.ring()
    assert [value for name, value, _ in FakeGauge.tagged if name == RAFT_LEADER] == [-1, 1000]


class FakeHistogram(FakeGauge):
    def __init__(self, name: str, description: str, boundaries: list[float], tag_keys: tuple[str, ...]) -> None:
        assert boundaries == sorted(boundaries)
        super().__init__(name, description, tag_keys)

    observe = FakeGauge.set


def test_requests_are_measured_from_their_arrival_to_their_response(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, fake in (("Gauge", FakeGauge), ("Counter", FakeGauge), ("Histogram", FakeHistogram)):
        monkeypatch.setattr(metrics, kind, fake)
    FakeGauge.tagged.clear()
    clock, now_s = FakeClock(), [100.0]
    meter = RayMeter("r", "n", clock, FakeReadings(), lambda: now_s[0])
    batch = RecordBatch(record_count=3, payload=b"x" * 70)
    requests: list[Request] = [
        ProduceRequest(correlation_id=1, topic="t", partition=0, acks=-1, batch=batch),
        ConsumeRequest(correlation_id=1, topic="t", partition=0, fetch_offset=0),
        ProduceRequest(correlation_id=2, topic="t", partition=0, acks=0, batch=batch),
    ]
    for client, request in zip((3000, 3001, 3000), requests, strict=True):
        meter.record_received(client, request, meter.arrival())
        now_s[0] += 0.25
    for partition in (T0, TopicPartition("u", 0)):
        meter.record_trace(BecameLeader(partition, leader_epoch=0, log_end=0, high_watermark=0))
    meter.record_trace(RecordsAppended(TopicPartition("u", 0), log_end=3, leader_epoch=0, acks=0))
    meter.record_trace(RecordsAppended(T0, log_end=3, leader_epoch=0, acks=0))
    for is_appended in (True, False):
        of_kafka = ProduceRequest(correlation_id=3, topic="k", partition=0, acks=-1, batch=batch)
        meter.record_kafka_produce(of_kafka, is_appended)
    meter.record_sent(3001, ConsumeResponse(correlation_id=1))
    meter.record_sent(3001, ConsumeResponse(correlation_id=1))
    meter.record_sent(3000, ProduceResponse(correlation_id=1))
    meter.record_sent(3000, ProduceResponse(correlation_id=2))
    meter.end_input()
    clock.ring()
    assert [(value, tags) for name, value, tags in FakeGauge.tagged if name == REQUEST_MS] == [
        (500.0, {"request": "FetchConsumer"}),
        (750.0, {"request": "Produce"}),
    ]
    written = [(name, value, tags) for name, value, tags in FakeGauge.tagged if name in (BYTES_IN, MESSAGES_IN)]
    assert written == [
        (name, value, {"topic": topic}) for topic in ("t", "k") for name, value in ((BYTES_IN, 70), (MESSAGES_IN, 3))
    ]


def test_requests_without_a_response_are_forgotten_the_oldest_first() -> None:
    times = RequestTimes()
    for number in range(MAX_PENDING + 1):
        times.received(3000, MetadataRequest(correlation_id=number, topic="t"), 0.0)
    for number in (0, 1, MAX_PENDING):
        times.sent(3000, MetadataResponse(correlation_id=number), 0.001 * number)
    assert times.take(10) == [("Metadata", 1.0), ("Metadata", float(MAX_PENDING))]
    assert not times.has_any


def test_many_series_are_exported_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "Gauge", FakeGauge)
    monkeypatch.setattr(metrics, "EXPORT_AT_ONCE", 2)
    FakeGauge.tagged.clear()
    clock = FakeClock()
    meter = RayMeter("r", "n", clock, FakeReadings())
    for number in range(5):
        meter.record_trace(BecameFollower(TopicPartition("t", number), leader=1, leader_epoch=0))
    meter.end_input()
    exported = []
    while len(exported) < 3:
        clock.ring()
        exported.append([tags["partition"] for _, _, tags in FakeGauge.tagged])
    assert exported == [["0", "1"], ["0", "1", "2", "3"], ["0", "1", "2", "3", "4"]]


class Exported:
    """A cluster's meter on a clock that the test moves, and what it has set since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metrics, "Gauge", FakeGauge)
        FakeGauge.tagged.clear()
        self.time_s = 100.0
        self._meter = ClusterMeter("c", lambda: self.time_s)

    def update(self, nodes: Mapping[NodeId, int | None]) -> list[tuple[str, str, int]]:
        """(metric, node, value) of the gauges that an update sets."""
        self._meter.update(nodes)
        found, FakeGauge.tagged[:] = list(FakeGauge.tagged), []
        assert {tags["cluster"] for _, _, tags in found} <= {"c"}
        return sorted((name, tags["node"], value) for name, value, tags in found)


def test_at_most_one_controller_counts_as_active_while_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = Exported(monkeypatch)
    active, runs = ACTIVE_CONTROLLER, NODE_RUNNING
    assert exported.update({0: NO_EPOCH, 1000: NO_EPOCH, 1001: 4}) == [
        (runs, "broker-0", 1),
        (runs, "controller-1000", 1),
        (runs, "controller-1001", 1),
        (active, "controller-1000", 0),
        (active, "controller-1001", 1),
    ]
    killed = exported.update({0: NO_EPOCH, 1000: NO_EPOCH, 1001: None})
    assert killed == [(runs, "controller-1001", 0), (active, "controller-1001", 0)], "only what has changed"
    assert exported.update({0: NO_EPOCH, 1000: 5, 1001: None}) == [(active, "controller-1000", 1)]
    replaced = exported.update({0: NO_EPOCH, 1000: 5, 1001: 6})
    assert replaced == [(runs, "controller-1001", 1), (active, "controller-1000", 0), (active, "controller-1001", 1)]


def test_the_gauges_of_the_cluster_are_set_again_before_ray_drops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = Exported(monkeypatch)
    first = exported.update({0: None, 1000: 1})
    assert exported.update({0: None, 1000: 1}) == []
    exported.time_s += metrics.REPEAT_MS / 1000
    assert exported.update({0: None, 1000: 1}) == first
