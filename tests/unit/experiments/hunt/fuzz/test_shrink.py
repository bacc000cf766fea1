"""Delta debugging: what is left still breaks, and nothing more can be left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.faults.kinds.processes import Pause
from experiments.hunt.fuzz.coverage import Coverage
from experiments.hunt.fuzz.plan import Plan, PlanViolation, Send, Sizes
from experiments.hunt.fuzz.run import PlanResult
from experiments.hunt.fuzz.shrink import minimised, shrink

BEFORE_ALL_MS = 1_000


@given(st.sets(st.integers(0, 59)))
def test_the_needed_parts_are_found_exactly(needed: set[int]) -> None:
    assert set(minimised(range(60), lambda parts: needed <= set(parts))) == needed


@given(st.lists(st.sets(st.integers(0, 19), min_size=1), min_size=1, max_size=4))
def test_no_single_part_can_be_left_out(causes: list[set[int]]) -> None:
    def breaks(parts: Sequence[int]) -> bool:
        return any(cause <= set(parts) for cause in causes)

    left = minimised(range(20), breaks)
    assert breaks(left)
    assert not any(breaks([part for part in left if part != gone]) for gone in left)


def test_order_is_kept() -> None:
    assert minimised([5, 3, 9, 1], lambda parts: {9, 5} <= set(parts)) == [5, 9]


def test_few_runs_are_enough_for_few_causes() -> None:
    tried = Counter[str]()

    def breaks(parts: Sequence[int]) -> bool:
        tried["runs"] += 1
        return 700 in parts

    assert minimised(range(1_000), breaks) == [700]
    assert tried["runs"] < 60


# -- plans -------------------------------------------------------------------------------------------------------------

PLAN = Plan.model_validate(
    {
        "seed": 1,
        "brokers": 3,
        "generation": "kip-966",
        "topics": [{"name": "t", "assignments": [[0, 1, 2]]}],
        "operations": [
            {"kind": "send", "at_ms": 100 * number, "id": number, "topic": "t", "partition": 0}
            for number in range(1, 41)
        ],
        "faults": [{"kind": "pause", "at_ms": 100 * number, "duration_ms": 10, "node": 0} for number in range(1, 21)],
    }
)


def result(invariant: str | None, time_ms: int = BEFORE_ALL_MS) -> PlanResult:
    broken = None if invariant is None else PlanViolation(invariant=invariant, step=1, time_ms=time_ms, detail="")
    return PlanResult(1, "", broken, (), Coverage())


def fake_run(plan: Plan) -> PlanResult:
    """Breaks where the pause at 700 ms meets send 9; without that send another rule breaks."""
    if not any(isinstance(fault, Pause) and fault.at_ms == 700 for fault in plan.faults):
        return result(None)
    sends = {operation.id for operation in plan.operations if isinstance(operation, Send)}
    return result("Looked for" if 9 in sends else "Another")


def test_a_plan_keeps_what_its_violation_needs() -> None:
    small, shown, runs = shrink(PLAN, fake_run(PLAN), fake_run)
    assert small.sizes == Sizes(faults=1, operations=1)
    assert small.faults[0].at_ms == 700
    assert small.operations[0].id == 9
    assert shown.violation is not None
    assert shown.violation.invariant == "Looked for"
    assert 0 < runs < 40


def test_parts_after_the_violation_are_left_out_first() -> None:
    tried: list[Plan] = []

    def run(plan: Plan) -> PlanResult:
        tried.append(plan)
        return fake_run(plan)

    shrink(PLAN, fake_run(PLAN), run)
    assert tried[0].sizes == Sizes(faults=10, operations=10)


def test_the_number_of_runs_is_limited() -> None:
    small, shown, runs = shrink(PLAN, fake_run(PLAN), fake_run, max_runs=3)
    assert runs == 3
    assert fake_run(small) == shown or fake_run(small).violation == shown.violation
    assert small.sizes.faults < 20


def test_a_run_without_violation_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="no violation"):
        shrink(PLAN, result(None), fake_run)
