"""`make audit`: does a test that cites an item of docs/requirements.md notice when the code of that item is changed?

For each item the audit mutates lines of the protocol that the citing tests execute, those first that the fewest other
tests execute: they are the best guess at the code that the citation is about. A mutation is one of
`experiments/hunt/mutants/mutation.py`. The citing tests then run against it in a process of their own. An
item is *guarded* as soon as they notice a mutation, *weak* if they stay green with all of them, and *unexecuted* where
no citing test that takes part executes code of the protocol. Only tests of `SELECTION` take part, and of a test with
parameters only those that cite the item, such as one scenario of many.

Which test executes which line is measured once, with coverage.py, and kept in build/audit until `--measure`; for that
this module is a plugin of pytest. Exit code 1 if an item is weak. An item that is not weak need not be well tested:
reading its tests remains necessary.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import pytest
import typer
from coverage import Coverage, CoverageData

from experiments.hunt.mutants.generated.campaign import noticed_by_tests
from experiments.hunt.mutants.mutation import ROOT, Mutation, Site, modules, path_of, sites
from tests.requirements_plugin import CHECKLIST, read_checklist
from tests.requirements_report import Citations, collect

SELECTION = ["tests/unit/protocol", "tests/sim", "-m", "not slow and not proof"]
"""What takes part: no tests on Ray and Spark, no slow ones, and not the proof."""
MEASURED = ROOT / "build" / "audit" / "coverage"
MUTANTS = 4
"""How many mutations of an item's code its tests may miss before it counts as weak."""
GUARDED, WEAK, UNEXECUTED = "guarded", "weak", "unexecuted"

Executed = Mapping[str, Mapping[int, frozenset[str]]]
"""Module of the protocol -> line -> the ids of the tests that execute it."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict on one item: its citing tests, the mutations that they missed, and the one that they noticed."""

    item: str
    tests: tuple[str, ...]
    missed: tuple[Site, ...]
    noticed: Mutation | None

    @property
    def verdict(self) -> str:
        if self.noticed is not None:
            return GUARDED
        return WEAK if self.missed else UNEXECUTED

    def document(self) -> dict[str, object]:
        """The JSON document of one item."""
        missed = [f"{place_of(site)}: {site.mutation.change}" for site in self.missed]
        noticed = None if self.noticed is None else str(self.noticed)
        return {
            "item": self.item, "verdict": self.verdict, "tests": list(self.tests), "missed": missed, "noticed": noticed
        }  # fmt: skip


def place_of(site: Site) -> str:
    """File and line of a mutation."""
    return f"{path_of(site.mutation.module).relative_to(ROOT)}:{site.line_number}"


# -- which test executes which line ------------------------------------------------------------------------------------


def measure(path: Path) -> None:
    """Runs the tests under coverage.py. RuntimeError if one of them fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "coverage", "run", f"--data-file={path}", "-m", "pytest", "-q", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-p", __spec__.name, *SELECTION], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the tests must pass before they are audited:\n{done.stdout}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What runs from now on is executed by this test."""
    if (running := Coverage.current()) is not None:
        running.switch_context(item.nodeid)


def read_measured(path: Path) -> Executed:
    """What `measure` has found."""
    data = CoverageData(str(path))
    data.read()
    found: dict[str, dict[int, frozenset[str]]] = {}
    for name in modules():
        lines = data.contexts_by_lineno(str(path_of(name)))
        found[name] = {line: frozenset(test for test in tests if test) for line, tests in lines.items()}
    return found


# -- the audit ---------------------------------------------------------------------------------------------------------


def candidates(executed: Executed, citing: frozenset[str], seed: int) -> list[Site]:
    """The mutations of lines that these tests execute, one per line, those first that the fewest other tests execute;
    `seed` decides among equals.
    """
    ranked: list[tuple[int, float, Site]] = []
    for module, lines in executed.items():
        own = {line: len(tests - citing) for line, tests in lines.items() if tests & citing}
        if own:
            draw = Random(f"{module}/{seed}")
            by_line: dict[int, list[Site]] = {}
            for site in sites(module, path_of(module).read_text(encoding="utf-8")):
                by_line.setdefault(site.line_number, []).append(site)
            ranked += [(own[line], draw.random(), draw.choice(found)) for line, found in by_line.items() if line in own]
    return [site for _, _, site in sorted(ranked, key=lambda entry: entry[:2])]


def audit(item: str, tests: Sequence[str], executed: Executed, mutants: int, seed: int) -> Audit:
    """Mutates the code of one item until its tests notice, at most `mutants` times."""
    citing = tuple(dict.fromkeys(tests))
    missed: list[Site] = []
    for site in candidates(executed, frozenset(citing), seed)[:mutants]:
        if noticed_by_tests(site.mutation, citing) is not None:
            return Audit(item, citing, tuple(missed), site.mutation)
        missed.append(site)
    return Audit(item, citing, tuple(missed), None)


def audits(
    citations: Citations, items: Sequence[str], executed: Executed, mutants: int, seed: int, jobs: int
) -> Iterator[Audit]:
    """The verdicts on these items, in their order; an item that no test cites is left out."""
    cited = [item for item in items if item in citations]
    with ThreadPoolExecutor(jobs) as threads:  # each waits for a process
        yield from threads.map(lambda item: audit(item, citations[item], executed, mutants, seed), cited)


def main(
    items: Annotated[list[str] | None, typer.Argument(help="Items such as A13. Default: all that are cited.")] = None,
    mutants: Annotated[int, typer.Option(help="Mutations per item at most.", min=1)] = MUTANTS,
    seed: Annotated[int, typer.Option(help="Decides among lines that equally many tests execute.", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    measure_again: Annotated[bool, typer.Option("--measure", help="Measure again what tests execute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Items whose citing tests stay green while the code that they execute is mutated."""
    known = read_checklist(CHECKLIST.read_text(encoding="utf-8")).items
    if unknown := set(items or ()) - set(known):
        raise typer.BadParameter(f"found {', '.join(sorted(unknown))}; allowed: items of docs/requirements.md")
    if measure_again or not MEASURED.exists():
        measure(MEASURED)
    found = []
    for verdict in audits(collect(SELECTION), items or list(known), read_measured(MEASURED), mutants, seed, jobs):
        found.append(verdict)
        if verdict.verdict != GUARDED:
            typer.echo(f"{verdict.item}: {verdict.verdict}", err=as_json)
            for site in verdict.missed:
                typer.echo(f"  missed {place_of(site)}: {site.mutation.change}", err=as_json)
    counts = {kind: sum(one.verdict == kind for one in found) for kind in (GUARDED, WEAK, UNEXECUTED)}
    if as_json:
        typer.echo(json.dumps({**counts, "items": [one.document() for one in found]}))
    else:
        typer.echo(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    raise typer.Exit(1 if counts[WEAK] else 0)


if __name__ == "__main__":
    typer.run(main)
