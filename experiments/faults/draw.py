"""Faults drawn from rates: which kind, when, for how long, and what it hits."""

from __future__ import annotations

from random import Random
from typing import Annotated

from pydantic import Field

from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.schema import Fault
from experiments.faults.targets import Targets
from experiments.support.fields import AsTuple, Index, Milliseconds, StrictModel, one_of


class Rates(StrictModel):
    """Faults as a random process: one begins every `mean_between_ms` on average (exponentially distributed), of a kind
    drawn by `weights`, and lasts one of `durations_ms`.
    """

    mean_between_ms: Milliseconds
    durations_ms: Annotated[tuple[Milliseconds, ...], AsTuple, Field(min_length=1)]
    weights: dict[Annotated[str, one_of(FAULT_KINDS)], Index] = Field(min_length=1)


def timeline(rates: Rates, targets: Targets, rng: Random, begin_ms: int, end_ms: int) -> tuple[Fault, ...]:
    """Faults that begin and end between these times, in the order of their beginnings."""
    faults: list[Fault] = []
    kinds = [kind for kind, weight in sorted(rates.weights.items()) if weight]
    at_ms = begin_ms
    while kinds:
        at_ms += 1 + round(rng.expovariate(1 / rates.mean_between_ms))
        kind = rng.choices(kinds, [rates.weights[name] for name in kinds])[0]
        duration_ms = min(rng.choice(rates.durations_ms), end_ms - at_ms)
        if duration_ms < 1:
            break
        fields = FAULT_KINDS[kind].draw(targets, rng)
        faults.append(FAULT_KINDS[kind].model_validate(fields | {"at_ms": at_ms, "duration_ms": duration_ms}))
    return tuple(faults)
