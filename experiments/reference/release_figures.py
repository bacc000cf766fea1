"""The figures of docs/kafka-releases.md, measured by `make kafka-releases` and kept in `release_figures.json`.

*Recorded*: how many rows of the recorder each release answers otherwise than the one before it, for the same seed, and
to which rules these are attributed (`experiments/compare/releases.py`).
*Drawn*: for each change the smallest of the drawn scenarios that the simulator runs otherwise.
*Scenarios*: the shipped scenarios that a changed rule alters, each with the acknowledged records that it loses and the
steps that hold, by the rule before and by the rule since. *Study*: years of one partition with the same failures under
each release. Recording needs Maven Central and a JDK; the rest runs on the simulator.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import experiments.scenarios
from experiments.check.engine import CheckedEngine
from experiments.compare.releases import STUDY, compared_rows, drawn_changes
from experiments.conformance.recorder.record import KINDS, recorded
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.metrics import BY_NAME, measure
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.estimators import run_cell_trial
from experiments.support.atomic import write_text
from experiments.support.releases.installed import recorder_jars
from experiments.support.releases.jdk import jdk
from protocol.features import RELEASED
from protocol.kafka_release import NEWEST, RELEASE_CHANGES, KafkaRelease, kafka_release

FIGURES = Path(__file__).with_suffix(".json")
RECORDED = ("4.0.0", "4.0.2", "4.1.0", "4.1.1", "4.1.2", "4.2.0", "4.2.1", "4.2.2", "4.3.0", "4.3.1", "4.4.0")
"""The releases that are recorded, oldest first."""
ROWS = {"decisions": 2000, "partition": 300, "reassignments": 300, "cluster": 200}
SEED = 20261201
SEARCHED = 60
"""Seeds whose drawn scenarios are searched."""
TRIALS = 50
SHARES = ("offline_fraction", "reject_fraction")
"""The shares of time that the page has."""


def figures() -> dict[str, Any]:
    """All figures, as `release_figures.json` has them."""
    return {
        "recorded": list(_recorded()),
        "scenarios": list(_scenarios()),
        "drawn": list(_drawn()),
        "study": list(_study()),
    }


def _recorded() -> Iterator[dict[str, object]]:
    tools = jdk(os.environ, "javac")
    before: dict[str, list[bytes]] = {}
    last = RECORDED[0]
    for release in RECORDED:
        jars = recorder_jars(release)
        rows = {kind: recorded(release, kind, SEED, ROWS[kind], jars, tools).splitlines()[1:] for kind in KINDS}
        found = [compared_rows(kind, (last, before.get(kind, new)), (release, new)) for kind, new in rows.items()]
        rules = sum((Counter(it.rules) for it in found), Counter[str]())
        differ = {it.kind: it.differing for it in found}
        unexplained = sum(len(it.unexplained) for it in found)
        yield {"release": release, **differ, "rules": dict(sorted(rules.items())), "unexplained": unexplained}
        before, last = rows, release


def _drawn() -> Iterator[dict[str, object]]:
    for name, seed, scenario, comparison in drawn_changes(RECORDED[0], RECORDED[-1], range(SEARCHED)):
        assert comparison.first is not None
        steps, placed = [step.text for step in scenario.steps], [topic.assignments for topic in scenario.topics]
        yield {"change": name, "seed": seed, "topics": placed, "steps": steps, "first": comparison.first.field}


def _scenarios() -> Iterator[dict[str, object]]:
    folder = Path(experiments.scenarios.__file__).parent
    shipped = [load_scenario(path) for path in sorted(folder.glob("*.yaml"))]
    for change in RELEASE_CHANGES:
        since = kafka_release(change.first)
        until = [release for release in KafkaRelease if not release.has(change)][-1]
        for scenario in shipped:
            cluster = scenario.cluster
            has_release = cluster.generation in {it.value for it in RELEASED}
            if not has_release or cluster.kafka_release != NEWEST.value:
                continue
            old, new = (_run(scenario, release) for release in (until, since))
            if old != new:
                yield {"change": change.name, "scenario": scenario.name, "before": old, "since": new}


def _run(scenario: Scenario, release: KafkaRelease) -> dict[str, object]:
    """What a scenario comes to under a release, whatever its steps expect."""
    cluster = scenario.cluster.model_copy(update={"kafka_release": release.value})
    changed = scenario.model_copy(update={"cluster": cluster})
    result = Runner(changed, CheckedEngine(cluster.spec(0)), keeps_going=True).run()
    held = sum(step.ok for step in result.steps)
    return {"lost_acked": result.losses.lost_acked, "steps_held": held, "steps": len(result.steps)}


def _study() -> Iterator[dict[str, object]]:
    hashes: dict[KafkaRelease, list[str]] = {}
    for release in KafkaRelease:
        params = CellParameters.model_validate({**STUDY, "kafka_release": release.value})
        results = [run_cell_trial(params, trial_seed(SEED, trial)) for trial in range(TRIALS)]
        hashes[release] = [result.trace_hash for result in results]
        measured = [measure(result.rows) for result in results]
        shares = {name: sum(trial.values[BY_NAME[name].column] for trial in measured) for name in SHARES}
        yield {
            "release": release.value,
            "partition_years": TRIALS,
            "losses": sum(trial.events[BY_NAME["loss_rate"].column] for trial in measured),
            **{name: total / sum(trial.exposure for trial in measured) for name, total in shares.items()},
            "other_trials": sum(map(str.__ne__, hashes[_before(release)], hashes[release])),
        }


def _before(release: KafkaRelease) -> KafkaRelease:
    return {new: old for old, new in pairwise(KafkaRelease)}.get(release, release)


if __name__ == "__main__":
    write_text(FIGURES, json.dumps(figures(), indent=1) + "\n")
