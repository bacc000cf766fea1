"""The kinds of rows: what they declare is what files have, and what the page on traces of other programs says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.studies.trace.kinds import KINDS, LAYOUTS, End, Loss, Stamped, State
from experiments.studies.trace.schema import TRACE_SCHEMA, TraceRow

PAGE = Path(__file__).parents[5] / "docs" / "how-to" / "analyse-traces-of-your-own.md"


def rows_of_the_page() -> dict[str, set[str]]:
    """The columns that the page names for each kind; kinds of one line share them."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        kinds = re.findall(r"`(\w+)`", cells[0])
        if line.startswith("| `") and kinds[0] in KINDS:
            found |= dict.fromkeys(kinds, set(re.findall(r"`(\w+)`", cells[2])) & set(TraceRow._fields))
    return found


def test_the_page_on_traces_of_other_programs_names_the_columns_of_each_kind() -> None:
    page = rows_of_the_page()
    assert page.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        columns = {each.column for each in LAYOUTS[kind].columns.values()}
        alike = [other for other in page if page[other] == page[name]]
        shared = {each.column for other in alike for each in LAYOUTS[KINDS[other]].columns.values()}
        assert columns <= page[name] <= shared, name


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_field_fills_a_column_of_its_own(kind: type) -> None:
    columns = [each.column for each in LAYOUTS[kind].columns.values()]
    assert len(set(columns)) == len(columns)
    assert set(columns) <= set(TRACE_SCHEMA.names) - {"cell", "trial", "seq", "time_ms", "kind", "log_weight"}


def test_a_row_has_the_fields_in_their_columns_and_nothing_in_the_others() -> None:
    state = State(1, leader=2, leader_serves=True, isr_size=3, elr_size=0, min_isr=2, epoch=5, isr="0,1,2")
    assert Stamped(7, state, 0.5).row() == TraceRow(
        7, "state", 1, -1, 2, True, 3, 0, 2, log_weight=0.5, epoch=5, isr="0,1,2"
    )
    assert Stamped(9, Loss(0, 1, 4)).row() == TraceRow(9, "loss", 0, 1, value=4)
    assert Stamped(10, End()).row() == TraceRow(10, "end")
