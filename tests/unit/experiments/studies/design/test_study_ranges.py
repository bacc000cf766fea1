"""Ranges: their values and ends, in every place of a study file, and the one-line error for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.design.loader import load_study, parse_study, study_from
from experiments.studies.design.model import PARAMETERS
from experiments.studies.design.ranges import protect, restore, rounded_duration, values_of
from experiments.studies.design.study import StudyPlan
from experiments.support.durations import parse_duration_ms
from experiments.support.errors import InputError
from tests.yaml_rows import rows


def plan(**fields: object) -> StudyPlan:
    return study_from({"name": "s", "trials": 1, **fields}, "s.yaml")


@pytest.mark.parametrize(("name", "text", "values"), rows(__file__, "ranges.yaml"))
def test_values_are_rounded_between_ends_as_written(name: str, text: str, values: list[object]) -> None:
    assert values_of(text, PARAMETERS[name]) == values
    assert all(type(value) is int for value in values_of(text, PARAMETERS[name])) == (name == "brokers")


@pytest.mark.parametrize(("name", "text", "allowed"), rows(__file__, "wrong-ranges.yaml"))
def test_wrong_range_is_refused_in_one_line(name: str, text: str, allowed: str) -> None:
    for section in ({"sweep": {name: text}}, {"zip": {name: [text]}}, {"cells": [{name: text}]}):
        with pytest.raises(InputError) as caught:
            plan(**section)
        assert caught.value.found == text
        assert allowed in caught.value.allowed
        assert caught.value.field.endswith(name)
        assert "\n" not in str(caught.value)


def test_values_beyond_the_limits_of_a_parameter_are_refused() -> None:
    with pytest.raises(InputError, match=r"sweep.unclean_probability: found 1.5; allowed: .* 1"):
        plan(sweep={"unclean_probability": "lin(0, 2, 5)"})
    with pytest.raises(InputError, match="a list of values; or log"):
        plan(sweep={"unclean_probability": 0.5})


def test_ranges_stand_for_their_values_in_lists_and_cells() -> None:
    swept = plan(sweep={"detection": ["instant", "lin(1s, 3s, 3)"]})
    assert [cell.swept["detection"] for cell in swept.cells] == ["instant", "1s", "2s", "3s"]
    zipped = plan(zip={"broker_mttf": "lin(10d, 20d, 2)", "broker_mttr": ["1h", "2h"]})
    assert [tuple(cell.swept.values()) for cell in zipped.cells] == [("10d", "1h"), ("20d", "2h")]
    listed = plan(cells=[{"brokers": 3, "broker_mttf": "lin(10d, 20d, 2)"}, {"brokers": 5, "broker_mttf": "1y"}])
    assert [tuple(cell.swept.values()) for cell in listed.cells] == [(3, "10d"), (3, "20d"), (5, "1y")]


@pytest.mark.parametrize("sweep", ["{broker_mttf: log(1d, 1y, 3)}", "\n  broker_mttf: log(1d, 1y, 3)"])
def test_range_is_one_value_in_either_style_of_yaml(sweep: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: s\ntrials: 1\nquestion: what is log(1, 2)?\nsweep: {sweep}\n")
    study = load_study(path)
    assert [cell.swept["broker_mttf"] for cell in study.cells] == ["1d", "19.1d", "1y"]
    assert study.source["sweep"] == {"broker_mttf": "log(1d, 1y, 3)"}
    assert study.question == "what is log(1, 2)?"


@given(st.text(alphabet="log(in),ab 1\n'#", max_size=40))
def test_protected_text_keeps_its_length_and_is_restored(text: str) -> None:
    assert len(protect(text)) == len(text)
    assert restore(protect(text)) == text
    assert restore([{"a": protect(text)}, 1]) == [{"a": text}, 1]


@given(st.integers(1, 10**15))
def test_rounded_duration_is_one_that_files_can_write(duration_ms: int) -> None:
    assert parse_duration_ms(rounded_duration(duration_ms)) == pytest.approx(duration_ms, rel=0.006)


def test_mapping_is_read_with_the_commas_of_its_ranges() -> None:
    assert parse_study("a: log(1, 2, 3)", "s.yaml") == {"a": "log(1, 2, 3)"}
