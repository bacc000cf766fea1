"""Markdown parts that pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import cleandoc


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; `|` and line breaks in cells are escaped. Empty without rows."""
    cells = [[" ".join(str(value).split()).replace("|", r"\|") for value in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if cells else ""


def default(value: object) -> str:
    """The default of a field as inline code; empty for none."""
    if value is None or value in ({}, ""):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else value)


def first_paragraph(docstring: str | None) -> str:
    """The first paragraph of a docstring on one line; empty for None."""
    return " ".join(cleandoc(docstring or "").split("\n\n")[0].split())


def code(text: object) -> str:
    """`text` as inline code."""
    return f"`{text}`"


def block(text: str, language: str = "") -> str:
    """`text` as a fenced block, empty for an empty text."""
    return f"```{language}\n{text.strip()}\n```" if text else ""


def sections(*parts: str) -> str:
    """Parts of a page, separated by empty lines."""
    return "\n\n".join(part.strip() for part in parts if part.strip())
