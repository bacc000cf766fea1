"""Scenarios about one rule each, as data: the documents of `testdata/cases`.

The first document of a file has what its cases share, such as the number of brokers and the topics. A case passes in
each of its generations with each of its seeds, without a violation.
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
from tests.sim.scenario_helpers import run_scenario

FOLDER = Path(__file__).parent / "testdata" / "cases"


class Case(BaseModel):
    """A case with what it shares with the other ones of its file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    brokers: int
    slow: bool
    topics: list[dict[str, Any]]
    case: str
    covers: list[str] = []
    generations: list[str]
    seeds: list[int] = [0]
    steps: list[dict[str, Any]]


def cases() -> Iterator[ParameterSet]:
    for path in sorted(FOLDER.glob("*.yaml")):
        shared, *documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
        for case in (Case(**(shared | document)) for document in documents):
            marks = [pytest.mark.covers(*case.covers)] * bool(case.covers) + [pytest.mark.slow] * case.slow
            for generation in case.generations:
                for seed in case.seeds:
                    name = f"{path.stem}: {case.case}, {generation}, seed {seed}"
                    yield pytest.param(case, generation, seed, id=name, marks=marks)


@pytest.mark.parametrize(("case", "generation", "seed"), list(cases()))
def test_a_case_passes(case: Case, generation: str, seed: int) -> None:
    cluster = {"brokers": case.brokers, "generation": generation}
    raw: dict[str, Any] = {"name": "case", "cluster": cluster, "topics": case.topics, "steps": case.steps}
    result = run_scenario(scenario_from(raw, case.case), seed)
    assert result.passed, (result.steps[-1], result.violations)
