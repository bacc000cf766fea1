"""One private Ray per test process.

A Ray takes seconds to start, a cluster of actors on it half a second per node. So all tests of a process that need no
more than one Ray node ask for `private_ray` and run their clusters on the same Ray, each in a namespace of its own. A
test that brings a Ray of its own finds the process connected to none: the shared one ends before such a test is set up.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from experiments.engines.ray.session import ray_session

HERE = Path(__file__).parent


class PrivateRay:
    """The private Ray of this process, started when it is first needed."""

    def __init__(self) -> None:
        self._running: ExitStack | None = None

    def start(self, lock: Path) -> None:
        """Starts it unless it runs. `lock`: a file that lets one process at a time start its Ray, as Ray itself gives
        up on a start that takes 30 s.
        """
        if self._running is None:
            with lock.open("w") as file, ExitStack() as stack:
                fcntl.flock(file, fcntl.LOCK_EX)
                stack.enter_context(ray_session())
                self._running = stack.pop_all()

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


_PRIVATE = PrivateRay()


@pytest.fixture(scope="module")
def private_ray(tmp_path_factory: pytest.TempPathFactory) -> None:
    """This process is connected to its private Ray."""
    _PRIVATE.start(tmp_path_factory.getbasetemp().parent / "ray-start.lock")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if HERE in item.path.parents and "private_ray" not in _fixtures(item):
        _PRIVATE.stop()


@pytest.fixture(scope="session", autouse=True)
def _no_ray_outlives_the_session() -> Iterator[None]:
    yield
    _PRIVATE.stop()


def _fixtures(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", ()))
