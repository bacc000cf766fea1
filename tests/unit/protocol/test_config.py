"""Configs: names, types, ranges, scopes; generations as sets of switches."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.members import creation_failure
from protocol.config import (
    CONFIGS,
    CONTROLLER_QUORUM_BOOTSTRAP_SERVERS,
    CONTROLLER_QUORUM_VOTERS,
    NEVER,
    ClusterConfig,
    ConfigDef,
    ConfigError,
    config_text,
    node_ids,
    parse_config,
)
from protocol.errors import ProtocolInvariantError
from protocol.features import (
    LOG_GENERATIONS,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    Generation,
    features_at,
    record_version,
)
from protocol.kafka_rules import KAFKA_RULES
from protocol.quorum.context import QuorumConfig

TOPIC_SCOPED = {name for name, definition in CONFIGS.items() if definition.topic_scoped}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("min.insync.replicas", 2, 2),
        ("min.insync.replicas", "3", 3),
        ("min.insync.replicas", 999, 999),
        ("min.insync.replicas", " 07 ", 7),
        ("min.insync.replicas", 2**31 - 1, 2**31 - 1),
        ("unclean.leader.election.enable", "true", True),
        ("unclean.leader.election.enable", " FALSE", False),
        ("unclean.leader.election.enable", False, False),
        ("unclean.recovery.strategy", "Balanced", "balanced"),
        ("unclean.recovery.strategy", "proactive", "proactive"),
        ("unclean.recovery.strategy", "MANUAL", "manual"),
        ("cleanup.policy", "compact,delete", "compact,delete"),
        ("message.timestamp.type", "createtime", "CreateTime"),
        ("flush.messages", str(NEVER), NEVER),
    ],
)
@pytest.mark.covers("H3")
def test_values_are_typed(name: str, value: object, expected: object) -> None:
    found = parse_config(name, value, topic=True)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("min.insync.replicas", 0, "a whole number >= 1"),
        ("min.insync.replicas", "0", "a whole number >= 1"),
        ("min.insync.replicas", "-1", "a whole number >= 1"),
        ("min.insync.replicas", "two", "a whole number >= 1"),
        ("min.insync.replicas", 1.5, "a whole number >= 1"),
        ("min.insync.replicas", True, "a whole number >= 1"),
        ("min.insync.replicas", None, "a whole number >= 1"),
        ("min.insync.replicas", 2**31, "a whole number >= 1"),
        ("min.insync.replicas", "1 2", "a whole number >= 1"),
        ("min.insync.replicas", "", "a whole number >= 1"),
        ("min.insync.replicas", "9" * 5_000, "a whole number >= 1"),
        ("default.replication.factor", 2**15, "a whole number from 1 to 32767"),
        ("controller.quorum.fetch.max.bytes", 0, "a whole number >= 1"),
        ("controller.quorum.fetch.snapshot.max.bytes", "1kB", "a whole number >= 1"),
        ("controller.quorum.auto.join.enable", "always", "true | false"),
        ("super.users", 1, "a text"),
        ("unclean.leader.election.enable", "yes", "true | false"),
        ("unclean.leader.election.enable", 1, "true | false"),
        ("unclean.recovery.strategy", "none", "proactive | balanced | manual"),
        ("message.timestamp.type", "LogAppendTime", "CreateTime"),
        ("unclean.recovery.strategy", 1, "proactive | balanced | manual"),
    ],
)
@pytest.mark.covers("H3")
def test_a_rejected_value_names_the_allowed_ones(name: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(name, value)
    assert (caught.value.name, str(caught.value.found), caught.value.allowed) == (name, str(value), allowed)


def test_a_refused_config_of_a_node_is_one_line_in_other_processes() -> None:
    """Ray sends the error of an actor's constructor, and its traceback as text."""
    error = ConfigError("listeners", "h:1", "an address of this machine, free", " (Address already in use)")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.hint) == (str(error), error.hint)
    text = f"The actor died\n  File ...\nprotocol.config.ConfigError: {error}\n"
    expected = "listeners: found 'h:1' (Address already in use); allowed: an address of this machine, free"
    assert creation_failure(text) == expected


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("min.insync.replica", 1)
    assert caught.value.found == "min.insync.replica"
    assert "found 'min.insync.replica'. Did you mean 'min.insync.replicas'?; allowed: " in str(caught.value)
    assert set(caught.value.allowed.split(", ")) == set(CONFIGS)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_only_topic_scoped_configs_may_be_overridden_by_a_topic(name: str) -> None:
    default = CONFIGS[name].default
    assert parse_config(name, default) == default
    if name in TOPIC_SCOPED:
        assert parse_config(name, default, topic=True) == default
    else:
        with pytest.raises(ConfigError):
            parse_config(name, default, topic=True)


