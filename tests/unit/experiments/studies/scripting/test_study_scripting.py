"""Studies as Python objects: what they accept, what they run, and their numbers as tables."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np
import pytest

from experiments.studies import CellParameters, CustomMetric, Outage, Study, TraceRow
from experiments.studies.design.model import DAY_MS
from experiments.studies.scripting.functions import checked
from experiments.studies.scripting.results import cells_table, split_custom
from experiments.studies.sweeps.identity import cell_digests, content_digest, trial_code_digest
from experiments.studies.trials.batch import Batch, FunctionFailed, run_batch
from experiments.studies.trials.estimators import run_cell_trial
from experiments.support.errors import InputError

SHORT = {"broker_mttf": "2d", "broker_mttr": "6h"}


def crashes(rows: Sequence[TraceRow]) -> float:
    """Crashes of brokers."""
    return sum(row.kind == "crash" for row in rows)


def share(rows: Sequence[TraceRow]) -> float:
    return 0.25 * (len(rows) > 0)


def no_number(rows: Sequence[TraceRow]) -> float:
    return math.nan


def one_a_day(parameters: CellParameters, random: Random) -> Iterator[Outage]:
    """Every day one broker is down for an hour."""
    for day in range(10_000):
        yield Outage(day * DAY_MS + 1, day * DAY_MS + 3_600_000, random.randrange(parameters.brokers), "lossy", "daily")


def test_arguments_are_the_fields_of_a_file_with_sequences_of_any_kind() -> None:
    study = Study(
        name="s",
        trials=2,
        base={"broker_mttf": "20d"},
        sweep={"min_insync_replicas": range(1, 3), "unclean_probability": np.linspace(0, 1, 3), "acks": ("all", 1)},
    )
    plan = study.plan()
    assert len(plan.cells) == 12
    assert plan.cells[3].swept == {"min_insync_replicas": 1, "unclean_probability": 0.5, "acks": 1}
    assert plan.source["base"] == {"broker_mttf": "20d"}
    assert study.trial() is run_cell_trial
    precise = Study(name="s", precision={"relative_error": 0.1, "max_trials": 9})
    assert precise.plan().max_trials == 9


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"nme": 1}, "Study: nme: found an unknown field. Did you mean 'name'?; allowed: one of name, question"),
        ({"base": {"replication_factor": 4}}, "base.replication_factor: found 4; allowed: at most the number"),
        ({"trials": "5"}, "Study: trials: found '5'; allowed: a whole number"),
        ({"metrics": [3]}, "Study: metrics: found 3; allowed: functions of the rows"),
        ({"metrics": crashes}, "Study: metrics: found <function crashes"),
        ({"metrics": [lambda rows: 1]}, "Study: metrics: found the name <lambda>; allowed: lower-case"),
        ({"metrics": [CustomMetric(crashes, unit="days")]}, "metrics.crashes.unit: found 'days'; allowed: rate"),
        ({"metrics": [crashes, crashes]}, "metrics: found the name crashes; allowed: names that no other"),
        ({"metrics": [CustomMetric(crashes, name="loss_rate")]}, "found the name loss_rate"),
        ({"failure_model": 3}, "Study: failure_model: found 3; allowed: a function"),
    ],
)
def test_wrong_study_is_refused_in_one_line_when_it_is_made(fields: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as caught:
        Study(**({"name": "s", "trials": 5} | fields))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_functions_of_a_script_measure_and_fail_as_they_say() -> None:
    metrics = [crashes, CustomMetric(share, unit="fraction", meaning="a quarter")]
    study = Study(name="s", trials=2, duration="10d", base=SHORT, metrics=metrics, failure_model=one_a_day)
    plan = study.plan()
    assert plan.functions is not None
    assert [(item.name, item.unit, item.meaning) for item in plan.functions.metrics] == [
        ("crashes", "rate", "Crashes of brokers"),
        ("share", "fraction", "a quarter"),
    ]
    trace, trials = run_batch(study.trial(), plan.cells[0].parameters, Batch("c", 0, 2), plan.seed)
    table = split_custom(trials, ["crashes", "share"])
    assert table["crashes"].to_pylist() == [10.0, 10.0]
    assert table["share"].to_pylist() == [0.25, 0.25]
    crashed = [row for row in trace.to_pylist() if row["kind"] == "crash" and row["trial"] == 0]
    assert [row["time_ms"] // DAY_MS for row in crashed] == list(range(10))
    assert len({row["node"] for row in crashed}) > 1


def raises(rows: Sequence[TraceRow]) -> float:
    return len(rows) / 0


def values(value: object) -> CustomMetric:
    """A metric with that value in every trial."""
    return CustomMetric(lambda rows: value, name="m")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (CustomMetric(no_number, name="m"), "metrics.m: found nan; allowed: a number from 0"),
        (CustomMetric(crashes, "fraction", "m"), r"metrics.m: found \d+; allowed: a number from 0 to 1"),
        (values(None), "metrics.m: found None; allowed: a number from 0"),
        (values("3"), "metrics.m: found '3'; allowed: a number from 0"),
        (values([1, 2]), r"metrics.m: found \[1, 2\]; allowed: a number from 0"),
        (
            CustomMetric(raises, name="m"),
            r"metrics.m: found ZeroDivisionError: .*\(test_study_scripting.py, line \d+\)",
        ),
    ],
)
def test_value_that_is_none_of_its_unit_ends_the_sweep(metric: CustomMetric, found: str) -> None:
    study = Study(name="s", trials=1, duration="30d", base=SHORT, metrics=[metric])
    with pytest.raises(FunctionFailed, match=rf"^Study: {found}.* \(trial 0 of cell c, seed \d+\)$"):
        run_batch(study.trial(), study.plan().cells[0].parameters, Batch("c", 0, 1), 0)


def fails_late(parameters: CellParameters, random: Random) -> Iterator[Outage]:
    yield Outage(5, 9, 0, "lossy", "")
    raise KeyError("rack")


def returning(value: object) -> Callable[[CellParameters, Random], object]:
    """A failure model with that value."""
    return lambda parameters, random: value


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (returning([3]), "found 3; allowed: Outage(down_ms, up_ms, broker, kind, cause)"),
        (returning(None), "found None; allowed: an iterable of Outage"),
        (returning([(5, 9, 0, "lossy", "")]), "found (5, 9, 0, 'lossy', ''); allowed: Outage(down_ms"),
        (returning([Outage(5, 9, 0, "lossy", ""), Outage(4, 9, 0, "lossy", "")]), "in time order, so from 5 ms on"),
        (returning([Outage(5, 9, 3, "lossy", "")]), "allowed: brokers 0 to 2"),
        (returning([Outage(5, 5, 0, "lossy", "")]), "up_ms after down_ms"),
        (returning([Outage(5, 9, 0, "fire", "")]), "allowed: as kind one of clean, unclean, lossy, disk"),  # type: ignore[arg-type]
        (returning([Outage(5, 9, 0, ["disk"], "")]), "as kind one of"),  # type: ignore[arg-type]
        (returning([Outage(5.5, 9, 0, "disk", "")]), "whole numbers for down_ms and up_ms"),  # type: ignore[arg-type]
        (returning([Outage("5", 9, 0, "disk", "")]), "whole numbers for down_ms and up_ms"),  # type: ignore[arg-type]
        (returning([Outage(5, 9, None, "disk", "")]), "whole numbers"),  # type: ignore[arg-type]
        (returning([Outage(5, 9, 0, "disk", 7)]), "a text as cause"),  # type: ignore[arg-type]
        (fails_late, "found KeyError: 'rack' (test_study_scripting.py, line "),
        (lambda: [], "found TypeError: "),
    ],
)
def test_what_a_failure_model_returns_is_refused_in_one_line(model: Callable[..., object], line: str) -> None:
    """The line is that of the trial too, as a trial takes its failures from the model."""
    with pytest.raises(InputError) as caught:
        list(checked(model, CellParameters(), Random(1)))  # type: ignore[arg-type]
    assert str(caught.value).startswith("Study: failure_model: found ")
    assert line in str(caught.value)
    study = Study(name="s", trials=1, duration="1d", failure_model=model)
    with pytest.raises(FunctionFailed) as failed:
        run_batch(study.trial(), study.plan().cells[0].parameters, Batch("c", 0, 1), 0)
    assert str(failed.value).startswith(str(caught.value))
    assert "\n" not in str(failed.value)


def twice(rows: Sequence[TraceRow]) -> float:
    return 2.0 * crashes(rows)


def made(limit: float, kinds: frozenset[str]) -> Callable[[Sequence[TraceRow]], float]:
    return lambda rows: limit + sum(row.kind in kinds for row in rows)


def test_content_of_functions_follows_what_they_use() -> None:
    assert content_digest(crashes) == content_digest(crashes) != content_digest(share)
    assert content_digest(made(1.0, frozenset("ab"))) == content_digest(made(1.0, frozenset("ba")))
    assert content_digest(made(1.0, frozenset("ab"))) != content_digest(made(2.0, frozenset("ab")))
    assert content_digest(made(1.0, frozenset("ab"))) != content_digest(made(1.0, frozenset("ac")))
    assert content_digest(functools.partial(made, 1.0)) != content_digest(functools.partial(made, 2.0))
    changed = type(twice)(twice.__code__, {"crashes": share, "__name__": __name__}, "twice")
    assert content_digest(changed) != content_digest(twice)


def test_digests_of_cells_follow_the_functions() -> None:
    def digests(**functions: object) -> tuple[str, ...]:
        study = Study(name="s", trials=1, **functions)
        return cell_digests(study.plan(), trial_code_digest(study.trial()))

    found = [digests(), digests(metrics=[crashes]), digests(metrics=[share]), digests(failure_model=one_a_day)]
    assert len(set(found)) == len(found)
    assert digests(metrics=[crashes]) == found[1]


def test_table_has_a_row_per_cell_and_columns_by_name() -> None:
    plan = Study(name="s", trials=1, sweep={"detection": ["instant", "3s"], "acks": ["all", 1]}).plan()
    loss = {"estimate": 0.5, "ci_low": 0.1, "ci_high": 2.0}
    numbers = {"trials": 4, "loss_rate": loss, "failover_ms": {"p50": None}}
    table = cells_table(plan, [{**cell.swept, **numbers} for cell in plan.cells])
    assert table.column_names == [
        *("detection", "detection_ms", "acks", "trials", "loss_rate", "loss_rate_ci_low", "loss_rate_ci_high"),
        "failover_ms_p50",
    ]
    assert table["detection_ms"].to_pylist() == [None, None, 3000, 3000]
    assert table["acks"].to_pylist() == ["all", "1", "all", "1"]
    assert table["loss_rate"].to_pylist() == [0.5] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import experiments.studies", {"ray", "pyspark", "altair", "scipy", "pyarrow", "pydantic"}),
        ("from experiments.studies import Study, run, sweep", {"ray", "pyspark", "altair"}),
        ("import experiments.studies.estimation.estimates, experiments.studies.theory.validation", {"scipy.stats"}),
        ("import protocol.kafka.wire", {"hypothesis"}),
    ],
)
def test_importing_is_light(statement: str, absent: set[str]) -> None:
    script = f"import sys; {statement}; print(*({absent} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_unknown_name_is_an_attribute_error() -> None:
    import experiments.studies

    with pytest.raises(AttributeError, match="nothing"):
        _ = experiments.studies.nothing
