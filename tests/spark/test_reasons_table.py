"""Why, in the tables: reasons of a simulated study add up to its metrics, and sums by hand of a frame."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from experiments.studies.design.loader import parse_study, study_from
from experiments.studies.estimation.why import read_attributions
from experiments.studies.pipeline import gold
from experiments.studies.pipeline.analysis import analyze
from experiments.studies.pipeline.schemas import SILVER, ddl
from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trials.batch import Batch, trial_seed
from experiments.studies.trials.estimators import run_cell_trial
from experiments.studies.trials.reasons import LOSSES, TIMES
from tests.spark.trial_helpers import claimed, fill

STUDY = """
name: why
seed: 7
trials: 3
duration: 10d
base: {broker_mttf: 1d, broker_mttr: 2h, tail_loss_probability: 0.5, power_events_per_year: 40, estimator: plain}
sweep: {generation: [kip-497, kip-966-elr]}
"""


@pytest.mark.usefixtures("in_session")
def test_reasons_add_up_to_the_metrics(tmp_path: Path) -> None:
    """Events to the number of losses and episodes, minutes to the share of partition-time, shares to 1; an example is
    a trial with its seed."""
    study = study_from(parse_study(STUDY, "s.yaml"), "s.yaml")
    cells = claimed(tmp_path, study, run_cell_trial)
    fill(tmp_path, study, [Batch(cell, 0, 3) for cell in cells], run_cell_trial)
    analyze(tmp_path)
    documents = json.loads((tmp_path / "gold" / "cells.json").read_text())
    for document in documents:
        for metric in (*TIMES, *LOSSES.values()):
            own = [each for each in document["reasons"] if each["metric"] == metric]
            assert sum(each["events"] for each in own) == document[metric]["events"], metric
            if own:
                assert sum(each["share"] for each in own) == pytest.approx(1.0)
            if metric in FRACTIONS:
                minutes = document[metric]["estimate"] * document["partition_years"] * 365 * 24 * 60
                assert sum(each["minutes"] for each in own) == pytest.approx(minutes)
        assert all(each["seed"] == trial_seed(7, each["trial"]) and each["sentence"] for each in document["reasons"])
    assert all(read_attributions(tmp_path))


def test_sums_of_reasons_by_hand(spark: SparkSession) -> None:
    """Two trials of one reason: 1 + 2 events, 1 + 4 of weight, 10 + 20 minutes; the first with an event is trial 2."""
    rows = [
        ("0", 1, "unwritable_fraction", "too-few-alive", "broker (unclean)", 0, 0.0, 5.0),
        ("0", 3, "unwritable_fraction", "too-few-alive", "broker (unclean)", 2, 4.0, 20.0),
        ("0", 2, "unwritable_fraction", "too-few-alive", "broker (unclean)", 1, 1.0, 10.0),
        ("0", 2, "unwritable_fraction", "catching-up", "", 0, 0.0, 7.0),
    ]
    frame = spark.createDataFrame(rows, ddl(SILVER["reasons"] | {"cell": "string"}))
    found = gold.reasons(frame).toArrow().sort_by(gold.ORDER["reasons"]).to_pylist()
    assert [tuple(row.values())[2:] for row in found] == [
        ("too-few-alive", "broker (unclean)", 3, 5.0, 35.0, 2),
        ("catching-up", "", 0, 0.0, 7.0, 2),
    ]
