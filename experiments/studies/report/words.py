"""A study's numbers in words: names of cells, readable quantities, intervals of each kind, sentences with rates.

A rate per partition grows with the number of partitions that a reader has. So a sentence is a sequence of parts, of
which some are rates (`Rate`) and their unit (`PER_PARTITION`): the page marks them up, and its script scales them.
`charts/theme.py` writes numbers in charts by the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.studies.design.model import PARAMETERS, CellParameters
from experiments.studies.estimation.moments import Estimate
from experiments.studies.estimation.pairs import Difference
from experiments.studies.estimation.selection import NEARLY_EQUAL
from experiments.studies.trace.metrics import FRACTION, Metric

MINUTES_PER_YEAR = 365 * 24 * 60
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TIMES_TEN = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10"
TIME_UNITS = (("d", 1440.0), ("h", 60.0), ("min", 1.0), ("s", 1.0 / 60.0), ("ms", 1.0 / 60_000.0))
"""Units of time with their lengths in minutes, the longest first."""
LEAST_SHOWN = 1e-9
"""Rates and shares below this are no forecast, and are not written out as years and nines."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A number per partition-year; `signed`: a difference, shown with its sign."""

    value: float
    signed: bool = False

    def __str__(self) -> str:
        return signed_number(self.value) if self.signed else number(self.value)


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of the rates of a sentence."""

    def __str__(self) -> str:
        return "per partition-year"


PER_PARTITION = Unit()
Sentence = tuple[str | Rate | Unit, ...]


def plain(sentence: Sentence) -> str:
    """A sentence as text, for one partition."""
    return "".join(map(str, sentence))


def cell_name(swept: Mapping[str, object]) -> str:
    """`kip-966 · min ISR 2`: the swept parameters in the order of the file."""
    parts = [PARAMETERS[name].words.format(shown(value)) for name, value in swept.items()]
    return " · ".join(parts) or "the one setting"


def shown(value: object) -> str:
    """A parameter's value as the file gives it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return str(value)


def listed(names: Sequence[str], word: str = "and") -> str:
    """`a, b and c`."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)


def capitalised(text: str) -> str:
    """The text with its first letter as a capital."""
    return f"{text[:1].upper()}{text[1:]}"


def counted(count: int, name: str) -> str:
    """`1 setting`, `4 settings`."""
    return f"{count:,} {name}{'s' * (count != 1)}"


def parameter_rows(cells: Sequence[CellParameters]) -> list[tuple[str, str, str]]:
    """Name, value and description of the parameters that are the same in all cells."""
    shared = [item for item in PARAMETERS.values() if len({getattr(cell, item.field) for cell in cells}) == 1]
    return [(item.name, item.notation.write(getattr(cells[0], item.field)), item.description) for item in shared]


def number(value: float) -> str:
    """Three significant digits; whole from 1,000 on, a power of ten below a ten-thousandth."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    if value < 1e-4:
        exponent = math.floor(math.log10(value))
        return f"{value / 10.0**exponent:.3g}{TIMES_TEN}{str(exponent).translate(SUPERSCRIPTS)}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.8f}".rstrip("0")


def minutes(fraction: float) -> str:
    """A share of time as time per year: `12.3 min`, `5.1 h`, `2.2 d`, `<1 ms`."""
    per_year = fraction * MINUTES_PER_YEAR
    for unit, size in TIME_UNITS[:2]:
        if per_year >= 2.0 * size:
            return f"{number(per_year / size)} {unit}"
    if per_year >= 1.0 or per_year == 0:
        return f"{number(per_year)} min"
    seconds = per_year * 60.0
    if seconds >= 1.0:
        return f"{number(seconds)} s"
    return f"{number(seconds * 1000.0)} ms" if seconds >= 0.001 else "<1 ms"


def nines(unwritable: float) -> str:
    """A share of time that is not writable as availability and as time a year: `99.98 %, 1.75 h a year`."""
    if unwritable <= LEAST_SHOWN:
        return f"{'over 99.9999999' if unwritable > 0.0 else '100'} %, {minutes(unwritable)} a year"
    digits = max(0, 1 - math.floor(math.log10(100.0 * unwritable)))
    text = f"{100.0 * (1.0 - unwritable):.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %, {minutes(unwritable)} a year"


def every(rate: float) -> str:
    """A rate a year as people say it: `1 in 52 years`, `3 a year`."""
    if rate <= LEAST_SHOWN:
        return "none" if rate <= 0.0 else "less than 1 in a billion years"
    return f"1 in {number(1.0 / rate)} years" if rate < 1.0 else f"{number(rate)} a year"


