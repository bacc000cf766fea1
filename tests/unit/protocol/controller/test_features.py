"""UpdateFeatures: versions of records, any way through the levels, and the log. Examples: `testdata/features.txt`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from experiments.engines.port import Loss
from protocol.controller import brokers
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.features import LOG_GENERATIONS, SUPPORTED_FEATURES, Features, Generation, features_at
from protocol.ids import METADATA_LOG, NO_LEADER
from protocol.messages.cluster import FeatureUpdate, UpdateFeaturesRequest, UpgradeType
from protocol.messages.metadata_batch import pack_batch, pack_records, unpack_records
from protocol.messages.quorum import ControlRecord
from protocol.messages.records import FeatureLevelRecord, MetadataRecord, PartitionChangeRecord
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.node_helpers import T0, ControllerBench, config_of, fencing, registrations, topic_records
from tests.unit.protocol.nodes.controller_bench import Bench

MV, RECOVERY = "metadata.version", "unclean.recovery.enabled"
UP, SAFE, UNSAFE = UpgradeType
OLD, ELR = Generation.KIP_497, Generation.KIP_966_ELR
LOST: dict[str, Any] = {"isr": (), "leader": NO_LEADER}
"""A partition that has lost everyone."""


def bench(*records: MetadataRecord, generation: Generation = ELR, **partition: object) -> ControllerBench:
    """Brokers 0..2 are active; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    return ControllerBench(*registrations(), *topic_records(2, **partition), *records, config=config_of(generation))


def update(*updates: tuple[str, int] | tuple[str, int, UpgradeType], **fields: object) -> UpdateFeaturesRequest:
    features = tuple(
        FeatureUpdate(feature=item[0], max_version_level=item[1], upgrade_type=item[2] if len(item) > 2 else UP)
        for item in updates
    )
    return UpdateFeaturesRequest(**({"correlation_id": 1, "feature_updates": features} | fields))


def error_of(found: ControllerResult) -> ErrorCode:
    return found.response.failure()[0]


def level(name: str, value: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, feature_level=value)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_unsupported_level_is_not_replayed() -> None:
    for record in (level(MV, 4), level("kraft.version", 1)):
        with pytest.raises(ProtocolInvariantError, match="not supported"):
            bench().apply([record])


# -- lowering metadata.version -----------------------------------------------------------------------------------------

EVERYONE_FENCED = tuple(fencing(broker, broker, True) for broker in range(3))


@pytest.mark.covers("G34", "K3", "K10", "K11")
@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_every_record_of_a_change_of_levels_fits_its_version(generation: Generation) -> None:
    """The batch is written and read back: no ELR field is lost, and none is refused."""
    leaderless = {"eligible_leader_replicas": (0,), "last_known_elr": (1,)} | LOST
    partition = {"isr": (0,), "leader": NO_LEADER} if generation is OLD else leaderless
    up, down = update((MV, 2), (RECOVERY, 1)), update((MV, 1, UNSAFE), (RECOVERY, 0, UNSAFE))
    controller = bench(*EVERYONE_FENCED, generation=generation, **partition)
    for request in (up, down) if generation is OLD else (down, up):
        levels = controller.state.image.feature_levels
        records = handle(controller.state, request).records
        assert any(isinstance(record, PartitionChangeRecord) for record in records)
        assert list(unpack_records(pack_batch(records, levels))) == list(records)
        controller.apply(records)


# -- any way through the levels ----------------------------------------------------------------------------------------


def wrong_with(controller: ControllerBench, features: Features) -> list[str]:
    """What the rules in force forbid of the partition."""
    state = controller.partition()
    min_isr = controller.state.image.min_isr("T", "min.insync.replicas", len(state.replicas))
    found = []
    if set(state.isr) & set(state.elr) or not {*state.isr, *state.elr} <= set(state.replicas):
        found.append("ISR and ELR overlap or leave the assignment")
    if not features.elr and (state.elr or state.last_known_elr or state.last_known_leader != NO_LEADER):
        found.append("something of the ELR is left")
    if not features.elr and not state.isr:
        found.append("the ISR is empty")
    if features.track_last_known_leader and state.elr and len(state.isr) >= min_isr:
        found.append("an ELR where min ISR is reached")
    if not features.track_last_known_leader and state.last_known_leader != NO_LEADER:
        found.append("a last known leader in a field that is not in use")
    if features.last_known_leader_in_elr and len(state.last_known_elr) > 1:
        found.append("more than a last known leader")
    if (state.leader == NO_LEADER) == any(map(controller.state.image.is_active, state.isr or state.elr)):
        found.append("a leader too many or none too few")
    return found


