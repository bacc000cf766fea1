"""Random runs of quorums with all kinds of faults (`experiments/hunt/quorum/chaos.py`): no property is violated, and
the runs contain what they are meant to contain.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from experiments.hunt.quorum import chaos
from experiments.hunt.quorum.chaos import FAULTS, ChaosBias, ChaosOutcome, draw
from experiments.hunt.quorum.global_view import ReplicaStep
from protocol.quorum.election import Role

ROOT = Path(__file__).parent.parent.parent
SEEDS = range(40)
_HASH = "from experiments.hunt.quorum.chaos import run; print(run(7).trace_hash)"


@pytest.fixture(scope="module")
def outcomes() -> list[ChaosOutcome]:
    return [chaos.run(seed) for seed in SEEDS]


@pytest.mark.slow
@pytest.mark.covers("D8", "D9", "D11", "D15", "D18", "D22", "M78", "M80")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_runs_violate_no_property(seed: int, outcomes: list[ChaosOutcome]) -> None:
    found = outcomes[seed]
    assert (found.violation, found.detail) == (None, "")


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_three_hundred_more_random_runs_violate_no_property(block: int) -> None:
    seeds = range(1_000 + 100 * block, 1_100 + 100 * block)
    assert [(seed, found.violation) for seed in seeds if (found := chaos.run(seed)).violation] == []


@pytest.mark.slow
def test_random_runs_contain_every_kind_of_fault(outcomes: list[ChaosOutcome]) -> None:
    counts = sum((found.counts for found in outcomes), Counter[str]())
    assert {fault: counts[fault] for fault in FAULTS if counts[fault] < 15} == {}
    assert counts["changes committed"] > 100
    assert counts["epochs"] > 100
    assert counts["snapshots fetched"] > 10


@pytest.mark.covers("M78")
def test_replicas_restart_without_their_state_and_become_voters_again(outcomes: list[ChaosOutcome]) -> None:
    """The published model has the loss of a disk (CrashLoseState), but not within the bounds of its checks: it
    partitions the crashed server, for which the bounds have no room. No action of the model restarts that server.
    """
    counts = sum((found.counts for found in outcomes), Counter[str]())
    assert counts["disk loss"] > 50
    assert counts["restarts without a disk"] >= counts["disk loss"], "all have restarted at the end"
    assert counts["voters on another disk"] > 5


@pytest.mark.slow
def test_controllers_that_join_by_themselves_violate_no_property_beside_an_operator() -> None:
    bias = ChaosBias(sizes=(3, 5), static=False, always=("disk loss", "removals"), joins=True)
    found = [chaos.run(seed, bias) for seed in range(12)]
    assert [(seed, it.violation, it.detail) for seed, it in enumerate(found) if it.violation] == []
    assert sum(it.counts["voters on another disk"] for it in found) > 10


def test_seeds_draw_all_sizes_and_kinds_of_quorums() -> None:
    courses = [draw(seed) for seed in SEEDS]
    assert {course.size for course in courses} == {1, 2, 3, 4, 5}
    assert {course.observers for course in courses} == {0, 1, 2}
    assert {course.static for course in courses} == {False, True}
    assert len({course.faults for course in courses}) > 30


def test_a_bias_restricts_what_a_seed_draws() -> None:
    for seed in range(10):
        course = draw(seed, ChaosBias(sizes=(4,), static=True, faults=("pause", "cut"), steps=3))
        assert (course.size, course.static, course.steps) == (4, True, 3)
        assert course.faults == ("pause", "cut")
        assert "pause" in draw(seed, ChaosBias(always=("pause",))).faults


def test_the_same_seed_gives_the_same_steps(outcomes: list[ChaosOutcome]) -> None:
    assert chaos.run(3) == outcomes[3]
    assert len({found.trace_hash for found in outcomes}) == len(outcomes)


def test_a_listener_does_not_change_a_run(outcomes: list[ChaosOutcome]) -> None:
    seen: list[ReplicaStep] = []
    assert chaos.run(5, listener=seen.append) == outcomes[5]
    assert sum(event.replica is not None for event in seen) == outcomes[5].events
    assert {event.replica.role for event in seen if event.replica is not None} >= {Role.LEADER, Role.FOLLOWER}


@pytest.mark.slow
def test_steps_do_not_depend_on_the_hash_seed(outcomes: list[ChaosOutcome]) -> None:
    def under(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _HASH], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert {under("0"), under("4711")} == {outcomes[7].trace_hash}
