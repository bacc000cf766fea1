"""Findings of a campaign without duplicates: violations of one invariant by plans of one shape are one finding.

Many plans meet the same defect. Their shrunk plans differ in nodes, times and sizes, and mostly agree in their *shape*:
the kinds of faults in the order in which they begin, and the kinds of operations.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import groupby
from typing import Annotated

from pydantic import Field

from experiments.hunt.fuzz.plan import PlanViolation, TimelineFile
from experiments.support.fields import StrictModel


class Finding(StrictModel):
    """Violations of one invariant by plans of one shape; `seed` is the lowest, with its timeline file's name."""

    file: str
    shape: str
    count: Annotated[int, Field(ge=1)]
    seed: int
    violation: PlanViolation


def shape_of(file: TimelineFile) -> str:
    """The shape of the file's plan, in words."""
    in_order = sorted(file.plan.faults, key=lambda fault: (fault.at_ms, fault.kind))
    faults = [kind for kind, _ in groupby(fault.kind for fault in in_order)]
    operations = sorted({operation.kind for operation in file.plan.operations})
    return f"{', '.join(faults) or 'no fault'}; {', '.join(operations) or 'no operation'}"


def add_finding(findings: dict[str, Finding], seed: int, file: TimelineFile) -> Finding:
    """Adds a violation; returns the finding that it belongs to, of which it may be the first."""
    assert file.violation is not None
    shape = shape_of(file)
    key = f"{file.violation.invariant} {shape}"
    digest = blake2b(key.encode(), digest_size=4).hexdigest()
    new = Finding(
        file=f"{file.violation.invariant}-{digest}.yaml", shape=shape, count=1, seed=seed, violation=file.violation
    )
    known = findings.get(key)
    first = new if known is None or seed < known.seed else known
    findings[key] = first.model_copy(update={"count": 1 if known is None else known.count + 1})
    return findings[key]
