"""AlterConfigs and IncrementalAlterConfigs: errors and their order, records, and the changes that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.config import CONFIGS, MIN_INSYNC_REPLICAS, Generation
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, TopicIdPartition
from protocol.messages.acls import AclEntry, AclOperation, AclResourceType
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
    ConfigResourceType,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState
from tests.unit.protocol.node_helpers import ControllerBench, config_of, fencing, registrations, topic_records

MIN_ISR, UNCLEAN, FLUSH = MIN_INSYNC_REPLICAS, "unclean.leader.election.enable", "flush.messages"
STRATEGY = "unclean.recovery.strategy"
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER = ConfigResourceType
KINDS = (IncrementalAlterConfigsRequest, AlterConfigsRequest)
Request = IncrementalAlterConfigsRequest | AlterConfigsRequest
ALICE = "User:alice"


def bench(
    *records: MetadataRecord, generation: Generation = Generation.KIP_966, **partition: object
) -> ControllerBench:
    """Brokers 0..3 are active, 4 is fenced; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    base = [*registrations((0, 1, 2, 3, 4), fenced=(4,)), *topic_records(2, **partition)]
    return ControllerBench(*base, *records, config=config_of(generation))


def configure(value: str | None, name: str = MIN_ISR, topic: str | None = "t") -> IncrementalAlterConfigsRequest:
    return admin_requests.alter_config(topic, {name: value})


def change(name: str, value: str | None, operation: ConfigOperation = SET) -> AlterableConfig:
    return AlterableConfig(name=name, value=value, operation=operation)


def resource(*changes: AlterableConfig, topic: str | None = "t") -> AlterConfigsResource:
    kind = BROKER if topic is None else TOPIC
    return AlterConfigsResource(resource_type=kind, resource_name=topic or "", configs=changes)


def request_of(kind: type[Any], *resources: AlterConfigsResource, **fields: object) -> Request:
    found: Request = kind(**({"correlation_id": 1, "resources": resources} | fields))
    return found


def errors_of(found: ControllerResult) -> list[ErrorCode]:
    return [part.error for part in found.response.parts()]


