"""Unavailability of partitions from trace events, against times by hand."""

from __future__ import annotations

from dataclasses import replace

from experiments.engines.port import TraceEvent
from experiments.explorer.day import (
    WITHOUT_ACKNOWLEDGEMENT,
    WITHOUT_LEADER,
    AcknowledgementGaps,
    Span,
    Unavailability,
    totals,
    without_leader,
)
from protocol.events.base import Trace
from protocol.events.controller import PartitionRemoved
from protocol.ids import NO_LEADER, TopicPartition
from tests.unit.partition_events import partition_changed

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


def at(time_ms: int, trace: Trace) -> TraceEvent:
    return TraceEvent(time_ms, 1000, trace)


def leads(time_ms: int, leader: int, topic: str = "t") -> TraceEvent:
    return at(time_ms, partition_changed(topic, leader, 1, 1, (0, 1)))


def test_a_partition_is_without_a_leader_from_the_first_record_of_that_to_the_next_leader() -> None:
    """Events of two controllers may arrive in another order than that of their times."""
    events = [leads(0, 0), leads(900, 2), leads(100, NO_LEADER), leads(400, NO_LEADER), leads(950, NO_LEADER, "u")]
    assert without_leader(events, [T], 2_000) == [Span("t-0", WITHOUT_LEADER, 100, 900)]
    assert without_leader(events, [U], 2_000) == [Span("u-0", WITHOUT_LEADER, 950, 2_000)]


def test_a_partition_that_is_removed_is_not_unavailable_any_more() -> None:
    events = [leads(100, NO_LEADER), at(300, PartitionRemoved(T))]
    assert without_leader(events, [T], 2_000) == [Span("t-0", WITHOUT_LEADER, 100, 300)]


def test_gaps_of_over_a_second_between_acknowledgements_and_the_ends_of_the_sending_count() -> None:
    """The sending is from 0 to 9,000. U is acknowledged once, at 500; T at 1,000, 2,000 and 5,000."""
    gaps = AcknowledgementGaps([T, U], 0)
    for time_ms, partition in ((500, U), (1_000, T), (2_000, T), (5_000, T)):
        gaps.acknowledged(partition, time_ms)
    gaps.end(9_000)
    assert gaps.spans == [
        Span("t-0", WITHOUT_ACKNOWLEDGEMENT, 2_000, 5_000),
        Span("t-0", WITHOUT_ACKNOWLEDGEMENT, 5_000, 9_000),
        Span("u-0", WITHOUT_ACKNOWLEDGEMENT, 500, 9_000),
    ]
    assert totals([*gaps.spans, replace(gaps.spans[0], kind=WITHOUT_LEADER)], [T, U]) == [
        Unavailability("t-0", WITHOUT_LEADER, 1, 3_000, 3_000),
        Unavailability("t-0", WITHOUT_ACKNOWLEDGEMENT, 2, 7_000, 4_000),
        Unavailability("u-0", WITHOUT_LEADER, 0, 0, 0),
        Unavailability("u-0", WITHOUT_ACKNOWLEDGEMENT, 1, 8_500, 8_500),
    ]


def test_without_any_acknowledgement_the_whole_sending_is_one_gap() -> None:
    gaps = AcknowledgementGaps([T], 100)
    gaps.end(2_000)
    assert gaps.spans == [Span("t-0", WITHOUT_ACKNOWLEDGEMENT, 100, 2_000)]
