"""The guard finds what a test run left behind, orphans too, and nothing else."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.strays import MARK, end_strays, leaves_within, marked

LASTING_S = "600"


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    end_strays(mark, 0)


def start(mark: str, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True)


def test_a_lasting_process_is_killed_and_named(mark: str) -> None:
    with start(mark, "sleep", LASTING_S) as process:
        assert end_strays(mark, 0) == [f"{process.pid}: sleep {LASTING_S}"]
        assert process.wait() == -9
    assert marked(mark) == {}


def test_an_orphan_is_found(mark: str) -> None:
    with start(mark, "sh", "-c", f"sleep {LASTING_S} >/dev/null & echo $!") as parent:
        orphan = int(parent.communicate()[0])
    assert list(marked(mark)) == [orphan]
    assert len(end_strays(mark, 0)) == 1
    assert leaves_within(orphan, 60)


def test_a_process_that_leaves_in_time_is_no_stray(mark: str) -> None:
    process = subprocess.Popen(["cat"], env={**os.environ, MARK: mark}, stdin=subprocess.PIPE)
    assert list(marked(mark)) == [process.pid]
    process.communicate(b"")
    assert end_strays(mark, 60) == []


def test_other_processes_are_left_alone(mark: str) -> None:
    with start(uuid.uuid4().hex, "sleep", LASTING_S) as other:
        assert end_strays(mark, 0) == []
        assert other.poll() is None
        other.kill()
