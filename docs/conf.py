"""How Sphinx makes a site of docs/ (`make docs`, into build/site).

The pages are Markdown that reads the same on GitHub: links are relative, and no page has a directive of Sphinx. The
navigation is made of what the pages say: a page in `CONTENTS` lists others under headings, and its headings with the
pages linked below them become the captions and entries of the sidebar.

The site is made without a network and asks for none: the theme (furo) brings its style, its script and its icons, and
uses the fonts of the reader's system. The search index is a script of the site, so the search works from a
folder, too.
"""

from __future__ import annotations

import re
from typing import Any

project = "isray"
author = "the isray contributors"
project_copyright = "Apache-2.0"
root_doc = "index"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
"""Headings down to this level get the anchors that GitHub gives them, and links to anchors are checked."""
suppress_warnings = ["myst.header"]
html_theme = "furo"
html_title = "isray"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

CONTENTS = ("index", "reference/README", "contributing/README")
"""Pages that list other pages."""

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+[A-Z]+\.md\)")
"""Links to the README and to CONTRIBUTING.md, which are above docs/ and not pages of the site."""
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
"""A row of a table: on a page whose headings are captions it points to pages that lists name, too."""
_HEADING_OR_LINK = re.compile(r"^## (?P<heading>.+)$|\]\((?P<page>(?!https?:|\.\./)[\w./-]+)\.md\)", re.MULTILINE)


def contents(text: str, captioned: bool) -> str:
    """The hidden tables of contents of a page that lists others: one for each heading of level 2 with links below it.

    `text`: the page in Markdown. `captioned`: whether the headings become captions of the sidebar.
    """
    sections: dict[str, list[str]] = {}
    heading = ""
    for match in _HEADING_OR_LINK.finditer(_ROW.sub("", text) if captioned else text):
        heading = match["heading"] or heading
        if match["page"]:
            sections.setdefault(heading, []).append(match["page"])
    tables = []
    for heading, pages in sections.items():
        caption = [f":caption: {heading}"] if captioned and heading else []
        tables.append("\n".join(["", "```{toctree}", ":hidden:", *caption, "", *dict.fromkeys(pages), "```", ""]))
    return "\n".join(tables)


def prepare(_app: Any, name: str, source: list[str]) -> None:
    """Changes the text of a page when it is read: links to pages outside of docs/ become text, and a page of `CONTENTS`
    gets its tables of contents. `name`: the page's path in docs/, without suffix. `source`: its text, as the only item.
    """
    text = _OUTSIDE.sub(r"\1", source[0])
    source[0] = text + contents(text, captioned=name == root_doc) if name in CONTENTS else text


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
