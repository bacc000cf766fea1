"""All mutants by name, in the order of the table in docs/mutants.md.

Each file of `guards/` holds the mutants of one area, as a list of `Mutant`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Annotated

from experiments.hunt.mutants.mutant import Mutant, switched_off
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, StrictModel
from experiments.support.yaml_input import read_yaml_mapping, validated
from protocol.errors import did_you_mean

AREAS = ("leader", "controller", "metadata", "recovery", "log", "v3", "quorum")


class _Area(StrictModel):
    mutants: Annotated[tuple[Mutant, ...], AsTuple]


def load(path: Path) -> tuple[Mutant, ...]:
    """The mutants of a file. InputError for one that has no such content."""
    return validated(_Area, read_yaml_mapping(path, "a file of mutants"), str(path)).mutants


def by_name(mutants: tuple[Mutant, ...]) -> dict[str, Mutant]:
    """The mutants by name; ValueError where two have the same."""
    found = {mutant.name: mutant for mutant in mutants}
    if len(found) != len(mutants):
        raise ValueError("two mutants have the same name")
    return found


@cache
def all_mutants() -> dict[str, Mutant]:
    """The mutants of all areas by name. InputError for a file that is none."""
    folder = Path(__file__).parent / "guards"
    return by_name(tuple(mutant for area in AREAS for mutant in load(folder / f"{area}.yaml")))


def mutant_named(name: str, option: str = "--mutant") -> Mutant:
    """The mutant of that name. InputError for an unknown name, which suggests the nearest one."""
    found = all_mutants()
    if name not in found:
        raise InputError(option, "", f"{name!r}{did_you_mean(name, found)}", f"one of {', '.join(found)}")
    return found[name]


def mutated(name: str | None) -> AbstractContextManager[None]:
    """The protocol with that mutant's guard switched off; unchanged for None. InputError for an unknown name."""
    return nullcontext() if name is None else switched_off(mutant_named(name))
