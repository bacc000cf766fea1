"""`python -m experiments.cli.background OPTIONS`: the supervisor of a cluster in the background
(`experiments/engines/clusters/launch.py`).

OPTIONS is a `cluster_state.ClusterOptions` as JSON. The exit code is 1 where the cluster does not become ready or loses
its Ray, and 2 where the input is wrong; the last line of standard error then gives the reason.
"""

from __future__ import annotations

import sys

from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState
from experiments.engines.clusters.launch import config_of
from experiments.engines.ray.session import stay_on_loopback
from experiments.support.errors import InputError


def main(options: ClusterOptions) -> int:
    if options.address is None:
        stay_on_loopback()
    from experiments.check.cluster_recorder import recorder_of
    from experiments.engines.ray.running import CLUSTER_FAILURES, run_cluster

    def ready(state: ClusterState) -> None:
        _report(f"{options.name} is ready at {state.address}")

    try:
        return 0 if run_cluster(options, config_of(options), ready, _report, recorder_of) else 1
    except InputError as error:
        _report(str(error))
        return 2
    except CLUSTER_FAILURES as error:
        _report(" ".join(str(error).split()))
        return 1


def _report(text: str) -> None:
    print(f"isray: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(ClusterOptions.model_validate_json(sys.argv[1])))
