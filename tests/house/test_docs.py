"""Documents match the project: paths and links exist, dependencies are justified, scenarios are listed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/recovery.md", "docs/scenarios.md")
SHIPPED = {path.stem for path in (ROOT / "experiments" / "scenarios").glob("*.yaml")}

_PATH = re.compile(r"(?:protocol|actors|experiments|tests|docs)/[\w./-]*\w")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    named = set(_PATH.findall((ROOT / page).read_text(encoding="utf-8")))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_links_between_documents_resolve() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {Requirement(line).name for line in project["dependencies"] + project["optional-dependencies"]["dev"]}
    cells = [
        line.split("|")[1] for line in ARCHITECTURE.split("## Dependencies")[1].splitlines() if line.startswith("|")
    ]
    justified = {re.sub(r"[\[(].*", "", name).strip() for cell in cells for name in cell.split(",")}
    assert names <= justified


def test_every_scenario_has_its_line_and_no_other_is_named() -> None:
    lines = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    listed = [name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(listed) == sorted(SHIPPED)
    recovery = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(recovery-[a-z-]+)`", recovery)) <= SHIPPED


def test_every_shipped_study_has_its_line() -> None:
    lines = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").splitlines()
    listed = [re.findall(r"`([\w-]+)`", line.split("|")[1])[0] for line in lines if re.match(r"\| `[\w-]+` \|", line)]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "experiments" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("name", ["architecture.svg", "recovery.svg"])
def test_the_picture_needs_no_network(name: str) -> None:
    picture = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"']+", picture)) == {"http://www.w3.org/2000/svg"}
    assert "href" not in picture
