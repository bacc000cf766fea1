"""`python -m experiments.hunt.mutants.generated.hunts KIND SEEDS`: prints the first violation of the default runs.

KIND is one of `HUNTS`. Exit code 1 if one of the seeds from 0 on violates something, 0 otherwise. Runs in a process of
its own (`process.py`), so that the mutated module is the one that is imported.
"""

from __future__ import annotations

import sys

from experiments.hunt.mutants.mutant import Focus, PlanFocus, QuorumFocus

SWARM, QUORUM = "swarm", "quorum"
HUNTS: dict[str, Focus] = {SWARM: PlanFocus(), QUORUM: QuorumFocus()}


def first_violation(kind: str, seeds: int) -> str | None:
    """The seed and the invariant of the first violation, None if there is none."""
    for seed in range(seeds):
        invariant = HUNTS[kind].violation_without_focus(seed)
        if invariant is not None:
            return f"seed {seed}: {invariant}"
    return None


if __name__ == "__main__":
    found = first_violation(sys.argv[1], int(sys.argv[2]))
    if found is not None:
        sys.exit(found)
