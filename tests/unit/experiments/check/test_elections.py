"""Which election has lost which acknowledged records: traces by hand, whose answer can be read off them."""

from __future__ import annotations

import pytest

from experiments.check.elections import Election, ElectionLog, cause_of, kind_of, lost_by, lost_so_far
from experiments.check.history import Ended, Invoked
from experiments.check.losses import LostRange
from experiments.engines.port import TraceEvent
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced, RecordsAppended
from protocol.events.controller import PartitionChanged, RecoveryDecided
from protocol.events.host import IncarnationEnded
from protocol.ids import FIRST_CONTROLLER, NO_LEADER, TopicPartition

T0 = TopicPartition("t", 0)


def state(
    leader: int, epoch: int, isr: tuple[int, ...], *, elr: tuple[int, ...] = (), recovering: bool = False
) -> Trace:
    return PartitionChanged(T0, leader, epoch, epoch, (0, 1, 2), isr, elr, (), NO_LEADER, recovering, 1)


def log_of(*events: tuple[int, int, Trace]) -> ElectionLog:
    log = ElectionLog()
    for time_ms, node, trace in events:
        log.observe(TraceEvent(time_ms, node, trace))
    return log


def unclean() -> ElectionLog:
    """Broker 0 leads epoch 0 from offset 0 and appends 10 records, 8 of them committed; it ends, with an empty ISR.
    Broker 1, whose disk lost all at 40 and whose log ends at 5, is elected uncleanly at 60 and appends 4 records.
    """
    return log_of(
        (10, FIRST_CONTROLLER, state(0, 0, (0, 1))),
        (11, 0, BecameLeader(T0, 0, 0, 0)),
        (20, 0, RecordsAppended(T0, 10, 0, -1)),
        (21, 0, HighWatermarkAdvanced(T0, 8, 0)),
        (40, 1, IncarnationEnded("all", None)),
        (50, FIRST_CONTROLLER, state(NO_LEADER, 1, (0,))),
        (60, FIRST_CONTROLLER, state(1, 2, (1,), recovering=True)),
        (61, 1, BecameLeader(T0, 2, 5, 5)),
        (70, 1, RecordsAppended(T0, 9, 2, -1)),
    )


def test_an_election_says_who_was_elected_how_and_what_its_log_lacked() -> None:
    [first, second] = unclean().elections()[T0]

    assert first == Election(T0, 0, 0, 11, "unknown", 0, end=10)
    assert second == Election(T0, 2, 1, 60, "unclean", 5, committed=8, appended=10, end=9, disk="all", disk_ms=40)
    assert second.lacked == 3
    assert "an unclean election; its log ended at 5, the high watermark had been 8" in second.words("60 ms")
    assert "its disk had lost: all" in second.words("60 ms")


def test_a_recovery_is_named_with_its_strategy() -> None:
    log = log_of(
        (10, FIRST_CONTROLLER, state(0, 0, (0, 1))),
        (11, 0, BecameLeader(T0, 0, 0, 0)),
        (50, FIRST_CONTROLLER, state(NO_LEADER, 1, ())),
        (59, FIRST_CONTROLLER, RecoveryDecided(T0, 1, "balanced", 1, 1, "longest log", (), ((1, 4, 0, 5),), (), ())),
        (60, FIRST_CONTROLLER, state(1, 2, (1,), recovering=True)),
        (61, 1, BecameLeader(T0, 2, 5, 5)),
    )

    election = log.elections()[T0][-1]
    assert (election.kind, election.strategy, election.reason) == ("recovery", "balanced", "longest log")


@pytest.mark.parametrize(
    ("former", "after", "kind"),
    [
        (state(0, 0, (0, 1)), state(1, 1, (1,)), "isr"),
        (state(NO_LEADER, 1, (), elr=(1, 2)), state(1, 2, (1,)), "elr"),
        (state(NO_LEADER, 1, (0,)), state(1, 2, (1,), recovering=True), "unclean"),
        (state(1, 2, (1,), recovering=True), state(1, 3, (1,), recovering=True), "isr"),
        (state(1, 2, (1,), recovering=True), state(2, 3, (2,), recovering=True), "unclean"),
        (state(NO_LEADER, 1, ()), state(1, 2, (1,)), "unknown"),
    ],
)
def test_the_kind_of_an_election_follows_from_the_states(former: Trace, after: Trace, kind: str) -> None:
    assert isinstance(former, PartitionChanged)
    assert isinstance(after, PartitionChanged)
    assert kind_of(former, after, is_recovered=False) == kind
    assert kind_of(former, after, is_recovered=True) == "recovery"


def test_records_behind_the_log_of_an_elected_leader_are_lost_by_it() -> None:
    lost = [LostRange(T0, "all", 5, 3, 25), LostRange(T0, "all", 8, 1, 26), LostRange(T0, "1", 9, 1, 27)]

    of_one, of_all = lost_by(lost, unclean().elections())

    assert (of_all.offsets, of_all.records, of_all.acks, of_all.is_certain) == (((5, 8),), 4, "all", True)
    assert (of_one.offsets, of_one.records, of_one.acks) == (((9, 9),), 1, "1")
    assert of_all.election == of_one.election == unclean().elections()[T0][1]


def test_of_two_records_at_one_offset_each_is_lost_by_the_election_after_it() -> None:
    """Offset 6 was appended in epoch 0 and, after the election of epoch 2, again; a leader of epoch 4 has 5 records."""
    elections = [
        Election(T0, 0, 0, 10, "isr", 0, end=10),
        Election(T0, 2, 1, 60, "unclean", 5, end=9),
        Election(T0, 4, 2, 90, "unclean", 5, end=7),
    ]

    assert cause_of(6, 25, elections) == (elections[1], True)
    assert cause_of(6, 70, elections) == (elections[2], True)
    assert cause_of(6, -1, elections) == (elections[1], False), "without a time it is not known which record it was"


def test_a_longer_log_with_another_past_is_the_probable_cause_of_a_loss() -> None:
    """Broker 0, deposed after epoch 0 with 10 records, is elected again: what epoch 2 appended at 5 to 8 is lost."""
    elections = [
        Election(T0, 0, 0, 10, "isr", 0, end=10),
        Election(T0, 2, 1, 60, "unclean", 5, end=9),
        Election(T0, 4, 0, 90, "unclean", 10, end=10),
    ]

    assert cause_of(6, 70, elections) == (elections[2], False)


def test_a_loss_without_an_election_has_none() -> None:
    assert lost_by([LostRange(T0, "all", 3, 2, 5)], {})[0].election is None
    assert cause_of(3, 20, [Election(T0, 0, 0, 10, "isr", 0, end=10)]) == (None, False)


def test_losses_so_far_are_those_that_elections_show() -> None:
    operations = [
        Invoked(1, 0, T0, 6),
        Invoked(2, 0, T0, 2),
        Ended(1, 0, 6, "acknowledged", 0, 22),
        Ended(2, 0, 2, "acknowledged", 6, 23),
        Invoked(3, 0, T0, 2),
        Ended(3, 0, 2, "acknowledged", 5, 75),
        Invoked(4, 0, T0, 2),
        Ended(4, 0, 2, "unknown", -1, 23),
    ]

    found = lost_so_far(operations, unclean().elections())

    assert found.lost == {"all": 3}, "offset 5 of send 1 and both records of send 2; send 3 came after the election"
    assert [(part.first, part.size, part.at_ms) for part in found.ranges] == [(5, 1, 22), (6, 2, 23)]
