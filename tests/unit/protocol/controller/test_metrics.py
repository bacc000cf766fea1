"""The controller's gauges against a recomputation from the image, which partitions wait for a user, and alerts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import metrics
from protocol.config import ClusterConfig
from protocol.controller.context import ControllerState
from protocol.controller.metrics import ControllerMetrics, is_unclean_election, partition_metrics
from protocol.events.controller import OFFLINE_PARTITION
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import NO_LEADER
from protocol.messages.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from tests.unit.protocol.node_helpers import ControllerBench, config_of, registrations, topic_records


class Gauges:
    """Metrics that follow records, without a node around them."""

    def __init__(self, config: ClusterConfig, *records: MetadataRecord) -> None:
        self.state = ControllerState(config, Random(0))
        self.metrics = ControllerMetrics(self.state, lambda: (1, 0, 0, 0))
        self.replay(*records)

    def replay(self, *records: MetadataRecord) -> Gauges:
        for record in records:
            self.metrics.replayed(record, self.state.replay(record))
        return self

    def __getitem__(self, name: str) -> int:
        return self.metrics.values()[name]


def recomputed(image: MetadataImage) -> dict[str, int]:
    """The gauges of partitions from the image alone, by the table in the module's docstring."""
    partitions = list(image.partitions())
    return {
        metrics.UNDER_MIN_ISR: sum(
            len(p.isr) < image.min_isr(k.topic_id, "min.insync.replicas", len(p.replicas)) for k, p in partitions
        ),
        metrics.OFFLINE: sum(p.leader == NO_LEADER for _, p in partitions),
        metrics.UNCLEAN_RECOVERY: sum(is_under_recovery(image, key.topic_id, p) for key, p in partitions),
        metrics.MANUAL_ELECTION_REQUIRED: sum(waits_for_a_user(image, key.topic_id, p) for key, p in partitions),
        metrics.REASSIGNING: sum(bool(p.adding_replicas or p.removing_replicas) for _, p in partitions),
    }


def waits_for_a_user(image: MetadataImage, topic_id: str, state: PartitionState) -> bool:
    """The rules of note (b), written down once more."""
    if state.leader != NO_LEADER or {*state.isr, *state.elr} & {*state.replicas}:
        return False
    if image.features.unclean_recovery:
        strategy = image.config(topic_id, "unclean.recovery.strategy")
        return strategy == "manual" or (strategy == "balanced" and not state.last_known_elr)
    if image.config(topic_id, "unclean.leader.election.enable"):
        return False
    known = state.last_known_elr if image.features.last_known_leader_in_elr else ()
    return len(known) != 1 or known[0] not in state.replicas


def is_under_recovery(image: MetadataImage, topic_id: str, state: PartitionState) -> bool:
    """The rules of note (a), written down once more."""
    if state.leader != NO_LEADER or not image.features.unclean_recovery:
        return False
    strategy = image.config(topic_id, "unclean.recovery.strategy")
    nobody_is_eligible = not {*state.isr, *state.elr} & {*state.replicas}
    return strategy == "proactive" or (strategy == "balanced" and nobody_is_eligible and bool(state.last_known_elr))


brokers = st.integers(0, 3)
some = st.lists(brokers, max_size=3, unique=True).map(tuple)
topics = st.sampled_from(["T", "U"])


@st.composite
def partition_states(draw: st.DrawFn) -> dict[str, object]:
    """A valid partition: a leader from the ISR or none; an empty ISR more often without a leader."""
    replicas = draw(st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple))
    isr = draw(st.one_of(st.just(()), st.lists(st.sampled_from(replicas), unique=True).map(tuple)))
    return {
        "replicas": replicas,
        "isr": isr,
        "leader": draw(st.sampled_from((NO_LEADER, *isr))),
        "eligible_leader_replicas": draw(st.one_of(st.just(()), some)),
        "last_known_elr": draw(some),
        "last_known_leader": draw(st.sampled_from((NO_LEADER, 0, 1, 2, 3))),
        "adding_replicas": draw(st.sampled_from([(), replicas[-1:]])),
        "removing_replicas": draw(st.sampled_from([(), (), replicas[:1]])),
        "leader_recovery_state": draw(st.integers(0, 1)),
    }


