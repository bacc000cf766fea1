"""A mutant: one guard of the protocol, and the code that replaces it while the guard is switched off.

The protocol knows nothing of mutants. A guard is a function, method or property with a name; while `switched_off` lasts
it is replaced on its module or class for the whole process, and then restored. Only the commands that hunt for defects
enter that block; production code has no switch.

A mutant's focus says which runs are to reveal it. Mutants of brokers and controllers run in plans of the fuzz
(`PlanFocus`): drawn by the swarm, drawn with a bias, or one written plan. Mutants of the quorum run in the quorum's
simulation (`QuorumFocus`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import getattr_static, signature
from typing import Protocol, TypeAlias

from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.quorum import chaos
from experiments.support.build import is_compiled
from experiments.support.errors import InputError

Original: TypeAlias = Callable[..., object]
"""The function that a patch replaces."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Puts `make(original)` in the place of `owner.name`, which must be defined there and not be inherited."""

    owner: object
    name: str
    make: Callable[..., object]


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


@contextmanager
def switched_off(mutant: Mutant) -> Iterator[None]:
    """Switches the guard off until the end of the block. AttributeError if a patch has no original, InputError in a
    compiled build.
    """
    if is_compiled():
        raise InputError("this build", "", "compiled", "the interpreted sources, where guards can be switched off")
    with ExitStack() as stack:
        for patch in mutant.patches:
            if patch.name not in vars(patch.owner):
                raise AttributeError(
                    f"{mutant.name}: {getattr(patch.owner, '__name__', patch.owner)} has no {patch.name} of its own"
                )
            original = getattr_static(patch.owner, patch.name)
            stack.callback(setattr, patch.owner, patch.name, original)
            setattr(patch.owner, patch.name, patch.make(original))
        yield


def around(owner: object, name: str, function: Callable[..., object]) -> Patch:
    """A patch by `function`, which is called with the original and then with the arguments of the call. It keeps the
    original's name, by which snapshots of nodes refer to methods.
    """

    def make(original: Callable[..., object]) -> Callable[..., object]:
        @wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            return function(original, *args, **kwargs)

        return call

    return Patch(owner, name, make)


def constant(owner: object, name: str, value: object) -> Patch:
    """A patch by a function that takes any arguments and always returns `value`."""
    return around(owner, name, lambda *args, **kwargs: value)


def as_property(owner: object, name: str, getter: Callable[..., object]) -> Patch:
    """A patch of a property by another one."""
    return Patch(owner, name, lambda original: property(getter))


def with_arguments(owner: object, name: str, /, **changes: Callable[..., object]) -> Patch:
    """A patch that replaces these arguments in each call of the original, each by its change's result for it."""

    def make(original: Callable[..., object]) -> Callable[..., object]:
        parameters = signature(original)

        def call(*args: object, **kwargs: object) -> object:
            bound = parameters.bind(*args, **kwargs)
            bound.arguments.update({key: change(bound.arguments[key]) for key, change in changes.items()})
            return original(*bound.args, **bound.kwargs)

        return call

    return Patch(owner, name, make)


def by_name(mutants: Sequence[Mutant]) -> dict[str, Mutant]:
    """The mutants by name; ValueError where two have the same."""
    found = {mutant.name: mutant for mutant in mutants}
    if len(found) != len(mutants):
        raise ValueError("two mutants have the same name")
    return found
