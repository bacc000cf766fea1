"""A release: the version has one home, `pyproject.toml`, and the pages that name it agree with it."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
RELEASES = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
PARTS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}
"""The headings of a release: those of Keep a Changelog, and what a release cannot do."""


def test_the_newest_release_is_that_of_the_project() -> None:
    assert RELEASES[0] == "[Unreleased]"
    released = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", RELEASES[1])
    assert released is not None
    assert released[1] == PROJECT["version"] == CITATION["version"]
    assert date.fromisoformat(released[2]) == date.fromisoformat(str(CITATION["date-released"]))


def test_the_changelog_has_the_headings_of_its_form() -> None:
    headings = re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)
    assert headings
    assert set(headings) <= PARTS


def test_the_citation_has_what_its_form_requires() -> None:
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys()
    assert (CITATION["title"].partition(":")[0], CITATION["license"]) == (PROJECT["name"], PROJECT["license"])
    assert CITATION["authors"]


def test_the_pages_name_the_wheels_of_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {found for page in pages for found in re.findall(r"isray-(\d[\d.]*)-", page.read_text(encoding="utf-8"))}
    assert named == {PROJECT["version"]}