@pytest.mark.covers("H6", "H8")
@pytest.mark.parametrize(
    ("generation", "values", "strategy"),
    [
        (Generation.KIP_966, {"unclean.leader.election.enable": True}, "proactive"),
        (Generation.KIP_966, {"unclean.leader.election.enable": "false"}, "balanced"),
        (Generation.KIP_966, {"unclean.leader.election.enable": True, "unclean.recovery.strategy": "manual"}, "manual"),
        (Generation.KIP_966_ELR, {"unclean.leader.election.enable": True}, "balanced"),
    ],
)
def test_with_unclean_recovery_the_older_config_sets_the_strategy(
    generation: Generation, values: dict[str, object], strategy: str
) -> None:
    assert ClusterConfig.of(generation, values).values["unclean.recovery.strategy"] == strategy


def test_configs_shared_by_leader_and_controller_are_topic_scoped() -> None:
    assert {"min.insync.replicas", "unclean.leader.election.enable", "unclean.recovery.strategy"} <= TOPIC_SCOPED


@given(st.sampled_from([c for c in CONFIGS.values() if type(c.default) is int]), st.integers(-5, NEVER))
def test_integers_in_range_parse_from_numbers_and_text(definition: ConfigDef, value: int) -> None:
    for spelling in (value, str(value)):
        if definition.minimum <= value <= definition.maximum:
            assert parse_config(definition.name, spelling) == value
        else:
            with pytest.raises(ConfigError):
                parse_config(definition.name, spelling)


def test_every_default_is_an_allowed_value() -> None:
    for name, definition in CONFIGS.items():
        assert parse_config(name, definition.default) == definition.default
    assert dict(ClusterConfig().values) == {name: definition.default for name, definition in CONFIGS.items()}


def test_overrides_replace_defaults() -> None:
    config = ClusterConfig.of(Generation.KIP_497, {"broker.session.timeout.ms": "250"})
    assert config.int_value("broker.session.timeout.ms") == 250
    assert config.int_value("broker.heartbeat.interval.ms") == CONFIGS["broker.heartbeat.interval.ms"].default
    with pytest.raises(ConfigError):
        ClusterConfig.of(Generation.KIP_497, {"broker.session.timeout.ms": 0})


@pytest.mark.covers("N7")
@pytest.mark.parametrize(
    ("generation", "switches"),
    [
        (Generation.KIP_497, set()),
        (
            Generation.KIP_966_ELR,
            {"elr", "effective_min_isr", "high_watermark_needs_min_isr", "last_known_leader_in_elr"},
        ),
        (
            Generation.KIP_966,
            {
                "elr",
                "effective_min_isr",
                "high_watermark_needs_min_isr",
                "track_last_known_leader",
                "unclean_recovery",
            },
        ),
    ],
)
def test_a_generation_is_a_set_of_switches(generation: Generation, switches: set[str]) -> None:
    features = generation.features
    assert features == features_at(generation.feature_levels)
    assert record_version(generation.feature_levels) == features.elr
    assert {name for name in features.__slots__ if getattr(features, name) is True} == switches


@pytest.mark.parametrize(
    "levels", [{METADATA_VERSION: 0}, {METADATA_VERSION: 4}, {"kraft.version": 1}, {"unclean.recovery.enabled": -1}]
)
def test_unsupported_feature_levels_are_rejected(levels: dict[str, int]) -> None:
    with pytest.raises(ProtocolInvariantError, match="not supported"):
        features_at({**Generation.KIP_966.feature_levels, **levels})


def test_the_levels_of_all_generations_with_a_metadata_log_are_supported() -> None:
    for generation in LOG_GENERATIONS:
        assert set(generation.feature_levels) == set(SUPPORTED_FEATURES)
        for name, level in generation.feature_levels.items():
            assert level in range(SUPPORTED_FEATURES[name][0], SUPPORTED_FEATURES[name][1] + 1)


IDS = st.integers(0, 10**9 - 1).map(str)
PORTS = st.integers(1, 65_535)
NODES = st.one_of(
    IDS,
    st.builds("{}@{}:{}".format, IDS, st.sampled_from(["localhost", "10.0.0.7", "[::1]"]), PORTS),
    st.builds("controller-{}:{}".format, IDS, PORTS),
    st.builds("controller-{}".format, IDS),
)


@given(st.data())
def test_values_round_trip_as_text(data: st.DataObject) -> None:
    definition = data.draw(st.sampled_from(list(CONFIGS.values())))
    if definition.choices:
        value = data.draw(st.sampled_from(definition.choices))
    elif isinstance(definition.default, bool):
        value = data.draw(st.booleans())
    elif isinstance(definition.default, int):
        value = data.draw(st.integers(definition.minimum, definition.maximum))
    elif definition.node_list:
        value = ",".join(data.draw(st.lists(NODES, max_size=4)))
    else:
        value = data.draw(st.text(max_size=9))
    assert definition.parse(config_text(value)) == value