EVENTS = st.lists(
    st.tuples(st.sampled_from(["fence", "clean", "unclean", "unregister", "up", "down"]), st.integers(0, 2)),
    max_size=14,
)


@pytest.mark.covers("K2", "K4", "K8", "K10")
@settings(deadline=None, max_examples=200)
@given(st.sampled_from(LOG_GENERATIONS), EVENTS)
def test_levels_may_change_in_any_state(generation: Generation, events: list[tuple[str, int]]) -> None:
    controller = bench(generation=generation)
    image = controller.state.image
    for event, number in events:
        registration = image.brokers.get(number)
        records: list[MetadataRecord] = []
        if event == "fence" and registration is not None and not registration.fenced:
            records = brokers.fence(controller.state, number, registration.broker_epoch)
        elif event in ("clean", "unclean") and (registration is None or registration.fenced):
            previous = registration.broker_epoch if registration is not None and event == "clean" else -1
            controller.apply(brokers.register(controller.state, number, "again", previous, None))
            records = brokers.unfence(controller.state, number, image.brokers[number].broker_epoch)
        elif event == "unregister":
            records = list(handle(controller.state, admin_requests.unregister_broker(number)).records)
        elif event in ("up", "down"):
            wanted = (Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966)[number].feature_levels
            updates = [
                (name, value, UP if value > image.feature_levels[name] else UNSAFE) for name, value in wanted.items()
            ]
            found = handle(controller.state, update(*updates))
            assert error_of(found) is ErrorCode.NONE
            records = list(found.records)
        assert list(unpack_records(pack_batch(records, image.feature_levels))) == records
        controller.apply(records)
        assert wrong_with(controller, image.features) == [], (event, number)
    copy = MetadataImage(image.defaults)
    copy.load(image.to_records(), image.next_offset)
    assert (copy.feature_levels, copy.partition(T0)) == (image.feature_levels, image.partition(T0))


# -- the metadata log --------------------------------------------------------------------------------------------------


@pytest.mark.covers("K3", "K11", "G34")
def test_a_log_from_before_the_upgrade_is_replayed_to_the_same_image() -> None:
    node = Bench(config=config_of(OLD)).serve()
    node.propose(0, 0, 1)
    old_end = len(node.node.records)
    node.administer(update((MV, 2), (RECOVERY, 1)))
    node.propose(0, 0)
    assert node.partition.elr == (1,)
    node.administer(admin_requests.alter_config("t", {"min.insync.replicas": 1}))
    log = node.storage.open_log(METADATA_LOG)
    old = [batch for batch in log.read(0, 2**30) if batch.base_offset < old_end]
    assert [batch.payload for batch in old] == [pack_records(unpack_records(batch.payload), 0) for batch in old]
    assert sum(batch.record_count for batch in old) == old_end
    node.storage.apply_loss(Loss("unflushed"))
    again = Bench(node.storage, config=config_of(OLD))
    assert again.node.state.image.feature_levels == {MV: 2, RECOVERY: 1}
    assert again.node.state.image.to_records() == node.node.state.image.to_records()
    again.administer(update((RECOVERY, 0, SAFE), (MV, 1, UNSAFE)))
    again.propose(0, 0, 1)
    last = Bench(again.storage, config=config_of(OLD))
    assert last.node.state.image.features == OLD.features
    assert last.partition == again.partition


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_a_new_log_begins_with_the_levels_of_its_generation(generation: Generation) -> None:
    node = Bench(config=config_of(generation)).node
    control, levels = node.records[:2], node.records[2:]
    assert all(isinstance(record, ControlRecord) for record in control)
    assert {record.name: record.feature_level for record in levels} == generation.feature_levels  # type: ignore[attr-defined]
    assert features_at(node.state.image.feature_levels) == generation.features
    assert set(SUPPORTED_FEATURES) == set(generation.feature_levels)
