"""Trials of studies in generation `v3`: the same failures as in the others, its losses, regressions and cost."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from experiments.check.store_changes import partition_changed
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.estimator import choose
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.report.kafka import commands, configs
from experiments.studies.theory.answers import model_of
from experiments.studies.trace.kinds import Crash, Elected, HwRegression, Loss, Start, State, TrialResult
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.trial import run_trial
from protocol.events.store import StoreChanged
from protocol.ids import TopicPartition
from protocol.kafka_release import GENERATION_RELEASES
from tests.trace_rows import as_rows

pytestmark = pytest.mark.slow

GENERATIONS = ("v3", "kip-497", "kip-966-elr", "kip-966")
TRIALS = 4
BASE = CellParameters(
    generation="v3",
    broker_mttf=Distribution(mean_ms=12 * DAY_MS),
    broker_mttr=Distribution(mean_ms=3 * DAY_MS),
    tail_loss_probability=0.5,
    duration_ms=100 * DAY_MS,
)
Results = dict[str, list[TrialResult]]


@pytest.fixture(scope="module")
def results() -> Results:
    """A few trials of each generation, with the same failures."""
    return {
        name: [run_trial(BASE.model_copy(update={"generation": name}), trial_seed(1, k)) for k in range(TRIALS)]
        for name in GENERATIONS
    }


def count(found: list[TrialResult], kind: str) -> int:
    return sum(row.row().kind == kind for result in found for row in result.rows)


def test_all_generations_meet_the_same_failures(results: Results) -> None:
    failures = {
        name: [
            [(r.time_ms, r.kind, r.node) for r in as_rows(one.rows) if r.kind in (Crash.KIND, Start.KIND)]
            for one in found
        ]
        for name, found in results.items()
    }
    assert all(found == failures["kip-966"] for found in failures.values())
    assert count(results["v3"], Crash.KIND) > 50


@pytest.mark.covers("N1", "N5", "N6", "M26")
def test_v3_loses_more_and_takes_back_what_consumers_saw(results: Results) -> None:
    losses = {name: count(found, Loss.KIND) for name, found in results.items()}
    assert losses["v3"] > losses["kip-497"] >= losses["kip-966"]
    regressions = {name: count(found, HwRegression.KIND) for name, found in results.items()}
    assert regressions["v3"] > 5 * regressions["kip-497"]


def test_the_trace_has_the_states_that_the_store_published(results: Results) -> None:
    rows = [row for result in results["v3"] for row in as_rows(result.rows)]
    states = [row for row in rows if row.kind == State.KIND]
    assert {row.isr_size for row in states} >= {1, 2, 3}
    assert {row.min_isr for row in states} == {2}
    assert any(row.kind == Elected.KIND for row in rows)


def test_the_same_seed_gives_the_same_trial(results: Results) -> None:
    again = run_trial(BASE, trial_seed(1, 0))
    assert (again.trace_hash, again.rows) == (results["v3"][0].trace_hash, results["v3"][0].rows)


def test_a_quiet_month_costs_no_events_and_a_failure_a_few_hundred(results: Results) -> None:
    """Pings of idle sessions have no events; the cost of a trial is that of its failures."""
    quiet = BASE.model_copy(update={"broker_mttf": None, "start": "fresh", "duration_ms": 30 * DAY_MS})
    longer = quiet.model_copy(update={"duration_ms": 90 * DAY_MS})
    assert run_trial(quiet, 1).events == run_trial(longer, 1).events
    events = {name: sum(result.events for result in found) for name, found in results.items()}
    assert events["v3"] < 4 * events["kip-497"]


def test_an_oracle_ends_the_session_of_a_crashed_broker() -> None:
    result = run_trial(BASE.model_copy(update={"detection_ms": None}), trial_seed(1, 0))
    crashed = [row.time_ms for row in result.rows if row.what.KIND == Crash.KIND]
    states = [row.time_ms for row in result.rows if row.what.KIND == State.KIND]
    assert any(0 < state - crash < 1_000 for crash in crashed for state in states)


def test_what_is_not_a_state_of_a_partition_is_none() -> None:
    state = '{"controller":0,"controller_epoch":1,"isr":[1,2],"leader":1,"leader_epoch":3,"version":1}'
    path = "/brokers/topics/t/4/leaderAndISR"
    changed = partition_changed(StoreChanged(path, 7, state))
    assert changed is not None
    assert (changed.partition, changed.isr, changed.leader_epoch) == (TopicPartition("t", 4), (1, 2), 3)
    assert (changed.partition_epoch, changed.min_isr) == (7, 0)
    for other in (StoreChanged(path, -1, ""), StoreChanged("/controller_epoch", 1, "1")):
        assert partition_changed(other) is None


def test_what_v3_does_not_have_is_said() -> None:
    assert GENERATION_RELEASES[BASE.generation].sentence.startswith("No release of Apache Kafka has v3")
    assert commands(BASE)[0].startswith("# v3: no release of Apache Kafka has it")
    assert all(line.startswith("#") for line in commands(BASE))
    assert "no release" in configs([BASE])[0].release
    assert model_of(BASE) is None
    assert choose(BASE).estimator == "multifidelity"
    with pytest.raises(ValidationError, match="unclean_recovery_strategy manual"):
        CellParameters.model_validate(dict(BASE) | {"unclean_recovery_strategy": "manual"})
    with pytest.raises(ValidationError, match="generation"):
        CellParameters.model_validate(dict(BASE) | {"engine": "ray"})