def test_rules_of_kafka_are_named_as_they_are_declared() -> None:
    assert ClusterConfig.of(Generation.KIP_966_ELR, kafka_rules=KAFKA_RULES).kafka_rules == KAFKA_RULES.keys()
    with pytest.raises(ConfigError, match="kafka_rules: found \\['none'\\]; allowed: any of returning-replica-"):
        ClusterConfig.of(Generation.KIP_966_ELR, kafka_rules=["none"])


def test_configs_read_at_start_are_read_only() -> None:
    dynamic = {name for name, definition in CONFIGS.items() if not definition.read_only}
    assert dynamic == TOPIC_SCOPED | {"num.partitions", "default.replication.factor"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("min.insync.replicas", "INT"),
        ("flush.messages", "LONG"),
        ("unclean.leader.election.enable", "BOOLEAN"),
        ("unclean.recovery.strategy", "STRING"),
    ],
)
def test_types_have_kafkas_names(name: str, kind: str) -> None:
    assert CONFIGS[name].type_name == kind


# -- controllers by name -----------------------------------------------------------------------------------------------

QUORUM_CONFIGS = (CONTROLLER_QUORUM_VOTERS, CONTROLLER_QUORUM_BOOTSTRAP_SERVERS)


@pytest.mark.covers("D1", "D2")
@pytest.mark.parametrize("name", QUORUM_CONFIGS)
@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("", ()),
        ("  ", ()),
        ("1000", (1000,)),
        ("1000,1001,1002", (1000, 1001, 1002)),
        (" 1002 , 1000 ", (1002, 1000)),
        ("1000@host-a:9093,1001@host-b:9093", (1000, 1001)),
        ("1000@[::1]:9093", (1000,)),
        ("controller-1000:9093, controller-1001:9093", (1000, 1001)),
        ("controller-1000", (1000,)),
        ("1000,1001@host:9093,controller-1002:9093", (1000, 1001, 1002)),
    ],
)
def test_node_lists_parse_ids_with_and_without_endpoints(name: str, value: str, ids: tuple[int, ...]) -> None:
    config = ClusterConfig.of(Generation.KIP_966, {name: value})
    assert node_ids(config.values[name]) == ids


@pytest.mark.parametrize("name", QUORUM_CONFIGS)
@pytest.mark.parametrize(
    "value",
    [
        "host:9093",
        "broker-0:9093",
        "controller-a:9093",
        "-1",
        "1000 1001",
        "1000;1001",
        "1000,",
        ",",
        "1000,,1001",
        "1000@",
        "1000@host@9093",
        "1000:",
        "1000:port",
        "9" * 10,
        1000,
        None,
    ],
)
def test_an_invalid_node_list_names_the_allowed_form(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(name, value)
    assert (caught.value.name, str(caught.value.found)) == (name, str(value))
    assert "1000, 1000@host:port or controller-1000:port, separated by commas" in caught.value.allowed


@pytest.mark.covers("H11")
def test_static_voters_and_bootstrap_servers_exclude_each_other() -> None:
    both: dict[str, object] = {CONTROLLER_QUORUM_VOTERS: "1000", CONTROLLER_QUORUM_BOOTSTRAP_SERVERS: "1001"}
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.of(Generation.KIP_966, both)
    assert (caught.value.name, caught.value.found) == (CONTROLLER_QUORUM_VOTERS, "1000")
    assert CONTROLLER_QUORUM_BOOTSTRAP_SERVERS in caught.value.allowed
    for name in QUORUM_CONFIGS:
        assert ClusterConfig.of(Generation.KIP_966, both | {name: ""})


@pytest.mark.covers("D2")
def test_bootstrap_servers_default_to_all_controllers() -> None:
    def quorum(**values: object) -> QuorumConfig:
        overrides = {f"controller.quorum.{name.replace('_', '.')}": value for name, value in values.items()}
        return QuorumConfig.of(ClusterConfig.of(Generation.KIP_966, overrides), (1000, 1001, 1002), "cluster")

    assert (quorum().bootstrap, quorum().voters, quorum().is_static) == ((1000, 1001, 1002), (), False)
    assert quorum(bootstrap_servers="controller-1001:9093").bootstrap == (1001,)
    static = quorum(voters="1000@a:1,1001@b:1")
    assert (static.voters, static.is_static) == ((1000, 1001), True)
    timed = quorum(election_timeout_ms=50, fetch_timeout_ms=400, election_backoff_max_ms=30)
    assert (timed.election_ms, timed.fetch_ms, timed.backoff_ms, timed.renewal_ms) == (50, 400, 30, 100)
    assert quorum(fetch_timeout_ms=1).renewal_ms == 1


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_config_is_documented(name: str) -> None:
    definition = CONFIGS[name]
    assert definition.source
    assert definition.text.endswith(".")
    assert definition.unit == "ms" or not name.endswith(".ms")
    assert definition.unit == "bytes" or not name.endswith(".bytes")