def config(topic_id: str | None, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(topic_id=topic_id, name=name, value=value)


# -- what is refused ---------------------------------------------------------------------------------------------------

INVALID, BAD_CONFIG = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
GOOD = change(MIN_ISR, "1")
REFUSED_BY_BOTH: dict[str, tuple[AlterConfigsResource, ErrorCode]] = {
    "an unknown topic": (resource(GOOD, topic="u"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "no topic's name": (replace(resource(GOOD), resource_name=""), INVALID),
    "what can be no topic's name": (resource(GOOD, topic="a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a single broker": (replace(resource(GOOD, topic=None), resource_name="0"), INVALID),
    "a config twice": (resource(GOOD, change(MIN_ISR, "2")), INVALID),
    "no value": (resource(change(MIN_ISR, None)), INVALID),
    "no value, cluster-wide": (resource(change(MIN_ISR, None), topic=None), INVALID),
    "no number": (resource(change(MIN_ISR, "many")), BAD_CONFIG),
    "out of range": (resource(change(MIN_ISR, "0"), topic=None), BAD_CONFIG),
    "beyond 32 bits": (resource(change(MIN_ISR, str(2**31))), BAD_CONFIG),
    "a number without end": (resource(change(MIN_ISR, "9" * 10_000)), BAD_CONFIG),
    "an unknown config": (resource(change("no.such.config", "1")), BAD_CONFIG),
    "a config that topics lack": (resource(change("num.partitions", "1")), BAD_CONFIG),
    "a read-only config": (resource(change("super.users", "User:eve"), topic=None), BAD_CONFIG),
    "what nodes read as they start": (resource(change("broker.session.timeout.ms", "1"), topic=None), BAD_CONFIG),
    "a wrong value before an unknown topic": (resource(change(MIN_ISR, "0"), topic="u"), BAD_CONFIG),
    "a missing value before a wrong one": (resource(change(MIN_ISR, "0"), change(FLUSH, None)), INVALID),
    "one wrong among right ones": (resource(change(FLUSH, "7"), change(MIN_ISR, "0")), BAD_CONFIG),
}


@pytest.mark.covers("G31", "H3", "H15")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wrong", "error"), REFUSED_BY_BOTH.values(), ids=REFUSED_BY_BOTH)
def test_an_invalid_resource_is_refused_with_a_message_and_the_others_are_altered(
    kind: type[Request], wrong: AlterConfigsResource, error: ErrorCode
) -> None:
    found = handle(bench().state, request_of(kind, wrong))
    assert (errors_of(found), list(found.records)) == ([error], [])
    assert found.response.failure()[1]
    right = resource(change("num.partitions", "7"), topic=None)
    if (wrong.resource_type, wrong.resource_name) != (BROKER, ""):
        both = handle(bench().state, request_of(kind, right, wrong))
        assert (errors_of(both), list(both.records)) == ([ErrorCode.NONE, error], [config(None, "num.partitions", "7")])


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_append_and_subtract_are_refused(operation: ConfigOperation) -> None:
    for name in (MIN_ISR, "no.such.config"):
        found = handle(bench().state, request_of(KINDS[0], resource(change(name, "1", operation))))
        assert errors_of(found) == [BAD_CONFIG]


@pytest.mark.parametrize("operation", [DELETE, APPEND, SUBTRACT])
def test_a_replacement_only_sets(operation: ConfigOperation) -> None:
    found = handle(bench().state, request_of(KINDS[1], resource(change(MIN_ISR, "1", operation))))
    assert (errors_of(found), list(found.records)) == ([INVALID], [])


@pytest.mark.covers("G31")
@pytest.mark.parametrize("kind", KINDS)
def test_a_resource_named_twice_is_altered_neither_way(kind: type[Request]) -> None:
    cluster = resource(change(FLUSH, "7"), topic=None)
    found = handle(bench().state, request_of(kind, resource(GOOD), cluster, resource(change(FLUSH, "9"))))
    assert errors_of(found) == [INVALID, ErrorCode.NONE, INVALID]
    assert list(found.records) == [config(None, FLUSH, "7")]


@pytest.mark.covers("G32")
@pytest.mark.parametrize("kind", KINDS)
def test_altering_needs_alter_configs_on_the_topic_or_the_cluster(kind: type[Request]) -> None:
    allowed = AclEntry(
        resource_type=AclResourceType.TOPIC, resource_name="t", principal=ALICE, operation=AclOperation.ALTER_CONFIGS
    )
    controller = ControllerBench(
        *registrations(),
        *topic_records(2),
        AccessControlEntryRecord(entry=allowed),
        config=config_of(authorizer_class_name="standard"),
    )
    unknown = resource(change(MIN_ISR, "0"), topic="u")
    found = handle(
        controller.state, request_of(kind, resource(GOOD), resource(GOOD, topic=None), unknown, principal=ALICE)
    )
    assert errors_of(found) == [
        ErrorCode.NONE,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ], "who may not alter a topic learns nothing about it"
    assert list(found.records) == [config("T", MIN_ISR, "1")]
    denied = handle(controller.state, request_of(kind, resource(GOOD)))
    assert errors_of(denied) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


# -- what is recorded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_validation_alone_answers_the_same_and_records_nothing(kind: type[Request]) -> None:
    resources = (resource(change(FLUSH, "5")), resource(change(MIN_ISR, "0"), topic=None))
    real, dry = (handle(bench().state, request_of(kind, *resources, validate_only=only)) for only in (False, True))
    assert dry.response == real.response
    assert real.records
    assert not dry.records


def test_an_increment_leaves_the_other_overrides_alone() -> None:
    controller = bench(config("T", FLUSH, "3"), config(None, FLUSH, "9"))
    changes = resource(change("flush.ms", "4"), change(FLUSH, None, DELETE))
    found = handle(controller.state, request_of(KINDS[0], changes))
    assert list(found.records) == [config("T", "flush.ms", "4"), config("T", FLUSH, None)]
    controller.apply(found.records)
    assert controller.state.image.configs == {"T": {MIN_ISR: 2, "flush.ms": 4}, None: {FLUSH: 9}}


def test_a_replacement_removes_the_other_overrides_of_the_resource() -> None:
    controller = bench(config("T", FLUSH, "3"), config("T", UNCLEAN, "true"), config(None, FLUSH, "9"))
    found = handle(controller.state, request_of(KINDS[1], resource(change(MIN_ISR, "2"), change("flush.ms", "4"))))
    assert list(found.records) == [config("T", FLUSH, None), config("T", UNCLEAN, None), config("T", "flush.ms", "4")]
    controller.apply(found.records)
    assert controller.state.image.configs == {"T": {MIN_ISR: 2, "flush.ms": 4}, None: {FLUSH: 9}}
    found = handle(controller.state, request_of(KINDS[1], resource(topic=None)))
    assert list(found.records) == [config(None, FLUSH, None)]


def test_a_change_without_effect_makes_no_record() -> None:
    controller = bench(config("T", UNCLEAN, "false"))
    for unchanged in (change(MIN_ISR, " 2 "), change(UNCLEAN, "FALSE"), change("no.such.config", None, DELETE)):
        found = handle(controller.state, request_of(KINDS[0], resource(unchanged)))
        assert (errors_of(found), list(found.records)) == ([ErrorCode.NONE], [])


@pytest.mark.covers("H3")
def test_values_are_recorded_in_one_spelling() -> None:
    changes = (
        change(UNCLEAN, " True"),
        change(MIN_ISR, "003"),
        change("unclean.recovery.strategy", "PROACTIVE"),
        change(FLUSH, "٧"),
    )
    found = handle(bench().state, request_of(KINDS[0], resource(*changes)))
    values = {record.name: record.value for record in found.records if isinstance(record, ConfigRecord)}
    assert values == {UNCLEAN: "true", MIN_ISR: "3", "unclean.recovery.strategy": "proactive", FLUSH: "7"}


@pytest.mark.covers("H1")
def test_a_topics_override_wins_over_the_cluster_wide_default_and_that_over_the_static_value() -> None:
    controller = ControllerBench(*registrations(), *topic_records(2), config=config_of(min_insync_replicas=4))
    controller.apply([config("T", MIN_ISR, None)])
    image = controller.state.image
    steps = ((None, "3", 3), ("t", "2", 2), (None, "1", 2), ("t", None, 1), (None, None, 4))
    for topic, value, in_force in steps:
        controller.apply(handle(controller.state, configure(value, topic=topic)).records)
        assert image.config("T", MIN_ISR) == in_force


NAMES = st.sampled_from([*CONFIGS, "no.such.config", ""]) | st.text(max_size=5)
VALUES = (
    st.none() | st.text(max_size=6) | st.integers(-3, 2**64).map(str) | st.sampled_from(["true", "manual", "7" * 99])
)
CHANGES = st.builds(AlterableConfig, name=NAMES, operation=st.sampled_from(ConfigOperation), value=VALUES)
RESOURCES = st.builds(
    AlterConfigsResource,
    resource_type=st.sampled_from(ConfigResourceType),
    resource_name=st.sampled_from(["", "t", "u", "0"]),
    configs=st.lists(CHANGES, max_size=4).map(tuple),
)


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.lists(RESOURCES, max_size=4))
def test_every_recorded_config_can_be_replayed(kind: type[Request], resources: list[AlterConfigsResource]) -> None:
    controller = bench()
    found = handle(controller.state, request_of(kind, *resources))
    assert len(errors_of(found)) == len(resources)
    controller.apply(found.records)
    image = MetadataImage(config_of())
    image.load(controller.state.image.to_records(), controller.state.image.next_offset)
    assert image.configs == {scope: values for scope, values in controller.state.image.configs.items() if values}


# -- what follows from min.insync.replicas -----------------------------------------------------------------------------


@pytest.mark.covers("E19", "M6")
@pytest.mark.parametrize("topic", ["t", None], ids=["of the topic", "of the cluster"])
def test_a_min_isr_that_falls_to_the_isr_empties_the_elr_first_in_the_same_batch(topic: str | None) -> None:
    wide = (config(None, MIN_ISR, "2"), config("T", MIN_ISR, None))
    state = {"isr": (0,), "eligible_leader_replicas": (1,), "last_known_elr": (2,)}
    controller = bench(*(wide if topic is None else ()), **state)
    found = handle(controller.state, configure("1", topic=topic))
    [clearing, altered] = found.records
    assert clearing == PartitionChangeRecord(
        topic_id="T", partition_id=0, eligible_leader_replicas=(), last_known_elr=()
    )
    assert altered == config("T" if topic else None, MIN_ISR, "1")
    for record in found.records:
        controller.apply([record])
        state_after, min_isr = controller.partition(), controller.state.image.min_isr("T", MIN_ISR, 3)
        assert len(state_after.isr) < min_isr or not state_after.elr, "at no offset of the log"
    assert controller.partition().leader_epoch == 0


UNTOUCHED = {
    "min ISR stays above the ISR": ({"isr": (0,), "eligible_leader_replicas": (1, 2)}, configure("3")),
    "the ISR is empty": ({"isr": (), "leader": -1, "eligible_leader_replicas": (1, 2)}, configure("1")),
    "the topic has its own min ISR": ({"isr": (0,), "eligible_leader_replicas": (1,)}, configure("1", topic=None)),
    "another config": ({"isr": (0,), "eligible_leader_replicas": (1,)}, configure("7", FLUSH)),
}


@pytest.mark.covers("E19", "M7")
@pytest.mark.parametrize(("partition", "request_"), UNTOUCHED.values(), ids=UNTOUCHED)
def test_otherwise_the_elr_stays(partition: dict[str, object], request_: IncrementalAlterConfigsRequest) -> None:
    [record] = handle(bench(**partition).state, request_).records
    assert isinstance(record, ConfigRecord)


@pytest.mark.covers("E8", "E19", "N31")
def test_a_min_isr_above_the_replica_count_counts_as_the_replica_count() -> None:
    controller = bench(replicas=(0, 1), isr=(0,), eligible_leader_replicas=(1,))
    assert [type(record) for record in handle(controller.state, configure("5")).records] == [ConfigRecord]
    lone = bench(replicas=(0,), isr=(0,), last_known_elr=(0,))
    assert [type(r) for r in handle(lone.state, configure("5")).records] == [PartitionChangeRecord, ConfigRecord]


@pytest.mark.covers("E19")
@pytest.mark.parametrize("kind", KINDS)
def test_removing_the_override_brings_back_the_wider_min_isr(kind: type[Request]) -> None:
    removal = resource() if kind is AlterConfigsRequest else resource(change(MIN_ISR, None, DELETE))
    controller = bench(isr=(0,), eligible_leader_replicas=(1,))
    records = handle(controller.state, request_of(kind, removal)).records
    assert [type(record) for record in records] == [PartitionChangeRecord, ConfigRecord]
    kept = bench(config(None, MIN_ISR, "2"), isr=(0,), eligible_leader_replicas=(1,))
    assert [type(record) for record in handle(kept.state, request_of(kind, removal)).records] == [ConfigRecord]


@pytest.mark.covers("E19")
def test_the_resources_of_a_request_build_on_each_other() -> None:
    """Neither change alone reaches the ISR: the topic keeps min ISR 2 while the default falls, then loses it."""
    controller = bench(config(None, MIN_ISR, "3"), isr=(0,), eligible_leader_replicas=(1,))
    wider, own = resource(change(MIN_ISR, "1"), topic=None), resource(change(MIN_ISR, None, DELETE))
    for resources in ((wider, own), (own, wider)):
        found = handle(controller.state, request_of(KINDS[0], *resources))
        assert [type(record) for record in found.records].count(PartitionChangeRecord) == 1
        after = bench(config(None, MIN_ISR, "3"), isr=(0,), eligible_leader_replicas=(1,))
        after.apply(found.records)
        assert after.partition().elr == ()


@pytest.mark.covers("E19")
def test_an_override_of_the_same_request_shields_the_topic() -> None:
    unset = (config(None, MIN_ISR, "2"), config("T", MIN_ISR, None))
    controller = bench(*unset, isr=(0,), eligible_leader_replicas=(1,))
    own, wider = resource(change(MIN_ISR, "2")), resource(change(MIN_ISR, "1"), topic=None)
    found = handle(controller.state, request_of(KINDS[0], own, wider))
    assert list(found.records) == [config("T", MIN_ISR, "2"), config(None, MIN_ISR, "1")]


BROKERS = range(4)
KEYS = tuple(TopicIdPartition(topic, index) for topic in "TU" for index in range(2))


@st.composite
def clusters(draw: st.DrawFn) -> list[MetadataRecord]:
    """Two topics with two partitions each, in any state that a config and the rules allow."""
    static = 1
    wide, *own = draw(st.lists(st.none() | st.integers(1, 4), min_size=3, max_size=3))
    records: list[MetadataRecord] = [
        *registrations(BROKERS, fenced=draw(st.sets(st.sampled_from(BROKERS), max_size=2)))
    ]
    records += [TopicRecord(name=topic.lower(), topic_id=topic) for topic in "TU"]
    for scope, value in ((None, wide), ("T", own[0]), ("U", own[1])):
        records += [] if value is None else [config(scope, MIN_ISR, str(value))]
    for key in KEYS:
        replicas = tuple(draw(st.permutations(BROKERS))[: draw(st.integers(1, 4))])
        isr = tuple(broker for broker in replicas if draw(st.booleans()))
        min_isr = min(own["TU".index(key.topic_id)] or wide or static, len(replicas))
        rest = (
            [broker for broker in replicas if broker not in isr and draw(st.booleans())] if len(isr) < min_isr else []
        )
        cut = draw(st.integers(0, len(rest)))
        records.append(
            PartitionRecord(
                topic_id=key.topic_id,
                partition_id=key.partition,
                replicas=replicas,
                isr=isr,
                leader=isr[0] if isr else NO_LEADER,
                eligible_leader_replicas=tuple(rest[:cut]),
                last_known_elr=tuple(rest[cut:]),
            )
        )
    return records


ALTERATIONS = st.lists(
    st.one_of(
        st.builds(change, st.just(MIN_ISR), st.integers(1, 5).map(str)),
        st.builds(change, st.just(UNCLEAN), st.sampled_from(["true", "false"])),
    ),
    max_size=2,
    unique_by=lambda item: item.name,
)
REMOVALS = st.lists(st.sampled_from([MIN_ISR, UNCLEAN]).map(lambda name: change(name, None, DELETE)), max_size=1)


@st.composite
def alterations(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(KINDS))
    resources = []
    for topic in draw(st.permutations(["t", "u", None])):
        changes = draw(ALTERATIONS)
        if kind is IncrementalAlterConfigsRequest:
            named = {item.name for item in changes}
            changes += [removal for removal in draw(REMOVALS) if removal.name not in named]
        resources.append(resource(*changes, topic=topic))
    return request_of(kind, *resources[: draw(st.integers(1, 3))])


@pytest.mark.slow
@pytest.mark.covers("E14", "E19", "M6", "M7")
@settings(deadline=None, max_examples=150)
@given(clusters(), alterations())
def test_an_isr_of_min_isr_has_no_elr_at_any_offset(records: list[MetadataRecord], request_: Request) -> None:
    controller = ControllerBench(*records)
    image = controller.state.image
    before = {scope: dict(values) for scope, values in image.configs.items()}
    for record in handle(controller.state, request_).records:
        controller.apply([record])
        for key in KEYS:
            state = controller.partition(key)
            min_isr = image.min_isr(key.topic_id, MIN_ISR, len(state.replicas))
            assert not state.elr or len(state.isr) < min_isr, (record, state)
            assert not set(state.elr) & set(state.isr)
    for named in request_.resources:
        scope = None if named.resource_type is BROKER else named.resource_name.upper()
        kept = {} if isinstance(request_, AlterConfigsRequest) else dict(before.get(scope, {}))
        for item in named.configs:
            kept.pop(item.name, None)
            kept |= {} if item.value is None else {item.name: CONFIGS[item.name].parse(item.value)}
        assert {name: value for name, value in image.configs.get(scope, {}).items() if name != STRATEGY} == kept
    for key in KEYS:
        state = controller.partition(key)
        if len(state.isr) >= image.min_isr(key.topic_id, MIN_ISR, len(state.replicas)):
            assert not state.last_known_elr


# -- what follows from unclean.leader.election.enable ------------------------------------------------------------------


@pytest.mark.covers("E32", "M75")
@pytest.mark.parametrize("topic", ["t", None], ids=["of the topic", "of the cluster"])
def test_a_reassignment_that_waits_for_min_isr_completes_when_min_isr_falls(topic: str | None) -> None:
    moving = {"replicas": (3, 1, 2, 0), "adding_replicas": (3,), "removing_replicas": (0,), "isr": (0, 2, 3)}
    own = ConfigRecord(topic_id="T", name=MIN_ISR, value="3" if topic else None)
    wide = ConfigRecord(topic_id=None, name=MIN_ISR, value="3")
    controller = bench(wide, own, fencing(1, 1, True), **moving)
    assert [type(record) for record in handle(controller.state, configure("2", FLUSH)).records] == [ConfigRecord]
    controller.apply(handle(controller.state, configure("2", topic=topic)).records)
    found = controller.partition()
    assert (found.replicas, found.isr, found.leader) == ((3, 1, 2), (2, 3), 3)
    assert (found.adding_replicas, found.removing_replicas) == ((), ())


@pytest.mark.covers("E32")
def test_min_isr_1_does_not_complete_a_reassignment_with_a_single_copy() -> None:
    """Broker 1 of the final 3, 1 is down: 0 stays beside 3 until it is back, whatever min ISR is."""
    moving = {"replicas": (3, 1, 0), "adding_replicas": (3,), "removing_replicas": (0,), "isr": (0, 3)}
    controller = bench(fencing(1, 1, True), **moving)
    controller.apply(handle(controller.state, configure("1")).records)
    found = controller.partition()
    assert (found.replicas, found.isr, found.adding_replicas) == ((3, 1, 0), (0, 3), (3,))


@pytest.mark.covers("H2", "C3", "K9")
@pytest.mark.parametrize("topic", ["t", None])
def test_enabling_unclean_election_elects_for_leaderless_partitions(topic: str | None) -> None:
    leaderless = {"isr": (0,), "leader": -1, "leader_epoch": 3}
    controller = bench(fencing(0, 0, True), generation=Generation.KIP_497, **leaderless)
    request = configure("true", UNCLEAN, topic=topic)
    controller.apply(handle(controller.state, request).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_epoch) == (1, (1,), 4)
    assert found.leader_recovery_state is LeaderRecoveryState.RECOVERING
    led = bench(generation=Generation.KIP_497)
    assert handle(led.state, request).records[1:] == [], "a partition with a leader keeps it"


@pytest.mark.covers("H2")
def test_removing_a_topics_veto_counts_as_enabling() -> None:
    veto = (config(None, UNCLEAN, "true"), config("T", UNCLEAN, "false"))
    controller = bench(fencing(0, 0, True), *veto, isr=(0,), leader=-1, generation=Generation.KIP_497)
    assert handle(controller.state, configure("true", UNCLEAN, topic=None)).records == []
    controller.apply(handle(controller.state, configure(None, UNCLEAN)).records)
    assert controller.partition().leader == 1


def test_an_election_counts_with_the_min_isr_of_the_same_batch() -> None:
    lost = {"isr": (), "leader": -1, "eligible_leader_replicas": (1, 2)}
    controller = bench(fencing(1, 1, True), fencing(2, 2, True), generation=Generation.KIP_966_ELR, **lost)
    both = request_of(KINDS[0], resource(change(MIN_ISR, "1"), change(UNCLEAN, "true")))
    controller.apply(handle(controller.state, both).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (0, (0,), (), ())


@pytest.mark.covers("H2", "F1")
@pytest.mark.parametrize("kind", KINDS)
def test_all_resources_of_a_request_are_set_before_elections(kind: type[Request]) -> None:
    """The cluster's switch comes first and would elect for the topic whose veto comes after it."""
    lost = {"isr": (), "leader": -1, "last_known_elr": (0,)}
    for resources in (
        (resource(change(UNCLEAN, "true"), topic=None), resource(change(UNCLEAN, "false"))),
        (resource(change(UNCLEAN, "false")), resource(change(UNCLEAN, "true"), topic=None)),
    ):
        controller = bench(fencing(0, 0, True), generation=Generation.KIP_966_ELR, **lost)
        controller.apply(handle(controller.state, request_of(kind, *resources)).records)
        assert controller.partition().leader == -1
