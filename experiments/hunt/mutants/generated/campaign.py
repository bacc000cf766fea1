"""Which tests or runs notice a sample of the generated mutants, and which mutants survive all of them.

Each mutant is tested in up to three stages, the cheapest first, until one notices it: the unit tests, those first that
import its module, directly or by their helpers, and those of the folder that mirrors its package; then seeds of the
default swarm; then seeds of the quorum's simulation. Each stage is a process of its own with a limit of processor time
(`process.py`); a mutant that uses it up counts as noticed. The processes of the last two stages run this module; each
seed has a limit of its own, so that an endless loop does not use up the time of all seeds.

The sample depends on its seed and on the sources only. It takes the same number of each operator, since most places
that can be mutated are arguments, which nearly every test notices.
"""

from __future__ import annotations

import ast
import json
import math
import resource
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from random import Random

from experiments.hunt.mutants.generated.process import Ended, run_mutated
from experiments.hunt.mutants.mutant import PlanFocus, QuorumFocus
from experiments.hunt.mutants.mutation import ROOT, Mutation, Site, line_number_of, modules, path_of, sites
from experiments.support.errors import InputError

TESTS, SWARM, QUORUM = "tests", "swarm", "quorum"
HUNTS: dict[str, PlanFocus | QuorumFocus] = {SWARM: PlanFocus(), QUORUM: QuorumFocus()}
SECONDS_PER_SEED = 20
"""The limit of processor time of a hunt, many times of what the unchanged protocol takes."""
STAGES = (TESTS, *HUNTS)
SWARM_SEEDS = 40
SECONDS_OF_TESTS = 90
"""The limit of processor time, several times of what the unchanged protocol takes."""
KEPT = Path(__file__).parent / "kept.jsonl"
PYTEST = shlex.split(
    "pytest -x -q -p no:xdist -p no:cacheprovider --tb=no --no-header --hypothesis-seed=0 -m 'not slow'"
)
_UNIT_TESTS = ROOT / "tests" / "unit" / "protocol"
_NOTHING_RAN = (4, 5)
"""Exit codes of pytest: wrong usage, no tests."""


@dataclass(frozen=True, slots=True)
class GeneratedVerdict:
    """The outcome for one mutant at `line_number` of its module: the `stage` that noticed it and `by` which test, or
    which seed and invariant; both None if it survived.
    """

    mutation: Mutation
    line_number: int
    stage: str | None
    by: str | None

    @property
    def place(self) -> str:
        return f"{path_of(self.mutation.module).relative_to(ROOT)}:{self.line_number}"

    def document(self) -> dict[str, object]:
        verdict = {"killed": self.stage is not None, "stage": self.stage, "by": self.by}
        return {"place": self.place, **asdict(self.mutation), **verdict}


@dataclass(frozen=True, slots=True)
class KeptMutant:
    """A mutant of the committed list (`KEPT`), and the id of a test that notices it."""

    mutation: Mutation
    by: str


def sample(number: int, seed: int, module: str | None = None) -> list[Site]:
    """This many mutations of the protocol, or of one module; fewer if there are not so many."""
    by_operator: defaultdict[str, list[Site]] = defaultdict(list)
    for name in modules() if module is None else (module,):
        for site in sites(name, path_of(name).read_text(encoding="utf-8")):
            by_operator[site.mutation.operator].append(site)
    for operator, found in by_operator.items():
        Random(f"{operator}/{seed}").shuffle(found)
    turns = zip_longest(*(found for _, found in sorted(by_operator.items())))
    drawn = [site for turn in turns for site in turn if site is not None][:number]
    return sorted(drawn, key=lambda site: (site.mutation.module, site.line_number))


def module_at(path: str) -> str:
    """The module of a source file, named as a user does. InputError if it is no module of the protocol."""
    found = next((name for name in modules() if path_of(name) == (ROOT / path).resolve()), None)
    if found is None:
        raise InputError("--module", "", path, "a file of the protocol, such as protocol/broker/leader.py")
    return found


def tests_of(module: str) -> list[str]:
    """The files of unit tests that import a module, directly or by their helpers, then those of the mirrored folder."""
    imported = _imports_of_tests()
    folder = f"tests.unit.{module.rpartition('.')[0]}."
    ranked = sorted(
        (module not in _reached(name, imported), not name.startswith(folder), name)
        for name in imported
        if _is_test(name) and (module in _reached(name, imported) or name.startswith(folder))
    )
    return [f"{name.replace('.', '/')}.py" for _, _, name in ranked]


def other_tests(near: Sequence[str]) -> list[str]:
    """All other files of unit tests of the protocol."""
    files = (f"{name.replace('.', '/')}.py" for name in sorted(_imports_of_tests()) if _is_test(name))
    return [file for file in files if file not in near]


def _is_test(name: str) -> bool:
    return name.rpartition(".")[2].startswith("test_")


