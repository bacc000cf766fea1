"""The command line, and simulated clusters that it administers."""

from __future__ import annotations

from functools import partial

import pytest

from experiments.cli import cluster_access
from tests.unit.experiments.cli.cli_helpers import CliBench, Commands, MakeBench


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """The command line without a cluster: a command that would connect to one fails the test."""

    def connect(*_: object, **__: object) -> None:
        raise AssertionError("the command connects to a cluster")

    monkeypatch.setattr(cluster_access, "open_admin", connect)
    return Commands(monkeypatch, capsys)


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> MakeBench:
    return partial(CliBench, monkeypatch, capsys)


@pytest.fixture
def bench(make_bench: MakeBench) -> CliBench:
    return make_bench()
