"""The jinja2 environment of every page that is written: parts beside their module, and names that must be defined."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape


@cache
def templates(folder: Path) -> Environment:
    """The templates in `folder`: `*.html.j2`, in which values are escaped, and others, in which they are not. There is
    one environment per folder, which compiles a template once.
    """
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
