"""The pytest plugin: the fixture `simulated_kafka`, and what a failing seed prints.

    def test_outbox(simulated_kafka):
        result = simulated_kafka(seed=7, timeline="swarm").run(application)
        assert not acknowledged_are_kept(result)

`--isray-seed N` gives all simulations of a session the seed N; `--isray-seeds A..B` runs every test that uses the
fixture once for each seed from A to B, in the place of the seed that it names. `--isray-html DIR` writes the page of
each run; the name `--html` is pytest-html's, and a session that has both would not start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from experiments.virtual.simulation import SimulatedKafka

_SEED = "isray_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("isray", "client code in virtual time")
    group.addoption("--isray-seed", type=int, metavar="N", help="the seed of all simulations")
    group.addoption("--isray-html", metavar="DIR", help="the folder for a page of each run, to explore in a browser")
    group.addoption("--isray-seeds", metavar="A..B", help="runs tests with simulated_kafka once per seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    text = metafunc.config.getoption("--isray-seeds")
    if text and "simulated_kafka" in metafunc.fixturenames:
        first, dots, last = str(text).partition("..")
        if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise pytest.UsageError(f"--isray-seeds: found {text}; allowed: A..B with whole numbers A <= B")
        metafunc.parametrize(_SEED, range(int(first), int(last) + 1))


@pytest.fixture
def isray_seed(request: pytest.FixtureRequest) -> int | None:
    """The seed of the command line, which takes precedence over that of a test; None without one."""
    seed: int | None = request.config.getoption("--isray-seed")
    return seed


@pytest.fixture
def simulated_kafka(request: pytest.FixtureRequest, isray_seed: int | None) -> Callable[..., SimulatedKafka]:
    """Makes simulated clusters; the arguments are those of `SimulatedKafka`."""
    from experiments.virtual.simulation import SimulatedKafka  # not in sessions that do not use it

    runs = request.node.stash.setdefault(_RUNS, [])
    folder: str | None = request.config.getoption("--isray-html")
    test = re.sub("[^A-Za-z0-9_.-]+", "-", request.node.name)

    def make(seed: int = 0, timeline: Sequence[Mapping[str, object]] | str = (), **options: Any) -> SimulatedKafka:
        chosen = seed if isray_seed is None else isray_seed
        kafka = SimulatedKafka(chosen, timeline, **options)
        if folder is not None:
            kafka.html = Path(folder) / f"{test}-{len(runs)}-seed-{chosen}.html"
        runs.append(kafka)
        return kafka

    return make


_RUNS: pytest.StashKey[list[SimulatedKafka]] = pytest.StashKey()
"""The simulations of a test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to a failing test the command that replays it."""
    report = yield
    if report.when == "call" and report.failed and (runs := item.stash.get(_RUNS, [])):
        name = item.nodeid.replace("'", "'\"'\"'")
        if item.config.getoption("--isray-seeds") and hasattr(item, "originalname"):
            name = f"{item.nodeid.partition('[')[0]}"
        page = "" if runs[-1].html is None else f"\npage: {runs[-1].html}"
        report.sections.append(("isray", f"replay: pytest '{name}' --isray-seed {runs[-1].seed}{page}"))
    return report
