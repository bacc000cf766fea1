"""All mutants by name, in the order of the table in docs/mutants.md."""

from __future__ import annotations

from contextlib import AbstractContextManager

from experiments.mutants import guards_controller, guards_leader, guards_log, mutant
from experiments.mutants.mutant import Mutant, by_name

MUTANTS: dict[str, Mutant] = by_name((*guards_leader.GUARDS, *guards_controller.GUARDS, *guards_log.GUARDS))


def switched_off(name: str) -> AbstractContextManager[None]:
    """The guard of that name is switched off for the block (`mutant.switched_off`). KeyError where there is none."""
    return mutant.switched_off(MUTANTS[name])
