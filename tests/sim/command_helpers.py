"""Runs an isray command in this process."""

from __future__ import annotations

import sys

import pytest

from experiments.cli import main
from tests.unit.experiments.cli.cli_helpers import command_line


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["isray", *arguments])
    whole = command_line()
    monkeypatch.setattr(main, "application", lambda *_: whole)
    try:
        main.run()
    except SystemExit as left:
        return left.code
    return 0
