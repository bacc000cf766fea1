"""The how-to guides that need the simulator only: every command does what its page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console_blocks import Command, File, Reader, shows, steps
from tests.ray.command_helpers import ROOT, end_server

PAGES = (
    "generations.md",
    "what-clients-see.md",
    "how-to/write-a-scenario.md",
    "how-to/write-a-mutant.md",
    "how-to/read-a-counterexample.md",
)


@pytest.fixture(scope="module", autouse=True)
def _server_of_commands() -> Iterator[None]:
    yield
    end_server()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_shows(page: str, tmp_path: Path) -> None:
    assert Reader(tmp_path, is_quick=True).follow(ROOT / "docs" / page)


def test_a_page_is_files_and_commands_in_order() -> None:
    text = "```yaml\n# a.yaml\nb: 1\n```\n```yaml\nb: 2\n```\n```console\n$ one  # repeat until\n1\n$ two\n```\n"
    assert list(steps(text)) == [
        File("a.yaml", "# a.yaml\nb: 1\n"),
        Command("one", "1\n", True),
        Command("two", "", False),
    ]


@pytest.mark.parametrize(("line", "expected"), [("echo 1", "2\n"), ("exit 3", ""), ("echo 12; exit 1", "12\n")])
def test_a_command_that_does_something_else_fails(line: str, expected: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```console\n$ {line}\n{expected}```\n")
    with pytest.raises(AssertionError, match="exit code"):
        Reader(tmp_path).follow(page)


def test_output_is_compared_with_gaps() -> None:
    assert shows("a ... d\n", "a b\nc   d\n")
    assert not shows("a ... e\n", "a b c d\n")
