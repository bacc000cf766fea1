"""Scripts: the example and every Python block of the guide run as they are, with fewer trials; results as frames."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from experiments.engines.ray.session import ray_session
from experiments.studies import Study, run
from experiments.support.build import PACKAGES_FOLDER

pytestmark = pytest.mark.usefixtures("in_session")

GUIDE = PACKAGES_FOLDER / "docs" / "studies-in-python.md"
EXAMPLE = PACKAGES_FOLDER / "experiments" / "studies" / "examples" / "loss_against_mttf.py"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def commits(rows: object) -> float:
    """A number that is the same in all trials."""
    return 3.0


@pytest.fixture(scope="module", autouse=True)
def _connected() -> Iterator[None]:
    """One Ray for all scripts, which they find connected."""
    with ray_session():
        yield


def unindented(script: str) -> str:
    return re.sub(r"^ +", "", script, flags=re.MULTILINE)


def execute(script: str, trials: int) -> dict[str, object]:
    """Runs a script as `python` does, with so many trials; returns its names."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(re.sub(r"trials=\d+", f'trials={trials}, duration="20d"', script), names)
    return names


def test_the_example_plots_and_is_the_first_block_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    script = EXAMPLE.read_text(encoding="utf-8")
    assert unindented(BLOCKS[0].partition("\n\n")[2]) in unindented(script)
    execute(script, trials=2)
    shown = capsys.readouterr().out
    assert "2.67d" not in shown
    assert all(value in shown for value in ("5d", "10d", "20d", "40d", "80d", "loss_rate_ci_high"))
    assert (tmp_path / "loss-against-mttf.png").read_bytes().startswith(b"\x89PNG")


def test_an_import_of_the_example_starts_no_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert "frame" not in runpy.run_path(str(EXAMPLE), run_name="imported")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("block", BLOCKS[1:], ids=["metrics", "failure model"])
def test_other_blocks_of_the_guide_run(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = execute(block, trials=2)
    assert isinstance(names["study"], Study)
    assert capsys.readouterr().out.count("\n") >= 4


def test_results_are_frames_of_arrow_pandas_and_spark_with_custom_metrics(tmp_path: Path, spark: SparkSession) -> None:
    study = Study(name="s", trials=3, duration="5d", sweep={"min_insync_replicas": [1, 2]}, metrics=[commits])
    results = run(study, out=tmp_path)
    arrow, pandas = results.to_arrow(), results.to_pandas()
    assert arrow["min_insync_replicas"].to_pylist() == [1, 2]
    years = 5 * 3 / 365
    assert arrow["partition_years"].to_pylist() == pytest.approx([years, years])
    assert list(pandas.columns) == arrow.column_names
    assert pandas["commits"].tolist() == pytest.approx([9.0 / years] * 2)
    assert (pandas["commits_ci_low"] < pandas["commits"]).all()
    assert (pandas["commits"] < pandas["commits_ci_high"]).all()
    assert [row["commits"] for row in results.to_spark(spark).collect()] == pytest.approx([9.0 / years] * 2)
    assert results.trials()["commits"].to_pylist() == [3.0] * 6
    assert set(results.trace()["cell"].to_pylist()) == {0, 1}
    assert "commits" in Path(results.report()).read_text(encoding="utf-8")
