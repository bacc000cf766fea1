"""Delta debugging: a smaller plan with the same violation, found by leaving out faults and operations.

Complements of ever smaller pieces are tried, as in ddmin (Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input", 2002), faults first, since they explain most; then operations; then faults once more, which may
have been needed for operations only. What is left cannot lose a single part, unless the number of runs was not enough.
A run has the same violation where the same invariant breaks: times and steps move when parts are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from experiments.faults.schema import Fault
from experiments.hunt.fuzz.plan import Operation, Plan
from experiments.hunt.fuzz.run import PlanResult

MAX_RUNS = 400

_Part = TypeVar("_Part")


class _BudgetUsed(Exception):
    """The budget of runs is used up."""


def shrink(
    plan: Plan, first: PlanResult, run: Callable[[Plan], PlanResult], max_runs: int = MAX_RUNS
) -> tuple[Plan, PlanResult, int]:
    """A smaller plan that violates the same invariant as `plan`, whose result is `first`; its result; the number of
    runs. ValueError if `first` has no violation.
    """
    if first.violation is None:
        raise ValueError("the result has no violation")
    violation, small, result, runs = first.violation, plan, first, 0

    def breaks(parts: Mapping[str, tuple[object, ...]]) -> bool:
        """Runs the smallest plan so far with these parts; if it has the violation, it becomes the smallest one."""
        nonlocal small, result, runs
        if runs >= max_runs:
            raise _BudgetUsed
        runs += 1
        candidate = small.model_copy(update=parts)
        found = run(candidate)
        is_same = found.violation is not None and found.violation.invariant == violation.invariant
        if is_same:
            small, result = candidate, found
        return is_same

    kinds: dict[str, tuple[Operation | Fault, ...]] = {"faults": plan.faults, "operations": plan.operations}
    begun = {kind: tuple(part for part in parts if part.at_ms <= violation.time_ms) for kind, parts in kinds.items()}
    try:
        if begun != kinds:
            breaks(begun)
        for kind in ("faults", "operations", "faults"):
            minimised(getattr(small, kind), lambda parts, kind=kind: breaks({kind: tuple(parts)}))  # type: ignore[misc]
    except _BudgetUsed:
        pass
    return small, result, runs


def minimised(parts: Sequence[_Part], breaks: Callable[[Sequence[_Part]], bool]) -> list[_Part]:
    """A subsequence that still `breaks` and of which no single part can be left out; `parts` themselves break."""
    left = list(parts)
    pieces = 1
    while left:
        size = -(-len(left) // pieces)
        for begin in range(0, len(left), size):
            rest = left[:begin] + left[begin + size :]
            if breaks(rest):
                left, pieces = rest, max(pieces - 1, 1)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(left))
    return left
