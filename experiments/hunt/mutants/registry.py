"""All mutants by name, in the order of the table in docs/mutants.md, and the switch by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from experiments.hunt.mutants import guards_controller, guards_leader, guards_log, guards_quorum, guards_recovery
from experiments.hunt.mutants.mutant import Mutant, by_name, switched_off
from experiments.support.errors import InputError

MUTANTS: dict[str, Mutant] = by_name(
    (
        *guards_leader.GUARDS,
        *guards_controller.GUARDS,
        *guards_recovery.GUARDS,
        *guards_log.GUARDS,
        *guards_quorum.GUARDS,
    )
)


def mutated(name: str | None) -> AbstractContextManager[None]:
    """The protocol with the guard of that name switched off for the block (`mutant.switched_off`); as it is for None.
    InputError where there is no such mutant.
    """
    if name is None:
        return nullcontext()
    if name not in MUTANTS:
        raise InputError("--mutant", "", repr(name), f"one of {', '.join(MUTANTS)}")
    return switched_off(MUTANTS[name])
