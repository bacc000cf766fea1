"""What a soak hands back: its document, and how long the cluster took to be whole again after each kind of fault; and
where its nodes live.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.engines.port import ClusterSpec
from experiments.hunt.soak.cluster import homes_of
from experiments.hunt.soak.run import Done, SoakPlan, SoakResult
from protocol.config import ClusterConfig, Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, RECOVERY_MANAGER

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


def test_nothing_but_brokers_lives_where_a_raylet_may_be_killed() -> None:
    nodes: Any = SimpleNamespace(head="head", workers=["a", "b", "c", "spare"])
    spec = ClusterSpec(brokers=3, controllers=1, config=ClusterConfig.of(Generation.KIP_966))
    homes = homes_of(spec, nodes)
    assert {broker: homes.pop(broker) for broker in spec.broker_ids} == {0: "a", 1: "b", 2: "c"}
    assert homes == {FIRST_CONTROLLER: "head", RECOVERY_MANAGER: "head", FIRST_CLIENT: "head"}
