"""The citation audit mutates what the citing tests execute, rare lines first; an item is weak if all stay green."""

from __future__ import annotations

import pytest

from experiments.hunt.mutants.mutation import path_of, sites
from tests import citation_audit
from tests.citation_audit import GUARDED, UNEXECUTED, WEAK, Executed, audit, candidates

MODULE = "protocol.log.epochs"
CITING = "tests/unit/protocol/log/test_epochs.py::test_it[1-a]"
OTHER = "tests/unit/protocol/log/test_epochs.py::test_it[2-b]"
"""The same test with parameters that cite something else."""


def lines_of(function: str) -> list[int]:
    found = sites(MODULE, path_of(MODULE).read_text(encoding="utf-8"))
    return sorted({site.line_number for site in found if site.mutation.function == function})


def executed() -> Executed:
    """The citing test executes `assign` and `clear`; another test executes `assign`, too, and `truncate`."""
    both, own, other = frozenset({CITING, OTHER}), frozenset({CITING}), frozenset({OTHER})
    functions = {"assign": both, "clear": own, "truncate": other}
    return {MODULE: {line: tests for name, tests in functions.items() for line in lines_of(f"LeaderEpochCache.{name}")}}


def test_lines_that_few_other_tests_execute_come_first() -> None:
    found = candidates(executed(), frozenset({CITING}), 0)
    lines = [site.line_number for site in found]
    rare, common = lines_of("LeaderEpochCache.clear"), lines_of("LeaderEpochCache.assign")
    assert sorted(lines[: len(rare)]) == rare
    assert sorted(lines[len(rare) :]) == common


@pytest.mark.parametrize(
    ("notice", "measured", "verdict", "missed"),
    [((None, "a test"), executed(), GUARDED, 1), ((None,) * 3, executed(), WEAK, 3), ((), {}, UNEXECUTED, 0)],
)
def test_an_item_is_weak_if_its_tests_miss_every_mutation(
    monkeypatch: pytest.MonkeyPatch, notice: tuple[str | None, ...], measured: Executed, verdict: str, missed: int
) -> None:
    answers = iter(notice)
    asked: list[object] = []

    def noticed(mutation: object, tests: object) -> str | None:
        asked.append(tests)
        return next(answers)

    monkeypatch.setattr(citation_audit, "noticed_by_tests", noticed)
    found = audit("A1", [CITING], measured, mutants=3, seed=0)
    assert (found.verdict, len(found.missed)) == (verdict, missed)
    assert found.document()["verdict"] == verdict
    assert asked == [(CITING,)] * len(notice)
