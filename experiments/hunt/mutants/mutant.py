"""What a mutant is: one guard of the protocol, and what stands in its place while it is switched off.

The protocol knows nothing of mutants. A guard is a named function, method or property; while `switched_off` lasts it is
replaced on its module or class, for the whole process, and then put back. Nothing but the hunt, the fuzz and the
explorer enters it, so production paths have no switch that could be thrown.

A mutant says where it is hunted. Those of brokers and controllers with plans of the fuzz (`Focus`): those of the swarm,
a part of the swarm, or one plan that is written out. Those of the quorum with runs of the quorum's laboratory
(`QuorumFocus`): those that are drawn, or a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any, Protocol

from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.quorum import chaos
from experiments.support.build import is_compiled
from experiments.support.errors import InputError


@dataclass(frozen=True, slots=True)
class Patch:
    """Puts `make(original)` in the place of `owner.name`, which must be defined there and not be inherited."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


class Hunt(Protocol):
    """Where to look. `why` says in a sentence what that brings about, and is empty where one looks everywhere."""

    @property
    def why(self) -> str: ...

    def noticed(self, seed: int) -> str | None:
        """What a seed breaks here: the name of an invariant, or none."""

    def noticed_anywhere(self, seed: int) -> str | None:
        """What the same seed breaks where nobody knows of mutants."""


@dataclass(frozen=True, slots=True)
class Focus:
    """A hunt with plans of the fuzz: those that the swarm draws with a `bias`, or the one plan of a `script`, which a
    seed gives other latencies.
    """

    bias: Bias = NO_BIAS
    script: Plan | None = None
    why: str = ""

    def plan(self, seed: int) -> Plan:
        """What a seed tries."""
        return draw(seed, bias=self.bias) if self.script is None else self.script.model_copy(update={"seed": seed})

    def noticed(self, seed: int) -> str | None:
        return _broken_by(self.plan(seed))

    def noticed_anywhere(self, seed: int) -> str | None:
        return _broken_by(draw(seed))


def _broken_by(plan: Plan) -> str | None:
    broken = run_plan(plan).violation
    return None if broken is None else broken.invariant


@dataclass(frozen=True, slots=True)
class QuorumFocus:
    """A hunt with runs of the quorum's laboratory, which are drawn with a `bias`."""

    bias: chaos.Bias = chaos.NO_BIAS
    why: str = ""

    def noticed(self, seed: int) -> str | None:
        return chaos.run(seed, self.bias).broken

    def noticed_anywhere(self, seed: int) -> str | None:
        return chaos.run(seed).broken


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard. `guard` is the rule, with its source; `instead` what happens without it; `expected` the invariants, or
    findings of the history's judge, any of which may be the first to notice; `focus` where it is hunted.
    """

    name: str
    guard: str
    instead: str
    expected: tuple[str, ...]
    patches: tuple[Patch, ...]
    focus: Hunt = Focus()


@contextmanager
def switched_off(mutant: Mutant) -> Iterator[None]:
    """The guard is switched off until the end of the block. AttributeError where a patch has no original, InputError in
    a compiled build.
    """
    if is_compiled():
        raise InputError("this build", "", "compiled", "the sources: only there guards can be switched off")
    with ExitStack() as stack:
        for patch in mutant.patches:
            if patch.name not in vars(patch.owner):
                raise AttributeError(f"{mutant.name}: {patch.owner.__name__} has no {patch.name} of its own")
            original = getattr_static(patch.owner, patch.name)
            stack.callback(setattr, patch.owner, patch.name, original)
            setattr(patch.owner, patch.name, patch.make(original))
        yield


def replaced_by(value: Any) -> Callable[[Any], Any]:
    """A patch that does not need what it replaces."""
    return lambda original: value


def answering(value: Any) -> Callable[[Any], Any]:
    """A patch by a function that always answers the same."""
    return lambda original: lambda *args, **kwargs: value


def by_name(mutants: Sequence[Mutant]) -> dict[str, Mutant]:
    """The mutants by name; ValueError where two have the same."""
    found = {mutant.name: mutant for mutant in mutants}
    if len(found) != len(mutants):
        raise ValueError("two mutants have the same name")
    return found
