"""Processes begin with tests of their own part, take from the other when theirs is done, and run files as a whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.distribution import SPREAD, TESTS, WITH_RAY, ByFile, put_in_order

COMPUTED = ["tests/house/a.py::1", "tests/unit/b.py::1", "tests/spark/c.py::1"]
ON_RAY = ["tests/ray/d.py::1", "tests/ray/d.py::2", f"{SPREAD}1", f"{SPREAD}2", f"{SPREAD}3"]


class Process:
    """A process of pytest-xdist, as the scheduler sees it: the numbers of the tests that it was given."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def run_all(tests: list[str], processes: list[Any]) -> dict[str, list[str]]:
    """The tests that each process ran, if all of them are equally fast."""
    config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=False, tx=["popen"] * len(processes)))
    config.getvalue = lambda name: getattr(config.option, name)
    scheduler = ByFile(config)
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    ran: dict[str, list[str]] = {process.gateway.id: [] for process in processes}
    while any(process.given for process in processes):
        for process in processes:
            if process.given:
                number = process.given.pop(0)
                ran[process.gateway.id].append(tests[number])
                scheduler.mark_test_complete(process, number)
    return ran


def test_every_test_runs_once_and_each_process_begins_with_its_part() -> None:
    tests = [*COMPUTED, *ON_RAY]
    ran = run_all(tests, [Process(number) for number in range(WITH_RAY + 1)])
    assert sorted(test for part in ran.values() for test in part) == sorted(tests)
    assert ran["gw0"][:2] == ON_RAY[:2]
    assert ran[f"gw{WITH_RAY}"][:1] == COMPUTED[:1]


def test_a_process_whose_part_is_done_takes_from_the_other() -> None:
    ran = run_all(ON_RAY, [Process(number) for number in range(WITH_RAY + 1)])
    assert all(ran.values())
    ran = run_all([*COMPUTED, "tests/unit/e.py::1", "tests/unit/f.py::1"], [Process(0), Process(WITH_RAY)])
    assert all(ran.values())


def item(name: str, *fixtures: str) -> Any:
    return SimpleNamespace(nodeid=name, path=TESTS.parent / name.partition("::")[0], fixturenames=fixtures)


def test_long_files_come_first_and_files_that_share_a_ray_follow_the_others() -> None:
    wanted = [
        item("tests/house/test_tidy.py::1"),
        item("tests/spark/test_pipeline.py::1"),
        item("tests/sim/test_fuzz.py::1"),
        item("tests/ray/test_soak.py::1"),
        item("tests/ray/test_sweep.py::1"),
        item("tests/ray/test_ray_engine.py::1", "private_ray"),
        item("tests/ray/test_ray_engine.py::2"),
        item(f"{SPREAD}1", "private_ray"),
    ]
    found = sorted(wanted, key=lambda test: str(test.nodeid)[::-1])
    assert [test.nodeid for test in found] != [test.nodeid for test in wanted]
    put_in_order(found)
    assert [test.path for test in found] == [test.path for test in wanted]


def test_a_test_outside_the_folders_of_the_kinds_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"tests live in one of tests/\{house,unit,"):
        put_in_order([item("tests/elsewhere/test_it.py::1")])
