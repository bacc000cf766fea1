"""`python -m experiments.bench.traces`: prints one digest of the simulator's behaviour, to compare builds (`setup.py`).

The digest covers the results of whole fuzz runs (trace hash, number of events, violation) and all rows of one trial of
each cell of the reference study. With `--compiled` the exit code is 1 unless the compiled build runs.
"""

from __future__ import annotations

import hashlib
import sys

from experiments.bench.sim import REFERENCE
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.studies.trials.trial import run_trial
from experiments.support.build import is_compiled

SEEDS = 40


def digest(seeds: int) -> str:
    total = hashlib.blake2b(digest_size=16)
    for seed in range(1, seeds + 1):
        result = run_plan(draw(seed))
        total.update(f"{result.trace_hash} {result.events} {result.violation}".encode())
    for cell in REFERENCE:
        total.update(repr(run_trial(cell, 0)).encode())
    return total.hexdigest()


def main(arguments: list[str]) -> int:
    """Prints the digest; returns the exit code."""
    if "--compiled" in arguments and not is_compiled():
        print("these are the sources, not a compiled build", file=sys.stderr)
        return 1
    print(digest(SEEDS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
