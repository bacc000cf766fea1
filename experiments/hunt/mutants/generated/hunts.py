"""`python -m experiments.hunt.mutants.generated.hunts KIND SEEDS`: prints the first violation of the default runs.

KIND is one of `HUNTS`. Exit code 1 if one of the seeds from 0 on violates something, 0 otherwise. Runs in a process of
its own (`process.py`), so that the mutated module is the one that is imported. Each seed has a limit of processor time,
so that an endless loop does not use up the time of all seeds.
"""

from __future__ import annotations

import math
import resource
import sys
import time

from experiments.hunt.mutants.mutant import PlanFocus, QuorumFocus

SWARM, QUORUM = "swarm", "quorum"
HUNTS: dict[str, PlanFocus | QuorumFocus] = {SWARM: PlanFocus(), QUORUM: QuorumFocus()}
SECONDS_PER_SEED = 20
"""The limit of processor time, many times of what the unchanged protocol takes."""


def violation(kind: str, seed: int) -> str | None:
    """The seed and the invariant that it violates, None if it violates none."""
    invariant = HUNTS[kind].violation_without_focus(seed)
    return None if invariant is None else f"seed {seed}: {invariant}"


def _main(kind: str, seeds: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for seed in range(seeds):
        soft = math.ceil(time.process_time()) + SECONDS_PER_SEED
        resource.setrlimit(resource.RLIMIT_CPU, (min(soft, hard), hard))
        found = violation(kind, seed)
        if found is not None:
            sys.exit(found)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
