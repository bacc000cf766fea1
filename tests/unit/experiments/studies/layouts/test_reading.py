"""Layouts read from what tools print, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.studies.layouts.layout import Described, Layout, TopicLayout, layout_of, with_racks
from experiments.studies.layouts.reader import read_layout, read_racks, written
from experiments.support.errors import InputError

KAFKA_2_0 = """\
Topic:t\tPartitionCount:2\tReplicationFactor:2\tConfigs:min.insync.replicas=2,segment.bytes=1073741824
\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2
\tTopic: t\tPartition: 1\tLeader: none\tReplicas: 2,3\tIsr:
"""
KAFKA_3_9 = """\
[2026-05-01 10:00:00,000] WARN Topic: lookups are slow (org.apache.kafka.clients.NetworkClient)
Topic: t\tTopicId: Zl3qZx0uQ3-Topic_9g\tPartitionCount: 2\tReplicationFactor: 2\tConfigs: segment.bytes=1
\tTopic: t\tPartition: 1\tLeader: 3\tReplicas: 2,3,4\tIsr: 3\tAdding Replicas: 4\tRemoving Replicas: 2
\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 2,1\tOffline:

"""
KAFKA_4_4 = """\
Topic: a    TopicId: x  PartitionCount: 1   ReplicationFactor: 3    Configs: segment.ms=9,min.insync.replicas=2
    Topic: a    Partition: 0    Leader: none    Replicas: 1,2,3 Isr:    Elr: 2,3    LastKnownElr: 1
