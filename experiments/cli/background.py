"""`python -m experiments.cli.background OPTIONS`: the supervisor of a cluster in the background
(`experiments/engines/clusters/launch.py`).

OPTIONS is a `cluster_state.ClusterOptions` as JSON. The exit code is 1 where the cluster does not become ready or loses
its Ray, and 2 where the input is wrong; the last line of standard error then gives the reason.
"""

from __future__ import annotations

import sys

from experiments.cli.kafka_cluster import ClusterFailed, run_engine
from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState
from experiments.support.errors import InputError


def main(options: ClusterOptions) -> int:
    def ready(state: ClusterState) -> None:
        _report(f"{options.name} is ready at {state.address}")

    try:
        return 0 if run_engine(options, ready, _report) else 1
    except InputError as error:
        _report(str(error))
        return 2
    except ClusterFailed as error:
        _report(str(error))
        return 1


def _report(text: str) -> None:
    print(f"isray: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(ClusterOptions.model_validate_json(sys.argv[1])))
