"""Faults as values: what a file may say, what is drawn from rates, and what bounds allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from experiments.faults.draw import Rates, timeline
from experiments.faults.kinds import FAULT_KINDS, AnyFault
from experiments.faults.kinds.processes import Crash
from experiments.faults.schema import Bounds, Fault
from experiments.faults.targets import Targets
from experiments.hunt.fuzz.plan import Plan, Sizes, TimelineFile, load, save
from experiments.hunt.fuzz.swarm import draw
from experiments.support.errors import InputError
from protocol.features import LOG_GENERATIONS, Generation
from tests.yaml_rows import rows

FAULT: TypeAdapter[Fault] = TypeAdapter(AnyFault)
TARGETS = Targets(brokers=range(4), controllers=(1000,), clients=(3000,), topics={"t": 2}, replication_factor=3)
SEEDS = st.integers(0, 2**31)


def rates(*kinds: str) -> Rates:
    return Rates(mean_between_ms=300, durations_ms=(50, 2_000), weights=dict.fromkeys(kinds, 1))


def drawn(seed: int, *kinds: str) -> tuple[Fault, ...]:
    return timeline(rates(*kinds), TARGETS, Random(seed), 3_000, 13_000)


@given(SEEDS)
def test_drawn_faults_lie_within_the_time_given_in_order(seed: int) -> None:
    faults = drawn(seed, *FAULT_KINDS)
    assert all(3_000 < fault.at_ms < fault.end_ms <= 13_000 for fault in faults)
    assert [fault.at_ms for fault in faults] == sorted(fault.at_ms for fault in faults)


@given(SEEDS)
def test_a_drawn_fault_is_read_back_from_yaml(seed: int) -> None:
    for fault in drawn(seed, *FAULT_KINDS):
        written = yaml.safe_load(yaml.safe_dump(fault.model_dump(mode="json")))
        assert FAULT.validate_python(written) == fault


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_can_be_drawn_alone(kind: str) -> None:
    faults = drawn(1, kind)
    assert faults
    assert {fault.kind for fault in faults} == {kind}


@pytest.mark.parametrize("controllers", [(1000,), (1000, 1001, 1002)])
def test_a_controllers_disk_is_hit_only_if_there_are_others(controllers: tuple[int, ...]) -> None:
    targets = replace(TARGETS, controllers=controllers)
    faults = timeline(rates("crash"), targets, Random(1), 0, 100_000)
    losses = {fault.loses for fault in faults if isinstance(fault, Crash) and fault.node in controllers}
    assert losses == (
        {"nothing"} if len(controllers) == 1 else {"nothing", "suffix", "torn", "corrupt", "unflushed", "all"}
    )


def test_a_kind_without_weight_is_never_drawn() -> None:
    some = Rates(mean_between_ms=100, durations_ms=(50,), weights={"crash": 1, "pause": 0})
    assert {fault.kind for fault in timeline(some, TARGETS, Random(1), 0, 9_000)} == {"crash"}


@pytest.mark.parametrize("raw", [{"records": -1}, {"delays": -2}, {"earthquakes": 1}, {"lossy": "1"}])
def test_bounds_are_counts_of_what_may_happen(raw: dict[str, object]) -> None:
    assert Bounds.model_validate({"delays": -1}).delays == -1
    with pytest.raises(ValidationError):
        Bounds.model_validate(raw)


@pytest.mark.parametrize("raw", rows(__file__, "wrong-faults.yaml"))
def test_an_invalid_fault_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FAULT.validate_python(raw)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValidationError, match="allowed: one of crash"):
        rates("earthquake")


# -- plans and their files ---------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(SEEDS, st.sampled_from([None, *LOG_GENERATIONS]))
def test_a_seed_gives_one_plan(seed: int, generation: Generation | None) -> None:
    plan = draw(seed, generation)
    assert plan == draw(seed, generation)
    assert generation is None or plan.generation == generation.value
    assert len({operation.id for operation in plan.operations}) == len(plan.operations) > 0


def file_of(plan: Plan) -> TimelineFile:
    return TimelineFile(trace_hash="0" * 32, before=plan.sizes, after=plan.sizes, plan=plan)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_saved_plan_is_read_back(seed: int, tmp_path: Path) -> None:
    file = file_of(draw(seed))
    save(file, tmp_path / "f.yaml")
    assert load(tmp_path / "f.yaml") == file


PLAN: dict[str, Any] = {
    "seed": 1,
    "brokers": 3,
    "generation": "kip-966",
    "topics": [{"name": "t", "assignments": [[0, 1, 2]]}],
    "operations": [{"kind": "send", "at_ms": 3000, "id": 1, "topic": "t", "partition": 0}],
    "faults": [{"kind": "pause", "at_ms": 4000, "duration_ms": 10, "node": 0}],
}


def _problem(plan: dict[str, Any], path: Path) -> str:
    document = file_of(Plan.model_validate(PLAN)).model_dump(mode="json") | {"plan": plan}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("change", "words"), rows(__file__, "wrong-plans.yaml"))
def test_a_wrong_file_is_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in _problem(PLAN | change, tmp_path / "f.yaml")


def test_sizes_are_counted() -> None:
    plan = Plan.model_validate(PLAN)
    assert plan.sizes == Sizes(faults=1, operations=1)
    assert plan.end_ms == 4_010
