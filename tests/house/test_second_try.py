"""A ray test that fails is run once more: flaky if it passes then, failed if it does not; other tests get one try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import pytest
from tests.second_try import SecondTry, add_option

def pytest_addoption(parser):
    add_option(parser)

def pytest_configure(config):
    if not hasattr(config, "workerinput") and not config.getoption("--once"):
        config.pluginmanager.register(SecondTry(config))
"""
TESTS = """
from pathlib import Path
import pytest

def tries(name):
    with Path(name).open("a") as file:
        file.write("x")
    return len(Path(name).read_text())

@pytest.fixture
def broken_once():
    assert tries("fixture") > 1, "the fixture's first failure"

def test_passes_alone():
    assert tries("alone") > 1, "the first failure"

def test_fails_twice():
    assert tries("twice") < 0, "no luck"

def test_of_a_fixture(broken_once):
    assert True

def test_passes():
    assert True
"""

OTHER = """
from pathlib import Path

def test_of_another_kind():
    Path("other").open("a").write("x")
    assert False, "one try"
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # each run imports those that it names, which is half the work
    pytester.makeconftest(CONFTEST)
    for name, text in (("ray/test_tries.py", TESTS), ("unit/ray/test_other.py", OTHER)):
        path = pytester.path / "tests" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize(
    "processes", [(), ("-p", "xdist", "-n", "2", "--dist", "loadfile")], ids=["one process", "xdist"]
)
def test_a_ray_test_that_passes_alone_is_flaky_and_what_fails_twice_fails(
    project: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    result = run(project, *processes)
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"], outcomes["flaky"]) == (1, 2, 2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*flaky: tests/ray/test_tries.py::test_passes_alone*", "*the first failure*"])
    result.stdout.fnmatch_lines(
        ["*flaky: tests/ray/test_tries.py::test_of_a_fixture*", "*the fixture's first failure*"]
    )
    result.stdout.fnmatch_lines(["*second try, alone*", "*no luck*"])
    result.stdout.fnmatch_lines(["flaky tests (failed, then passed when run alone): 2"])
    assert (project.path / "other").read_text() == "x"


def test_a_run_whose_failures_are_all_flaky_passes(project: pytest.Pytester) -> None:
    result = run(project, "-k", "passes")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes() == {"passed": 1, "flaky": 1, "deselected": 3}


@pytest.mark.parametrize("argument", ["--once", "--maxfail=1"])
def test_there_is_no_second_try_where_none_is_wanted(project: pytest.Pytester, argument: str) -> None:
    result = run(project, "-k", "test_passes_alone", argument)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (project.path / "alone").read_text() == "x"


def test_a_run_without_ray_tests_does_not_mention_them(project: pytest.Pytester) -> None:
    result = run(project, "-k", "another_kind")
    assert "flaky" not in result.stdout.str()
