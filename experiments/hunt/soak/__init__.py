"""`isray soak`: a cluster on Ray under load and faults for a given time, and the check of its history.

`run` is the whole soak: `cluster` the cluster under test, `ray_nodes` its Ray, `schedule` and `faults` what happens to
it, `experiments.hunt.workload` the load.
"""
