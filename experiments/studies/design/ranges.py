"""Ranges of a sweep: `log(1d, 1y, 7)` and `lin(0, 1, 5)` stand for lists of values.

`lin(a, b, n)` has n values at equal distances, `log(a, b, n)` n values at equal ratios, both ends included:
a (b / a)^(i / (n - 1)). The ends are taken as written; the values between them are rounded to three significant digits,
or to whole numbers for a parameter that takes whole numbers. Durations keep a unit that reads well (`2.67d`).

In YAML's flow style (`{broker_mttf: log(1d, 1y, 7)}`) a comma would end the value, so :func:`protect` replaces the
commas of a range by a character of the same length before the YAML is parsed, and :func:`restore` puts them back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from experiments.studies.design.parameter import Parameter
from experiments.support.durations import UNITS_MS, parse_duration_ms

FORM = "log(FIRST, LAST, N) or lin(FIRST, LAST, N), with durations or numbers that differ (log: above 0), N from 2"
LARGEST = 10_000
_RANGE = re.compile(r"\s*(log|lin)\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)\s*")
_LIKE_A_RANGE = re.compile(r"\s*(log|lin)\s*\(")
_COMMAS = re.compile(r"\b(?:log|lin)\([^()\n]*\)")
_MASK = "\ue000"
_DIGITS = 3


def protect(text: str) -> str:
    """The text of a YAML file with the commas of its ranges replaced; as long as before."""
    return _COMMAS.sub(lambda match: match[0].replace(",", _MASK), text)


def restore(value: object) -> object:
    """A value of a protected YAML file, with the commas of its ranges."""
    if isinstance(value, str):
        return value.replace(_MASK, ",")
    if isinstance(value, list):
        return [restore(item) for item in value]
    if isinstance(value, Mapping):
        return {restore(name): restore(item) for name, item in value.items()}
    return value


def is_range(value: object) -> bool:
    """Whether a value of a sweep is written as a range, a correct one or not."""
    return isinstance(value, str) and _LIKE_A_RANGE.match(value) is not None


def values_of(text: str, parameter: Parameter) -> list[object]:
    """The values of a range for that parameter, in its notation. Raises ValueError for a wrong range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(FORM)
    scale, first, last, count = match.groups()
    if not count.isdecimal() or not 2 <= int(count) <= LARGEST:
        raise ValueError(f"{FORM} to {LARGEST}")
    durations = parameter.unit == "duration"
    try:
        ends = [parse_duration_ms(end) if durations else _number(end) for end in (first, last)]
    except ValueError as error:
        raise ValueError(FORM) from error
    if ends[0] == ends[1] or not all(map(math.isfinite, ends)) or (scale == "log" and min(ends) <= 0):
        raise ValueError(FORM)
    shares = [index / (int(count) - 1) for index in range(1, int(count) - 1)]
    if scale == "lin":
        inner = [ends[0] + (ends[1] - ends[0]) * share for share in shares]
    else:
        inner = [float(ends[0] * (ends[1] / ends[0]) ** share) for share in shares]
    if durations:
        values: list[object] = [first, *(rounded_duration(value) for value in inner), last]
    else:
        values = [ends[0], *(round(value) if parameter.whole else _rounded(value) for value in inner), ends[1]]
    if len(set(values)) < len(values):
        unit = "whole numbers" if parameter.whole else f"{_DIGITS} digits"
        raise ValueError(f"a smaller N: rounded to {unit}, some of the values are equal")
    return values


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def rounded_duration(duration_ms: float) -> str:
    """A duration to three significant digits, in the largest unit of which it has one or more."""
    unit = next((unit for unit in ("y", "d", "h", "m", "s") if duration_ms >= UNITS_MS[unit]), "ms")
    if unit == "ms":
        return f"{max(1, round(duration_ms))}ms"
    return f"{_rounded(duration_ms / UNITS_MS[unit]):g}{unit}"
