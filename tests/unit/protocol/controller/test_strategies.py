"""unclean.recovery.strategy and unclean.leader.election.enable: conversion by the flag, and setting either (H3-H9)."""

from __future__ import annotations

import pytest

from experiments.engines import admin_requests
from protocol.controller.administration import handle
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.records import ConfigRecord, TopicRecord
from tests.unit.protocol.controller.test_configs_api import configure, errors_of
from tests.unit.protocol.controller.test_features import (
    ELR,
    ENABLE,
    LOST,
    NEW,
    RECOVERING,
    RECOVERY,
    SAFE,
    STRATEGY,
    bench,
    config,
    level,
    update,
)
from tests.unit.protocol.node_helpers import ControllerBench, config_of, fencing, registrations, topic_records

# -- the flag ----------------------------------------------------------------------------------------------------------


def values(controller: ControllerBench, name: str) -> list[object]:
    """In force for topics `t` and `u`, and for the cluster."""
    return [controller.state.image.config(scope, name) for scope in ("T", "U", None)]


@pytest.mark.covers("H6", "H8", "M73")
def test_enabling_recovery_converts_unclean_leader_election_to_strategies() -> None:
    records = (TopicRecord(name="u", topic_id="U"), config("T", ENABLE, "true"), config("U", STRATEGY, "manual"))
    controller = bench(*records)
    controller.apply(handle(controller.state, update((RECOVERY, 1))).records)
    assert values(controller, STRATEGY) == ["proactive", "balanced", "balanced"]
    wide = bench(TopicRecord(name="u", topic_id="U"), config(None, ENABLE, "true"), config("U", ENABLE, "false"))
    wide.apply(handle(wide.state, update((RECOVERY, 1))).records)
    assert values(wide, STRATEGY) == ["proactive", "balanced", "proactive"]


@pytest.mark.covers("H6", "H8")
def test_the_static_default_is_converted_too() -> None:
    static = config_of(ELR, unclean_leader_election_enable=True)
    controller = ControllerBench(*registrations(), *topic_records(2), config=static)
    found = handle(controller.state, update((RECOVERY, 1)))
    assert list(found.records) == [level(RECOVERY, 1), config(None, STRATEGY, "proactive")]


@pytest.mark.covers("H7", "H8", "H9", "M73")
def test_disabling_recovery_converts_strategies_to_unclean_leader_election_and_loses_manual() -> None:
    strategies = (config("T", STRATEGY, "proactive"), config("U", STRATEGY, "manual"))
    controller = bench(TopicRecord(name="u", topic_id="U"), *strategies, generation=NEW)
    controller.apply(handle(controller.state, update((RECOVERY, 0, SAFE))).records)
    assert values(controller, ENABLE) == [True, False, False]
    controller.apply(handle(controller.state, update((RECOVERY, 1))).records)
    assert values(controller, STRATEGY) == ["proactive", "balanced", "balanced"]


@pytest.mark.covers("H6", "H7", "H8", "M73")
def test_an_override_becomes_an_override_and_where_there_is_none_there_is_none() -> None:
    """So a change of the wider default reaches the same topics, whichever of the two configs counts."""
    unclean = config(None, ENABLE, "true")
    controller = bench(unclean, config("T", ENABLE, "true"), TopicRecord(name="u", topic_id="U"))
    image = controller.state.image
    controller.apply([config("U", STRATEGY, "manual")])
    controller.apply(handle(controller.state, update((RECOVERY, 1))).records)
    overrides = [image.configs.get(scope, {}).get(STRATEGY) for scope in ("T", "U", None)]
    assert overrides == ["proactive", None, "proactive"]
    controller.apply(handle(controller.state, admin_requests.alter_config("t", {STRATEGY: None})).records)
    controller.apply(handle(controller.state, admin_requests.alter_config(None, {STRATEGY: "manual"})).records)
    controller.apply(handle(controller.state, update((RECOVERY, 0, SAFE))).records)
    assert [image.configs.get(scope, {}).get(ENABLE) for scope in ("T", "U", None)] == [None, None, False]
    assert values(controller, ENABLE) == [False, False, False]


@pytest.mark.covers("H8", "M73")
def test_level_and_configs_change_in_one_batch() -> None:
    controller = bench(config("T", ENABLE, "true"))
    assert list(handle(controller.state, update((RECOVERY, 1))).records) == [
        level(RECOVERY, 1),
        config("T", STRATEGY, "proactive"),
    ]


