"""`make requirements`: which items of docs/requirements.md some test cites, and which are open, by section.

Collects the tests without running them. Standard output holds the report and nothing else. With `--json` it is one
document, counts at the top: `{items, covered, open, sections: [{section, title, items, covered: {item: [test]}, open:
{item: reason}}]}`. Exit code 1 if the tests cannot be collected, or an item is open without a reason in `REASONS`, or
covered with one; standard error then says which.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import typer
from rich.console import Console
from rich.markup import escape

from tests.requirements_plugin import CHECKLIST, Checklist, cited, read_checklist

Citations = Mapping[str, list[str]]

REASONS: Mapping[str, str] = {
    "H10": "older text, which the newer one replaces: configs are converted with the flag (H6, H7), not with a level",
    "L15": "messages travel under names and fields by position, without API keys and tags (docs/numbers.md, L15)",
}
"""Why an item is open."""


class Collector:
    """A pytest plugin that keeps which test cites which item."""

    def __init__(self) -> None:
        self.citations: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for test in session.items:
            for item in cited(test):
                self.citations.setdefault(item, []).append(test.nodeid)


def collect(arguments: list[str]) -> Citations:
    """Item -> ids of the tests that cite it; leaves with exit code 1, and pytest's own words, if collection fails."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        code = pytest.main(["--collect-only", "-qq", *arguments], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(captured.getvalue(), file=sys.stderr)
        raise typer.Exit(1)
    return collector.citations


def summarise(checklist: Checklist, citations: Citations) -> dict[str, Any]:
    """The report as the JSON document that the module's docstring describes."""
    sections = []
    for letter, title in checklist.sections.items():
        items = [item for item in checklist.items if item[0] == letter]
        covered = {item: sorted(set(citations[item])) for item in items if item in citations}
        still_open = {item: REASONS.get(item, "") for item in items if item not in citations}
        sections.append(
            {"section": letter, "title": title, "items": len(items), "covered": covered, "open": still_open}
        )
    covered_count = sum(len(section["covered"]) for section in sections)
    total = len(checklist.items)
    return {"items": total, "covered": covered_count, "open": total - covered_count, "sections": sections}


def show(report: dict[str, Any], console: Console) -> None:
    for section in report["sections"]:
        count = f"{len(section['covered'])} of {section['items']} covered"
        console.print(f"[bold]{section['section']}. {escape(section['title'])}[/bold]: {count}")
        if section["covered"]:
            console.print(f"  covered {' '.join(section['covered'])}", soft_wrap=True)
        for item, reason in section["open"].items():
            console.print(f"  open    {item}: {reason}", soft_wrap=True)
    console.print(f"{report['covered']} of {report['items']} items covered, {report['open']} open")


def unexplained(report: Mapping[str, Any]) -> list[str]:
    """One line per item that is open without a reason, or has one and is covered."""
    reasons = {item: reason for section in report["sections"] for item, reason in section["open"].items()}
    lacking = [item for item, reason in reasons.items() if not reason]
    needless = [item for item in REASONS if item not in reasons]
    return [f"{item}: found no test that cites it; allowed: one, or a reason" for item in lacking] + [
        f"{item}: found tests that cite it and a reason why it is open" for item in needless
    ]


def main(as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
    """Covered and open items of the requirements checklist."""
    checklist = read_checklist(CHECKLIST.read_text(encoding="utf-8"))
    report = summarise(checklist, collect(["tests"]))
    if as_json:
        print(json.dumps(report))
    else:
        show(report, Console(highlight=False))
    if complaints := unexplained(report):
        print(*complaints, sep="\n", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
