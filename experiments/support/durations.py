"""Durations as users write them: a whole or decimal number and a unit, `250ms`, `30s`, `15m`, `6h`, `30d`, `1y`.

A year is 365 days. Inside the program a duration is always an integer number of milliseconds.
"""

from __future__ import annotations

import re

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "y": 365 * 86_400_000}
ALLOWED = "a number and a unit (ms, s, m, h, d, y), such as 250ms or 15m"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|y)")


def parse_duration_ms(text: object) -> int:
    """Milliseconds of a duration such as `15m`; ValueError with the allowed form for other text."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"found {text!r}; allowed: {ALLOWED}")
    return round(float(match[1]) * UNITS_MS[match[2]])


def format_duration(duration_ms: int) -> str:
    """The shortest exact spelling of a duration: 900000 gives `15m`."""
    for unit in ("y", "d", "h", "m", "s"):
        if duration_ms and duration_ms % UNITS_MS[unit] == 0:
            return f"{duration_ms // UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"
