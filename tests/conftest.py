"""What holds for every test: the marker of its folder, the order of the kinds, and the citations of the checklist.

A test in `tests/ray/` is marked `ray`, and so on for every kind of `tests/distribution.py`; no test is marked by hand.
A test elsewhere is an error. A process that outlives the run fails it (`tests/strays.py`). A test on Ray or on a real
Kafka that fails is run once more, alone, when all others are done (`tests/second_try.py`). Properties have no deadline:
machines differ; the Hypothesis profile `fast` tries fewer examples.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from experiments.engines.ray.session import expect_kills
from tests.distribution import NICENESS, ByFile, begins_with_ray, kind_of, put_in_order
from tests.second_try import OPTION, SecondTry, add_option
from tests.strays import StrayGuard

pytest_plugins = ["tests.requirements_plugin"]

settings.register_profile("whole", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=20)
settings.load_profile("whole")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-traces", action="store_true", help="Rewrite transcripts (tests/traces, testdata).")
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        os.nice(config.workerinput["niceness"])
    if not hasattr(config, "workerinput") and not config.getoption(OPTION):
        config.pluginmanager.register(SecondTry(config))
    config.pluginmanager.register(StrayGuard())
    expect_kills()  # before ray is imported, as it writes about killed processes to the output of whichever test runs


def pytest_collection() -> None:
    """Collecting makes many objects and no garbage: searches for it would take a sixth of the time."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(kind_of(item.path))
    put_in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Sets the priority of a process of pytest-xdist that is about to start."""
    gives_way = node.config.getvalue("dist") == "loadfile" and not begins_with_ray(node.workerinput["workerid"])
    node.workerinput["niceness"] = NICENESS if gives_way else 0


def pytest_collection_finish() -> None:
    """Garbage collections of the run skip what was made while tests were collected: all of it is needed to the end.
    They are rare: simulations make many objects, and those in cycles, their clusters, last as long as a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()


def pytest_unconfigure() -> None:
    """Ends the freeze: a library whose objects stay until the end of the process reports them as leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def rewriting(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts that differ are rewritten."""
    return bool(request.config.getoption("--rewrite-traces"))


@pytest.fixture(scope="module", autouse=True)
def no_garbage() -> Iterator[None]:
    """Frees the clusters of a module. What is left, such as fixtures of the session and imported modules, is skipped by
    later garbage collections; a collection that visits it takes 0.2 s."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _quick_jvms() -> Iterator[None]:
    """JVMs of tests live for seconds to minutes: they compile quickly rather than well, which saves a third of their
    time, and archive no classes (`experiments/studies/pipeline/class_archive.py`)."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield
