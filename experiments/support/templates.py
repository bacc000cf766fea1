"""The jinja2 environment of every page that is written: parts beside their module, and names that must be defined."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape


def templates(folder: Path) -> Environment:
    """The templates in `folder`: `*.html.j2`, in which values are escaped, and others, in which they are not."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
