"""What holds for every test: the marker of its folder, the order of the kinds, and the citations of the checklist.

A test in `tests/ray/` is marked `ray`, and so on for every folder in `KINDS`; no test is marked by hand. Kinds run in
the order of `KINDS`, cheapest first, so that a broken rule shows before a cluster is started. A test elsewhere is an
error. A process that outlives the run fails it (`tests/strays.py`). A ray test that fails is run once more, alone, when
all others are done (`tests/second_try.py`). Properties have no deadline: machines differ; the Hypothesis profile `fast`
tries fewer examples.

pytest-xdist distributes tests by file (`--dist loadfile`), but those of `SPREAD` one by one and after the files: they
share nothing but the process's private Ray (`tests/ray/conftest.py`), and wait for timeouts most of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.second_try import OPTION, SecondTry, add_option
from tests.strays import StrayGuard

pytest_plugins = ["tests.requirements_plugin"]

KINDS = ("house", "unit", "sim", "ray", "spark", "browser")
TESTS = Path(__file__).parent
SPREAD = "tests/ray/test_scenarios_on_ray.py::"


settings.register_profile("whole", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=20)
settings.load_profile("whole")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-traces", action="store_true", help="Write the transcripts in tests/traces anew.")
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and not config.getoption(OPTION):
        config.pluginmanager.register(SecondTry(config))
    config.pluginmanager.register(StrayGuard())


def kind_of(path: Path) -> str:
    """The kind of a test file: the name of its folder under `tests/`. UsageError if that is no kind."""
    folder = path.relative_to(TESTS).parts[0]
    if folder not in KINDS:
        raise pytest.UsageError(f"{path}: tests live in one of tests/{{{','.join(KINDS)}}}/")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(kind_of(item.path))
    items.sort(key=lambda item: (item.nodeid.startswith(SPREAD), KINDS.index(kind_of(item.path))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


class ByFile(LoadScopeScheduling):
    """Schedules the tests of a file on one process, and those of `SPREAD` wherever a process is free."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


def pytest_collection_finish() -> None:
    """Garbage collections of the run skip what was made while tests were collected: all of it is needed to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def no_garbage() -> Iterator[None]:
    """Frees the clusters of a module, which later garbage collections would have to visit."""
    yield
    gc.collect()
