"""The same seed gives the same trace: in one process, under any hash seed, and with every message encoded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.features import LOG_GENERATIONS, Generation
from tests.sim.chaos_helpers import Chaos
from tests.sim.scenario_helpers import NAMES, OF_EACH_KIND, run_file
from tests.sim.seed_helpers import some

ROOT = Path(__file__).parent.parent.parent
_HASH = """
from protocol.config import Generation
from tests.sim.chaos_helpers import Chaos
print(Chaos(11, Generation.KIP_966).run().engine.trace_hash())
"""


def _hash_under(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _HASH]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.proof
def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    first, second = _hash_under("0"), _hash_under("4711")
    assert first == second
    assert len(first) == 32


def test_seeds_differ() -> None:
    hashes = {run_file("last-replica-standing", seed).trace_hash for seed in range(4)}
    assert len(hashes) == 4


@pytest.mark.parametrize("name", some(NAMES, first=len(OF_EACH_KIND)))
def test_the_same_seed_gives_the_same_trace(name: str) -> None:
    assert run_file(name, 3).trace_hash == run_file(name, 3).trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("name", some(NAMES, first=len(OF_EACH_KIND)))
def test_encoding_every_message_changes_nothing(name: str) -> None:
    assert run_file(name, 5).trace_hash == run_file(name, 5, paranoid=True).trace_hash


@pytest.mark.proof
@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_encoding_every_message_changes_nothing_under_faults(generation: Generation) -> None:
    plain = Chaos(21, generation, duration_ms=60_000).run()
    paranoid = Chaos(21, generation, duration_ms=60_000, paranoid=True).run()
    assert plain.engine.trace_hash() == paranoid.engine.trace_hash()