Topic: b\tTopicId: y\tPartitionCount: 1\tReplicationFactor: 1\tConfigs:
\tTopic: b\tPartition: 0\tLeader: 4\tReplicas: 4\tIsr: 4\tElr: N/A\tLastKnownElr: N/A
"""
EXPECTED = {
    KAFKA_2_0: layout_of([TopicLayout("t", ((1, 2), (2, 3)), 2, (Described(1, (1, 2)), Described(-1, ())))]),
    KAFKA_3_9: layout_of(
        [
            TopicLayout(
                "t", ((1, 2), (2, 3, 4)), None, (Described(1, (2, 1)), Described(3, (3,), adding=(4,), removing=(2,)))
            )
        ]
    ),
    KAFKA_4_4: layout_of(
        [
            TopicLayout("a", ((1, 2, 3),), 2, (Described(-1, (), (2, 3), (1,)),)),
            TopicLayout("b", ((4,),), None, (Described(4, (4,)),)),
        ]
    ),
}


def layout_in(folder: Path, text: str) -> Layout:
    path = folder / "layout.txt"
    path.write_text(text, encoding="utf-8")
    return read_layout(path)


@pytest.mark.parametrize("text", EXPECTED, ids=["2.0", "3.9", "4.4 with spaces"])
def test_each_version_of_the_tool_is_read(text: str, tmp_path: Path) -> None:
    assert layout_in(tmp_path, text) == EXPECTED[text]


def test_a_reassignment_is_a_layout_and_of_two_the_proposed_one(tmp_path: Path) -> None:
    def moved(*replicas: list[int]) -> str:
        items = [{"topic": "t", "partition": index, "replicas": ids} for index, ids in enumerate(replicas)]
        return json.dumps({"version": 1, "partitions": items[::-1]})

    expected = layout_of([TopicLayout("t", ((1, 2), (2, 3)))])
    assert layout_in(tmp_path, moved([1, 2], [2, 3])) == expected
    both = f"Current partition replica assignment\n{moved([5])}\n\nProposed partition reassignment configuration\n"
    assert layout_in(tmp_path, both + moved([1, 2], [2, 3])) == expected


def test_what_the_import_writes_is_read_back(tmp_path: Path) -> None:
    layout = layout_of(EXPECTED[KAFKA_4_4].topics, range(6), dict.fromkeys(range(6), "a"))
    assert layout_in(tmp_path, json.dumps(written(layout, "id"))) == layout


PARTITION = "Topic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2"
WRONG = {
    KAFKA_2_0.rpartition("\tTopic")[0]: r"line 1: found 1 of 2 partitions of 't', without partition 1; allowed: all",
    KAFKA_2_0[:-1]: r"line 3: found no line break at the end; allowed: .*not cut off",
    KAFKA_2_0[:-6]: r"line 3: found no field Isr; allowed: .*not cut off",
    KAFKA_2_0 + PARTITION: r"line 4: found partition 0 of 't' twice; allowed: each partition once",
    KAFKA_2_0 + PARTITION.replace("Partition: 0", "Partition: 2"): r"line 4: found partition 2; allowed: 0 to 1",
    KAFKA_2_0 + PARTITION.replace("Isr", "Observers"): r"line 4: found field 'Observers'; allowed: Topic, .*2.0 to 4.4",
    KAFKA_2_0.replace("Isr: 1,2", "Isr: 1,7"): r"line 2: found broker 7 in Isr; allowed: brokers of its Replicas, 1,2",
    KAFKA_2_0.replace("Leader: 1", "Leader: x"): r"line 2: found Leader 'x'; allowed: a whole number from 0",
    KAFKA_2_0.replace("Replicas: 1,2", "Replicas: 1,1"): r"line 2: found Replicas 1,1; allowed",
    KAFKA_2_0 * 2: r"line 4: found topic 't' twice; allowed: each topic once; it stands on line 1, too",
    KAFKA_2_0 + "Error while executing topic command": r"line 4: found 'Error while executing.*; allowed: a line of",
    PARTITION: r"line 1: found a partition of 't' before its topic; allowed: the line of the topic",
    '{"version": 1, "partitions": [\n{"topic": "t",': r"line 2: found text that is not JSON .*; allowed: all of it",
    '{"version": 1, "partitions": [{"topic": "t", "partition": 1, "replicas": [1]}]}': (
        r"partitions: found partition 1 of 't' and none 0; allowed: all partitions of a topic, from 0 on"
    ),
    '{"version": 2, "partitions": []}': r"version: found 2; allowed: 1",
    "name: study": r"line 1: found 'name: study'; allowed: kafka-topics.sh --describe, a reassignment in JSON",
    json.dumps({"isray_layout": 1, "brokers": [{"id": 1, "rack": "a"}, {"id": 2}], "topics": {}}): (
        r"brokers\[1\]: found no rack of broker 2; allowed: a rack for each broker, or null for all of them"
    ),
    json.dumps(
        {
            "isray_layout": 1,
            "brokers": [{"id": 1}],
            "topics": {"t": {"partitions": [{"replicas": [1, 9], "leader": 1, "isr": [1]}]}},
        }
    ): r"topics.t.partitions\[0\].replicas: found broker 9; allowed: a known broker: 1",
}


@pytest.mark.parametrize(("text", "line"), WRONG.items(), ids=range(len(WRONG)))
def test_another_text_is_refused_with_its_line(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        layout_in(tmp_path, text)
    assert re.search(line, str(refused.value)), str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "broker,rack\n1,a\n2,b\n",
        "1, a\n2, b",
        "1: a\n2: b",
        '{"1": "a", "2": "b"}',
        "h1:9092 (id: 1 rack: a isFenced: false) -> (\n\tProduce(0): 0 to 13\n)\nh2:9092 (id: 2 rack: b) -> (\n)\n",
    ],
)
def test_racks_are_read_in_each_form(text: str, tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text(text, encoding="utf-8")
    assert read_racks(path) == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1,a\n1,b", "line 2: found broker 1 twice"),
        ("1,a\n2", "line 2: found 1 values; allowed: two: broker,rack"),
        ("1,a\n2,", "line 2: found no rack of broker 2; allowed: a rack for each broker"),
        ("one: a", "one: found 'one'; allowed: the id of a broker"),
        ("1:\n2: b", "1: found no rack of broker 1"),
        ("h:1 (id: 1 rack: null)", "found no rack of broker 1"),
        ("", "found no broker; allowed: broker,rack lines"),
    ],
)
def test_wrong_racks_are_refused(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(line)):
        read_racks(path)


def test_racks_for_some_brokers_only_are_refused() -> None:
    layout = layout_of([TopicLayout("t", ((1, 2),))])
    assert with_racks(layout, {1: "a", 2: "b", 3: "c"}, "racks").brokers == (1, 2, 3)
    with pytest.raises(InputError, match="racks: found no rack of broker 2; allowed: a rack for each broker"):
        with_racks(layout, {1: "a"}, "racks")
