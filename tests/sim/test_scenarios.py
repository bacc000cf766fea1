"""The shipped scenarios hold on sim, whatever the seed, and cite the requirement that each was written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec
from experiments.scenarios.loader import load_scenario, scenario_from
from experiments.scenarios.runner import Runner
from protocol.config import ClusterConfig
from protocol.features import Generation
from tests.sim.scenario_helpers import SCENARIOS, run_file, run_scenario, shipped, spec_of
from tests.sim.seed_helpers import seeds

SHOWS = {
    "dead-last-known-leader": ("E24", "N33"),
    "dead-last-known-leader-kafka": ("N33",),
    "elr-clean-restart": ("M13", "M14", "E21", "E22", "E17", "E30", "E31"),
    "elr-shrink-and-growth": ("M9", "M10", "E13", "E14", "E15"),
    "elr-unclean-restart": ("M15", "M20", "E18", "E20", "E23", "E24", "M18"),
    "high-watermark-regression": ("M3", "M4", "E1", "E5", "E6", "E7"),
    "high-watermark-regression-kip-497": ("M3",),
    "leader-rebalance": ("J2",),
    "lost-disk": ("E20", "E21", "M15"),
    "last-known-leader": ("M18", "M20", "E24"),
    "last-known-leader-removed": ("E24",),
    "last-known-leader-removed-kafka": ("E24",),
    "last-replica-standing": ("M1", "E12", "E13", "E15", "M9", "L17"),
    "last-replica-standing-kip-497": ("M2",),
    "leader-failover": ("M25", "J2"),
    "leader-recovery": ("M57", "M58", "C5", "C8", "N13"),
    "power-loss": ("E20", "E27"),
    "controller-registrations": (),
    "quorum-auto-join": ("D11", "D32"),
    "quorum-bootstrap": ("M77", "D31", "D12", "D14", "D34"),
    "quorum-disk-replaced": ("M78", "D4", "D5", "D32", "D20"),
    "quorum-failover": ("M50", "D22"),
    "quorum-leader-removed": ("M82", "D17", "D18", "D19", "D20"),
    "clock-ahead": (),
    "quorum-static": ("M83", "D1", "H11"),
    "reassignment": ("M44", "E32", "J18"),
    "replaced-disk": ("E24",),
    "replaced-disk-kafka": ("E24",),
    "recovery-adding-replicas": ("M62", "F12"),
    "recovery-all-dead": ("M26", "M27", "F3", "F4", "C3"),
    "recovery-answer-then-crash": ("M66", "F8"),
    "recovery-answer-then-reboot": ("M65", "F8", "F10"),
    "recovery-balanced-waits": ("M59", "F4", "F11", "I3"),
    "recovery-clean-candidate": ("M72", "F16"),
    "recovery-controller-failover": ("M68", "F15", "I5"),
    "recovery-counts-no-replies": ("M60", "F28"),
    "recovery-enabled-late": ("F29", "K8", "I4"),
    "recovery-higher-epoch": ("M61", "F5", "F30"),
    "recovery-longest-log": ("F22", "J4", "I4"),
    "recovery-manual": ("M63", "F22", "F24", "I4"),
    "recovery-network-error": ("M69", "F10", "F19", "F21"),
    "recovery-only-leaderless": ("M74", "F23", "J2", "J4"),
    "recovery-power-loss": ("M17", "F17", "F27", "I5"),
    "recovery-proactive": ("M62", "F3", "F12", "I3"),
    "recovery-proactive-in-time": ("M62", "F12", "H5"),
    "recovery-proactive-waits": ("M62", "F12"),
    "recovery-restart-before-query": ("M64", "F13"),
    "recovery-stale-metadata": ("M67", "F9"),
    "recovery-toggle": ("M73", "H6", "H7", "H8", "H9", "K8"),
    "recovery-urm-crash": ("M70", "F14", "F18", "N26"),
    "recovery-urm-hangs": ("M70", "F14"),
    "removed-replica-in-elr": ("E24", "E34"),
    "removed-replica-in-elr-kafka": ("E34",),
    "returning-replica": ("E20", "E34"),
    "returning-replica-kafka": ("E34",),
    "silent-follower": ("M41", "A47"),
    "slow-follower": ("M40", "A44"),
    "unclean-election": ("M19", "C3", "C12"),
    "store-controller-failover": ("A32", "A33", "A35", "M33"),
    "store-controller-race": ("A32", "A35", "M34"),
    "store-leader-failover": ("A13", "A46"),
    "store-outage": ("A3", "A52"),
    "store-reassignment-failover": ("A37", "A38", "A40", "A41", "M44"),
    "store-session-expiry": ("A52", "M39"),
    "v3-divergence": ("M42", "N1"),
    "v3-divergence-kip-497": ("M42", "N1"),
    "v3-expansion": ("A45", "N5"),
    "v3-expansion-kip-497": ("N5",),
    "v3-high-watermark": ("A42", "N6"),
    "v3-high-watermark-kip-497": ("N6",),
    "v3-last-replica": ("M2", "A13"),
    "v3-last-replica-kip-966": ("M1",),
    "v3-truncation": ("M42", "A27", "N1"),
    "v3-truncation-kip-497": ("M42", "N1"),
    "v3-unclean-election": ("M26", "A14"),
    "v3-unclean-election-kip-497": ("M26",),
    "replaced-reassignment": ("E32",),
    "replaced-reassignment-kip-966-elr": ("E32",),
    "cancelled-in-absence": ("E33", "E35"),
    "cancelled-in-absence-kafka": ("E24", "E33"),
    "withdrawn-replica": ("E32",),
    "withdrawn-replica-kafka": ("E32",),
    "min-isr-change": ("E19", "M6", "M7"),
    "min-isr-change-kafka": ("E19", "M7"),
    "first-partition": ("E8",),
    "first-partition-kafka": ("E8",),
    "reassignment-one-copy": ("E32",),
    "reassignment-one-copy-until-4-2": ("E32",),
    "reassignment-too-few": ("E32",),
    "reassignment-too-few-until-4-2": ("E32",),
    "upgrade": ("K2", "K3", "K4", "K10", "M23", "M24"),
}


def test_every_shipped_scenario_is_cited() -> None:
    assert sorted(SHOWS) == sorted(path.stem for path in SCENARIOS)


@pytest.mark.parametrize("seed", seeds([0, 1, 7], fast=1))
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.covers(*items)] if items else []) for name, items in sorted(SHOWS.items())],
)
def test_shipped_scenario_holds(name: str, seed: int) -> None:
    result = run_file(name, seed)
    assert result.passed, (result.steps[-1], result.violations)


@pytest.mark.covers("L17")
def test_scenarios_of_the_elr_have_the_reference_config() -> None:
    """Three replicas and min ISR 2: with one replica less than min ISR left, the ELR is what keeps a leader."""
    reference = [path for path in SCENARIOS if path.stem.startswith(("elr-", "last-replica-", "high-watermark-"))]
    assert len(reference) == 7
    for path in reference:
        for topic in shipped(path.stem).topics:
            assert [len(replicas) for replicas in topic.assignments] == [3], path
            assert topic.config["min.insync.replicas"] == 2, path


@pytest.mark.covers("M1", "M2", "E25")
def test_kip_966_keeps_the_records_that_kip_497_loses() -> None:
    assert run_file("last-replica-standing").losses.lost_acked == 0
    assert run_file("last-replica-standing-kip-497").losses.lost_acked == 15


@pytest.mark.covers("M42", "M2", "M26", "N1", "N5")
@pytest.mark.parametrize(
    ("name", "twin", "lost"),
    [
        ("divergence", "kip-497", 5),
        ("expansion", "kip-497", 10),
        ("last-replica", "kip-966", 15),
        ("truncation", "kip-497", 1),
        ("unclean-election", "kip-497", 5),
    ],
)
def test_a_later_generation_keeps_what_v3_loses(name: str, twin: str, lost: int) -> None:
    """The failures of both are the same; only what the generations make of them differs."""
    old, new = run_file(f"v3-{name}"), run_file(f"v3-{name}-{twin}")
    assert (old.losses.lost_acked, new.losses.lost_acked) == (lost, 0)


STORE_IS_CUT_OFF: dict[str, object] = {
    "name": "store-is-cut-off",
    "cluster": {"brokers": 3, "generation": "v3", "store": {"session_timeout": "3s"}},
    "topics": [{"name": "t", "assignments": [[0, 1, 2]]}],
    "steps": [
        {"produce": {"topic": "t", "partition": 0, "records": 5, "acks": "all"}},
        {"cut": {"between": ["store", "rest"]}},
        {"wait": "30s"},
        {"expect": {"broker": 1, "state": "fenced"}},
        {"expect": {"topic": "t", "partition": 0, "leader": 0, "isr": [0, 1, 2], "visible": 5, "lost_acked": 0}},
    ],
}


@pytest.mark.covers("A2")
def test_what_the_store_has_published_counts_while_no_broker_is_the_controller() -> None:
    scenario = scenario_from(STORE_IS_CUT_OFF, "test")
    runner = Runner(scenario, CheckedEngine(spec_of(scenario, seed=0)))
    result = runner.run()
    assert [step.detail for step in result.steps if not step.ok] == []
    assert runner.engine.active_controller() is None


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("last-replica-standing", "visible: 17, lost_acked: 0", "visible: 17, lost_acked: 1"),
        ("last-replica-standing-kip-497", "lost_acked: 15", "lost_acked: 0"),
        (
            "high-watermark-regression",
            "high_watermark_regressions: 0}\n  - start",
            "high_watermark_regressions: 1}\n  - start",
        ),
        ("leader-failover", "leader: 1, leader_epoch: 1", "leader: 2, leader_epoch: 1"),
        ("silent-follower", "isr: [0, 2]", "isr: [2]"),
    ],
)
def test_a_wrong_expectation_fails_the_scenario(name: str, old: str, new: str, tmp_path: Path) -> None:
    [path] = [path for path in SCENARIOS if path.stem == name]
    text = path.read_text()
    assert old in text
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace(old, new))
    result = run_scenario(load_scenario(changed))
    assert not result.passed
    assert not result.steps[-1].ok
    assert "expected" in result.steps[-1].detail


def test_a_step_that_fails_ends_the_run() -> None:
    """A step that cannot be carried out fails with its reason and ends the run."""
    steps: list[dict[str, object]] = [{"crash": {"broker": 1}}, {"crash": {"broker": 1}}, {"wait": "1s"}]
    raw: dict[str, object] = {"name": "inline", "cluster": {"brokers": 3}, "steps": steps}
    result = run_scenario(scenario_from(raw, "inline"))
    assert [step.ok for step in result.steps] == [True, False]
    assert result.steps[-1].detail == "node 1 is not running"
    assert [step.text for step in result.steps] == ["crash: {broker: 1}"] * 2


def test_virtual_time_is_the_only_time() -> None:
    spec = ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966))
    raw: dict[str, object] = {"name": "n", "cluster": {"brokers": 3}, "steps": [{"wait": "30d"}]}
    engine = CheckedEngine(spec)
    result = Runner(scenario_from(raw, "inline"), engine).run()
    assert result.passed
    assert engine.now_ms() >= 30 * 86_400_000
    assert engine.cluster.event_count < 200, "a quiet month costs no events"


@pytest.mark.covers("F27", "I5")
def test_each_recovery_is_reported_with_the_records_it_lost() -> None:
    [recovery] = run_file("recovery-proactive").recoveries
    decided = recovery.decided
    [(broker, _, _, end)] = decided.answers
    assert (decided.partition, decided.mode, decided.leader) == (("t", 0), "proactive", 0)
    assert (broker, end, decided.absent, decided.silent) == (0, 4, (1, 2), ())
    assert recovery.lost == 2
    kept = run_file("recovery-power-loss").recoveries
    assert [(recovery.decided.leader, recovery.lost) for recovery in kept] == [(2, 0)]
    assert run_file("leader-failover").recoveries == []
