"""One recovery: the winner, which answers count, and when they suffice for a decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.messages.control import BrokerState
from protocol.messages.recovery import PartitionRecovery, RecoveryMode, ReplicaAnswer, ReplicaLogInfo
from protocol.recovery import task as tasks
from protocol.recovery.task import RecoveryTask, best

BALANCED, PROACTIVE = RecoveryMode.BALANCED, RecoveryMode.PROACTIVE
EPOCH = 7
"""The partition's leader epoch; broker N is registered under epoch 10 + N."""
TIMEOUT_MS = 5_000


def answer(broker: int, epoch: int, end: int) -> ReplicaAnswer:
    return ReplicaAnswer(
        broker_id=broker, broker_epoch=10 + broker, last_written_leader_epoch=epoch, log_end_offset=end
    )


# -- ranking -----------------------------------------------------------------------------------------------------------

RANKED = {
    "alone": ([(2, 1, 5)], (), 2, tasks.ONLY_ANSWER),
    "a higher epoch beats a longer log": ([(0, 3, 900), (1, 4, 1)], (), 1, tasks.HIGHEST_EPOCH),
    "a record beats an empty log": ([(0, -1, 0), (1, 0, 1)], (), 1, tasks.HIGHEST_EPOCH),
    "the longest of the highest epoch": ([(0, 4, 1), (1, 4, 9), (2, 3, 99)], (), 1, tasks.LONGEST_LOG),
    "equals": ([(2, 4, 9), (0, 4, 9)], (), 0, tasks.FIRST_REPLICA),
    "equals, one of them known": ([(0, 4, 9), (2, 4, 9)], (2,), 2, tasks.LAST_KNOWN),
    "equals, two of them known": ([(0, 4, 9), (2, 4, 9), (1, 4, 9)], (1, 2), 1, tasks.LAST_KNOWN),
    "equals, both known": ([(2, 4, 9), (1, 4, 9), (0, 4, 8)], (1, 2), 1, tasks.FIRST_REPLICA),
    "another has more than the known one": ([(0, 4, 10), (2, 4, 9)], (2,), 0, tasks.LONGEST_LOG),
}


@pytest.mark.covers("F5", "F6", "F30", "M61", "N12")
@pytest.mark.parametrize(("answers", "required", "leader", "reason"), RANKED.values(), ids=RANKED)
def test_the_winner_and_its_reason(
    answers: list[tuple[int, int, int]], required: tuple[int, ...], leader: int, reason: str
) -> None:
    for order in permutations(answers):
        assert best([answer(*each) for each in order], (0, 1, 2), required) == (leader, reason)


@given(st.dictionaries(st.integers(0, 4), st.tuples(st.integers(-1, 2), st.integers(0, 3)), min_size=1), st.data())
def test_no_replica_has_more_records_than_the_winner(held: dict[int, tuple[int, int]], data: st.DataObject) -> None:
    required = data.draw(st.sets(st.sampled_from(sorted(held))))
    winner = best([answer(broker, *more) for broker, more in held.items()], (3, 1, 4, 0, 2), required)
    assert held[winner.leader] == max(held.values())


# -- which answers count -----------------------------------------------------------------------------------------------


def recovery(
    mode: RecoveryMode = BALANCED,
    required: tuple[int, ...] = (1, 2),
    *replicas: int,
    holders: tuple[int, ...] = (0, 1, 2),
) -> PartitionRecovery:
    return PartitionRecovery(
        recovery_id=1,
        topic_id="T",
        partition_id=0,
        leader_epoch=EPOCH,
        mode=mode,
        replicas=tuple(BrokerState(broker_id=broker, broker_epoch=10 + broker) for broker in replicas or (0, 1, 2)),
        holders=holders,
        required=required,
        timeout_ms=TIMEOUT_MS,
    )


def info(epoch: int = 3, end: int = 5, current: int = EPOCH, error: ErrorCode = ErrorCode.NONE) -> ReplicaLogInfo:
    return ReplicaLogInfo(
        topic_id="T",
        partition_id=0,
        error=error,
        last_written_leader_epoch=epoch,
        current_leader_epoch=current,
        log_end_offset=end,
    )


@pytest.mark.covers("F8", "F9", "M65", "M67", "N22")
@pytest.mark.parametrize(
    ("broker", "broker_epoch", "info", "counts"),
    [
        (1, 11, info(), True),
        (1, 10, info(), False),
        (1, 12, info(), False),
        (1, 11, info(current=EPOCH - 1), False),
        (1, 11, info(current=EPOCH + 1), False),
        (1, 11, info(error=ErrorCode.KAFKA_STORAGE_ERROR), False),
        (3, 13, info(), False),
    ],
    ids=[
        "as queried",
        "an older incarnation",
        "a newer incarnation",
        "metadata behind",
        "metadata ahead",
        "an error",
        "not queried",
    ],
)
def test_an_answer_counts_from_the_registered_incarnation_and_in_the_epoch_of_the_recovery(
    broker: int, broker_epoch: int, info: ReplicaLogInfo, counts: bool
) -> None:
    task = RecoveryTask.begin(recovery(), 0)
    assert task.record_answer(broker, broker_epoch, info) is counts
    assert (broker in task.unanswered()) is (not counts and broker in (0, 1, 2))


