"""`isray soak`: a cluster on Ray under load and faults for a given time, and the check of its history.

`run` is the whole soak with the schedule of its faults: `cluster` the cluster under test, `ray_nodes` its Ray, `faults`
what happens to it, `workload` the load.
"""
