"""The fixture `simulated_kafka` in a session of its own, and the command that a failing test prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.experiments.explorer.explorer_helpers import data_of

TESTS = """
async def application(servers):
    return servers

def test_passes(simulated_kafka):
    assert simulated_kafka(seed=3, timeline=[{"at": "5s", "crash": {"broker": 0}}]).run(application).seed == 3

def test_fails(simulated_kafka):
    result = simulated_kafka(seed=17, brokers=1).run(application)
    assert (result.value, result.seed) == ("broker-0:9092", -1)
"""


def session(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_orders.py").write_text(TESTS)
    root = str(Path(__file__).parents[4])
    command = [sys.executable, "-m", "pytest", "-p", "experiments.virtual.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": root, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_failing_test_prints_the_command_that_replays_it(tmp_path: Path) -> None:
    first = session(tmp_path).stdout
    assert "1 failed, 1 passed" in first
    assert "replay: pytest 'test_orders.py::test_fails' --isray-seed 17" in first
    again = session(tmp_path, "test_orders.py::test_fails", "--isray-seed", "18").stdout
    assert "--isray-seed 18" in again
    assert "('broker-0:9092', 18) == ('broker-0:9092', -1)" in again


def test_seeds_run_each_test_once_per_seed(tmp_path: Path) -> None:
    found = session(tmp_path, "--isray-seeds", "4..5", "-k", "fails").stdout
    assert "2 failed" in found
    assert "replay: pytest 'test_orders.py::test_fails' --isray-seed 5" in found


def test_seeds_that_are_no_range_are_refused(tmp_path: Path) -> None:
    done = session(tmp_path, "--isray-seeds", "6..4", "--collect-only")
    assert done.returncode != 0
    assert "--isray-seeds: found 6..4; allowed: A..B" in done.stdout + done.stderr


def test_the_page_of_a_failing_seed_is_written_and_named(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    found = session(tmp_path, "test_orders.py::test_fails", "--isray-seed", "18", "--isray-html", str(pages)).stdout
    page = pages / "test_fails-0-seed-18.html"
    assert f"page: {page}" in found
    [run] = data_of(page.read_text())["runs"]
    assert ["seed", "18"] in run["facts"]
