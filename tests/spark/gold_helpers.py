"""Gold as another implementation computes it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.bench.pipeline_duckdb import analyse
from experiments.studies.sweeps.output import read_record

CLOSE = 3e-14


def assert_gold_equals_that_of_duckdb(out: Path, folder: Path) -> None:
    """Compares the sums and the quantiles of the study in `out` with DuckDB's, which are written to `folder`."""
    analyse(out, read_record(out), folder)
    keys = ["cell", "metric"]
    expected = pd.read_parquet(folder / "cells.parquet").set_index(keys).sort_index()
    found = pd.read_parquet(out / "gold" / "cells").set_index(keys).sort_index()
    assert list(found.index) == list(expected.index)
    for name in expected.columns:
        assert found[name].to_numpy() == pytest.approx(expected[name].to_numpy(), rel=CLOSE), name
    times = pd.read_parquet(folder / "times.parquet").set_index(["cell", "kind"])
    for index, cell in enumerate(json.loads((out / "gold" / "cells.json").read_text())):
        for kind in ("failover", "handover", "catch_up"):
            quantiles = [cell[f"{kind}_ms"][name] for name in ("p50", "p99", "max", "outages")]
            assert quantiles == times.loc[(index, kind), ["p50", "p99", "max", "events"]].tolist()
