"""Which scenarios run on processes in every kind of test run, and which have the marker `proof`.

On the simulator all of them run in `make test`; processes add that the engine carries out the same steps and shows the
same states. So the first are as few as carry out every kind of step in every way in which one of them does: with each
field, each loss, each election, each role of a node. Each pass of the choice takes the scenario with the most that is
not yet there, for its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from _pytest.mark import ParameterSet
from pydantic import BaseModel

from experiments.scenarios.model import Scenario

Way = tuple[object, ...]
WORDS = ("lose", "type", "controller", "feature", "between", "source", "target")
"""Fields of steps whose words make a difference to the engine, such as `unflushed` or `active`."""
SAME = {"expect": "await"}
"""Steps that ask for the same."""
OVERHEAD_STEPS = 5
"""What a cluster's start and end cost, in steps."""


def ways(scenario: Scenario) -> set[Way]:
    """In which ways the scenario uses an engine."""
    cluster = scenario.cluster
    found: set[Way] = {("generation", cluster.generation), ("quorum", cluster.controllers > 1)}
    found |= {("cluster", name) for name in cluster.model_fields_set}
    found |= {("topic", name) for topic in scenario.topics for name in topic.model_fields_set}
    return found | {way for step in scenario.steps for way in _ways_of(SAME.get(step.kind, step.kind), step.fields)}


def _ways_of(kind: str, fields: BaseModel | None) -> Iterator[Way]:
    yield (kind,)
    for name, value in fields.model_dump(exclude_unset=True).items() if fields is not None else ():
        yield kind, name
        words = value if isinstance(value, list) else [value]
        yield from ((kind, name, word) for word in words if name in WORDS and isinstance(word, str))


def as_few_as_needed(scenarios: Sequence[Scenario], elsewhere: Sequence[Scenario]) -> set[int]:
    """The indices of scenarios that, with those that run `elsewhere`, use an engine in every way in which one does."""
    own = [ways(scenario) for scenario in scenarios]
    left, chosen = set[Way]().union(*own).difference(*map(ways, elsewhere)), set[int]()
    while left:
        best = max(range(len(own)), key=lambda at: len(own[at] & left) / (len(scenarios[at].steps) + OVERHEAD_STEPS))
        chosen.add(best)
        left -= own[best]
    return chosen


def rest_as_proof(
    groups: dict[str, list[ParameterSet]], elsewhere: Sequence[Scenario]
) -> dict[str, list[ParameterSet]]:
    """The same parameters, each a scenario, of tests; those that the choice leaves out have the marker `proof`."""
    numbered = [(name, given) for name, group in groups.items() for given in group]
    chosen = as_few_as_needed([scenario for _, given in numbered for scenario in given.values], elsewhere)
    found: dict[str, list[ParameterSet]] = {name: [] for name in groups}
    for at, (name, given) in enumerate(numbered):
        marks = given.marks if at in chosen else (*given.marks, pytest.mark.proof)
        found[name].append(given._replace(marks=marks))
    return found
