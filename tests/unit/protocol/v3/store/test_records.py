"""The store's nodes: their data, which damage is reported, and what a path is about."""

from __future__ import annotations

import pytest

from protocol.ids import TopicPartition
from protocol.v3.controller.procedure import Event
from protocol.v3.controller.term import event_of
from protocol.v3.store import paths
from protocol.v3.store.paths import UnknownPathError
from protocol.v3.store.records import (
    BrokerNode,
    ControllerNode,
    DamagedNodeError,
    IsrChangeNode,
    LeaderAndIsr,
    NodeData,
    ReplicasNode,
    TopicNode,
    decode_epoch,
    encode_epoch,
)

STATE = LeaderAndIsr(leader=1, leader_epoch=4, isr=(2, 1), controller=3, controller_epoch=7, is_unclean_leader=True)
STATE_TEXT = (
    b'{"controller":3,"controller_epoch":7,"is_unclean_leader":true,'
    b'"isr":[2,1],"leader":1,"leader_epoch":4,"version":1}'
)
RECORDS: list[tuple[NodeData, bytes]] = [
    (STATE, STATE_TEXT),
    (ControllerNode(brokerid=3, broker_epoch=12), b'{"broker_epoch":12,"brokerid":3,"version":1}'),
    (BrokerNode(host="h", port=9, broker_epoch=1), b'{"broker_epoch":1,"host":"h","port":9,"version":1}'),
    (
        TopicNode(topic_id="T", partitions={0: (1, 2), 10: (2,)}, first_epoch=3),
        b'{"configs":{},"first_epoch":3,"partitions":{"0":[1,2],"10":[2]},"topic_id":"T","version":1}',
    ),
    (ReplicasNode(replicas=(3, 1)), b'{"replicas":[3,1],"version":1}'),
    (IsrChangeNode(partitions=(("t", 1),)), b'{"partitions":[["t",1]],"version":1}'),
]


@pytest.mark.covers("A4", "A5", "A6", "A7", "A8", "A35", "C2")
@pytest.mark.parametrize(("record", "data"), RECORDS, ids=lambda value: type(value).__name__)
def test_data_are_json_with_sorted_keys(record: NodeData, data: bytes) -> None:
    assert record.encode() == data
    assert type(record).decode("/path", data) == record


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"7", b"[]", b"{}", STATE_TEXT[:-1], STATE_TEXT.replace(b'"leader":1', b'"leader":"1"'),
     STATE_TEXT.replace(b'"version":1', b'"version":2'), STATE_TEXT.replace(b'"version":1', b'"version":1,"more":1')],
)  # fmt: skip
def test_damage_is_one_clear_line(data: bytes) -> None:
    with pytest.raises(DamagedNodeError) as raised:
        LeaderAndIsr.decode("/brokers/topics/t/0/leaderAndISR", data)
    text = str(raised.value)
    assert text.startswith(f"damaged node /brokers/topics/t/0/leaderAndISR: found {data[:60]!r}; allowed: JSON of")
    assert "\n" not in text


def test_the_controller_epoch_is_a_number() -> None:
    assert decode_epoch("/controller_epoch", encode_epoch(12)) == 12
    for data in (b"", b"-1", b"x"):
        with pytest.raises(DamagedNodeError, match="allowed: a number"):
            decode_epoch("/controller_epoch", data)


@pytest.mark.covers("A4", "A5", "A6", "A7", "A8", "A9", "N9")
def test_the_paths() -> None:
    key = TopicPartition("t", 3)
    assert paths.broker(7) == "/brokers/ids/7"
    assert paths.topic("t") == "/brokers/topics/t"
    assert paths.leader_and_isr(key) == "/brokers/topics/t/3/leaderAndISR"
    assert paths.request(paths.REASSIGNED, key) == "/admin/partitions_reassigned/t/3"
    assert paths.request(paths.ADDED, key) == "/admin/partitions_add/t/3"
    assert paths.request(paths.REMOVED, key) == "/admin/partitions_remove/t/3"


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/brokers/ids", Event.BROKER_CHANGE),
        ("/brokers/topics", Event.TOPIC_CHANGE),
        ("/admin/partitions_reassigned", Event.REASSIGNED),
        ("/admin/partitions_reassigned/t", Event.REASSIGNED),
        ("/admin/partitions_reassigned/t/3", Event.REASSIGNED),
        ("/admin/partitions_add/t", Event.ADDED),
        ("/admin/partitions_remove", Event.REMOVED),
        ("/isr_change_notification", Event.ISR_CHANGE),
        ("/controller", None),
    ],
)
def test_what_a_watch_starts(path: str, event: Event | None) -> None:
    assert event_of(path) is event


def test_an_unknown_path_is_one_clear_line() -> None:
    with pytest.raises(UnknownPathError, match="found '/brokersx'; allowed: /controller, "):
        event_of("/brokersx")
    assert paths.number("/brokers/ids", "12") == 12
    for name in ("", "x", "-1", "01", "1.0", "²"):
        with pytest.raises(UnknownPathError, match="allowed: /brokers/ids/NUMBER"):
            paths.number("/brokers/ids", name)
