"""docs/ as a site (`make docs`): every link and anchor leads somewhere, every page is in the navigation, and a browser
that opens a page asks no other host for anything.

Sphinx fails on a link or an anchor that leads nowhere and on a page that is in no table of contents. What it does not
see are the pages above docs/: their links are compared with headings here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mdit_py_plugins.anchors.index import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADING = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "srcset", "object": "data"}
"""The attribute of each element that makes a browser load something."""


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Makes a site of a folder as `make docs` does."""
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", str(target.parent / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of docs/."""
    target = tmp_path_factory.mktemp("site") / "html"
    done = build(DOCS, target)
    assert (done.returncode, done.stderr) == (0, "")
    return target


class Loads(HTMLParser):
    """Collects what a page loads, and its links."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADING and values.get(LOADING[tag]):
            self.loaded.append(values[LOADING[tag]] or "")
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")


def read(page: Path) -> Loads:
    parser = Loads()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_pages_and_styles_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = read(page).loaded
        assert loaded
        assert [address for address in loaded if re.match(r"(?:\w+:)?//", address)] == [], page.name
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert [
        found for style in styles for found in re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", style)
    ] == []


def test_every_page_has_its_place_in_the_navigation(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    links = {link.partition("#")[0] for link in read(site / "index.html").links}
    assert pages - {"index.html"} - links == set()


@pytest.mark.parametrize("link", ["gone.md", "page.md#gone", "#gone"])
def test_a_dead_link_fails(link: str, tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    (source / "index.md").write_text(f"# Index\n\n## Pages\n\n- [Page](page.md)\n- [Other]({link})\n")
    (source / "page.md").write_text("# Page\n")
    done = build(source, tmp_path / "html")
    assert done.returncode != 0
    assert "gone" in done.stderr


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slugify(heading.replace("`", "")) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_above_docs_lead_to_headings(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert links
    dead = [
        (target, anchor)
        for target, anchor in links
        if not (ROOT / target).exists() or (anchor and anchor not in anchors(ROOT / (target or name)))
    ]
    assert dead == []
