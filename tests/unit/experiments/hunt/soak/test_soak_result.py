"""The result of a soak: its document with the recovery times by kind of fault; and the placement of its nodes on Ray
nodes.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.engines.port import ClusterSpec
from experiments.hunt.soak.cluster import homes_of
from experiments.hunt.soak.run import DoneFault, SoakOptions, SoakResult, keep_disks
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, RECOVERY_MANAGER

OPTIONS = SoakOptions(
    minutes=2, seed=1, brokers=3, partitions=4, rate=100, faults=("pause", "cut", "restart"), out=Path("out")
)


def test_recovery_times_are_listed_by_kind_in_their_order() -> None:
    injected = [("cut", 6_100), ("pause", 12_000), ("cut", 6_050)]
    done = [DoneFault(index, kind, 1_000 * index, "broker 0", after) for index, (kind, after) in enumerate(injected)]
    result = SoakResult(OPTIONS, seconds=120.0, done=done)
    assert list(result.recovery_ms.items()) == [("pause", [12_000]), ("cut", [6_100, 6_050]), ("restart", [])]
    assert result.document()["faults"] == {
        "pause": {"done": 1, "recovery_ms": [12_000]},
        "cut": {"done": 2, "recovery_ms": [6_100, 6_050]},
        "restart": {"done": 0, "recovery_ms": []},
    }


def test_only_brokers_are_placed_on_ray_nodes_whose_raylet_may_be_killed() -> None:
    nodes: Any = SimpleNamespace(head="head", workers=["a", "b", "c", "spare"])
    spec = ClusterSpec(brokers=3, controllers=1, config=ClusterConfig.of(Generation.KIP_966))
    homes = homes_of(spec, nodes)
    assert {broker: homes.pop(broker) for broker in spec.broker_ids} == {0: "a", 1: "b", 2: "c"}
    assert homes == {FIRST_CONTROLLER: "head", RECOVERY_MANAGER: "head", FIRST_CLIENT: "head"}


def test_the_disks_of_a_soak_with_findings_are_copied_once_their_nodes_have_ended(tmp_path: Path) -> None:
    """A node renames `quorum-state.tmp` sooner or later; after its end the file stays as it is."""
    disk, running = tmp_path / "cluster" / "broker-0", [0]
    disk.mkdir(parents=True)
    (disk / "quorum-state.tmp").touch()

    def kill(node: int) -> None:
        running.remove(node)
        (disk / "quorum-state.tmp").rename(disk / "quorum-state")

    cluster = SimpleNamespace(folder=disk.parent, running=lambda: list(running), kill=kill)
    engine: Any = SimpleNamespace(cluster=cluster)
    keep_disks(engine, tmp_path / "kept")
    assert running == []
    assert [path.name for path in (tmp_path / "kept" / "broker-0").iterdir()] == ["quorum-state"]
