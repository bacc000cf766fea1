"""Studies: how often a cluster loses acknowledged records, how long it is unavailable, and what a setting changes.

From a study file to a number in the report, in this order:

- `trace/`: the schema of a trial's trace, and the metrics, each declared once.
- `design/`: what is asked: parameters, each declared once; the study file, checked, becomes a `StudyPlan`.
- `failures/`: when which broker fails, and for how long: a timeline that no protocol setting changes.
- `trials/`: one trial, which runs a cluster through a timeline; batches of trials, the unit of work.
- `estimation/`: sums over trials become estimates with confidence intervals, in `gold/cells.json`.
- `sweeps/`: the missing trials, run as Ray tasks, and the output directory with their traces in Parquet.
- `pipeline/`: Spark turns traces into intervals and outages (silver), then into sums per cell (gold).
- `report/`: `words.py` the sentences, `plots.py` the drawings, `render.py` the page.
- `theory/`: Markov models of small clusters, which the simulation must agree with.
"""

from __future__ import annotations
