"""The log of a node: which events have a line, with which level, and how many lines there may be."""

from __future__ import annotations

from io import StringIO

import pytest

from actors.node_log import BURST, PER_SECOND, NodeLog, level_of, line_of
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, BrokerStateChanged, HighWatermarkAdvanced, StorageFailed
from protocol.events.controller import AlertRaised, SessionExpired
from protocol.events.node import RequestRefused
from protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)
LEADS = BecameLeader(T0, 3, 7, 5)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> StringIO:
    return StringIO()


@pytest.fixture
def log(clock: Clock, stream: StringIO) -> NodeLog:
    return NodeLog("broker-0", clock, stream)


def test_a_line_has_wall_clock_time_level_node_and_sentence(log: NodeLog, stream: StringIO) -> None:
    log.write([(86_400_000 + 1_234, LEADS), (5, HighWatermarkAdvanced(T0, 3, 3))])

    assert stream.getvalue() == (
        "1970-01-02 00:00:01.234 UTC INFO broker-0: leads t-0 in epoch 3, log end 7, high watermark 5\n"
    )


@pytest.mark.parametrize(
    ("trace", "level", "text"),
    [
        (SessionExpired(2), "WARNING", "the session of broker 2 has ended"),
        (RequestRefused("FetchRequest", 1, "NOT_CONTROLLER"), "WARNING", "refused: message FetchRequest, sender 1"),
        (AlertRaised(T0, "unclean_election", 1, 4), "WARNING", "elected uncleanly in epoch 4"),
        (BrokerStateChanged(0, "RUNNING"), "INFO", "RUNNING"),
    ],
)
def test_refusals_and_alerts_are_warnings(trace: Trace, level: str, text: str) -> None:
    assert level_of(trace) == level
    assert text in line_of(trace)


def test_a_disk_that_fails_is_an_error() -> None:
    assert level_of(StorageFailed(None, "full", True)) == "ERROR"


def test_lines_are_bounded_and_those_left_out_are_counted(log: NodeLog, clock: Clock, stream: StringIO) -> None:
    log.write([(1_000, LEADS)] * (BURST + 30))
    assert stream.getvalue().count("\n") == BURST

    clock.now_ms += 1_000
    log.write([(2_000, LEADS)])

    lines = stream.getvalue().splitlines()
    assert len(lines) == BURST + 2
    assert lines[-1].endswith("broker-0: 30 events were not logged, at this rate")
    log.write([(2_000, LEADS)] * 100)
    assert len(stream.getvalue().splitlines()) == BURST + 2 + PER_SECOND - 1
