"""What a setting costs or gains in time against another one, in words.

More of the time is a price, less of it a gain. Neither is said where the interval of the difference includes 0, and
nothing at all where the weights of a setting degenerate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from experiments.studies.report.settings import Setting
from experiments.studies.report.words import capitalised, listed, rounded, times
from experiments.studies.trace.metrics import UNWRITABLE

PRICES = (
    (UNWRITABLE, "writes fail"),
    ("offline_fraction", "the partition has no leader"),
)


class Price(NamedTuple):
    """What running the reference instead of another setting changes in one share of time. `kind`: more or less of it,
    none shown, or not known; `clause`: of which time; `size`: by how much, with limits, empty below a millisecond a
    year."""

    kind: Literal["more", "less", "none", "unknown"]
    clause: str
    size: str

    def __str__(self) -> str:
        """The change as a clause of a sentence."""
        if self.kind == "unknown":
            return f"the difference in the time that {self.clause} is not known, as weights degenerate"
        if not self.size:
            return f"the time that {self.clause} differs by less than 1 ms a year"
        if self.kind == "none":
            return f"no difference is shown in the time that {self.clause} ({self.size} a year)"
        return f"{self.clause} for {self.size}"


def price(other: Setting, metric: str, clause: str) -> Price:
    """What running the reference instead of `other` changes in the time `metric`, in which `clause`."""
    compared = other.against_reference(metric)
    found = compared.difference
    low, high = sorted((-found.ci_low, -found.ci_high))
    if compared.degenerate:
        return Price("unknown", clause, "")
    if found.ci_low <= 0.0 <= found.ci_high:
        return Price("none", clause, times(-rounded(found).estimate, low, high, signed=True)[1])
    value, limits = times(abs(found.estimate), *sorted((abs(low), abs(high))))
    kind: Literal["more", "less"] = "more" if high > 0.0 else "less"
    return Price(kind, clause, f"{value} a year {kind} ({limits})" if limits else "")


def prices(other: Setting) -> str:
    """What running the reference instead of `other` changes in all of `PRICES`, in sentences."""
    found = [price(other, metric, clause) for metric, clause in PRICES]
    return " ".join(_sentences(found))


def _sentences(found: list[Price]) -> Iterator[str]:
    for kind, begin in (("more", "The price"), ("less", "The gain")):
        clauses = [str(each) for each in found if each.kind == kind and each.size]
        if clauses:
            yield f"{begin}: {'; '.join(clauses)}."
    others = [str(each) for each in found if each.kind in ("none", "unknown") or not each.size]
    if others:
        yield f"{capitalised('; '.join(others))}."


def shares(setting: Setting, written: Iterator[str]) -> str:
    """The times of one setting, which `written` gives in the order of `PRICES`."""
    costs = (f"{clause} for {time} a year" for (_, clause), time in zip(PRICES, written, strict=True))
    return f"With {setting.full_name}, {listed(list(costs))}."
