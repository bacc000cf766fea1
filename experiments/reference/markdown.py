"""Markdown parts that pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; `|` and line breaks in cells are escaped."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: object) -> str:
    """`text` as inline code."""
    return f"`{text}`"


def block(text: str, language: str = "") -> str:
    """`text` as a fenced block."""
    return f"```{language}\n{text.strip()}\n```"


def sections(*parts: str) -> str:
    """Parts of a page, separated by empty lines."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", r"\|")
