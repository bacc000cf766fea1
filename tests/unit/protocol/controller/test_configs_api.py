"""AlterConfigs and IncrementalAlterConfigs: errors and their order, and what holds for any changes.

Refusals: `testdata/refused_configs.txt`. Records, and the changes of partitions that follow: `testdata/configs.txt`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import CONFIGS, MIN_INSYNC_REPLICAS
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, TopicIdPartition
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
    ConfigResourceType,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.node_helpers import ControllerBench, bench, config_of, registrations

MIN_ISR, UNCLEAN, FLUSH = MIN_INSYNC_REPLICAS, "unclean.leader.election.enable", "flush.messages"
STRATEGY = "unclean.recovery.strategy"
TOPIC, BROKER = ConfigResourceType
KINDS = (IncrementalAlterConfigsRequest, AlterConfigsRequest)
Request = IncrementalAlterConfigsRequest | AlterConfigsRequest


def change(name: str, value: str | None, operation: ConfigOperation = ConfigOperation.SET) -> AlterableConfig:
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


@pytest.mark.covers("G31", "H3", "H15")
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_without_end_is_refused(kind: type[Request]) -> None:
    found = handle(bench().state, request_of(kind, resource(change(MIN_ISR, "9" * 10_000))))
    assert (errors_of(found), list(found.records)) == ([ErrorCode.INVALID_CONFIG], [])
    assert found.response.failure()[1]


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
REMOVALS = st.lists(
    st.sampled_from([MIN_ISR, UNCLEAN]).map(lambda name: change(name, None, ConfigOperation.DELETE)), max_size=1
)


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