def events() -> st.SearchStrategy[tuple[str, str, int, object]]:
    """(what, topic, partition, more); applied as far as the present state allows."""
    index = st.integers(0, 2)
    return st.one_of(
        st.tuples(st.just("partition"), topics, index, partition_states()),
        st.tuples(st.just("remove"), topics, index, st.none()),
        st.tuples(st.just("topic"), topics, index, st.none()),
        st.tuples(
            st.just("config"),
            st.sampled_from(["T", "U", ""]),
            index,
            st.sampled_from(
                [("min.insync.replicas", "1"), ("min.insync.replicas", "2"), ("min.insync.replicas", None)]
                + [("unclean.leader.election.enable", value) for value in ("true", "false", None)]
                + [("unclean.recovery.strategy", value) for value in ("proactive", "balanced", "manual", None)]
                + [("flush.ms", "7")]
            ),
        ),
        st.tuples(
            st.just("feature"),
            topics,
            index,
            st.sampled_from([("metadata.version", 1), ("metadata.version", 2)])
            | st.sampled_from([("unclean.recovery.enabled", 0), ("unclean.recovery.enabled", 1)]),
        ),
    )


def records_of(image: MetadataImage, what: str, topic_id: str, index: int, more: object) -> list[MetadataRecord]:
    topic = image.topics.get(topic_id)
    if what == "config":
        assert isinstance(more, tuple)
        fits = topic_id == "" or topic is not None
        return [ConfigRecord(topic_id=topic_id or None, name=more[0], value=more[1])] if fits else []
    if what == "feature":
        assert isinstance(more, tuple)
        return [FeatureLevelRecord(name=more[0], feature_level=more[1])]
    if what == "topic":
        return (
            [TopicRecord(name=topic_id.lower(), topic_id=topic_id)]
            if topic is None
            else [RemoveTopicRecord(topic_id=topic_id)]
        )
    if topic is None:
        return []
    if what == "remove":
        return [RemovePartitionRecord(topic_id=topic_id, partition_id=index)] if index in topic.partitions else []
    assert isinstance(more, dict)
    kind = PartitionChangeRecord if index in topic.partitions else PartitionRecord
    return [kind(topic_id=topic_id, partition_id=index, **more)]


@pytest.mark.slow
@pytest.mark.covers("I2", "I3", "I4", "I7")
@settings(max_examples=300, deadline=None)
@given(generation=st.sampled_from(LOG_GENERATIONS), script=st.lists(events(), max_size=40))
def test_gauges_that_follow_the_records_equal_those_counted_from_the_image(
    generation: Generation, script: list[tuple[str, str, int, object]]
) -> None:
    gauges = Gauges(config_of(generation), TopicRecord(name="t", topic_id="T"))
    for event in script:
        gauges.replay(*records_of(gauges.state.image, *event))
        found = gauges.metrics.values()
        wanted = recomputed(gauges.state.image)
        assert {name: found[name] for name in wanted} == wanted
        assert found[metrics.UNCLEAN_RECOVERY] + found[metrics.MANUAL_ELECTION_REQUIRED] <= found[metrics.OFFLINE]


@pytest.mark.covers("I6", "N25")
def test_metrics_have_the_names_of_the_newer_text() -> None:
    names = {*metrics.CLUSTER_METRICS, *metrics.PARTITION_METRICS}
    assert {name.rpartition(".")[0] for name in names} == {"kafka.controller", "kafka.controller.raft"}
    assert {metrics.UNCLEAN_RECOVERY, metrics.MANUAL_ELECTION_REQUIRED} < names


LEADERLESS: dict[str, object] = {"isr": (), "leader": NO_LEADER}


