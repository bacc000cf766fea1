"""The gauges of a broker over its replicas, each case counted by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from protocol.broker.replica_gauges import ReplicaGauges
from protocol.features import Generation
from protocol.ids import NO_LEADER
from protocol.messages.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from tests.unit.protocol.node_helpers import BrokerBench, config_of


def gauges(min_isr: int, *partitions: dict[str, Any]) -> dict[str, int]:
    """The non-zero gauges of broker 0 with these partitions, each with replicas 0, 1, 2, all in the ISR, led by 0,
    unless its fields say otherwise."""
    records: list[MetadataRecord] = [TopicRecord(name="t", topic_id="T")]
    records.append(ConfigRecord(topic_id="T", name="min.insync.replicas", value=str(min_isr)))
    for number, fields in enumerate(partitions):
        state: dict[str, Any] = {"replicas": (0, 1, 2), "isr": (0, 1, 2), "leader": 0} | fields
        records.append(PartitionRecord(topic_id="T", partition_id=number, **state))
    bench = BrokerBench(config=config_of(Generation.KIP_966))
    bench.run(*records)
    counts = ReplicaGauges()
    for replica in bench.node.context.replicas.values():
        counts.add(bench.node.context, replica)
    return {name: value for name, value in asdict(counts).items() if value}


@pytest.mark.parametrize(
    ("min_isr", "fields", "expected"),
    [
        (1, {}, {"leaders": 1}),
        (1, {"isr": (0, 1)}, {"leaders": 1, "under_replicated": 1}),
        (2, {"isr": (0, 1)}, {"leaders": 1, "under_replicated": 1, "at_min_isr": 1}),
        (3, {"isr": (0, 1)}, {"leaders": 1, "under_replicated": 1, "under_min_isr": 1}),
        (3, {}, {"leaders": 1, "at_min_isr": 1}),
        (7, {"isr": (0, 1)}, {"leaders": 1, "under_replicated": 1, "under_min_isr": 1}),
        (7, {}, {"leaders": 1, "at_min_isr": 1}),
        (2, {"leader": 1, "isr": (1,)}, {}),
        (2, {"leader": NO_LEADER, "isr": ()}, {}),
        (1, {"isr": (0, 1), "adding_replicas": (2,)}, {"leaders": 1}),
        (1, {"isr": (0,), "adding_replicas": (2,)}, {"leaders": 1, "under_replicated": 1, "at_min_isr": 1}),
    ],
)
def test_one_replica(min_isr: int, fields: dict[str, Any], expected: dict[str, int]) -> None:
    """Effective min ISR is at most the number of replicas, 3: with `min.insync.replicas` 7 an ISR of 3 is at it."""
    assert gauges(min_isr, fields) == {"partitions": 1, **expected}


def test_the_gauges_of_several_replicas_are_sums() -> None:
    found = gauges(2, {}, {"isr": (0, 1)}, {"isr": (0,)}, {"leader": 1})
    assert found == {"partitions": 4, "leaders": 3, "under_replicated": 2, "under_min_isr": 1, "at_min_isr": 1}
