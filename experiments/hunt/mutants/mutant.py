"""A mutant: one guard of the protocol, and the code that replaces it while the guard is switched off.

The protocol knows nothing of mutants. A guard is a function, method or property with a name; while `switched_off` lasts
it is replaced (`patches.py`). Only the commands that hunt for defects enter that block; guards have no switch.

A mutant's focus says which runs are to reveal it. Mutants of brokers and controllers run in plans of the fuzz
(`PlanFocus`): drawn by the swarm, drawn with a bias, or one written plan. Mutants of the quorum run in the quorum's
simulation (`QuorumFocus`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.patches import Patch, replaced
from experiments.hunt.quorum import chaos


class Focus(Protocol):
    """Which runs are to reveal a mutant. `why` says in a sentence what happens in them; it is empty without a bias."""

    @property
    def why(self) -> str: ...

    def first_violation(self, seed: int) -> str | None:
        """The name of the invariant that the seed's run violates with this focus, None if it violates none."""

    def violation_without_focus(self, seed: int) -> str | None:
        """The same for the run that the seed gives without a focus."""


@dataclass(frozen=True, slots=True)
class PlanFocus:
    """Plans of the fuzz that are drawn with a `bias`, or the plan `script`, to which seeds give different latencies."""

    bias: Bias = NO_BIAS
    script: Plan | None = None
    why: str = ""

    def plan(self, seed: int) -> Plan:
        """The plan of a seed."""
        return draw(seed, bias=self.bias) if self.script is None else self.script.model_copy(update={"seed": seed})

    def first_violation(self, seed: int) -> str | None:
        return _violated_invariant(self.plan(seed))

    def violation_without_focus(self, seed: int) -> str | None:
        wanted = self.bias.generation
        has_store = wanted is not None and wanted.features.metadata_in_store
        return _violated_invariant(draw(seed, wanted if has_store else None))


def _violated_invariant(plan: Plan) -> str | None:
    violation = run_plan(plan).violation
    return None if violation is None else violation.invariant


@dataclass(frozen=True, slots=True)
class QuorumFocus:
    """Runs of the quorum's simulation that are drawn with a `bias`."""

    bias: chaos.ChaosBias = chaos.NO_BIAS
    why: str = ""

    def first_violation(self, seed: int) -> str | None:
        return chaos.run(seed, self.bias).violation

    def violation_without_focus(self, seed: int) -> str | None:
        return chaos.run(seed).violation


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard. `guard` is the rule, with its source; `instead` what happens without it; `expected` the invariants and
    findings on the history, one of which must be the first violation; `focus` the runs that are to reveal it.
    """

    name: str
    guard: str
    instead: str
    expected: tuple[str, ...]
    patches: tuple[Patch, ...]
    focus: Focus = PlanFocus()


def switched_off(mutant: Mutant) -> AbstractContextManager[None]:
    """Switches the guard off until the end of the block. AttributeError if a patch has no original, InputError in a
    compiled build.
    """
    return replaced(mutant.name, mutant.patches)


def by_name(mutants: Sequence[Mutant]) -> dict[str, Mutant]:
    """The mutants by name; ValueError where two have the same."""
    found = {mutant.name: mutant for mutant in mutants}
    if len(found) != len(mutants):
        raise ValueError("two mutants have the same name")
    return found
