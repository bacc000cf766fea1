"""What a soak hands back: its document, and how long the cluster took to be whole again after each kind of fault."""

from __future__ import annotations

from pathlib import Path

from experiments.soak.run import Done, SoakPlan, SoakResult

PLAN = SoakPlan(
    minutes=2, seed=1, brokers=3, partitions=4, rate=100, faults=("pause", "cut", "restart"), out=Path("out")
)


def test_recovery_times_are_listed_by_kind_in_their_order() -> None:
    struck = [("cut", 6_100), ("pause", 12_000), ("cut", 6_050)]
    done = [Done(index, kind, 1_000 * index, "broker 0", after) for index, (kind, after) in enumerate(struck)]
    result = SoakResult(PLAN, seconds=120.0, done=done)
    assert list(result.recovery_ms.items()) == [("pause", [12_000]), ("cut", [6_100, 6_050]), ("restart", [])]
    assert result.document()["faults"] == {
        "pause": {"done": 1, "recovery_ms": [12_000]},
        "cut": {"done": 2, "recovery_ms": [6_100, 6_050]},
        "restart": {"done": 0, "recovery_ms": []},
    }
