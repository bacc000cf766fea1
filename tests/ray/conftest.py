"""One private Ray per test process.

A Ray takes seconds to start, a cluster of actors on it half a second per node. So all tests of a process that need no
more than one Ray node ask for `private_ray` and run their clusters on the same Ray, each in a namespace of its own. It
ends after a test, of whatever kind the next one is, if that does not ask for it: a test that starts a Ray of its own
finds the process connected to none. Tests that ask for `pool` share the processes of their clusters as well.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from experiments.engines.ray.session import ray_session
from tests.ray.cluster_helpers import ProcessPool
from tests.ray.command_helpers import Shell, begun_shell, end_server


class PrivateRay:
    """The private Ray of this process, started when it is first needed."""

    def __init__(self) -> None:
        self._running: ExitStack | None = None
        self.pool = ProcessPool()

    def start(self, lock: Path) -> None:
        """Starts it unless it runs. `lock`: a file that lets one process at a time start its Ray, as Ray itself gives
        up on a start that takes 30 s.
        """
        if self._running is None:
            with lock.open("w") as file, ExitStack() as stack:
                fcntl.flock(file, fcntl.LOCK_EX)
                stack.enter_context(ray_session())
                stack.callback(self.pool.close)
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


@pytest.fixture(scope="module")
def pool(private_ray: None) -> ProcessPool:
    """Processes on the private Ray for the nodes of a test."""
    return _PRIVATE.pool


@pytest.fixture
def shell() -> Iterator[Shell]:
    with begun_shell() as made:
        yield made


def pytest_sessionfinish() -> None:
    end_server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None]:
    try:
        yield
    finally:
        if "private_ray" not in getattr(nextitem, "fixturenames", ()):
            _PRIVATE.stop()
