"""Checks of what an application claims against what is in the logs in the end.

Each returns its findings as sentences, so that a test says `assert not at_least_once(...)` and a failure shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from experiments.virtual.simulation import RunResult

Value = bytes | None


def acknowledged_are_kept(result: RunResult) -> list[str]:
    """Every acknowledged record is in the log of its partition: what the cluster promises with acks=all and failures
    within the tolerance. Records that a codec hides from the checks are left out.
    """
    kept = {(place, record.value) for place, log in result.logs.items() for record in log}
    return [
        f"{it.place}: {it.value!r} was acknowledged at {it.time_ms} ms and is not in the log"
        for it in result.acknowledged
        if it.value is not None and (it.place, it.value) not in kept
    ]


def at_least_once(claimed: Iterable[Value], found: Iterable[Value]) -> list[str]:
    """Everything that the application takes for done (sent, processed) is there at least once."""
    present = {*found}
    return [f"{value!r} is taken for done and is not there" for value in dict.fromkeys(claimed) if value not in present]


def exactly_once(claimed: Iterable[Value], found: Iterable[Value]) -> list[str]:
    """As `at_least_once`, and nothing is there twice."""
    there = [*found]
    twice = [f"{value!r} is there {count} times" for value, count in Counter(there).items() if count > 1]
    return at_least_once(claimed, there) + twice


def in_order(expected: Sequence[Value], found: Iterable[Value]) -> list[str]:
    """First occurrences are in the expected order; repetitions and gaps are for the other checks."""
    places = {value: index for index, value in enumerate(expected)}
    firsts = [value for value in dict.fromkeys(found) if value in places]
    return [
        f"{after!r} comes before {before!r}" for after, before in pairwise(firsts) if places[after] > places[before]
    ]
