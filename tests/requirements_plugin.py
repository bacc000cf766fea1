"""The checklist made measurable: `@pytest.mark.covers("E13", "M1")` cites items of docs/requirements.md.

Every citation is checked when tests are collected, before any of them is deselected or run: an item that the checklist
does not have, or a citation of nothing, stops the collection. Section 0 of the checklist describes how a source was
read; it cannot be cited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKLIST = Path(__file__).parent.parent / "docs" / "requirements.md"

_SECTION = re.compile(r"## ([A-N])\. (.+)")
_ITEM = re.compile(r"- ([A-N]\d+) (.+)")


@dataclass(frozen=True, slots=True)
class Checklist:
    """Section letter -> title, and item (`E13`) -> its line, both in the order of the file."""

    sections: dict[str, str]
    items: dict[str, str]


def read_checklist(text: str) -> Checklist:
    """ValueError if an item is there twice or in a section of another letter."""
    sections: dict[str, str] = {}
    items: dict[str, str] = {}
    for line in text.splitlines():
        if found := _SECTION.fullmatch(line):
            sections[found[1]] = found[2]
        elif found := _ITEM.fullmatch(line):
            if found[1] in items:
                raise ValueError(f"{found[1]} is there twice")
            if not sections or found[1][0] != list(sections)[-1]:
                raise ValueError(f"{found[1]} is in the wrong section")
            items[found[1]] = found[2]
    return Checklist(sections, items)


def cited(test: pytest.Item) -> Iterator[str]:
    """The items that a test cites, in its own marks and in those of its class and module."""
    for mark in test.iter_markers("covers"):
        yield from mark.args


def wrong_citations(tests: Iterable[pytest.Item], checklist: Checklist) -> list[str]:
    """One line per citation of an unknown item, and per `covers` without items or with keywords."""
    wrong = []
    for test in tests:
        wrong += [f"{test.nodeid}: covers unknown item {item!r}" for item in cited(test) if item not in checklist.items]
        if any(not mark.args or mark.kwargs for mark in test.iter_markers("covers")):
            wrong.append(f"{test.nodeid}: covers takes items, such as covers('E13', 'M1')")
    return wrong


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wrong = wrong_citations(items, read_checklist(CHECKLIST.read_text(encoding="utf-8")))
    if wrong:
        raise pytest.UsageError("\n".join(wrong))
