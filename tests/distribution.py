"""In which order tests run, and on which process of pytest-xdist.

Kinds run in the order of `KINDS`: quick checks first; files of spark and browser, which take a minute each, before the
many short ones of sim, so that no process is left with one of them at the end. Among the ray tests, files that start
clusters of their own come first, the longest of them first of all; then files that share the process's private Ray
(`tests/ray/conftest.py`), so that a process starts it once; then the tests of `SPREAD`.

`--dist loadfile` runs the tests of a file on one process, those of spark on one process as they share a JVM, and those
of `SPREAD` wherever a process is free: they share nothing but the private Ray. Ray tests run against real clocks: most
of their time they wait, while their cluster takes a quarter of a processor. All other tests compute. So the first
`WITH_RAY` processes begin with the ray tests, the others with the rest, and a process that finds nothing left of its
own part takes from the other. The others have a lower priority (`NICENESS`), so that the nodes of a cluster get a
processor when they need one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

KINDS = ("house", "unit", "spark", "browser", "sim", "ray", "kafka", "wheel")
TESTS = Path(__file__).parent
RAY = "tests/ray/"
SPARK = "tests/spark/"
SPREAD = f"{RAY}test_scenarios_on_ray.py::"
LONGEST = (
    "test_guides_on_ray.py",
    "test_lost_ray_nodes.py",
    "test_soak.py",
    "test_ray_nodes.py",
    "test_cli_cluster.py",
    "test_running_cluster.py",
)
"""Files of ray tests that take minutes, longest first."""
WITH_RAY = 2
NICENESS = 10
"""Of the processes that do not begin with the ray tests, and of all that they start."""


@cache
def kind_of(path: Path) -> str:
    """The kind of a test file: the name of its folder under `tests/`. UsageError if that is no kind."""
    folder = path.relative_to(TESTS).parts[0]
    if folder not in KINDS:
        raise pytest.UsageError(f"{path}: tests live in one of tests/{{{','.join(KINDS)}}}/")
    return folder


def put_in_order(tests: list[pytest.Item]) -> None:
    """Sorts tests; those of one file stay together."""
    sharing = {test.path for test in tests if "private_ray" in getattr(test, "fixturenames", ())}

    def rank(test: pytest.Item) -> Sequence[int]:
        kind, file = KINDS.index(kind_of(test.path)), test.path.name
        length = LONGEST.index(file) if kind_of(test.path) == "ray" and file in LONGEST else len(LONGEST)
        return test.nodeid.startswith(SPREAD), kind, length, test.path in sharing

    tests.sort(key=rank)


def begins_with_ray(process: str) -> bool:
    """Whether a process of pytest-xdist begins with the ray tests; `process`: its id, such as gw0."""
    return int(process.removeprefix("gw")) < WITH_RAY


class ByFile(LoadScopeScheduling):
    """The scheduler of `--dist loadfile`."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK):
            return SPARK
        return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        own = (unit for unit in self.workqueue if unit.startswith(RAY) == begins_with_ray(node.gateway.id))
        if unit := next(own, None):
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
