"""All mutants by name, in the order of the table in docs/mutants.md."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from experiments.hunt.mutants import (
    guards_controller,
    guards_leader,
    guards_log,
    guards_metadata,
    guards_quorum,
    guards_recovery,
    guards_v3,
)
from experiments.hunt.mutants.mutant import Mutant, by_name, switched_off
from experiments.support.errors import InputError
from protocol.errors import did_you_mean

MUTANTS: dict[str, Mutant] = by_name(
    (
        *guards_leader.GUARDS,
        *guards_controller.GUARDS,
        *guards_metadata.GUARDS,
        *guards_recovery.GUARDS,
        *guards_log.GUARDS,
        *guards_v3.GUARDS,
        *guards_quorum.GUARDS,
    )
)


def mutant_named(name: str, option: str = "--mutant") -> Mutant:
    """The mutant of that name. InputError for an unknown name, which suggests the nearest one."""
    if name not in MUTANTS:
        raise InputError(option, "", f"{name!r}{did_you_mean(name, MUTANTS)}", f"one of {', '.join(MUTANTS)}")
    return MUTANTS[name]


def mutated(name: str | None) -> AbstractContextManager[None]:
    """The protocol with the guard of that mutant switched off for the block (`mutant.switched_off`); unchanged for
    None. InputError for an unknown name.
    """
    return nullcontext() if name is None else switched_off(mutant_named(name))
