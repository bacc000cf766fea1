"""The command line, and simulated clusters that it administers."""

from __future__ import annotations

from functools import partial

import pytest

from tests.unit.experiments.cli.cli_helpers import CliBench, Commands, MakeBench


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> MakeBench:
    return partial(CliBench, monkeypatch, capsys)


@pytest.fixture
def bench(make_bench: MakeBench) -> CliBench:
    return make_bench()
