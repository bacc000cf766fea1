"""Trials on real processes: a cluster of actors with real disks, in real time, goes through a timeline of failures.

- `cluster.py`: the cluster of one trial: its set-up, its writers, the comparison of logs with acknowledgements.
- `trial.py`: runs the timeline on it, and repeats a trial whose cluster has failed by itself.
- `rows.py`: what was recorded, and the trace that follows from it.
"""

from __future__ import annotations
