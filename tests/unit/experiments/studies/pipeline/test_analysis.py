"""What an analysis refuses before it starts Spark, and the process of Spark, which a script stands for."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments.studies.pipeline import analysis
from experiments.studies.pipeline import session as sessions
from experiments.studies.pipeline.analysis import Beside, beside, check_master, run_pipeline
from experiments.studies.pipeline.failures import PipelineFailed
from experiments.studies.pipeline.options import LOCAL
from experiments.studies.pipeline.session import starting_session
from experiments.support.errors import InputError
from experiments.support.progress import Progress


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that accepts connections."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_a_master_that_does_not_answer_is_named() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"
    with pytest.raises(InputError, match=r"--spark-master: found no answer from 127\.0\.0\.1:\d+ .*; allowed: the URL"):
        check_master(master)


def test_one_of_several_masters_is_enough(listening: int) -> None:
    check_master(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{listening}")


@pytest.mark.parametrize("master", ["local[2]", "k8s://https://10.0.0.1:6443"])
def test_masters_of_other_kinds_are_left_to_spark(master: str) -> None:
    check_master(master)


WORK: dict[str, object] = {"java_home": "/java", "master": LOCAL.master, "settings": {}, "little": True, "out": "s"}


class Shown(Progress):
    """Remembers stages and notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(
        self, stage: str, done: int = 0, total: int | None = None, at: str = "", left_s: float | None = None
    ) -> None:
        self.lines.append(stage)

    def note(self, text: str) -> None:
        self.lines.append(text)


Stand = Callable[[str], None]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Has a shell script stand for the Spark process; it finds the folder of the test in the variable `HERE`."""

    def stand(script: str) -> None:
        path = tmp_path / "process"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(path))

    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setattr(analysis, "java_home", lambda: Path("/java"))
    return stand


ENDING = """read work; echo "stage: gold"; echo "done: all"
read end < "$HERE/end"; echo "note: it ends"; touch "$HERE/over"
"""


def test_the_command_goes_on_when_all_is_written_and_waits_at_its_end(process: Stand, tmp_path: Path) -> None:
    """The process cannot end before the pipe is written to, which happens after `run_pipeline` has returned."""
    process(ENDING)
    end, shown = tmp_path / "end", Shown()
    os.mkfifo(end)
    with beside(LOCAL) as started:
        run_pipeline(WORK, LOCAL, shown, started)
        assert shown.lines == ["gold"]
        assert not (tmp_path / "over").exists()
        end.write_text("\n")
    assert shown.lines == ["gold", "it ends"]
    assert (tmp_path / "over").exists()


def test_a_process_that_began_early_is_the_one_that_does_the_work(process: Stand, tmp_path: Path) -> None:
    process('echo x >> "$HERE/begun"; read work || exit 0; echo "done: all"')
    with beside(LOCAL) as started:
        started.begin()
        started.begin()
        run_pipeline(WORK, LOCAL, Shown(), started)
    assert (tmp_path / "begun").read_text() == "x\n"


def test_a_process_with_another_session_ends_and_another_one_does_the_work(process: Stand, tmp_path: Path) -> None:
    process('read work || exit 0; echo "$work" >> "$HERE/asked"; echo "done: all"')
    with beside(LOCAL) as started:
        started.begin()
        run_pipeline(WORK | {"little": False}, LOCAL, Shown(), started)
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert json.loads(asked)["little"] is False


@pytest.mark.parametrize("lines", ['echo "done: all"', "true"], ids=["that has reported the end", "without a report"])
def test_a_process_that_fails_is_a_failure_unless_all_is_written(process: Stand, lines: str) -> None:
    process(f"read work; {lines}; exit 3")
    with beside(LOCAL) as started:
        if lines == "true":
            with pytest.raises(PipelineFailed, match="the Spark process failed"):
                run_pipeline(WORK, LOCAL, Shown(), started)
        else:
            run_pipeline(WORK, LOCAL, Shown(), started)


def test_without_a_java_nothing_begins_early_and_the_analysis_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> Path:
        raise InputError("java", "", "none", "Java 17")

    monkeypatch.setattr(analysis, "java_home", no_java)
    found = Beside(LOCAL)
    found.begin()
    found.end()
    with pytest.raises(InputError, match="Java 17"):
        analysis.session_of(LOCAL, little=True)


def test_a_session_starts_in_a_thread_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    @contextmanager
    def session(*_: object, little: bool) -> Iterator[str]:
        steps.append("begun")
        yield "spark"
        steps.append("ended")

    monkeypatch.setattr(sessions, "spark_session", session)
    with starting_session(Path("/java")) as spark:
        assert [spark(), spark()] == ["spark", "spark"]
        assert steps == ["begun"]
    assert steps == ["begun", "ended"]


def test_a_session_learns_how_the_block_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that a signal ends need not archive its classes first."""
    ends: list[object] = []

    @contextmanager
    def session(*_: object, little: bool) -> Iterator[str]:
        try:
            yield "spark"
        except SystemExit as end:
            ends.append(end.code)
            raise

    monkeypatch.setattr(sessions, "spark_session", session)
    with pytest.raises(SystemExit), starting_session(Path("/java")):
        sys.exit(143)
    assert ends == [143]


def test_a_session_that_does_not_start_raises_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: object, little: bool) -> Iterator[str]:
        raise OSError("no JVM")
        yield "spark"

    monkeypatch.setattr(sessions, "spark_session", session)
    with starting_session(Path("/java")) as spark, pytest.raises(OSError, match="no JVM"):
        spark()
