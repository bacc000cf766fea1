"""Failure models in study files: presets, parameters that are mappings, recorded failures, placement over racks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.loader import load_study, parse_study, study_from
from experiments.studies.design.mappings import Burst, CatchUp
from experiments.studies.design.model import DAY_MS, PARAMETERS, YEAR_MS, CellParameters
from experiments.studies.design.placement import assignments, rack_of
from experiments.studies.design.presets import PRESETS
from experiments.support.errors import InputError
from tests.yaml_rows import rows

CSV = "node,down_ms,up_ms,kind\n0,1000,2000,clean\n2,86400000,90000000,lossy\n1,864000000,864000001,disk\n"
EPOCH_CSV = "node,down_ms,up_ms,kind\n1,1700864000000,1700864300000,disk\n0,1700000000000,1700000001000,clean\n"


def _study(base: dict[str, object], **fields: object) -> dict[str, object]:
    return {"name": "s", "trials": 1, "duration": "10d", "base": base} | fields


def _cell(base: dict[str, object]) -> CellParameters:
    return study_from(_study(base), "s.yaml").cells[0].parameters


@pytest.mark.parametrize(("base", "field", "allowed"), rows(__file__, "wrong-failure-models.yaml"))
def test_wrong_failure_model_is_one_line(base: dict[str, object], field: str, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        study_from(_study(base), "s.yaml")
    assert (caught.value.source, caught.value.field) == ("s.yaml", field)
    assert allowed in caught.value.allowed
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_parameters_and_the_study_overrides_them(name: str) -> None:
    preset, cell = PRESETS[name], _cell({"preset": name})
    assert preset.parameters
    assert {field: getattr(cell, field) for field in preset.parameters} == preset.parameters
    assert preset.source
    assert preset.leaves_out
    own = _cell({"preset": name, "broker_mttf": "5d"})
    assert own == CellParameters.model_validate(dict(cell) | {"broker_mttf": Distribution(mean_ms=5 * DAY_MS)})


def test_presets_have_the_published_rates() -> None:
    rates = {}
    for name in PRESETS:
        cell = CellParameters(preset=name, duration_ms=YEAR_MS)
        struck = sum(burst.events_per_year([1, 1, 1]) * burst.struck_of([1, 1, 1]) for burst in cell.burst) / 3
        assert cell.broker_mttf is not None
        rates[name] = (YEAR_MS / cell.broker_mttf.mean_ms, struck)
    alone, burst = rates["ford-2010"]
    with_rack = CellParameters(preset="ford-2010").rack_power_events_per_year
    assert with_rack == pytest.approx(1 / 10.2, rel=0.002)
    assert alone + burst + with_rack == pytest.approx(12 / 4.3, rel=0.002), "a failure of a rack is one of its nodes"
    assert (burst + with_rack) / (alone + burst + with_rack) == pytest.approx(0.37, abs=0.002)
    assert rates["dean-first-year"] == pytest.approx((1_000 / 1_800, 0.42))
    assert rates["hdfs-2010"][0] == pytest.approx(12 * 0.008)
    assert rates["cloud-vm-1"][0] == pytest.approx(0.01)
    assert rates["cloud-vm-5"][0] == pytest.approx(0.05)
    assert rates["weekly-crash"][0] == pytest.approx(365 / 7)


def test_presets_and_their_parameters_can_be_swept() -> None:
    swept = _study({}, sweep={"preset": ["none", "weekly-crash"], "broker_mttr": ["1m", "1h"]})
    cells = [cell.parameters for cell in study_from(swept, "s.yaml").cells]
    assert [cell.broker_mttr.mean_ms for cell in cells] == [60_000, 3_600_000] * 2
    assert cells[1].broker_mttf == CellParameters().broker_mttf
    assert cells[3].broker_mttf == Distribution(mean_ms=7 * DAY_MS)


def test_mappings_are_read_in_their_units_and_written_in_words() -> None:
    cell = _cell(
        {
            "broker_mttf": "never",
            "burst": {"per_year": 2, "fraction": 0.5, "window": "30s", "down": "1h"},
            "catch_up": {"rate": "50MB/s", "backlog": "2TB", "write_rate": 1_000_000},
        }
    )
    assert cell.broker_mttf is None
    assert cell.burst == (Burst(per_year=2, fraction=0.5, window_ms=30_000, down=Distribution(mean_ms=3_600_000)),)
    assert cell.catch_up == CatchUp(rate=50e6, backlog=2e12, write_rate=1e6)
    written = {name: PARAMETERS[name].notation.write(getattr(cell, name)) for name in ("burst", "catch_up", "slow")}
    assert written["burst"] == "per year 2, fraction 0.5, window 30s, down exponential, mean 1h"
    assert written["catch_up"] == "rate 50MB/s, backlog 2TB, write rate 1MB/s"
    assert written["slow"] == "none"


def test_catch_up_takes_what_is_behind_divided_by_the_rate() -> None:
    catch_up = CatchUp(rate=10e6, backlog=600e6, write_rate=5e6)
    assert catch_up.needed_ms(60_000, lost_disk=False) == 30_000
    assert catch_up.needed_ms(60_000, lost_disk=True) == 90_000
    assert catch_up.needed_ms(60_000, lost_disk=False, behind_ms=1_000) == 31_000


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        *rows(__file__, "wrong-records.yaml"),
        pytest.param(CSV + f"0,5,{'9' * 5_000},clean\n", "line 5", "a whole number from 0", id="many digits"),
        pytest.param(CSV + f"0,5,6,{'c' * 200_000}\n", "line 5", "separated by commas", id="a long kind"),
    ],
)
def test_wrong_record_is_one_line_with_the_number_of_its_line(
    tmp_path: Path, text: str, place: str, words: str
) -> None:
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        study_from(_study({"failures": "f.csv"}), "s.yaml", folder=tmp_path)
    assert caught.value.source == str(tmp_path / "f.csv")
    assert caught.value.field == place
    assert words in caught.value.allowed
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("failures", "words"), rows(__file__, "unfit-records.yaml"))
def test_record_that_does_not_fit_its_use_is_refused(tmp_path: Path, failures: object, words: str) -> None:
    (tmp_path / "f.csv").write_text(CSV)
    with pytest.raises(InputError, match=re.escape(words)):
        study_from(_study({"failures": failures}), "s.yaml", folder=tmp_path)


@pytest.mark.parametrize("mode", ["replay", "blocks"])
def test_a_record_with_times_of_the_epoch_says_when_it_begins(tmp_path: Path, mode: str) -> None:
    """Outages at 0 s and 10 days, as the record begins at the first one; without `begins` the line says so."""
    (tmp_path / "f.csv").write_text(EPOCH_CSV)
    failures: dict[str, object] = {"file": "f.csv", "mode": mode, "block": "1d", "length": "20d"}
    with pytest.raises(InputError, match="line 3: found down_ms 1700000000000 as the first outage, 19,676 days after"):
        study_from(_study({"failures": failures}), "s.yaml", folder=tmp_path)
    plan = study_from(_study({"failures": failures | {"begins": 1_700_000_000_000}}), "s.yaml", folder=tmp_path)
    record = plan.cells[0].parameters.failures
    assert record is not None
    assert record.outages == ((0, 0, 1_000, "clean"), (1, 864_000_000, 864_300_000, "disk"))
    assert (record.length_ms, record.begins_ms) == (20 * DAY_MS, 0)


def test_the_content_of_a_record_is_part_of_the_study(tmp_path: Path) -> None:
    """`study.yaml` has the record, so that the study can be read without the file; the file's comments stay."""
    (tmp_path / "f.csv").write_bytes(("\ufeff" + CSV.replace("\n", "\r\n")).encode())
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s  # a name\ntrials: 1\nduration: 10d\nbase: {failures: f.csv}\n"
        "sweep: {min_insync_replicas: lin(1, 2, 2)}\n"
    )
    plan = load_study(path)
    assert plan.source["files"] == {"f.csv": CSV}
    assert "# a name" in plan.text
    assert "    0,1000,2000,clean\n" in plan.text
    (tmp_path / "f.csv").unlink()
    assert study_from(parse_study(plan.text, "study.yaml"), "study.yaml", plan.text) == plan
    found = plan.cells[1].parameters.failures
    assert found is not None
    assert [outage.node for outage in found.outages] == [0, 2, 1]
    (tmp_path / "f.csv").write_text(CSV.replace("lossy", "clean"))
    other = load_study(path).cells[0].parameters
    assert other.failures is not None
    assert other.failures.digest != found.digest
    assert other.model_dump_json() != plan.cells[0].parameters.model_dump_json()


@pytest.mark.parametrize(
    ("brokers", "racks", "factor", "fewest"),
    [(3, 3, 3, 3), (6, 3, 3, 2), (5, 3, 3, 2), (4, 3, 2, 1), (7, 2, 3, 1), (6, 3, 5, 3)],
)
def test_replicas_are_spread_over_the_racks_or_kept_together(
    brokers: int, racks: int, factor: int, fewest: int
) -> None:
    def used(placement: str) -> set[int]:
        cell = CellParameters.model_validate(
            {"brokers": brokers, "racks": racks, "replication_factor": factor, "partitions": 60, "placement": placement}
        )
        placed = assignments(cell)
        assert all(len(set(replicas)) == factor for replicas in placed)
        if placement == "spread":
            assert {broker for replicas in placed for broker in replicas} == set(range(brokers))
        return {len({rack_of(cell, broker) for broker in replicas}) for replicas in placed}

    assert used("spread") == {min(racks, factor)}
    assert used("together") == {fewest}


def test_without_racks_replicas_are_on_consecutive_brokers() -> None:
    assert assignments(CellParameters(brokers=4, partitions=3)) == ((0, 1, 2), (1, 2, 3), (2, 3, 0))
