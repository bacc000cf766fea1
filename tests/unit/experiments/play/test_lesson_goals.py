"""Goals of lessons against situations written by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from experiments.play.lessons.model import Goal, Situation, progress

NOW = Situation(
    {"t-0": {"leader": 0, "isr": [0, 1], "acknowledged": 5, "lost_acked": None}},
    {"broker-2": frozenset({"down", ""}), "controller-1000": frozenset({"up", "active"})},
    [1001, 1000],
    {"produce": {"topic": "t", "acks": 1}},
)


def goal(**fields: object) -> Goal:
    return Goal.model_validate({"text": "it holds", **fields})


@pytest.mark.parametrize(
    "holding",
    [
        {"partitions": {"t-0": {"leader": 0, "isr": [0, 1]}}},
        {"at_least": {"t-0": {"acknowledged": 5}}},
        {"nodes": {"broker-2": ["down"], "controller-1000": ["up", "active"]}},
        {"voters": [1000, 1001]},
        {"step": {"produce": {"acks": 1}}},
        {"partitions": {"t-0": {"lost_acked": None}}, "step": {"produce": {}}},
    ],
)
def test_a_goal_holds_where_all_that_it_names_does(holding: dict[str, object]) -> None:
    assert goal(**holding).holds(NOW)


@pytest.mark.parametrize(
    "failing",
    [
        {"partitions": {"t-0": {"leader": 0, "isr": [0]}}},
        {"partitions": {"u-0": {"leader": 0}}},
        {"partitions": {"t-0": {"lost_acked": 0}}},
        {"at_least": {"t-0": {"acknowledged": 6}}},
        {"at_least": {"t-0": {"lost_acked": 0}}},
        {"nodes": {"broker-2": ["up"]}},
        {"nodes": {"broker-7": ["up"]}},
        {"voters": [1000]},
        {"step": {"produce": {"acks": "all"}}},
        {"step": {"crash": {}}},
        {"partitions": {"t-0": {"leader": 0}}, "voters": [1000]},
    ],
)
def test_a_goal_does_not_hold_where_one_thing_differs_or_is_not_known(failing: dict[str, object]) -> None:
    assert not goal(**failing).holds(NOW)


def test_goals_are_reached_in_their_order_and_stay_reached() -> None:
    first, never, last = goal(voters=[1000, 1001]), goal(voters=[7]), goal(partitions={"t-0": {"leader": 0}})
    assert progress([first, last], 0, NOW) == 2
    assert progress([first, never, last], 0, NOW) == 1
    assert progress([never, first], 1, NOW) == 2
    assert progress([first], 1, Situation({}, {}, [])) == 1


@pytest.mark.parametrize(
    "wrong", [{}, {"partitions": {"t-0": {"leadr": 0}}}, {"nodes": {"broker": ["up"]}}, {"step": {}}]
)
def test_a_goal_that_names_nothing_or_what_does_not_exist_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        goal(**wrong)