@cache
def _imports_of_tests() -> dict[str, frozenset[str]]:
    """Dotted name of each file below tests/unit/protocol -> what it imports by `from a import b` (`a` and `a.b`)."""
    found = {}
    for path in sorted(_UNIT_TESTS.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        }
        found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = frozenset(names)
    if not found:
        raise InputError("--generated", "", f"no tests in {_UNIT_TESTS}", "a checkout of the project")
    return found


def _reached(name: str, imported: dict[str, frozenset[str]]) -> frozenset[str]:
    """What a test imports, directly or by helpers among the unit tests."""
    helpers = [other for other in imported[name] if other in imported]
    return imported[name].union(*(imported[helper] for helper in helpers))


def generated_verdict(site: Site, swarm: int, stages: Sequence[str] = STAGES) -> GeneratedVerdict:
    """Tests one mutant in these stages: with unit tests, with `swarm` seeds of each hunt."""
    for stage in stages:
        if (by := _noticed(site.mutation, stage, swarm)) is not None:
            return GeneratedVerdict(site.mutation, site.line_number, stage, by)
    return GeneratedVerdict(site.mutation, site.line_number, None, None)


def _noticed(mutation: Mutation, stage: str, seeds: int) -> str | None:
    if stage == TESTS:
        near = tests_of(mutation.module)
        return noticed_by_tests(mutation, near) or noticed_by_tests(mutation, other_tests(near))
    ended = run_mutated(mutation, SECONDS_PER_SEED * seeds, (__name__, stage, str(seeds)))
    return None if ended.code == 0 else _reason(ended, ended.output.strip().rpartition("\n")[2])


def noticed_by_tests(mutation: Mutation, tests: Sequence[str]) -> str | None:
    """The first of these tests (files or ids) that fails, None if all pass. RuntimeError if there is none."""
    ended = run_mutated(mutation, SECONDS_OF_TESTS, [*PYTEST, *tests])
    if ended.code in _NOTHING_RAN:
        raise RuntimeError(f"no test of {mutation.module} ran:\n{ended.output}")
    failed = (line for line in ended.output.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    first = next(failed, f" exit code {ended.code}").partition(" ")[2].partition(" - ")[0]
    return None if ended.code == 0 else _reason(ended, first)


def _reason(ended: Ended, otherwise: str) -> str:
    return "used up its processor time" if ended.ran_out_of_time else otherwise


def generated_verdicts(
    drawn: Sequence[Site], swarm: int, jobs: int, stages: Sequence[str] = STAGES
) -> Iterator[GeneratedVerdict]:
    """The verdicts on these mutants, in their order, with `jobs` processes at a time."""
    with ThreadPoolExecutor(jobs) as threads:  # each waits for a process
        yield from threads.map(lambda site: generated_verdict(site, swarm, stages), drawn)


def kept_verdicts(kept: Sequence[KeptMutant], jobs: int) -> Iterator[GeneratedVerdict]:
    """The verdicts on mutants of the committed list, each by the test that the list names."""

    def decide(mutant: KeptMutant) -> GeneratedVerdict:
        mutation, by = mutant.mutation, noticed_by_tests(mutant.mutation, [mutant.by])
        return GeneratedVerdict(mutation, line_number_of(mutation), None if by is None else TESTS, by)

    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(decide, kept)


def table_per_module(found: Iterable[GeneratedVerdict]) -> list[tuple[str, ...]]:
    """A row per module: its name, the number of mutants, how many each stage noticed, and how many survived."""
    rows: dict[str, Counter[str | None]] = {}
    for item in found:
        rows.setdefault(item.mutation.module, Counter())[item.stage] += 1
    return [
        (module, str(counts.total()), *(str(counts[stage]) for stage in (*STAGES, None)))
        for module, counts in sorted(rows.items())
    ]


def save_killed(found: Iterable[GeneratedVerdict], path: Path) -> None:
    """Writes the mutants that unit tests notice to a list such as `KEPT`."""
    lines = [json.dumps({**asdict(item.mutation), "by": item.by}) for item in found if item.stage == TESTS]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def kept_mutants() -> list[KeptMutant]:
    entries = map(json.loads, KEPT.read_text(encoding="utf-8").splitlines())
    return [KeptMutant(by=entry.pop("by"), mutation=Mutation(**entry)) for entry in entries]


def violation(kind: str, seed: int) -> str | None:
    """The seed and the invariant that a default run of this kind violates, None if it violates none."""
    invariant = HUNTS[kind].violation_without_focus(seed)
    return None if invariant is None else f"seed {seed}: {invariant}"


def _main(kind: str, seeds: int) -> None:
    """Ends with the first violation of the seeds from 0 on, as an error, if there is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for seed in range(seeds):
        soft = math.ceil(time.process_time()) + SECONDS_PER_SEED
        resource.setrlimit(resource.RLIMIT_CPU, (min(soft, hard), hard))
        if (found := violation(kind, seed)) is not None:
            sys.exit(found)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
