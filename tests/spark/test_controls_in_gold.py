"""Multi-fidelity estimation in gold, against numpy from the table of trials."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.pipeline.analysis import analyze
from experiments.studies.trace.kinds import CONTROLLED, ControlResult, TrialResult
from experiments.studies.trace.metrics import METRICS, measure
from experiments.studies.trials.batch import Batch
from tests.spark.trial_helpers import claimed, fake_trial, fill

TRIALS = 40
RUNS = 4
FOLDS = 5


def controlled_trial(params: CellParameters, seed: int) -> TrialResult:
    """The trial with a control that has its values but for 10 % of noise, means of the values of other trials, and
    exposures of various lengths."""
    found, random = fake_trial(params, seed), Random(seed)
    measured = measure(found.rows)
    values = tuple(measured.values.get(name, 0.0) * random.uniform(0.9, 1.1) for name in CONTROLLED)
    others = [measure(fake_trial(params, random.randrange(1 << 40)).rows).values for _ in range(RUNS)]
    means = tuple(sum(each.get(name, 0.0) for each in others) / RUNS for name in CONTROLLED)
    exposures = (measured.exposure * random.uniform(0.9, 1.1), measured.exposure * random.uniform(0.95, 1.05))
    controls = ControlResult(RUNS, *exposures, values, means)
    text = hashlib.sha256(repr((found.trace_hash, controls)).encode()).hexdigest()
    return replace(found, trace_hash=text, controls=controls)


@pytest.mark.usefixtures("in_session")
def test_gold_has_the_sums_of_the_corrected_values(tmp_path: Path) -> None:
    """x' by the formulas of `estimation/controlled.py` as numpy computes them, fold by fold, for every metric that has
    a control; correlation and gain of the objective."""
    base = {"partitions": 2, "generation": "kip-966", "estimator": "multifidelity"}
    raw = {"name": "s", "trials": TRIALS, "duration": "1h", "base": base, "objective": "loss_rate"}
    study = study_from(raw, "s.yaml")
    (cell,) = claimed(tmp_path, study, controlled_trial)
    fill(tmp_path, study, [Batch(cell, 0, TRIALS)], controlled_trial)
    analyze(tmp_path)
    (file,) = (tmp_path / "trials").glob("*.parquet")
    trials = {name: np.array(column) for name, column in pq.read_table(file).to_pydict().items()}
    gold = pq.read_table(tmp_path / "gold" / "cells").to_pandas().set_index("metric")
    corrected = 0
    for metric in METRICS:
        x, w = trials[metric.column], trials["exposure"]
        if metric.column in CONTROLLED and trials[f"{metric.column}_events"].sum() > 0:
            x = by_numpy(trials, metric.column)
            corrected += 1
        assert gold.loc[metric.name, "value"] == pytest.approx(x.sum()), metric.name
        assert gold.loc[metric.name, "value_squares"] == pytest.approx(x @ x), metric.name
        assert gold.loc[metric.name, "value_exposure"] == pytest.approx(x @ w), metric.name
    assert corrected >= 4
    (document,) = json.loads((tmp_path / "gold" / "cells.json").read_text())
    e, f = residuals(trials, "losses", np.full(TRIALS, True))
    rho = e @ f / math.sqrt((e @ e) * (f @ f))
    assert document["controls"] == TRIALS * RUNS
    assert document["correlation"] == pytest.approx(rho)
    assert document["gain"] == pytest.approx(1.0 / (1.0 - rho**2 * RUNS / (RUNS + 1)))
    rate = by_numpy(trials, "losses").sum() / trials["exposure"].sum()
    assert document["loss_rate"]["estimate"] == pytest.approx(rate)


def residuals(trials: dict[str, np.ndarray], column: str, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """e = x - r w and f = c - v sum(c) / sum(v) of the chosen trials."""
    x, w = trials[column][chosen], trials["exposure"][chosen]
    c, v = trials["control"][chosen, CONTROLLED.index(column)], trials["control_exposure"][chosen]
    return x - w * x.sum() / w.sum(), c - v * c.sum() / v.sum()


def by_numpy(trials: dict[str, np.ndarray], column: str) -> np.ndarray:
    """x' of each trial, with beta and s of the trials of all other folds."""
    place, numbers = CONTROLLED.index(column), np.arange(TRIALS)
    d = trials["control"][:, place] - trials["control_mean"][:, place]
    g = trials["control_exposure"] - trials["control_exposure_mean"]
    found = trials[column].astype(float)
    for fold in range(FOLDS):
        own, others = numbers % FOLDS == fold, numbers % FOLDS != fold
        e, f = residuals(trials, column, others)
        beta = np.cov(e, f)[0, 1] / np.var(f, ddof=1) * RUNS / (RUNS + 1)
        s = trials["control_mean"][others, place].sum() / trials["control_exposure_mean"][others].sum()
        found[own] -= beta * (d[own] - s * g[own])
    return found