@pytest.mark.covers("H7", "F1", "M73")
@pytest.mark.parametrize("spared", ["t", "cluster"])
def test_a_topics_override_is_converted_before_elections(spared: str) -> None:
    """A stale switch of either place must not be in force for a moment."""
    lost = {**LOST, "last_known_elr": (0,), "last_known_leader": 0}
    if spared == "t":
        present = (config(None, STRATEGY, "proactive"), config("T", STRATEGY, "manual"))
    else:
        present = (config(None, ENABLE, "true"), config("T", ENABLE, "false"), config(None, STRATEGY, "manual"))
    controller = bench(*present, fencing(0, 0, True), generation=NEW, **lost)
    controller.apply(handle(controller.state, update((RECOVERY, 0, SAFE))).records)
    assert controller.partition().leader == NO_LEADER
    assert controller.state.image.config("T", ENABLE) is False


@pytest.mark.covers("H7")
def test_unclean_leader_election_that_takes_effect_with_the_flag_elects() -> None:
    lost = {**LOST, "last_known_elr": (0,), "last_known_leader": 0}
    controller = bench(config("T", STRATEGY, "proactive"), fencing(0, 0, True), generation=NEW, **lost)
    controller.apply(handle(controller.state, update((RECOVERY, 0, SAFE))).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_recovery_state) == (1, (1,), RECOVERING)
    assert (found.last_known_elr, found.last_known_leader) == ((), NO_LEADER)


@pytest.mark.covers("K5", "M18", "N27")
@pytest.mark.parametrize("alive", [True, False])
def test_disabling_recovery_elects_an_active_last_known_leader(alive: bool) -> None:
    lost = {**LOST, "last_known_elr": (0, 1), "last_known_leader": 1}
    controller = bench(fencing(1, 1, not alive), generation=NEW, **lost)
    records = handle(controller.state, update((RECOVERY, 0, SAFE))).records
    controller.apply(records)
    found = controller.partition()
    if alive:
        assert (found.leader, found.isr, found.last_known_elr, found.leader_recovery_state) == (1, (1,), (), RECOVERING)
    else:
        assert (found.leader, found.last_known_elr) == (NO_LEADER, (1,))


# -- unclean.leader.election.enable where unclean recovery has taken its place -----------------------------------------

MEANT: dict[str, tuple[str, dict[str, str | None], str]] = {
    "allowed": ("balanced", {ENABLE: "true"}, "proactive"),
    "allowed to who waits for a user": ("manual", {ENABLE: "true"}, "proactive"),
    "forbidden": ("proactive", {ENABLE: "false"}, "balanced"),
    "forbidden to who waits for a user": ("manual", {ENABLE: "false"}, "manual"),
    "forbidden to who is safe": ("balanced", {ENABLE: "false"}, "balanced"),
    "the strategy is named": ("balanced", {ENABLE: "true", STRATEGY: "manual"}, "manual"),
    "the strategy goes": ("manual", {ENABLE: "true", STRATEGY: None}, "proactive"),
    "taken away": ("proactive", {ENABLE: None}, "proactive"),
}


@pytest.mark.covers("F25", "H2", "H6", "H8")
@pytest.mark.parametrize("topic", ["t", None], ids=["of the topic", "of the cluster"])
@pytest.mark.parametrize(("before", "changes", "after"), MEANT.values(), ids=MEANT)
def test_with_recovery_unclean_leader_election_sets_the_strategy(
    topic: str | None, before: str, changes: dict[str, str | None], after: str
) -> None:
    scope = "T" if topic else None
    lost = {**LOST, "last_known_elr": (0,)}
    present = (config(scope, STRATEGY, before), config(scope, ENABLE, "true"))
    controller = bench(*present, fencing(0, 0, True), generation=NEW, **lost)
    records = handle(controller.state, admin_requests.alter_config(topic, changes)).records
    assert all(isinstance(record, ConfigRecord) for record in records), "recovery elects, in its own time"
    controller.apply(records)
    assert controller.state.image.config(scope, STRATEGY) == after


@pytest.mark.covers("H3")
@pytest.mark.parametrize("name", ["", "pro active", "Balance", "none", "unclean"])
def test_an_unknown_strategy_is_an_invalid_config(name: str) -> None:
    for topic in ("t", None):
        found = handle(bench(generation=NEW).state, configure(name, STRATEGY, topic=topic))
        assert (errors_of(found), list(found.records)) == ([ErrorCode.INVALID_CONFIG], [])
        assert found.response.failure()[1].endswith("allowed: proactive | balanced | manual")


@pytest.mark.covers("H5", "N23")
def test_the_timeout_of_recoveries_has_a_default_and_may_be_set_for_a_topic() -> None:
    controller = bench(generation=NEW)
    timeout = "unclean.recovery.timeout.ms"
    assert controller.state.image.config("T", timeout) == 5_000
    controller.apply(handle(controller.state, configure("300000", timeout, topic=None)).records)
    controller.apply(handle(controller.state, configure("1", timeout)).records)
    assert [controller.state.image.config(scope, timeout) for scope in (None, "T")] == [300_000, 1]
    assert errors_of(handle(controller.state, configure("0", timeout))) == [ErrorCode.INVALID_CONFIG]