@pytest.mark.covers("I4")
@pytest.mark.parametrize(
    ("generation", "unclean", "state", "waits"),
    [
        ("kip-966-elr", False, LEADERLESS | {"last_known_elr": (1,)}, False),
        ("kip-966-elr", False, LEADERLESS | {"last_known_elr": (1, 2)}, True),
        ("kip-966-elr", False, LEADERLESS | {"last_known_leader": 2}, True),
        ("kip-966-elr", True, LEADERLESS, False),
        ("kip-497", False, LEADERLESS, True),
        ("kip-497", False, {"isr": (2,), "leader": NO_LEADER}, False),
        ("kip-497", True, LEADERLESS, False),
    ],
)
def test_which_leaderless_partitions_wait_for_a_user(
    generation: str, unclean: bool, state: dict[str, object], waits: bool
) -> None:
    setting = ConfigRecord(topic_id="T", name="unclean.leader.election.enable", value=str(unclean).lower())
    gauges = Gauges(config_of(Generation(generation)), *topic_records(1, **state), setting)
    assert gauges[metrics.MANUAL_ELECTION_REQUIRED] == waits
    assert gauges[metrics.UNCLEAN_RECOVERY] == 0


@pytest.mark.covers("I3", "I4", "I7", "F3", "F4", "F29")
@pytest.mark.parametrize(
    ("state", "proactive", "balanced", "manual"),
    [
        (LEADERLESS, "recovery", "user", "user"),
        (LEADERLESS | {"last_known_leader": 2}, "recovery", "user", "user"),
        (LEADERLESS | {"last_known_elr": (1,)}, "recovery", "recovery", "user"),
        (LEADERLESS | {"last_known_elr": (1, 9)}, "recovery", "recovery", "user"),
        (LEADERLESS | {"eligible_leader_replicas": (1,)}, "recovery", "wait", "wait"),
        (LEADERLESS | {"eligible_leader_replicas": (1,), "last_known_elr": (2,)}, "recovery", "wait", "wait"),
        ({"isr": (0,), "leader": NO_LEADER}, "recovery", "wait", "wait"),
        ({"isr": (0,), "leader": 0}, "wait", "wait", "wait"),
    ],
)
def test_which_gauges_count_a_leaderless_partition(
    state: dict[str, object], proactive: str, balanced: str, manual: str
) -> None:
    """Whether those who are asked for are active or not: broker 9 is none that there is."""
    for strategy, counted in (("proactive", proactive), ("balanced", balanced), ("manual", manual)):
        setting = ConfigRecord(topic_id="T", name="unclean.recovery.strategy", value=strategy)
        gauges = Gauges(config_of(Generation.KIP_966), *topic_records(1, **state), setting)
        found = (gauges[metrics.UNCLEAN_RECOVERY], gauges[metrics.MANUAL_ELECTION_REQUIRED])
        assert found == (counted == "recovery", counted == "user"), strategy


@pytest.mark.covers("I2")
@pytest.mark.parametrize(("generation", "under"), [(Generation.KIP_966, 0), (Generation.KIP_497, 1)])
def test_min_isr_above_the_replica_count_follows_the_generation(generation: Generation, under: int) -> None:
    gauges = Gauges(config_of(generation), *topic_records(5))
    assert gauges[metrics.UNDER_MIN_ISR] == under


def test_a_change_evaluates_one_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges = Gauges(config_of(), *topic_records(2))
    walk = MetadataImage.partitions

    def walk_one_topic(image: MetadataImage, topic_id: str | None = None) -> object:
        assert topic_id is not None, "walks all partitions"
        return walk(image, topic_id)

    monkeypatch.setattr(MetadataImage, "partitions", walk_one_topic)
    gauges.replay(PartitionChangeRecord(topic_id="T", partition_id=0, isr=(0,), eligible_leader_replicas=(1,)))
    gauges.replay(ConfigRecord(topic_id="T", name="min.insync.replicas", value="1"))
    gauges.replay(ConfigRecord(topic_id=None, name="flush.ms", value="7"))
    assert gauges[metrics.UNDER_MIN_ISR] == 0


