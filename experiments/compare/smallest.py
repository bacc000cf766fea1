"""The smallest scenario that shows a difference, and its file.

Steps are left out as the fuzz leaves out faults and operations (`experiments/hunt/fuzz/shrink.py`), then topics. What
is left cannot lose a single step, unless the number of runs was not enough. A difference between releases, and one
that departures explain, is looked for on the simulator alone, which shows both sides of it; one that nothing explains
needs its world in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from experiments.compare.comparison import Comparison, Runs, compared_twice, differences
from experiments.compare.worlds import SIM, World, course_in
from experiments.hunt.fuzz.shrink import minimised
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario
from experiments.support.atomic import write_text
from experiments.support.errors import InputError
from experiments.support.yaml_text import parse_yaml

MOST_RUNS = 400
MOST_RUNS_IN_WALL_TIME = 20
Differs = Callable[[Scenario], bool]


class _BudgetUsed(Exception):
    """The budget of runs is used up."""


def smallest(scenario: Scenario, differs: Differs, most_runs: int = MOST_RUNS) -> Scenario:
    """A scenario with some of the steps and topics of one that `differs`, which differs as well."""
    left, runs = scenario, 0

    def keeps(part: str, parts: Sequence[object]) -> bool:
        nonlocal left, runs
        if runs >= most_runs:
            raise _BudgetUsed
        runs += 1
        try:
            candidate = scenario_from({**document_of(left), part: list(parts)}, scenario.name)
        except InputError:  # a step names a topic that is left out, or no step is left
            return False
        if differs(candidate):
            left = candidate
            return True
        return False

    try:
        for part in ("steps", "topics", "steps"):
            parts = document_of(left)[part]
            assert isinstance(parts, list)
            minimised(parts, lambda some, part=part: keeps(part, some))  # type: ignore[misc]
    except _BudgetUsed:
        pass
    return left


def smallest_of(comparison: Comparison, run: Runs = course_in) -> Scenario:
    """The smallest scenario with the difference of a comparison that matters most: one that nothing explains, one that
    departures or an order explain, one between releases. ValueError without a difference.
    """
    if comparison.unexplained:
        world = comparison.unexplained[0].world
        sim = World(SIM, world.release)

        def is_unlike(scenario: Scenario) -> bool:
            pace = run(scenario, sim, None, ())
            return bool(differences(pace, run(scenario, world, pace, ())))

        return smallest(comparison.scenario, is_unlike, MOST_RUNS_IN_WALL_TIME)
    if comparison.departed:
        found = comparison.departed[0]
        sim, rules = World(SIM, found.world.release), [it.name for it in found.departures]
        other = replace(sim, seed=found.seed or 0)
        return smallest(
            comparison.scenario, lambda it: bool(differences(run(it, sim, None, ()), run(it, other, None, rules)))
        )
    if not comparison.changed:
        raise ValueError("the courses do not differ")
    worlds = comparison.worlds[0], comparison.changed[0].world
    return smallest(comparison.scenario, lambda it: bool(differences(*(run(it, world, None, ()) for world in worlds))))


def shrunk(found: Comparison, worlds: Sequence[World], run: Runs = course_in) -> Comparison:
    """The comparison of the smallest scenario with the difference of `found`; `found` itself where nothing explains its
    difference, and the smallest scenario does not show it.
    """
    small = compared_twice(smallest_of(found, run), worlds, run)
    if found.unexplained and not small.unexplained:
        return found
    return replace(small, once=(*found.once, *small.once))


def document_of(scenario: Scenario) -> dict[str, object]:
    """A scenario as a file has it."""
    written = scenario.model_dump(mode="json", exclude={"steps"}, exclude_defaults=True)
    return {**written, "steps": [parse_yaml(step.text, scenario.name, "a step") for step in scenario.steps]}


def save(scenario: Scenario, path: Path) -> None:
    """Writes a scenario file. InputError where that is not possible."""
    head = {name: value for name, value in document_of(scenario).items() if name != "steps"}
    text = yaml.safe_dump(head, sort_keys=False, default_flow_style=None, width=118)
    text += "".join(["steps:\n", *(f"  - {step.text}\n" for step in scenario.steps)])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise InputError("--out", "", f"{path}: {error.strerror}", "a folder that can be written to") from error
