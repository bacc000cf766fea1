"""States that a course reads, against values by hand."""

from __future__ import annotations

from itertools import count

import pytest

from experiments.compare.course import NOT_RUN, UNSETTLED, State, _Reader, numbers, relaxed
from experiments.compare.worlds import SIM, World, course_in
from experiments.engines.kafka.processes import NodeFailed
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, StepFailedError

RELEASE = "4.4.0"


def test_numbers_are_written_as_ranges() -> None:
    assert numbers([]) == ""
    assert numbers([4]) == "4"
    assert numbers([1, 2, 3, 5, 7, 8]) == "1-3,5,7-8"


def test_what_is_left_out_of_a_state_in_wall_time() -> None:
    partition = {"leader_epoch": 2, "partition_epoch": 3, "high_watermark": 5}
    state: dict[str, dict[str, object]] = {"t-0": partition, "brokers": {"0": "fenced"}}
    left = {"leader_epoch": 2, "partition_epoch": True, "high_watermark": None}
    assert relaxed(state) == {"t-0": left, "brokers": {"0": "fenced"}}


def test_the_course_of_a_failover_by_hand() -> None:
    """Broker 0 leads and has records of commands 2 and 3 (1 created the topic). Its crash is one change: leader epoch
    and partition epoch rise by one, the ISR loses it. With min ISR 1 it is in no ELR. The next record has command 4;
    broker 0 copies it when it is back and joins the ISR, by one change without a new leader.
    """
    scenario = scenario_from(
        {
            "name": "failover",
            "cluster": {"brokers": 2, "generation": "kip-966-elr"},
            "topics": [{"name": "t", "assignments": [[0, 1]]}],
            "steps": [
                {"produce": {"topic": "t", "records": 2}},
                {"crash": {"broker": 0}},
                {"await": {"topic": "t", "leader": 1}},
                {"produce": {"topic": "t", "records": 1}},
                {"start": {"broker": 0}},
                {"expect": {"topic": "t", "leader": 0}},
            ],
        },
        "test",
    )
    course = course_in(scenario, World(SIM, RELEASE))
    assert [stage.verdict for stage in course.stages] == ["ok", "ok", "ok", "holds", "ok", "ok", "does not hold"]
    assert [stage.index for stage in course.stages if stage.state is None] == [1, 4]
    states = {stage.index: stage.state for stage in course.stages if stage.state is not None}
    names = ("leader", "isr", "elr", "leader_epoch", "partition_epoch", "logs", "high_watermark")
    assert {index: tuple(state["t-0"][name] for name in names) for index, state in states.items()} == {
        -1: (0, [0, 1], [], 0, 0, {0: "", 1: ""}, 0),
        0: (0, [0, 1], [], 0, 0, {0: "2-3", 1: "2-3"}, 2),
        2: (1, [1], [], 1, 1, {1: "2-3"}, 2),
        3: (1, [1], [], 0, 0, {1: "2-4"}, 3),
        5: (1, [0, 1], [], 0, 1, {0: "2-4", 1: "2-4"}, 3),
    }
    assert [states[index]["brokers"]["0"] for index in states] == [
        "unfenced",
        "unfenced",
        "fenced",
        "fenced",
        "unfenced",
    ]


def test_a_process_that_ends_by_itself_is_the_verdict_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object) -> None:
        raise NodeFailed(0, "it ended with exit code 1: the last line")

    monkeypatch.setattr(Runner, "_wait", ends)
    raw = {"name": "ended", "cluster": {"brokers": 1}, "steps": [{"wait": "1s"}, {"crash": {"broker": 0}}]}
    ended, following = course_in(scenario_from(raw, "test"), World(SIM)).stages[1:]
    assert ended.verdict == "node 0: found it ended with exit code 1: the last line; allowed: a node that starts"
    assert (ended.state, following.verdict) == (None, "ok")


def test_a_state_that_goes_on_changing_is_compared_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """120 s of virtual time, looked at every 16 s; a world that is paced by it is waited for as long as it may be."""
    numbers_read = count()
    monkeypatch.setattr(_Reader, "state", lambda _: {"cluster": {"controller": next(numbers_read)}})
    raw = {"name": "changing", "cluster": {"brokers": 1}, "steps": [{"wait": "1s"}]}
    scenario = scenario_from(raw, "test")
    pace = course_in(scenario, World(SIM))
    assert [stage.state for stage in pace.stages] == [UNSETTLED, UNSETTLED]
    assert course_in(scenario, World(SIM), pace).stages == pace.stages


def test_no_step_is_run_where_only_the_set_up_of_a_world_in_wall_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise StepFailedError("broker 0 was not unfenced within 60 s")

    raw = {"name": "late", "cluster": {"brokers": 1}, "steps": [{"wait": "1s"}]}
    scenario = scenario_from(raw, "test")
    pace = course_in(scenario, World(SIM))
    monkeypatch.setattr(Runner, "set_up", fails)
    verdicts = [stage.verdict for stage in course_in(scenario, World(SIM), pace).stages]
    assert verdicts == ["broker 0 was not unfenced within 60 s", NOT_RUN]


def test_a_paced_world_has_the_same_course_sooner() -> None:
    """The simulator paced by its own course reads the same states, each as soon as it is there, without high
    watermarks.
    """
    scenario = scenario_from(
        {
            "name": "paced",
            "cluster": {"brokers": 2, "generation": "kip-966-elr"},
            "topics": [{"name": "t", "assignments": [[0, 1]]}],
            "steps": [{"crash": {"broker": 0}}, {"produce": {"topic": "t", "records": 1}}, {"start": {"broker": 0}}],
        },
        "test",
    )
    pace = course_in(scenario, World(SIM, RELEASE))
    paced = course_in(scenario, World(SIM, RELEASE), pace)
    assert not paced.is_virtual
    assert [stage.verdict for stage in paced.stages] == [stage.verdict for stage in pace.stages]
    read = [stage.state for stage in paced.stages if stage.state is not None]
    assert read == [_without_mark(stage.state) for stage in pace.stages if stage.state is not None]


def _without_mark(state: State) -> State:
    return {name: it | {"high_watermark": None} if name == "t-0" else it for name, it in state.items()}