@pytest.mark.covers("I1")
def test_electable_leaders_are_isr_and_elr() -> None:
    state = PartitionState(replicas=(0, 1, 2, 3), isr=(1,), elr=(2, 3), last_known_elr=(0,))
    assert partition_metrics(state) == {metrics.ELECTABLE_LEADERS: 3}


RECOVERING = LeaderRecoveryState.RECOVERING


@pytest.mark.parametrize(
    ("before", "after", "unclean"),
    [
        ({"isr": (0,), "leader": 0}, {"isr": (1,), "leader": 1, "leader_recovery_state": RECOVERING}, True),
        ({"elr": (1,)}, {"isr": (1,), "leader": 1}, False),
        ({"elr": (1,), "leader_recovery_state": RECOVERING}, {"isr": (1,), "leader": 1}, False),
        ({"leader_recovery_state": RECOVERING}, {"isr": (1,), "leader": 1}, True),
        ({"isr": (0,), "leader": 0}, {"isr": (1,), "leader": 1, "replicas": (1,)}, False),
        ({"isr": (1,), "leader": 1, "leader_recovery_state": RECOVERING}, {"isr": (1, 2)}, False),
        ({"isr": (1,), "leader": 1, "leader_recovery_state": RECOVERING}, {"isr": (), "leader": NO_LEADER}, False),
    ],
)
def test_unclean_and_clean_elections_are_distinguished(
    before: dict[str, object], after: dict[str, object], unclean: bool
) -> None:
    first = PartitionState(**({"replicas": (0, 1, 2), "isr": ()} | before))  # type: ignore[arg-type]
    fields = {name: getattr(first, name) for name in PartitionState.__slots__} | after
    assert is_unclean_election(first, PartitionState(**fields)) is unclean


def test_every_declared_metric_has_a_value() -> None:
    assert tuple(Gauges(config_of()).metrics.values()) == metrics.CLUSTER_METRICS
    assert tuple(partition_metrics(PartitionState((0,), (0,)))) == metrics.PARTITION_METRICS


def test_a_partition_that_the_same_batch_gives_a_leader_raises_no_alert() -> None:
    gauges = Gauges(config_of(), *topic_records(1))
    gauges.replay(PartitionChangeRecord(topic_id="T", partition_id=0, leader=NO_LEADER))
    gauges.replay(PartitionChangeRecord(topic_id="T", partition_id=0, leader=1))
    assert gauges.metrics.take_alerts() == []
    gauges.replay(PartitionChangeRecord(topic_id="T", partition_id=0, leader=NO_LEADER))
    assert [alert.kind for alert in gauges.metrics.take_alerts()] == [OFFLINE_PARTITION]
    assert gauges.metrics.take_alerts() == []


def test_an_unclean_election_ends_the_wait_for_a_user() -> None:
    gauges = Gauges(config_of(), *registrations(), *topic_records(1, **LEADERLESS))
    assert gauges[metrics.MANUAL_ELECTION_REQUIRED] == 1
    gauges.replay(PartitionChangeRecord(topic_id="T", partition_id=0, isr=(1,), leader=1, leader_recovery_state=1))
    assert (gauges[metrics.MANUAL_ELECTION_REQUIRED], gauges[metrics.UNCLEAN_ELECTIONS]) == (0, 1)


@pytest.mark.covers("I5")
def test_a_controller_that_becomes_active_again_counts_from_0() -> None:
    found = ControllerMetrics(ControllerBench(*registrations()).state, lambda: (1, 0, 0, 0))
    found.recovered(2)
    found.altered(3)
    counted = (metrics.UNCLEAN_RECOVERY_FINISHED, f"{metrics.ALTER_PARTITION_BATCH}_sum")
    assert [found.values()[name] for name in counted] == [2, 3]
    found.begin(7_000)
    assert [found.values()[name] for name in counted] == [0, 0]
