"""A private Ray that does not start: one more try in an empty folder, then an error of one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.engines.ray import session
from experiments.engines.ray.session import RayArguments, RayStartError, job_name

TIMED_OUT = "The current node timed out during startup.\nThis could happen because some of the raylet failed to start."


class FailingStarts:
    """Stands for `ray.init`: fails the given number of times, each time with a process and a file in the folder."""

    def __init__(self, folder: Path, failures: int) -> None:
        self.folder, self.failures, self.calls = folder, failures, 0
        self.left: list[subprocess.Popen[bytes]] = []

    def __call__(self, arguments: RayArguments) -> None:
        assert list(self.folder.iterdir()) == []
        assert [process.wait(20) for process in self.left] == [-9] * len(self.left)
        self.calls += 1
        if self.calls <= self.failures:
            (self.folder / "session").touch()
            command = [sys.executable, "-c", "print(flush=True), input()", self.folder]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()  # From here on /proc shows its arguments.
            self.left.append(process)
            raise Exception(TIMED_OUT)


def test_a_second_start_begins_without_what_the_first_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = FailingStarts(tmp_path, failures=1)
    monkeypatch.setattr(session, "_init", starts)
    session._start({"address": "local"}, tmp_path)
    assert starts.calls == 2


def test_a_ray_that_fails_twice_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = FailingStarts(tmp_path, failures=2)
    monkeypatch.setattr(session, "_init", starts)
    with pytest.raises(RayStartError) as error:
        session._start({"address": "local"}, tmp_path)
    assert str(error.value) == f"Ray did not start, tried 2 times: {' '.join(TIMED_OUT.split())}"
    assert [process.wait(20) for process in starts.left] == [-9, -9]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/venv/bin/isray study run elr.yaml --out out", "isray study run"),
        ("/venv/bin/isray status --json", "isray status"),
        ("/venv/bin/isray up --name a", "isray up"),
        ('/venv/site-packages/experiments/cli/background.py {"name":"a"}', "isray up"),
        ("/home/u/sweep_ours.py elr", "sweep_ours"),
    ],
)
def test_a_job_has_the_name_of_its_command(line: str, name: str) -> None:
    assert job_name(line.split()) == name