@pytest.mark.covers("F13", "M65")
def test_a_repeated_request_drops_answers_of_other_incarnations_and_queries_new_replicas() -> None:
    task = RecoveryTask.begin(recovery(BALANCED, (1,), 0, 1), 0)
    assert task.record_answer(0, 10, info())
    assert task.record_answer(1, 11, info())
    reborn = recovery(BALANCED, (1,), 0, 2)
    again = replace(reborn, replicas=(*reborn.replicas, BrokerState(broker_id=1, broker_epoch=31)))
    task.update(again, 0)
    assert (sorted(task.answers), sorted(task.unanswered())) == ([0], [1, 2])
    assert task.result(TIMEOUT_MS) is None, "the required one has to be heard again"
    assert task.record_answer(1, 31, info())
    assert task.result(TIMEOUT_MS) is not None


# -- when it is decided ------------------------------------------------------------------------------------------------

DECIDED = {
    # mode, required, who answered, decided before the deadline, from the deadline on
    "balanced, no answer": (BALANCED, (1, 2), (), False, False),
    "balanced, one of two required": (BALANCED, (1, 2), (1,), False, False),
    "balanced, everyone but one required": (BALANCED, (1, 2), (0, 1), False, False),
    "balanced, all required": (BALANCED, (1, 2), (1, 2), False, True),
    "balanced, all": (BALANCED, (1, 2), (0, 1, 2), True, True),
    "balanced, none required": (BALANCED, (), (0, 1, 2), False, False),
    "proactive, no answer": (PROACTIVE, (), (), False, False),
    "proactive, one": (PROACTIVE, (), (0,), False, True),
    "proactive, all": (PROACTIVE, (), (0, 1, 2), True, True),
}


@pytest.mark.covers("F11", "F12", "F28", "F29", "M59", "M60", "M62")
@pytest.mark.parametrize(("mode", "required", "heard", "early", "late"), DECIDED.values(), ids=DECIDED)
def test_when_a_recovery_is_decided(
    mode: RecoveryMode, required: tuple[int, ...], heard: tuple[int, ...], early: bool, late: bool
) -> None:
    task = RecoveryTask.begin(recovery(mode, required), 100)
    for broker in heard:
        assert task.record_answer(broker, 10 + broker, info())
    assert (task.result(100 + TIMEOUT_MS - 1) is not None) is early
    assert (task.result(100 + TIMEOUT_MS) is not None) is late


WAITS = {
    # mode, holders, who answered of 0, 1 and 2, decided before the deadline, from the deadline on
    "a holder is fenced": (PROACTIVE, (0, 1, 2, 3), (0, 1, 2), False, True),
    "a holder is fenced, balanced": (BALANCED, (0, 1, 2, 3), (0, 1, 2), True, True),
    "all holders, and not an adding replica": (PROACTIVE, (0, 1), (0, 1), False, True),
    "all holders, and an adding replica": (PROACTIVE, (0, 1), (0, 1, 2), True, True),
    "a holder and an adding replica": (PROACTIVE, (0, 1), (1, 2), False, True),
    "only an adding replica": (PROACTIVE, (0, 1), (2,), False, False),
}


@pytest.mark.covers("F12", "M62")
@pytest.mark.parametrize(("mode", "holders", "heard", "early", "late"), WAITS.values(), ids=WAITS)
def test_a_proactive_recovery_waits_for_holders_until_the_deadline_and_then_for_one(
    mode: RecoveryMode, holders: tuple[int, ...], heard: tuple[int, ...], early: bool, late: bool
) -> None:
    task = RecoveryTask.begin(recovery(mode, (1, 2) if mode is BALANCED else (), holders=holders), 100)
    for broker in heard:
        assert task.record_answer(broker, 10 + broker, info())
    assert (task.result(100 + TIMEOUT_MS - 1) is not None) is early
    assert (task.result(100 + TIMEOUT_MS) is not None) is late


def test_the_answer_of_an_adding_replica_wins_if_it_has_more() -> None:
    task = RecoveryTask.begin(recovery(PROACTIVE, (), holders=(0, 1)), 0)
    assert task.record_answer(0, 10, info(end=3))
    assert task.record_answer(2, 12, info(end=4))
    found = task.result(TIMEOUT_MS)
    assert found is not None
    assert (found.leader, found.reason, found.silent) == (2, tasks.LONGEST_LOG, (1,))


@pytest.mark.covers("H5", "F12")
@pytest.mark.parametrize(("timeout_ms", "is_over"), [(1_000, True), (1_001, False)])
def test_a_changed_timeout_counts_from_the_beginning_of_the_recovery(timeout_ms: int, is_over: bool) -> None:
    task = RecoveryTask.begin(recovery(PROACTIVE, ()), 100)
    assert task.record_answer(0, 10, info())
    task.update(replace(task.recovery, timeout_ms=timeout_ms), 900)
    assert (task.result(1_100) is not None) is is_over


@pytest.mark.covers("F12", "M62")
def test_the_first_late_answer_decides_a_proactive_recovery() -> None:
    task = RecoveryTask.begin(recovery(PROACTIVE, ()), 0)
    assert task.result(TIMEOUT_MS * 3) is None
    assert task.record_answer(2, 12, info())
    found = task.result(TIMEOUT_MS * 3)
    assert found is not None
    assert (found.leader, found.reason, found.leader_epoch) == (2, tasks.ONLY_ANSWER, EPOCH)


def test_a_result_has_all_answers_in_the_order_of_the_assignment() -> None:
    task = RecoveryTask.begin(recovery(), 0)
    for broker in (2, 0, 1):
        task.record_answer(broker, 10 + broker, info(end=broker))
    found = task.result(0)
    assert found is not None
    assert found.answers == (answer(0, 3, 0), answer(1, 3, 1), answer(2, 3, 2))
    assert found.leader == 2
