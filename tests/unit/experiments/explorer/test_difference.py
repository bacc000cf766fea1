"""Which of two runs' events are reported as their first difference."""

from __future__ import annotations

from experiments.explorer.difference import Difference, differences
from experiments.explorer.run import RunEvent
from tests.unit.experiments.explorer.explorer_helpers import run_of, state


def produced(time_ms: int, error: str) -> RunEvent:
    return RunEvent(time_ms, 3000, "trace", "produced", ("t-0",), {"error": error, "unknown": False})


def places(found: list[Difference]) -> dict[str, tuple[int, int]]:
    return {each.what: (each.first, each.second) for each in found}


def test_equal_runs_have_no_difference() -> None:
    assert differences(run_of(state(1, 0, [0, 1])), run_of(state(1, 0, [0, 1]))) == []


def test_a_later_time_is_a_different_event_and_the_same_state() -> None:
    first, second = run_of(state(1, 0, [0, 1]), state(5, 1, [1])), run_of(state(1, 0, [0, 1]), state(9, 1, [1]))
    assert places(differences(first, second)) == {"event": (1, 1)}


def test_states_compare_without_repetitions_and_as_sets() -> None:
    first = run_of(state(1, 0, [0, 1]), state(2, 0, [1, 0], epoch=4), state(3, 1, [1]))
    second = run_of(state(1, 0, [0, 1]), state(3, 2, [2]))
    assert places(differences(first, second))["partition state"] == (2, 1)


def test_the_earliest_partition_counts() -> None:
    first = run_of(state(1, 0, [0]), state(2, 0, [0], "t-1"), state(8, 1, [1], "t-0"), state(9, 1, [1], "t-1"))
    second = run_of(state(1, 0, [0]), state(2, 0, [0], "t-1"), state(7, 2, [2], "t-1"), state(8, 2, [2], "t-0"))
    assert places(differences(first, second))["partition state"] == (3, 2)


def test_outcomes_of_clients_are_compared_one_by_one() -> None:
    first, second = run_of(produced(1, "NONE"), produced(2, "NONE")), run_of(produced(1, "NONE"))
    assert places(differences(first, second))["outcome of a client"] == (1, -1)


def test_a_run_that_stops_at_a_violation_is_compared_up_to_there() -> None:
    violation = RunEvent(2, 1000, "violation", "LogMatching", text="t-0: differ")
    stopped = run_of(state(1, 0, [0]), violation)
    assert differences(stopped, run_of(state(1, 0, [0]), state(3, 1, [1]))) == []
    assert places(differences(stopped, run_of(state(1, 1, [0]), state(3, 1, [1])))) == {
        "event": (0, 0),
        "partition state": (0, 0),
    }
