"""What `isray what-if` answers, asked of the simulator: the failures as scenarios, with each return of the brokers.

A scenario writes to every partition after each failure. A partition is writable if the last write succeeds, leaderless
if its leader is -1. Acknowledged records may be lost if some choice of the brokers that lose their page cache and some
order of return leads to it: the log of the leader lacks records that were acknowledged. While a partition stays without
a leader they are lost if no log has them any more.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import NamedTuple

from experiments.engines.sim.engine import SimEngine
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner, ScenarioResult
from experiments.studies.layouts.layout import Brokers, Layout, TopicLayout
from protocol.ids import NO_LEADER

SETTLED: dict[str, object] = {"wait": "40s"}
"""Longer than the session timeout, and than a replica needs to be in sync again."""


RECORDS = 2


class Found(NamedTuple):
    """What the simulator showed of one topic with one partition; `losses` as in `Outcome`."""

    writable: bool
    leaderless: bool
    losses: int | None


def asked(layout: Layout, generation: str, failed: Brokers, at_once: bool = False) -> dict[str, Found]:
    """What becomes of each topic, which has one partition, after these failures."""
    cheapest: dict[str, int] = {}
    state: dict[str, tuple[bool, bool]] = {}
    for lost in product((False, True), repeat=len(failed)):
        for returns in permutations(failed):
            result = _run(_scenario(layout, generation, dict(zip(failed, lost, strict=True)), returns, at_once))
            state = {topic.name: _state(result, topic.name) for topic in layout.topics}
            for topic in layout.topics:
                if _is_lost(result, topic.name):
                    cheapest[topic.name] = min(sum(lost), cheapest.get(topic.name, len(failed)))
    return {name: Found(*found, cheapest.get(name)) for name, found in state.items()}


def _scenario(layout: Layout, generation: str, lost: dict[int, bool], returns: Brokers, at_once: bool) -> Scenario:
    crashes = [{"crash": {"broker": broker, "lose": "unflushed" if lost[broker] else "none"}} for broker in lost]
    writes = [_write(topic) for topic in layout.topics]
    steps: list[dict[str, object]] = [*writes]
    for crash in crashes:
        steps += [crash] if at_once and crash is not crashes[-1] else [crash, SETTLED, *writes]
    steps += [_expect(topic, leader=NO_LEADER) for topic in layout.topics]
    losses = [_expect(topic, lost_acked=0) for topic in layout.topics]
    steps += losses
    for broker in returns:
        steps += [{"start": {"broker": broker}}, SETTLED, *losses]
    raw: dict[str, object] = {
        "name": "what-if",
        "cluster": {"brokers": len(layout.brokers), "controllers": 1, "generation": generation},
        "topics": [
            {
                "name": topic.name,
                "assignments": [list(topic.replicas[0])],
                "config": {"min.insync.replicas": topic.min_insync_replicas},
            }
            for topic in layout.topics
        ],
        "steps": steps,
    }
    return scenario_from(raw, "what-if")


def _write(topic: TopicLayout) -> dict[str, object]:
    return {"produce": {"topic": topic.name, "partition": 0, "records": RECORDS, "acks": "all"}}


def _expect(topic: TopicLayout, **fields: object) -> dict[str, object]:
    return {"expect": {"topic": topic.name, "partition": 0, **fields}}


def _run(scenario: Scenario) -> ScenarioResult:
    engine = SimEngine(scenario.cluster.spec(0))
    try:
        return Runner(scenario, engine, keeps_going=True).run()
    finally:
        engine.close()


def _steps_of(result: ScenarioResult, topic: str, kind: str, field: str) -> list[tuple[bool, str]]:
    """Whether each step of a kind about the topic that has the field held, and what it found."""
    found = [step for step in result.steps if step.kind == kind and f"topic: {topic}," in step.text]
    return [(step.ok, step.detail) for step in found if field in step.text]


def _state(result: ScenarioResult, topic: str) -> tuple[bool, bool]:
    [(is_leaderless, _)] = _steps_of(result, topic, "expect", "leader:")
    is_written, _ = _steps_of(result, topic, "produce", "records")[-1]
    return is_written, is_leaderless


def _is_lost(result: ScenarioResult, topic: str) -> bool:
    losses = _steps_of(result, topic, "expect", "lost_acked")
    if any(not ok and "unknown" not in detail for ok, detail in losses):
        return True
    [partition] = [each for each in result.partitions if each["topic"] == topic]
    acknowledged = RECORDS * sum(ok for ok, _ in _steps_of(result, topic, "produce", "records"))
    ends = partition["log_end_offsets"]
    assert isinstance(ends, dict)
    return partition["leader"] == NO_LEADER and all(end < acknowledged for end in ends.values())
