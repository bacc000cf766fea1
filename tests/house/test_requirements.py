"""The checklist is whole, citations are checked at collection, and the report counts what is cited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements_plugin import CHECKLIST, Checklist, read_checklist
from tests.requirements_report import REASONS, summarise, unexplained

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent.parent

COUNTS = dict(zip("ABCDEFGHIJKLMN", (55, 24, 12, 35, 36, 30, 34, 15, 10, 19, 18, 21, 87, 37), strict=True))
SMALL = "## A. First\n- A1 one\n- A2 two\nHeading\n- A3 three\n## B. Second\n- B1 one\n"


def test_the_checklist_has_all_items_in_their_sections() -> None:
    checklist = read_checklist(CHECKLIST.read_text(encoding="utf-8"))
    counts = {letter: sum(item[0] == letter for item in checklist.items) for letter in checklist.sections}
    assert counts == COUNTS
    for letter, count in COUNTS.items():
        assert [item for item in checklist.items if item[0] == letter] == [f"{letter}{n}" for n in range(1, count + 1)]


@pytest.mark.parametrize("text", ["- A1 one\n", "## A. x\n- B1 one\n", "## A. x\n- A1 one\n- A1 two\n"])
def test_a_damaged_checklist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"section|twice"):
        read_checklist(text)


def test_report_counts_by_section() -> None:
    report = summarise(read_checklist(SMALL), {"A2": ["t::b", "t::a", "t::a"], "B1": ["t::a"]})
    assert (report["items"], report["covered"], report["open"]) == (4, 2, 2)
    assert report["sections"] == [
        {
            "section": "A",
            "title": "First",
            "items": 3,
            "covered": {"A2": ["t::a", "t::b"]},
            "open": {"A1": "", "A3": ""},
        },
        {"section": "B", "title": "Second", "items": 1, "covered": {"B1": ["t::a"]}, "open": {}},
    ]


def test_at_most_ten_items_are_open_and_each_has_a_reason() -> None:
    items = read_checklist(CHECKLIST.read_text(encoding="utf-8")).items
    assert len(REASONS) <= 10
    assert REASONS.keys() <= items.keys()
    whole = {item: ["t::a"] for item in items if item not in REASONS}
    sections = {item[0]: item[0] for item in REASONS}
    assert unexplained(summarise(Checklist(sections, items), whole)) == []
    lacking = unexplained(summarise(read_checklist(SMALL), {"A1": ["t::a"], "A2": ["t::a"], "B1": ["t::a"]}))
    assert lacking[0] == "A3: found no test that cites it; allowed: one, or a reason"
    assert lacking[1:] == [f"{item}: found tests that cite it and a reason why it is open" for item in REASONS]


def test_the_report_ends_without_the_words_of_any_library() -> None:
    """The file is one whose tests load a library that reports objects which are left at the end."""
    file = "tests/unit/experiments/studies/pipeline/test_silver.py"
    code = f"from tests.requirements_report import collect; collect([{file!r}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        ("covers('E13', 'M1')", None),
        ("covers('E13', 'E99')", "*test_it*covers unknown item 'E99'*"),
        ("covers('0.1')", "*covers unknown item '0.1'*"),
        ("covers()", "*covers takes items*"),
        ("covers", "*covers takes items*"),
        ("cover('E13')", "*'cover' not found in `markers`*"),
    ],
)
def test_citations_are_checked_at_collection(pytester: pytest.Pytester, mark: str, complaint: str | None) -> None:
    pytester.makeini("[pytest]\nmarkers = covers(*items): cites\naddopts = --strict-markers\n")
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.{mark}\ndef test_it():\n    assert False, 'must not run'\n")
    result = pytester.runpytest("--collect-only", "-p", "tests.requirements_plugin")
    if complaint is None:
        assert result.ret == pytest.ExitCode.OK
    else:
        assert result.ret != pytest.ExitCode.OK
        assert complaint.strip("*").split("*")[-1] in result.stdout.str() + result.stderr.str()
