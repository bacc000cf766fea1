"""Which real Kafka goes on running for the next scenario, and which is started; in the place of processes are names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.compare import worlds
from experiments.compare.course import Course
from experiments.compare.worlds import KAFKA, KeptWorlds, World
from experiments.engines.kafka.processes import NodeFailed
from experiments.engines.port import ClusterSpec
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario

OLD, NEW = World(KAFKA, "4.1.2"), World(KAFKA, "4.4.0")


class Cluster:
    """The cluster with the next number; the first one that `breaks` cannot be used again."""

    breaks: NodeFailed | bool = False
    events: list[str]

    def __init__(self, spec: ClusterSpec, program: str) -> None:
        self.name = f"{program} with {spec.brokers}"
        self.events.append(f"start {self.name}")

    def begin_again(self) -> bool:
        self.events.append(f"again {self.name}")
        if isinstance(self.breaks, NodeFailed):
            raise self.breaks
        return not self.breaks

    def close(self) -> None:
        self.events.append(f"end {self.name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    found = Cluster.events = list[str]()
    monkeypatch.setattr(worlds, "KafkaEngine", Cluster)
    monkeypatch.setattr(worlds.Program, "of", lambda release, _environ: release)
    monkeypatch.setattr(worlds, "run_course", lambda _scenario, engine, name, _pace: Course(engine.name, False, ()))
    yield found
    Cluster.breaks = False


def scenario(brokers: int = 2, *, rules: tuple[str, ...] = (), step: dict[str, object] | None = None) -> Scenario:
    cluster = {"brokers": brokers, "generation": "kip-966-elr", "kafka_rules": list(rules)}
    topics = [{"name": "t", "assignments": [[0, 1]]}]
    steps = [step or {"crash": {"broker": 0}}]
    return scenario_from({"name": "x", "cluster": cluster, "topics": topics, "steps": steps}, "test")


def test_a_cluster_serves_scenarios_with_its_nodes_and_another_release_has_its_own(events: list[str]) -> None:
    """The rules of a scenario are those of the simulator: a real Kafka has them itself."""
    kept = KeptWorlds()
    for it in (scenario(), scenario(rules=("registration-fences",))):
        assert kept.course_in(it, NEW).name == "4.4.0 with 2"
    kept.course_in(scenario(), OLD)
    assert events == ["start 4.4.0 with 2", "again 4.4.0 with 2", "start 4.1.2 with 2"]
    kept.course_in(scenario(3), NEW)
    assert events[3:] == ["end 4.4.0 with 2", "start 4.4.0 with 3"]
    kept.close()
    assert sorted(events[5:]) == ["end 4.1.2 with 2", "end 4.4.0 with 3"]


@pytest.mark.parametrize("breaks", [True, NodeFailed(0, "it ended")])
def test_a_cluster_that_does_not_become_ready_again_is_replaced(events: list[str], breaks: NodeFailed | bool) -> None:
    kept = KeptWorlds()
    kept.course_in(scenario(), NEW)
    Cluster.breaks = breaks
    kept.course_in(scenario(), NEW)
    name = "4.4.0 with 2"
    assert events == [f"start {name}", f"again {name}", f"end {name}", f"start {name}"]


@pytest.mark.parametrize(
    "step",
    [
        {"configure": {"config": {"min.insync.replicas": 2}}},
        {"configure": {"topic": "t", "delete": ["min.insync.replicas"]}},
        {"remove_voter": {"controller": 1000}},
    ],
)
def test_a_cluster_whose_configs_or_voters_a_scenario_changes_ends_with_it(
    events: list[str], step: dict[str, object]
) -> None:
    KeptWorlds().course_in(scenario(step=step), NEW)
    assert events == ["start 4.4.0 with 2", "end 4.4.0 with 2"]


def test_a_cluster_ends_where_its_run_fails(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Course:
        raise KeyboardInterrupt

    monkeypatch.setattr(worlds, "run_course", fails)
    with pytest.raises(KeyboardInterrupt):
        KeptWorlds().course_in(scenario(), NEW)
    assert events == ["start 4.4.0 with 2", "end 4.4.0 with 2"]
