"""Studies: how often a cluster loses acknowledged records, how long it is unavailable, and what a setting changes.

From a study file to a number in the report, in this order:

- `parameter.py`, `model.py`: the parameters, each declared once; study and cells. `metrics.py`: the numbers, likewise.
- `loader.py`: the study file, checked, becomes a `Study`.
- `sweep.py`, `batch.py`: the missing trials, run as Ray tasks. `progress.py`: lines on standard error meanwhile.
- `trial.py`, `failures.py`, `distribution.py`: one trial on the simulator; its result is a trace (`trace_schema.py`).
- `output.py`: the output directory, with batches of traces in Parquet.
- `analysis.py`, `pipeline/`: Spark turns traces into intervals and outages (silver), then into sums per cell (gold).
- `statistics.py`, `estimates.py`: sums become estimates with confidence intervals, in `gold/cells.json`.
- `report/`: `words.py` the sentences, `plots.py` the drawings, `render.py` the page.
"""

from __future__ import annotations
