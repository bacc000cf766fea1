"""Runs an isray command in this process."""

from __future__ import annotations

import sys

import pytest

from experiments.cli import main


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["isray", *arguments])
    try:
        main.run()
    except SystemExit as left:
        return left.code
    return 0
