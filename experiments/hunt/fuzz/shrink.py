"""Delta debugging: a smaller plan with the same violation, found by leaving out parts.

The parts are the faults and the operations of a plan. Complements of ever smaller pieces are tried, as in ddmin (Zeller
and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002), faults first, since they explain most; then
operations; then faults once more, which may have been needed for operations only. What is left cannot lose a single
part, unless the number of runs was not enough. A run counts as the same violation where the same invariant breaks:
times and steps move when parts are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from experiments.hunt.fuzz.plan import Plan
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
    search = _Search(plan, first, run, max_runs)
    try:
        search.leave_out_later_parts()
        for name in ("faults", "operations", "faults"):
            search.minimise(name)
    except _BudgetUsed:
        pass
    return search.plan, search.result, search.runs


class _Search:
    """The smallest plan so far, and its result."""

    def __init__(self, plan: Plan, first: PlanResult, run: Callable[[Plan], PlanResult], max_runs: int) -> None:
        self.plan, self.result, self.runs = plan, first, 0
        self._run, self._max_runs = run, max_runs
        self._invariant = _invariant(first)

    def _breaks(self, candidate: Plan) -> bool:
        """Runs the candidate; if it has the violation, it becomes the smallest plan so far."""
        if self.runs >= self._max_runs:
            raise _BudgetUsed
        self.runs += 1
        result = self._run(candidate)
        if _invariant(result) != self._invariant:
            return False
        self.plan, self.result = candidate, result
        return True

    def leave_out_later_parts(self) -> None:
        """Leaves out everything that begins after the violation."""
        assert self.result.violation is not None
        at_ms = self.result.violation.time_ms
        faults = tuple(fault for fault in self.plan.faults if fault.at_ms <= at_ms)
        operations = tuple(operation for operation in self.plan.operations if operation.at_ms <= at_ms)
        candidate = self.plan.model_copy(update={"faults": faults, "operations": operations})
        if candidate.sizes != self.plan.sizes:
            self._breaks(candidate)

    def minimise(self, name: str) -> None:
        """Leaves out as many faults or operations (`name`) as possible."""

        def breaks(parts: Sequence[object]) -> bool:
            return self._breaks(self.plan.model_copy(update={name: tuple(parts)}))

        minimised(getattr(self.plan, name), breaks)


def _invariant(result: PlanResult) -> str | None:
    return None if result.violation is None else result.violation.invariant


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
