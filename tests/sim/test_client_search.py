"""The search for defects of aiokafka: plans, resuming, and what `isray clients` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.hunt.clients.plan import draw, load, smaller
from experiments.hunt.clients.run import SEEDS_FILE, run_plan, search
from tests.unit.experiments.explorer.explorer_helpers import data_of

FOUND = Path(__file__).parents[1] / "data" / "client_findings"


def test_a_seed_has_one_plan_and_one_run(tmp_path: Path) -> None:
    assert draw(3) == draw(3) != draw(4)
    first = run_plan(draw(3))
    assert first.trace_hash
    page = tmp_path / "run.html"
    assert run_plan(draw(3), page) == first
    assert ["seed", "3"] in data_of(page.read_text())["runs"][0]["facts"]


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / SEEDS_FILE).write_text('[0, 1500, ["duplicate"]]\n[7, 1000, []]\n')
    found = search(range(2), tmp_path)
    assert (found.runs, found.seeds["duplicate"]) == (2, [0])
    assert len((tmp_path / SEEDS_FILE).read_text().splitlines()) == 3
    again = search(range(2), tmp_path)
    assert (again.runs, again.client_s, again.seeds) == (found.runs, found.client_s, found.seeds)


def test_simpler_plans_differ_in_one_thing_each() -> None:
    plan = draw(3).model_copy(update={"members": 2, "partitions": 2})
    for simple in smaller(plan):
        changed = {name for name in type(plan).model_fields if getattr(plan, name) != getattr(simple, name)}
        assert len(changed) == 1


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_smallest_run_of_each_finding_has_it(path: Path) -> None:
    """Also without its last fault nothing would be found: the files are what `shrink` has left."""
    file = load(path)
    assert run_plan(file.plan).of_class(file.finding.name) is not None
    fewer = file.plan.model_copy(update={"faults": file.plan.faults[:-1]})
    assert run_plan(fewer).of_class(file.finding.name) is None
