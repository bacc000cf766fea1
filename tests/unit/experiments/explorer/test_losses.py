"""An election that loses acknowledged records is found among trace events."""

from __future__ import annotations

from experiments.explorer.recorder import AcknowledgedLosses
from protocol.events.broker import BecameLeader
from protocol.events.controller import TopicDeleted
from protocol.events.node import ProduceCompleted
from protocol.ids import TopicPartition

PLACE = TopicPartition("t", 0)


def produced(offset: int, acks: int = -1, error: str = "NONE") -> ProduceCompleted:
    return ProduceCompleted(PLACE, offset, acks, error, False, offset)


def test_a_leader_whose_log_ends_before_acknowledged_records_loses_them_once() -> None:
    losses = AcknowledgedLosses()
    events = [*(produced(offset) for offset in range(4)), produced(4, acks=1), produced(5, error="NOT_ENOUGH_REPLICAS")]
    assert [losses.lost_by(event) for event in events] == [None] * 6
    assert losses.lost_by(BecameLeader(PLACE, 1, 4, 4)) is None
    assert losses.lost_by(BecameLeader(PLACE, 2, 2, 2)) == (
        "t-0: 2 acknowledged records are missing, offsets 2 to 3: the log of the new leader ends at 2"
    )
    assert losses.lost_by(BecameLeader(PLACE, 3, 2, 2)) is None
    assert losses.lost_by(BecameLeader(PLACE, 4, 1, 1)) == (
        "t-0: 1 acknowledged record is missing, offset 1: the log of the new leader ends at 1"
    )


def test_a_topic_that_is_created_again_begins_without_records() -> None:
    losses = AcknowledgedLosses()
    losses.lost_by(produced(0))
    losses.lost_by(TopicDeleted("t"))
    assert losses.lost_by(BecameLeader(PLACE, 0, 0, 0)) is None
