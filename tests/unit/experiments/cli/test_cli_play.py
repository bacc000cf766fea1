"""`isray play` and `isray console`: what they print without a page, and wrong input."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.play.lessons.model import lessons
from tests.unit.experiments.cli.cli_helpers import Commands


def test_lessons_are_listed_in_their_order_with_their_titles(command: Commands) -> None:
    code, out, err = command.run("play", "--lessons")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == [*lessons()]
    assert "refused-write          Why min ISR 2 refuses this write" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("play", "--lesson", "erl"), "isray: --lesson: found erl. Did you mean 'elr'?; allowed: a lesson: two-of-"),
        (("play", "last-known-leader", "--lesson", "elr"), "isray: --lesson: found elr, and the file last-known-"),
        (("console",), "isray: no cluster runs here; start one with isray up"),
        (("console", "--name", "shop"), "isray: no cluster runs here"),
        (("console", "--address", "127.0.0.1:1"), "isray: --address: found 127.0.0.1:1; allowed: host:port of a run"),
        (("console", "--address", "nowhere"), "isray: --address: found nowhere; allowed: host:port"),
    ],
)
def test_wrong_lessons_and_clusters_are_refused_in_one_line(
    command: Commands, arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code, out, err = command.run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(line)
