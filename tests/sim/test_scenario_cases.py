"""Scenarios about one rule each, as data: the documents of `testdata/cases`.

The first document of a file has what its cases share, such as the number of brokers and the topics. A case passes in
each of its generations with each of its seeds, without a violation; those with `ray: true` on processes as well
(`tests/ray/test_scenarios_on_ray.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.mark import ParameterSet
from pydantic import BaseModel, ConfigDict

from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario
from tests.sim.scenario_helpers import run_scenario

FOLDER = Path(__file__).parent / "testdata" / "cases"


class Case(BaseModel):
    """A case with what it shares with the other ones of its file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    brokers: int
    slow: bool
    cluster: dict[str, Any] = {}
    topics: list[dict[str, Any]]
    case: str
    covers: list[str] = []
    generations: list[str]
    seeds: list[int] = [0]
    steps: list[dict[str, Any]]
    ray: bool = False

    def scenario(self, generation: str) -> Scenario:
        cluster = {"brokers": self.brokers, "generation": generation, **self.cluster}
        raw: dict[str, Any] = {"name": "case", "cluster": cluster, "topics": self.topics, "steps": self.steps}
        return scenario_from(raw, self.case)


def cases(on_ray: bool = False) -> Iterator[ParameterSet]:
    """The cases with each generation and seed; `on_ray`: those for processes, with their first generation and seed."""
    for path in sorted(FOLDER.glob("*.yaml")):
        shared, *documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
        for case in (Case(**(shared | document)) for document in documents):
            marks = [pytest.mark.covers(*case.covers)] * bool(case.covers) + [pytest.mark.slow] * case.slow
            for generation in case.generations[: on_ray or None] if case.ray or not on_ray else ():
                for seed in case.seeds[: on_ray or None]:
                    name = f"{path.stem}: {case.case}, {generation}, seed {seed}"
                    yield pytest.param(case, generation, seed, id=name, marks=marks)


@pytest.mark.parametrize(("case", "generation", "seed"), list(cases()))
def test_a_case_passes(case: Case, generation: str, seed: int) -> None:
    result = run_scenario(case.scenario(generation), seed)
    assert result.passed, (result.steps[-1], result.violations)
