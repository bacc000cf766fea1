"""Study files: their meaning, and the one-line error for each mistake."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

import experiments.studies
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.loader import load_study, study_from
from experiments.studies.design.model import DAY_MS, PARAMETERS, YEAR_MS, CellParameters
from experiments.studies.design.parameter import Parameter
from experiments.studies.design.study import StudyPlan
from experiments.support.errors import InputError
from experiments.support.yaml_input import validated
from tests.yaml_rows import rows

SHIPPED = Path(experiments.studies.__path__[0])
GUIDE = Path(__file__).parents[5] / "docs" / "studies.md"
GOOD = {
    "name": "s",
    "seed": 7,
    "trials": 10,
    "base": {"broker_mttf": "30d", "detection": "instant"},
    "sweep": {"generation": ["kip-497", "kip-966"], "min_insync_replicas": [1, 2]},
}


def study_with(**changes: object) -> dict[str, object]:
    """GOOD with dotted keys replaced; None removes."""
    raw = copy.deepcopy(GOOD)
    for dotted, value in changes.items():
        section, _, name = dotted.partition("__")
        place, key = (raw[section], name) if name else (raw, section)
        if value is None:
            place.pop(key)
        else:
            place[key] = value
    return raw


@pytest.mark.parametrize(("changes", "field", "allowed"), rows(__file__, "wrong-studies.yaml"))
def test_error_is_one_line_that_names_file_field_and_allowed_values(
    changes: dict[str, object], field: str, allowed: str
) -> None:
    with pytest.raises(InputError) as caught:
        study_from(study_with(**changes), "s.yaml")
    assert caught.value.source == "s.yaml"
    assert caught.value.field == field
    assert allowed in caught.value.allowed
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "limits"),
    [
        ({"incidents": "1 in 100y"}, {"incidents": 0.01}),
        ({"incidents": "2 in 10y"}, {"incidents": 0.2}),
        ({"incidents": "1 in 73d"}, {"incidents": 5.0}),
        ({"incidents": "0.1 a year", "writable": "99.99%"}, {"incidents": 0.1, "writable": 0.9999}),
        ({"writable": 0.999}, {"writable": 0.999}),
        ({"writable": "99.9 %"}, {"writable": 0.999}),
    ],
)
def test_targets_are_rates_a_year_and_shares_of_time(targets: dict[str, object], limits: dict[str, float]) -> None:
    found = study_from(study_with(targets=targets), "s.yaml").targets
    assert found is not None
    assert found.limits() == pytest.approx(limits)


@pytest.mark.parametrize(("changes", "words"), rows(__file__, "unknown-names.yaml"))
def test_the_most_similar_name_is_suggested_for_an_unknown_one(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        study_from(study_with(**changes), "s.yaml")
    assert str(caught.value).startswith(f"s.yaml: {words}; allowed: ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name: [", "expected"),
        ("name: a\nname: b\n", "twice"),
        ("- 1\n", "found a list;"),
        ("", "found nothing;"),
    ],
)
def test_file_that_is_no_mapping_of_unique_keys_is_refused(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=found):
        load_study(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_study(tmp_path / "none.yaml")


def test_sweep_is_the_product_in_the_order_of_the_file_with_values_as_written() -> None:
    study = study_from(study_with(), "s.yaml")
    swept = [tuple(cell.swept.values()) for cell in study.cells]
    assert swept == [("kip-497", 1), ("kip-497", 2), ("kip-966", 1), ("kip-966", 2)]
    first = study.cells[0].parameters
    assert first.broker_mttf == Distribution(mean_ms=30 * DAY_MS)
    assert (first.detection_ms, first.flush_interval_ms, first.duration_ms) == (None, None, YEAR_MS)
    assert first.broker_mttr == CellParameters().broker_mttr


def test_parameters_may_stand_beside_base() -> None:
    beside = study_from(study_with(estimator="plain", preset="weekly-crash"), "s.yaml")
    within = study_from(study_with(base__estimator="plain", base__preset="weekly-crash"), "s.yaml")
    assert beside.cells == within.cells
    assert beside.cells[0].parameters.estimator == "plain"


def test_zip_pairs_its_lists_and_cells_are_taken_one_by_one() -> None:
    zipped = study_from(study_with(sweep=None, zip={"brokers": [3, 5], "replication_factor": [3, 5]}), "s.yaml")
    listed = study_from(study_with(sweep=None, cells=[{"acks": 1}, {"acks": "all"}]), "s.yaml")
    alone = study_from(study_with(sweep=None), "s.yaml")
    assert [cell.parameters.replication_factor for cell in zipped.cells] == [3, 5]
    assert [cell.parameters.acks for cell in listed.cells] == ["1", "all"]
    assert [cell.swept for cell in listed.cells] == [{"acks": 1}, {"acks": "all"}]
    assert [cell.swept for cell in alone.cells] == [{}]


def test_trials_on_the_command_line_replace_the_precision_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nprecision: {relative_error: 0.1, max_trials: 1000}\n")
    assert load_study(path).precision is not None
    study = load_study(path, trials=5)
    assert (study.trials, study.precision, study.max_trials) == (5, None, 5)
    with pytest.raises(InputError, match="--trials"):
        load_study(path, trials=0)
    with pytest.raises(InputError, match="--engine: found kafka; allowed: one of sim, ray"):
        load_study(path, engine="kafka")


def engines(study: StudyPlan) -> list[str]:
    return [cell.parameters.engine for cell in study.cells]


def test_a_study_runs_on_the_engine_of_its_file_or_of_the_command_or_on_those_that_it_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    text = "name: s\ntrials: 2\nduration: 60s\nbase: {detection: 2s}\n"
    path.write_text(text + "engine: ray\n")
    assert (engines(load_study(path)), engines(load_study(path, engine="sim"))) == (["ray"], ["sim"])
    path.write_text(text + "sweep: {acks: [1, all], engine: [sim, ray]}\n")
    assert engines(load_study(path)) == ["sim", "ray", "sim", "ray"]
    assert engines(load_study(path, engine="ray")) == ["ray", "ray"]
    path.write_text(text + "cells: [{engine: sim}, {engine: ray}]\n")
    assert engines(load_study(path)) == ["sim", "ray"]
    with pytest.raises(InputError, match="--engine"):
        load_study(path, engine="ray")


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=lambda parameter: parameter.name)
def test_default_is_written_as_files_write_it(parameter: Parameter) -> None:
    default = getattr(CellParameters(), parameter.field)
    assert parameter.default == parameter.notation.write(default)
    assert parameter.words.format(parameter.default) != parameter.words
    if parameter.notation.form:
        written = parameter.default.removeprefix("exponential, mean ")
        assert getattr(validated(CellParameters, {parameter.name: written}, "f"), parameter.field) == default


def test_every_parameter_of_a_trial_can_be_set_in_a_file() -> None:
    assert {parameter.field for parameter in PARAMETERS.values()} == set(CellParameters.model_fields)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_studies_load(path: Path) -> None:
    assert load_study(path).name == path.stem


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
def test_studies_in_the_guide_load(block: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(block)
    assert load_study(path).cells
