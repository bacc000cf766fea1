"""Studies: how often a cluster loses acknowledged records, how long it is unavailable, and what a setting changes.

From a study file to a number in the report, in this order:

- `trace/`: the kinds of rows of a trial's trace, and the metrics, each declared once.
- `design/`: what is asked: parameters, each declared once; the study file, checked, becomes a `StudyPlan`.
- `failures/`: when which broker fails, and for how long: a timeline that no protocol setting changes.
- `trials/`: one trial, which runs a cluster, simulated or of processes, through a timeline; batches of trials.
- `estimation/`: sums over trials become estimates with confidence intervals, in `gold/cells.json`.
- `sweeps/`: the missing trials, run as Ray tasks, and the output directory with their traces in Parquet.
- `pipeline/`: Spark checks the traces (bronze), turns them into intervals, outages and fates of records (silver), then
  into sums per cell (gold); docs/pipeline.md.
- `report/`: `verdict.py` the answer in words, `charts/` the drawings, `page/` the templates, `render.py` the page.
- `theory/`: Markov models of small clusters, which the simulation must agree with.
- `scripting/`: studies from Python: `from experiments.studies import Study, run, sweep` (docs/studies.md).

The names in `_MODULES` are imported when they are used: `import experiments.studies` alone is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.studies.design.model import CellParameters as CellParameters
    from experiments.studies.design.study import Precision as Precision
    from experiments.studies.failures.sources import Outage as Outage
    from experiments.studies.scripting.functions import CustomMetric as CustomMetric
    from experiments.studies.scripting.results import Results as Results
    from experiments.studies.scripting.results import Trials as Trials
    from experiments.studies.scripting.study import Study as Study
    from experiments.studies.scripting.study import run as run
    from experiments.studies.scripting.study import sweep as sweep
    from experiments.studies.trace.schema import TraceRow as TraceRow

_MODULES = {
    "CellParameters": "design.model",
    "CustomMetric": "scripting.functions",
    "Outage": "failures.sources",
    "Precision": "design.study",
    "Results": "scripting.results",
    "Study": "scripting.study",
    "TraceRow": "trace.schema",
    "Trials": "scripting.results",
    "run": "scripting.study",
    "sweep": "scripting.study",
}


def __getattr__(name: str) -> object:
    """An exported name, from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
