"""What changed between two releases of Kafka: as rules, each with its smallest scenario, and in a study's answer.

*Rows*: the recorder (`experiments/conformance/recorder`) asks the controllers of both releases the same questions. A
row that they answer differently is attributed to the changes (`protocol/kafka_release.py`) under which isray no longer
gives the older answer, and to the rules (`protocol/kafka_rules.py`) that explain one of the two answers only. What
neither explains is a change that nothing here declares.

*Scenarios*: of the drawn ones, the smallest that the simulator runs differently for each change, under those of Kafka's
rules that all releases have: some states that a change is about are reached by these only. *Study*: trials of the
same failures under both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

from experiments.compare.comparison import Comparison, Runs, compared
from experiments.compare.course import Course
from experiments.compare.draw import drawn
from experiments.compare.smallest import smallest_of
from experiments.compare.worlds import SIM, World, course_in
from experiments.conformance.decisions import Row, parsed_row, row_differences
from experiments.conformance.departures import DEPARTURES, explanation
from experiments.scenarios.model import Scenario
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.metrics import BY_NAME, measure
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.estimators import run_cell_trial
from protocol.kafka_release import RELEASE_CHANGES, KafkaRelease, ReleaseChange, kafka_release

STUDY: Mapping[str, object] = {
    "generation": "kip-966-elr",
    "estimator": "plain",
    "brokers": 4,
    "replication_factor": 2,
    "broker_mttf": "60d",
    "broker_mttr": "3d",
    "reassignments": {"per_year": 52},
    "disk_loss_probability": 0.5,
}
"""A partition that moves every week: without moves of replicas no release answers otherwise."""
STUDY_SEED = 20261201
METRICS = ("loss_rate", "offline_fraction", "reject_fraction")
CONFIDENCE = 0.95
IN_ALL = tuple(it.name for it in DEPARTURES if all(map(it.rule.holds_in, KafkaRelease)))
"""Departures from rules that no release has changed."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one kind: how many, how many differ, to which rules these are attributed, and the numbers (from 1) of
    those that nothing declared explains.
    """

    kind: str
    rows: int
    differing: int
    rules: Mapping[str, int]
    unexplained: tuple[int, ...]


def changes_between(old: str, new: str) -> list[tuple[KafkaRelease, KafkaRelease, ReleaseChange]]:
    """The changes since `old` up to `new`, oldest first, each with the last release before it and the first since."""
    order = list(KafkaRelease)
    begin, end = (order.index(kafka_release(name)) for name in (old, new))
    found = []
    for before, since in pairwise(order[begin : end + 1]):
        found += [(before, since, it) for it in RELEASE_CHANGES if since.has(it) and not before.has(it)]
    return found


def compared_rows(kind: str, old: tuple[str, Sequence[bytes]], new: tuple[str, Sequence[bytes]]) -> Rows:
    """The recorded rows of a kind of two releases, each an exact release and its lines, of the same questions."""
    rules: Counter[str] = Counter()
    differing, unexplained = 0, []
    for number, lines in enumerate(zip(old[1], new[1], strict=True), start=1):
        if lines[0] == lines[1]:
            continue
        differing += 1
        rows = [parsed_row(Path(kind), number, line) for line in lines]
        names = _attributed(rows[0], rows[1], old[0], new[0])
        rules.update(names)
        unexplained += [] if names else [number]
    return Rows(kind, len(old[1]), differing, dict(rules), tuple(unexplained))


def _attributed(older: Row, newer: Row, old: str, new: str) -> set[str]:
    """The rules to which the difference of two answers is attributed; empty if one of the answers is not explained."""
    departed = [_departures(row, kafka_release(name)) for row, name in ((older, old), (newer, new))]
    if departed[0] is None or departed[1] is None:
        return set()
    found = set(departed[0] ^ departed[1])
    for before, since, change in changes_between(old, new):
        answers = [row_differences(older, release, departed[0]) for release in (before, since)]
        found |= {change.name} if answers[0] != answers[1] else set()
    return found


def _departures(row: Row, release: KafkaRelease) -> frozenset[str] | None:
    """The departures that explain a recorded answer, empty where it is isray's; None if nothing does."""
    if not row_differences(row, release):
        return frozenset()
    return frozenset(it.name for it in explanation(partial(row_differences, row, release))) or None


def as_kafka(scenario: Scenario, world: World, pace: Course | None = None, rules: Sequence[str] = ()) -> Course:
    """As `course_in`, under the rules that all releases of Kafka have."""
    return course_in(scenario, world, pace, sorted({*IN_ALL, *rules}))


def drawn_changes(
    old: str, new: str, seeds: Iterable[int], run: Runs = as_kafka
) -> Iterator[tuple[str, int, Scenario, Comparison]]:
    """For each change between two releases, of the drawn scenarios the one with fewest steps that the simulator runs
    differently: the name of the change, the seed, the scenario, and its comparison.
    """
    found: dict[str, tuple[int, int, Scenario, Comparison]] = {}
    for seed in seeds:
        for before, since, change in changes_between(old, new):
            worlds = [World(SIM, release.value) for release in (before, since)]
            comparison = compared(drawn(seed), worlds, run)
            if comparison.first is not None:
                small = smallest_of(comparison, run)
                best = found.get(change.name)
                if best is None or len(small.steps) < best[0]:
                    found[change.name] = (len(small.steps), seed, small, compared(small, worlds, run))
    for name, (_, seed, small, comparison) in found.items():
        yield name, seed, small, comparison


@dataclass(frozen=True, slots=True)
class Answer:
    """A metric of the study, by year and partition: under the old and the new release, and their difference with the
    limits of its 95 % interval. `differing`: the trials that do not have the same trace.
    """

    metric: str
    old: float
    new: float
    low: float
    high: float
    differing: int
    trials: int

    @property
    def words(self) -> str:
        """Whether the answer changes: three answers, one of which is that it is not known."""
        if not self.differing:
            return "the same in every trial"
        return "changes" if self.low > 0 or self.high < 0 else f"not shown to change by {self.trials} trials"


def study_answers(old: str, new: str, trials: int, study: Mapping[str, object] = STUDY) -> list[Answer]:
    """The metrics of a study under two releases: trials of a year of one partition, each with the same failures and
    moves under both.
    """
    hashes: list[list[str]] = []
    values: list[dict[str, list[float]]] = []
    for release in (old, new):
        params = CellParameters.model_validate({**study, "kafka_release": kafka_release(release).value})
        results = [run_cell_trial(params, trial_seed(STUDY_SEED, trial)) for trial in range(trials)]
        measured = [measure(result.rows) for result in results]
        hashes.append([result.trace_hash for result in results])
        columns = {name: BY_NAME[name].column for name in METRICS}
        values.append({name: [it.values[columns[name]] / it.exposure for it in measured] for name in METRICS})
    differing = sum(map(str.__ne__, *hashes))
    return [paired_answer(name, values[0][name], values[1][name], differing) for name in METRICS]


def paired_answer(metric: str, old: Sequence[float], new: Sequence[float], differing: int) -> Answer:
    """The means of pairs, and the interval of Student's t for the mean of their differences."""
    differences = [after - before for before, after in zip(old, new, strict=True)]
    middle, count = fmean(differences), len(differences)
    reach = (
        student.ppf((1 + CONFIDENCE) / 2, count - 1) * stdev(differences) / math.sqrt(count) if count > 1 else math.inf
    )
    return Answer(metric, fmean(old), fmean(new), middle - reach, middle + reach, differing, count)
