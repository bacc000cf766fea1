"""The wheels of dist/ in empty environments, outside of the checkout (`make test-wheel`).

Each wheel is installed with the locked versions of what it requires and nothing else, so a file that the wheel lacks, a
path into the checkout, or a dependency that only developers have fails here. It needs a package index and takes
minutes: it is no part of `make test`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.console_blocks import Reader
from tests.ray.command_helpers import ROOT

IMPORT_ALL = """
import importlib, pkgutil
import actors, experiments, protocol
for top in (actors, experiments, protocol):
    for module in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                print(module.name, error.name)
"""
"""Prints each module that cannot be imported, and what it lacks."""
OF_EXTRAS = {
    "aiokafka": ("experiments.hunt.clients.", "experiments.virtual.examples."),
    "duckdb": ("experiments.bench.pipeline_duckdb",),
    "pytest": ("experiments.virtual.pytest_plugin",),
}
"""What the wheel does not require, with the beginnings of the names of the modules that need it."""


@pytest.fixture(scope="module", params=["compiled", "sources"])
def build(request: pytest.FixtureRequest) -> str:
    """Of the wheel, as `isray version` names it."""
    return str(request.param)


@pytest.fixture(scope="module")
def reader(build: str) -> Iterator[Reader]:
    """Runs commands with the wheel of this build, in an environment and a folder of its own. The folder's name is short
    enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    environment, uv = folder / "environment", os.environ.get("UV", "uv")
    (wheel,) = (path for path in (ROOT / "dist").glob("*.whl") if ("none-any" in path.name) == (build == "sources"))
    python, lock = str(environment / "bin" / "python"), str(ROOT / "requirements.lock")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "--constraint", lock, str(wheel)], check=True)
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    places = {"PATH": path, "PYTHONPATH": "", "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    found = Reader(folder, places)
    yield found
    found.run("isray down")
    shutil.rmtree(folder)


@pytest.mark.timeout(900)
def test_the_page_of_the_installation_does_what_it_shows(reader: Reader) -> None:
    assert reader.follow(ROOT / "docs" / "how-to" / "install.md")
    assert "loss events" in (reader.folder / "out" / "first" / "report.html").read_text(encoding="utf-8")


def test_it_runs_the_build_of_its_wheel_from_its_environment(reader: Reader, build: str) -> None:
    code, out = reader.run("isray version")
    assert (code, out.splitlines()[-1]) == (0, f"build {build}")
    code, out = reader.run("python -c 'import experiments; print(experiments.__file__)'")
    assert out.startswith(str(reader.folder))


def test_every_module_can_be_imported_but_for_those_of_extras(reader: Reader) -> None:
    code, out = reader.run(f"python -c '{IMPORT_ALL}'")
    found = [line.split() for line in out.splitlines()]
    assert (code, {lacking for _, lacking in found}) == (0, OF_EXTRAS.keys())
    assert [module for module, lacking in found if not module.startswith(OF_EXTRAS[lacking])] == []


def test_the_page_of_play_answers(reader: Reader) -> None:
    with subprocess.Popen(
        ["isray", "play"], cwd=reader.folder, env=reader.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        try:
            assert address is not None
            with urlopen(address[0], timeout=60) as answer:
                page = answer.read().decode()
        finally:
            process.terminate()
    assert "<title>" in page
    assert page.count("<script") >= 1


def test_a_scenario_runs_on_processes(reader: Reader) -> None:
    code, out = reader.run("isray scenario run last-replica-standing --engine ray")
    assert code == 0, out
    assert "on ray, seed 0: passed" in " ".join(out.split())


def test_the_wheels_differ_by_extension_modules_only() -> None:
    held = [
        {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
        for path in sorted((ROOT / "dist").glob("*.whl"))
    ]
    compiled, sources = held
    assert sources < compiled
    assert {Path(name).suffix for name in compiled - sources} == {".so"}
