"""The page of `isray what-if --html`: one file that loads nothing, in the style of the report of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from experiments.studies import report
from experiments.studies.whatif.answers import Answer, Question
from experiments.studies.whatif.summary import COLUMNS, LEFT_OUT, METHOD, opening, rows, sentences
from experiments.support.errors import InputError
from experiments.support.templates import templates

MAX_ROWS = 500
"""Failures in the table of the page; the worst ones."""
_STYLE = Path(report.__file__).with_name("page") / "report.css"


def write_page(path: Path, question: Question, answers: Sequence[Answer], rules: str) -> None:
    """Writes the page; `rules` names generation and defaults. InputError where the file cannot be written."""
    found = rows(answers)
    text = (
        templates(Path(__file__).parent)
        .get_template("page.html.j2")
        .render(
            opening=opening(question),
            sentences=sentences(answers, question.layout),
            is_stopped=any(row.is_stopping for row in found),
            columns=COLUMNS,
            rows=found[:MAX_ROWS],
            left_out=len(found) - MAX_ROWS,
            asked=len(answers),
            rules=rules,
            method=METHOD,
            limits=LEFT_OUT,
            style=Markup(_STYLE.read_text(encoding="utf-8")),
        )
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("--html", "", f"{path}: {error.strerror}", "a file that can be written") from error
