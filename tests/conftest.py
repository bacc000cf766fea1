"""What holds for every test: the marker of its folder, the order of the kinds, and the citations of the checklist.

A test in `tests/ray/` is marked `ray`, and so on for every folder in `KINDS`; nobody marks by hand. Kinds run in the
order of `KINDS`, cheapest first, so that a broken rule shows before a cluster is started. A test elsewhere is an error.
A process that outlives the run fails it (`tests/strays.py`). Properties have no deadline: machines differ; the
Hypothesis profile `fast` tries fewer examples.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.strays import StrayGuard

pytest_plugins = ["tests.requirements_plugin"]

KINDS = ("house", "unit", "sim", "ray", "spark", "browser")
TESTS = Path(__file__).parent


settings.register_profile("whole", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=20)
settings.load_profile("whole")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-traces", action="store_true", help="Write the transcripts in tests/traces anew.")


def pytest_configure(config: pytest.Config) -> None:
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
    items.sort(key=lambda item: KINDS.index(kind_of(item.path)))


def pytest_collection_finish() -> None:
    """What stays for the whole run need not be looked at by every collection in it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def no_garbage() -> Iterator[None]:
    """Whole clusters that nobody needs any more would slow down what comes next."""
    yield
    gc.collect()
