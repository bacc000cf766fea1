"""Random faults within tolerance: nothing acknowledged is lost, no invariant breaks, and all heals; without a guard of
the protocol the invariants complain.
"""

from __future__ import annotations

import pytest

from experiments.hunt.mutants.registry import mutated
from protocol.features import LOG_GENERATIONS, Generation
from tests.sim.chaos_helpers import PARTITIONS, Chaos
from tests.sim.seed_helpers import seeds


@pytest.mark.covers("L18", "B24", "E25")
@pytest.mark.parametrize("seed", seeds(range(10), fast=3))
@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_faults_within_tolerance_lose_nothing_and_heal(seed: int, generation: Generation) -> None:
    run = Chaos(seed, generation).run()
    assert run.complaints() == []
    assert sum(len(run.acked[partition]) for partition in PARTITIONS) > 0


# Each of these once ended with a follower outside the ISR, or a broker that never got out of its controlled shutdown.
@pytest.mark.parametrize("seed", [156, 193, 212, 213, 240])
def test_the_cluster_converges_after_the_faults(seed: int) -> None:
    assert Chaos(seed, Generation.KIP_966).run().complaints() == []


# -- guards taken out --------------------------------------------------------------------------------------------------


MUTANTS = (
    "high-watermark-below-min-isr",
    "high-watermark-over-proposed-isr",
    "unclean-restart-taken-as-clean",
    "expansion-without-catching-up",
    "truncation-skipped",
)


@pytest.mark.slow
@pytest.mark.covers("M49", "E1", "E2", "B11", "N5", "E26", "N1")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_missing_guard_is_a_violation(mutant: str) -> None:
    with mutated(mutant):
        assert any(_is_caught(seed) for seed in range(60)), f"no seed caught: {mutant}"


def _is_caught(seed: int) -> bool:
    """Whether random faults make the mutated cluster complain, or break its own contract with its clients."""
    try:
        return bool(Chaos(seed, Generation.KIP_966).run().complaints())
    except AssertionError:
        return True