def every_between(low: float, high: float) -> str:
    """The limits of a rate in the notation of the higher one: `1 in 31 to 90 years`, `0.85 to 2.3 a year`; with a lower
    limit of 0 `at most 1 in 31 years`."""
    if low <= 0.0:
        return f"at most {every(high)}"
    if high >= 1.0:
        return f"{number(low)} to {number(high)} a year"
    return f"1 in {number(1.0 / high)} to {number(1.0 / low)} years"


def in_words(metric: Metric) -> Callable[[float], str]:
    """How a value of the metric is written: a share of time as time per year, a rate as a number."""
    return minutes if metric.estimator is FRACTION else number


def time_unit(fractions: Sequence[float]) -> tuple[str, float]:
    """The unit in which the largest of these shares of time is shown, and its length in shares of a year."""
    largest = max((abs(value) for value in fractions), default=0.0) * MINUTES_PER_YEAR
    least = TIME_UNITS[-1] if largest > 0.0 else TIME_UNITS[2]
    unit, size = next((found for found in TIME_UNITS if largest >= 2.0 * found[1]), least)
    return unit, size / MINUTES_PER_YEAR


def milliseconds(value: float | None) -> str:
    """A length of time in its natural unit; a dash where there was none."""
    if value is None:
        return "–"
    for unit, size in (("d", 86_400_000.0), ("h", 3_600_000.0), ("min", 60_000.0), ("s", 1000.0)):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value)} ms"


def times(estimate: float, low: float, high: float, *, signed: bool = False) -> tuple[str, str]:
    """A share of time and its limits as time per year, in the unit of the estimate: `6.85 s`, `5.49 to 8.63 s`.
    `signed`: a difference, each with its sign, in the unit of the largest. Below a millisecond: `<1 ms`, no limits."""
    name, size = time_unit([estimate] if estimate and not signed else [estimate, low, high])
    if size == TIME_UNITS[-1][1] / MINUTES_PER_YEAR and max(abs(low), abs(high), abs(estimate)) < size and high:
        return "<1 ms", ""
    value, begin, end = ((signed_number if signed else number)(share / size) for share in (estimate, low, high))
    return f"{value} {name}", f"{begin} to {end} {name}"


def bound(value: Estimate, text: Callable[[float], str]) -> str:
    """What a value says that is an upper limit only."""
    return f"{'weights degenerate' if value.degenerate else 'none seen'}, at most {text(value.ci_high)}"


def interval(value: Estimate, text: Callable[[float], str]) -> str:
    """The 95 % interval, and of which kind it is: `0.2 – 0.4`; `at most 0.03, one-sided` where nothing was seen."""
    if value.one_sided:
        return f"at most {text(value.ci_high)}, one-sided"
    return f"{text(value.ci_low)} – {text(value.ci_high)}{degenerate(value)}"


def time_interval(value: Estimate) -> str:
    """The same of a share of time, as time per year in the unit of the estimate."""
    if value.one_sided:
        return f"at most {minutes(value.ci_high)}, one-sided"
    return times(value.estimate, value.ci_low, value.ci_high)[1].replace(" to ", " – ") + degenerate(value)


def degenerate(value: Estimate) -> str:
    """What is added to an interval that does not rest on the weights; nothing for others."""
    return ", weights degenerate" if value.degenerate else ""


def warnings(of: Mapping[str, Sequence[str]]) -> list[str]:
    """The warnings of all settings, those of degenerate weights in one line: which settings, and of how many
    numbers."""
    degenerate = {name: sum(map(is_degeneracy, lines)) for name, lines in of.items()}
    settings = {name: count for name, count in degenerate.items() if count}
    lines = [f"{name}: {line}" for name, found in of.items() for line in found if not is_degeneracy(line)]
    if not settings:
        return lines
    named = listed([f"{name} ({counted(count, 'number')})" for name, count in settings.items()])
    return [f"weights degenerate, so that these have an upper limit and no estimate: {named}", *lines]


def is_degeneracy(warning: str) -> bool:
    """Whether a warning of a cell is about its weights."""
    return warning.startswith("weights degenerate: ")


def rounded(found: Difference) -> Difference:
    """A difference as it is shown: 0 where it is no more than the rounding of weights."""
    is_zero = abs(found.estimate) <= NEARLY_EQUAL * (found.ci_high - found.ci_low)
    return Difference(0.0, found.ci_low, found.ci_high) if is_zero else found


def signed_number(value: float) -> str:
    """A difference with its sign."""
    return "±0" if value == 0 else f"{'+' if value > 0 else '−'}{number(abs(value))}"
