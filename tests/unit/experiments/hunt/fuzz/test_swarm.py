"""The swarm: every theme has its turn, a bias is kept, and episodes are made of what fits their plan."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.faults.kinds.administration import Reassign
from experiments.faults.kinds.links import Cut, Disturb
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.plan import Elect, TimelineFile, load, save
from experiments.hunt.fuzz.release_themes import RELEASE_THEMES
from experiments.hunt.fuzz.run import BEGIN_MS
from experiments.hunt.fuzz.scene import Quiet, RequestedElection, Scene
from experiments.hunt.fuzz.swarm import ANY_RELEASE, draw, themes_of
from experiments.hunt.fuzz.themes import THEMES
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.features import LOG_GENERATIONS, RELEASED, Generation
from protocol.ids import RECOVERY_MANAGER
from protocol.kafka_release import NEWEST, KafkaRelease

ALL_THEMES = THEMES | RELEASE_THEMES
SEEDS = st.integers(0, 2**31)


def test_few_seeds_contain_all_themes() -> None:
    assert {theme for seed in range(40) for theme in themes_of(seed)} == set(THEMES)
    assert any(themes_of(seed) == () for seed in range(4))


def test_pairs_of_themes_vary() -> None:
    pairs = [themes_of(seed) for seed in range(150) if themes_of(seed)]
    assert all(one != other for one, other in pairs)
    assert len(set(pairs)) == len(pairs)


def test_plans_of_a_release_have_their_own_source_and_its_themes() -> None:
    """What a seed's default plan is does not depend on releases; a plan of a release has a generation of Kafka's."""
    plans = [draw(seed, release=ANY_RELEASE) for seed in range(40)]
    assert {plan.kafka_release for plan in plans} == {release.value for release in KafkaRelease}
    assert {Generation(plan.generation) for plan in plans} == set(RELEASED)
    assert {draw(seed).kafka_release for seed in range(40)} == {NEWEST.value}
    named = draw(7, Generation.KIP_497, release="4.0")
    assert (named.kafka_release, named.generation) == ("4.0", "kip-497")
    assert {theme for seed in range(44) for theme in themes_of(seed, names=tuple(ALL_THEMES))} == set(ALL_THEMES)


def test_a_bias_is_kept() -> None:
    bias = Bias(
        generation=Generation.KIP_497,
        brokers=5,
        replicas=4,
        min_isr=3,
        partitions=2,
        topic={"segment.bytes": 777},
        config={"linger.ms": 33},
        weights={"pause": 1},
        within_tolerance=False,
    )
    for seed in range(5):
        plan = draw(seed, bias=bias)
        (topic,) = plan.topics
        assert (plan.generation, plan.brokers, plan.within_tolerance) == ("kip-497", 5, False)
        assert [len(replicas) for replicas in topic.assignments] == [4, 4]
        assert (topic.config[MIN_INSYNC_REPLICAS], topic.config["segment.bytes"]) == (3, 777)
        assert plan.config["linger.ms"] == 33
        assert {fault.kind for fault in plan.faults} == {"pause"}


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_faults_name_existing_nodes(generation: Generation) -> None:
    plans = [draw(seed, bias=Bias(generation=generation, weights={"power_loss": 1})) for seed in range(10)]
    struck = {node for plan in plans for fault in plan.faults for node in fault.nodes}
    assert struck <= {node for plan in plans for node in plan.spec().node_ids}
    assert (RECOVERY_MANAGER in struck) is generation.features.unclean_recovery


def test_a_bias_is_completed_by_another() -> None:
    found = Bias(brokers=4, config={"linger.ms": 1}).or_else(Bias(brokers=5, min_isr=1, config={"linger.ms": 2}))
    assert (found.brokers, found.min_isr, found.config) == (4, 1, {"linger.ms": 1})


@settings(max_examples=10)
@given(SEEDS, st.booleans())
@pytest.mark.parametrize("theme", ALL_THEMES)
def test_an_episode_begins_in_time_and_names_existing_nodes(theme: str, seed: int, recovers: bool) -> None:
    scene = Scene(Random(seed), 5_000, "t", 0, 2, range(6), 2, 0, (3,), 2_000, 2_500, recovers)
    parts = list(ALL_THEMES[theme][0](scene))
    assert any(not isinstance(part, RequestedElection | Quiet) for part in parts)
    for part in parts:
        assert part.at_ms >= scene.at_ms - 200
        if isinstance(part, RequestedElection):
            continue
        assert part.end_ms > part.at_ms
        if not isinstance(part, Quiet):
            assert recovers or RECOVERY_MANAGER not in part.nodes
        if isinstance(part, Cut | Disturb):
            assert not set(part.source) & set(part.target)
        elif isinstance(part, Reassign):
            assert scene.leader not in part.replicas or set(part.replicas) == {scene.leader, *scene.followers}
            assert len(set(part.replicas)) == len(part.replicas) == 3


@pytest.mark.slow
@pytest.mark.parametrize("theme", ALL_THEMES)
def test_a_staged_plan_can_be_saved(theme: str, tmp_path: Path) -> None:
    plan = draw(3, bias=Bias(themes=(theme,)))
    assert len({operation.id for operation in plan.operations}) == len(plan.operations)
    assert any(isinstance(operation, Elect) for operation in plan.operations)
    file = TimelineFile(trace_hash="0" * 32, before=plan.sizes, after=plan.sizes, plan=plan)
    path = tmp_path / "plan.yaml"
    save(file, path)
    assert load(path) == file


def test_clients_begin_no_operation_in_a_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = THEMES["quick return"][1]
    plain = draw(3, bias=Bias(themes=("quick return",)))
    begin_ms, end_ms = BEGIN_MS, BEGIN_MS + 60_000
    monkeypatch.setitem(THEMES, "quick return", (lambda scene: iter((Quiet(begin_ms, end_ms),)), whole))
    still = draw(3, bias=Bias(themes=("quick return",)))
    assert any(not isinstance(operation, Elect) for operation in plain.operations)
    assert all(isinstance(operation, Elect) for operation in still.operations)
