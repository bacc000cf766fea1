"""A comparison as rows of text and as a JSON document.

A row is a step, a cell what came of it in one world. Worlds after the first have only what is not as in the first, `=`
where nothing is. The state of a partition is written as `leader 1 isr 1,2 elr 0 ends 1:5 2:5`, its epochs as `le+1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.compare.comparison import Comparison, Departed, place_of
from experiments.compare.course import EPOCHS, Stage, relaxed
from experiments.conformance.shapes import Difference

FIRST = ">>"
"""Marks the step of the first difference."""
_SHORT = {
    "last_known_elr": "last known elr",
    "last_known_leader": "last known leader",
    "leader_recovery_state": "",
    "adding_replicas": "adding",
    "removing_replicas": "removing",
    "leader_epoch": "leader epoch",
    "partition_epoch": "partition epoch",
    "high_watermark": "hw",
    "logs": "log",
}
_SAID_ALWAYS = ("leader", "isr", "elr")


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The mark, the number and text of each step, and a cell per world."""
    courses = [comparison.courses[world] for world in comparison.worlds]
    first = None if comparison.first is None else place_of(comparison.first)
    for stages in zip(*(course.stages for course in courses), strict=True):
        reference, *others = stages
        exact = [course.is_virtual for course in courses[1:]]
        cells = [_cell(reference), *(_difference(reference, *it) for it in zip(others, exact, strict=True))]
        number = "" if reference.index < 0 else str(reference.index)
        yield FIRST if reference.index == first else "", number, reference.text, *cells


def _cell(stage: Stage) -> str:
    state = {} if stage.state is None else stage.state
    partitions = [f"{subject}: {_partition(fields)}" for subject, fields in state.items() if "leader" in fields]
    return "\n".join([*([stage.verdict] if stage.verdict not in ("ok", "holds") else []), *partitions])


def _partition(fields: Mapping[str, object]) -> str:
    said = [_field(name, value) for name, value in fields.items() if name in _SAID_ALWAYS or _is_special(name, value)]
    return " ".join(said)


def _is_special(name: str, value: object) -> bool:
    if name in EPOCHS:
        return bool(value)
    if name == "leader_recovery_state":
        return value != "recovered"
    return name not in ("replicas",) and value not in (None, [], {}, -1, "")


def _field(name: str, value: object) -> str:
    if name in EPOCHS:
        return (
            f"{_SHORT[name]} +{value}" if isinstance(value, int) and not isinstance(value, bool) else f"{name} {value}"
        )
    return f"{_SHORT.get(name, name)} {_value(value)}".strip()


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{key}:{text or 'empty'}" for key, text in value.items())
    return "none" if value in (None, -1) else str(value)


def _difference(reference: Stage, stage: Stage, exact: bool) -> str:
    lines = [stage.verdict] if stage.verdict != reference.verdict else []
    if stage.state is not None and reference.state is not None:
        one, other = (it if exact else relaxed(it) for it in (reference.state, stage.state))
        for subject in dict.fromkeys((*one, *other)):
            fields, others = one.get(subject, {}), other.get(subject, {})
            unlike = [name for name in dict.fromkeys((*others, *fields)) if fields.get(name) != others.get(name)]
            if unlike:
                lines.append(f"{subject}: {' '.join(_field(name, others.get(name)) for name in unlike)}")
    return "\n".join(lines) or "="


def conclusions(comparison: Comparison) -> Iterator[str]:
    """What explains the differences, a line each."""
    for departed in comparison.departed:
        yield f"{departed.world.name}: {_count(departed.differences)}, {explained(departed)}"
    for departed in comparison.once:
        yield f"{departed.world.name}: {_count(departed.differences)}, in the first of two runs only, unexplained"
    for it in comparison.changed:
        names = ", ".join(f"{change.name} (since {change.first})" for change in it.changes)
        yield f"{comparison.worlds[0].name} and {it.world.name}: {_count(it.differences)}, by {names}"
    if comparison.first is None:
        yield f"no difference in {len(comparison.worlds)} worlds"


def explained(departed: Departed) -> str:
    if departed.seed is None:
        return "not explained by any declared departure, or order of simultaneous events"
    by = [it.name for it in departed.departures]
    if departed.seed:
        by.append(f"the order of simultaneous events (the simulator's with seed {departed.seed})")
    return f"explained by {', '.join(by)}"


def _count(found: tuple[Difference, ...]) -> str:
    return f"{len(found)} difference{'s' if len(found) > 1 else ''}, the first in {found[0].field}"


def document(comparison: Comparison) -> dict[str, object]:
    """The JSON document of one scenario."""
    courses = comparison.courses
    steps = [
        {
            "index": stages[0].index,
            "kind": stages[0].kind,
            "text": stages[0].text,
            "worlds": {
                world.name: {"verdict": stage.verdict, "state": stage.state}
                for world, stage in zip(comparison.worlds, stages, strict=True)
            },
        }
        for stages in zip(*(courses[world].stages for world in comparison.worlds), strict=True)
    ]
    return {
        "scenario": comparison.scenario.name,
        "worlds": [world.name for world in comparison.worlds],
        "first_difference": None if comparison.first is None else _document(comparison.first),
        "departed": [*map(_departed, comparison.departed)],
        "once": [*map(_departed, comparison.once)],
        "between_releases": [
            {
                "world": it.world.name,
                "changes": [change.name for change in it.changes],
                "differences": [*map(_document, it.differences)],
            }
            for it in comparison.changed
        ],
        "unexplained": [it.world.name for it in comparison.unexplained],
        "steps": steps,
    }


def _departed(departed: Departed) -> dict[str, object]:
    return {
        "world": departed.world.name,
        "departures": [departure.name for departure in departed.departures],
        "seed": departed.seed,
        "differences": [*map(_document, departed.differences)],
    }


def _document(difference: Difference) -> dict[str, object]:
    return {"field": difference.field, "expected": difference.expected, "found": difference.found}
