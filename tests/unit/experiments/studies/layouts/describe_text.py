"""Writes a layout as `kafka-topics.sh --describe` of Kafka 4 prints it, as large as a test or a measurement wants it:

python -m tests.unit.experiments.studies.layouts.describe_text 50 100 100 > describe.txt
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from experiments.studies.layouts.layout import Layout
from experiments.studies.layouts.rules import PlacedTopic, place


def zones(brokers: int, topics: int, partitions: int) -> Layout:
    """Brokers in three racks, and topics of 3 replicas and min ISR 2 that are placed as Kafka's controller does."""
    racks = {broker: "abc"[broker % 3] for broker in range(brokers)}
    wanted = [PlacedTopic(f"t{number:03}", partitions, 3, 2) for number in range(topics)]
    return place("rack-aware", tuple(range(brokers)), racks, wanted, 1)


def described(layout: Layout) -> Iterator[str]:
    """The lines, with every replica in sync."""
    for topic in layout.topics:
        first = f"Topic: {topic.name}\tTopicId: x\tPartitionCount: {len(topic.replicas)}"
        configs = f"min.insync.replicas={topic.min_insync_replicas}"
        yield f"{first}\tReplicationFactor: {len(topic.replicas[0])}\tConfigs: {configs}"
        for index, replicas in enumerate(topic.replicas):
            ids = ",".join(map(str, replicas))
            line = f"\tTopic: {topic.name}\tPartition: {index}\tLeader: {replicas[0]}\tReplicas: {ids}\tIsr: {ids}"
            yield f"{line}\tElr: \tLastKnownElr: "


if __name__ == "__main__":
    print("\n".join(described(zones(*map(int, sys.argv[1:4])))))
