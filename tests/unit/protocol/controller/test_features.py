"""UpdateFeatures: errors, and the changes of partitions, configs and the metadata log that follow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from experiments.engines.port import Loss
from protocol.config import LOG_GENERATIONS, SUPPORTED_FEATURES, Features, Generation, features_at
from protocol.controller import brokers
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import METADATA_LOG, NO_LEADER
from protocol.messages.acls import AclEntry, AclOperation, AclResourceType
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import FeatureUpdate, UpdateFeaturesRequest, UpgradeType
from protocol.messages.metadata_batch import pack_batch, pack_records, unpack_records
from protocol.messages.quorum import ControlRecord
from protocol.messages.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState
from tests.unit.protocol.node_helpers import T0, ControllerBench, config_of, fencing, registrations, topic_records
from tests.unit.protocol.nodes.test_controller_node import Bench

MV, RECOVERY = "metadata.version", "unclean.recovery.enabled"
ENABLE, STRATEGY = "unclean.leader.election.enable", "unclean.recovery.strategy"
UP, SAFE, UNSAFE = UpgradeType
OLD, ELR, NEW = Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING
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
    return UpdateFeaturesRequest.model_validate({"correlation_id": 1, "feature_updates": features} | fields)


def error_of(found: ControllerResult) -> ErrorCode:
    return found.response.failure()[0]


def level(name: str, value: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, feature_level=value)


def config(scope: str | None, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(topic_id=scope, name=name, value=value)


def changed(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord.model_validate({"topic_id": "T", "partition_id": 0} | fields)


# -- what is refused ---------------------------------------------------------------------------------------------------

WRONG = ErrorCode.INVALID_UPDATE_VERSION
REFUSED: dict[str, tuple[Generation, UpdateFeaturesRequest, ErrorCode]] = {
    "an unknown feature": (NEW, update(("kraft.version", 1)), WRONG),
    "a level that is too high": (NEW, update((MV, 3)), WRONG),
    "a level that is too low": (NEW, update((MV, 0, UNSAFE)), WRONG),
    "a negative level": (NEW, update((RECOVERY, -1, UNSAFE)), WRONG),
    "a feature twice": (OLD, update((MV, 2), (MV, 2)), ErrorCode.INVALID_REQUEST),
    "an upgrade that lowers": (ELR, update((MV, 1)), WRONG),
    "a safe downgrade that raises": (OLD, update((MV, 2, SAFE)), WRONG),
    "an unsafe downgrade that raises": (OLD, update((MV, 2, UNSAFE)), WRONG),
    "recovery without ELR": (OLD, update((RECOVERY, 1)), WRONG),
    "ELR taken from under recovery": (NEW, update((MV, 1, UNSAFE)), WRONG),
    "recovery on and ELR off at once": (ELR, update((RECOVERY, 1), (MV, 1, UNSAFE)), WRONG),
    "one wrong among right ones": (OLD, update((MV, 2), (RECOVERY, 2)), WRONG),
}


@pytest.mark.covers("K8", "N24")
@pytest.mark.parametrize(("generation", "request_", "error"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_update_refuses_the_request_with_a_message(
    generation: Generation, request_: UpdateFeaturesRequest, error: ErrorCode
) -> None:
    found = handle(bench(generation=generation).state, request_)
    assert (found.response.error, list(found.records)) == (error, [])
    assert found.response.failure()[1]


@pytest.mark.covers("G32")
@pytest.mark.parametrize(
    "request_", [update((MV, 2)), admin_requests.unregister_broker(0), admin_requests.unregister_broker(9)]
)
def test_feature_updates_and_unregistration_need_alter_on_the_cluster(request_: AdminRequest) -> None:
    secure = config_of(OLD, authorizer_class_name="standard")
    allowed = AclEntry(
        resource_type=AclResourceType.CLUSTER,
        resource_name="kafka-cluster",
        principal="User:alice",
        operation=AclOperation.ALTER,
    )
    controller = ControllerBench(*registrations(), AccessControlEntryRecord(entry=allowed), config=secure)
    found = handle(controller.state, request_)
    assert (error_of(found), list(found.records)) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    alice = handle(controller.state, request_.model_copy(update={"principal": "User:alice"}))
    assert error_of(alice) is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("kind", UpgradeType)
def test_the_level_in_force_is_no_change(kind: UpgradeType) -> None:
    found = handle(bench(generation=ELR).state, update((MV, 2, kind), (RECOVERY, 0, kind)))
    assert (error_of(found), list(found.records)) == (ErrorCode.NONE, [])


def test_validation_alone_answers_the_same_and_records_nothing() -> None:
    for request in (update((MV, 1, UNSAFE)), update((MV, 1, SAFE))):
        real, dry = (
            handle(
                bench(isr=(0,), eligible_leader_replicas=(1,)).state, request.model_copy(update={"validate_only": only})
            )
            for only in (False, True)
        )
        assert dry.response == real.response
        assert not dry.records


def test_an_unsupported_level_is_not_replayed() -> None:
    for record in (level(MV, 3), level("kraft.version", 1)):
        with pytest.raises(ProtocolInvariantError, match="not supported"):
            bench().apply([record])


# -- raising metadata.version ------------------------------------------------------------------------------------------


@pytest.mark.covers("K2", "K3", "M23", "M24", "K7", "N36")
@pytest.mark.parametrize(("levels", "after"), [(((MV, 2),), ELR), (((RECOVERY, 1), (MV, 2)), NEW)])
def test_elr_begins_with_the_next_change_after_the_upgrade(
    levels: tuple[tuple[str, int], ...], after: Generation
) -> None:
    controller = bench(generation=OLD)
    controller.apply(brokers.fence(controller.state, 2, 2))
    controller.apply(brokers.fence(controller.state, 1, 1))
    controller.apply(brokers.register(controller.state, 1, "again", -1, None))
    assert (controller.partition().isr, controller.partition().elr) == ((0,), ())
    before = controller.partition()
    records = controller.apply(handle(controller.state, update(*levels)).records)
    assert records == [level(name, value) for name, value in sorted(levels)], "metadata.version comes first"
    assert controller.state.image.features == after.features
    assert controller.partition() == before
    controller.apply(brokers.fence(controller.state, 0, 0))
    found = controller.partition()
    assert (found.isr, found.elr, found.leader) == ((), (0,), NO_LEADER)


@pytest.mark.covers("K4", "M24")
def test_before_the_upgrade_the_last_member_stays_and_there_is_no_elr() -> None:
    controller = bench(generation=OLD)
    for broker in (2, 1, 0):
        controller.apply(brokers.fence(controller.state, broker, broker))
    found = controller.partition()
    assert (found.isr, found.elr, found.last_known_elr, found.leader) == ((0,), (), (), NO_LEADER)
    controller.apply(brokers.register(controller.state, 0, "again", -1, None))
    assert controller.partition().isr == (0,)


@pytest.mark.covers("K3")
@pytest.mark.parametrize(
    ("levels", "known"),
    [
        (((MV, 2),), {"last_known_elr": (0,)}),
        (((MV, 2), (RECOVERY, 1)), {"last_known_elr": (), "last_known_leader": 0}),
    ],
    ids=["first phase", "recovery"],
)
def test_an_upgrade_makes_isr_members_of_a_leaderless_partition_eligible(
    levels: tuple[tuple[str, int], ...], known: dict[str, object]
) -> None:
    controller = bench(fencing(0, 0, True), generation=OLD, isr=(0,), leader=NO_LEADER)
    records = handle(controller.state, update(*levels)).records
    assert [type(record) for record in records] == [*(FeatureLevelRecord for _ in levels), PartitionChangeRecord]
    controller.apply(records)
    found = controller.partition()
    assert (found.isr, found.elr, found.leader, found.leader_epoch) == ((), (0,), NO_LEADER, 0)
    assert {name: getattr(found, name) for name in known} == known
    again = brokers.register(controller.state, 0, "again", -1, None)
    controller.apply(again)
    assert controller.partition().elr == ()
    controller.apply(brokers.unfence(controller.state, 0, again[-1].broker_epoch))  # type: ignore[attr-defined]
    found = controller.partition()
    if (RECOVERY, 1) in levels:
        assert (found.leader, found.last_known_elr) == (NO_LEADER, (0,)), "it is for the recovery to elect"
    else:
        assert (found.leader, found.leader_recovery_state) == (0, RECOVERING)


# -- lowering metadata.version -----------------------------------------------------------------------------------------

EVERYONE_FENCED = tuple(fencing(broker, broker, True) for broker in range(3))
DOWNGRADES: dict[str, tuple[dict[str, Any], tuple[MetadataRecord, ...], dict[str, object]]] = {
    "a leader and an ELR": (
        {"isr": (0,), "eligible_leader_replicas": (1,)},
        (),
        {"isr": (0,), "leader": 0, "leader_epoch": 0},
    ),
    "the last leader is in the ELR": (
        {**LOST, "eligible_leader_replicas": (1, 2), "last_known_elr": (2,)},
        EVERYONE_FENCED,
        {"isr": (2, 1), "leader": NO_LEADER, "leader_epoch": 0, "leader_recovery_state": RECOVERED},
    ),
    "the last leader came back unclean": (
        {**LOST, "eligible_leader_replicas": (2, 1), "last_known_elr": (0,)},
        EVERYONE_FENCED,
        {"isr": (1, 2), "leader": NO_LEADER, "leader_recovery_state": RECOVERED},
    ),
    "an empty ELR": (
        {**LOST, "last_known_elr": (2,)},
        EVERYONE_FENCED,
        {"isr": (2,), "leader": NO_LEADER, "leader_recovery_state": RECOVERING},
    ),
    "no last known replica": (LOST, EVERYONE_FENCED, {"isr": (0,), "leader_recovery_state": RECOVERING}),
    "who comes back is active": (
        {**LOST, "eligible_leader_replicas": (1,), "last_known_elr": (0,)},
        (fencing(0, 0, True),),
        {"isr": (1,), "leader": 1, "leader_epoch": 1, "leader_recovery_state": RECOVERED},
    ),
    "one of two is active": (
        {**LOST, "eligible_leader_replicas": (1, 2), "last_known_elr": (2,)},
        (fencing(0, 0, True), fencing(2, 2, True)),
        {"isr": (1,), "leader": 1, "leader_epoch": 1, "leader_recovery_state": RECOVERED},
    ),
    "a member of the ELR has left the assignment": (
        {**LOST, "replicas": (0, 1), "eligible_leader_replicas": (1, 2), "last_known_elr": (2,)},
        EVERYONE_FENCED,
        {"isr": (1,), "leader": NO_LEADER, "leader_recovery_state": RECOVERED},
    ),
    "who comes back is active and unclean": (
        {**LOST, "last_known_elr": (0,)},
        (),
        {"isr": (0,), "leader": 0, "leader_epoch": 1, "leader_recovery_state": RECOVERING},
    ),
}


@pytest.mark.covers("K10")
@pytest.mark.parametrize(("before", "records", "after"), DOWNGRADES.values(), ids=DOWNGRADES)
def test_a_downgrade_leaves_no_isr_empty_and_nothing_of_the_elr(
    before: dict[str, Any], records: tuple[MetadataRecord, ...], after: dict[str, object]
) -> None:
    controller = bench(*records, **before)
    refused = handle(controller.state, update((MV, 1, SAFE)))
    assert (error_of(refused), list(refused.records)) == (WRONG, [])
    controller.apply(handle(controller.state, update((MV, 1, UNSAFE))).records)
    found = controller.partition()
    assert {name: getattr(found, name) for name in after} == after
    assert (found.elr, found.last_known_elr, found.last_known_leader) == ((), (), NO_LEADER)
    assert controller.state.image.features == OLD.features


@pytest.mark.covers("K10")
def test_a_downgrade_restores_the_first_last_known_member_of_the_assignment() -> None:
    fields = {**LOST, "replicas": (2, 0, 1), "last_known_elr": (0, 2)}
    for last_known, expected in ((NO_LEADER, 2), (1, 1)):
        controller = bench(*EVERYONE_FENCED, generation=NEW, **fields, last_known_leader=last_known)
        controller.apply(handle(controller.state, update((RECOVERY, 0, SAFE), (MV, 1, UNSAFE))).records)
        assert controller.partition().isr == (expected,)


def test_a_downgrade_that_loses_nothing_is_safe() -> None:
    found = handle(bench().state, update((MV, 1, SAFE)))
    assert (error_of(found), list(found.records)) == (ErrorCode.NONE, [level(MV, 1)])


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


# -- unclean.recovery.enabled ------------------------------------------------------------------------------------------


@pytest.mark.covers("N15", "K5", "K8")
def test_the_last_known_leader_moves_with_the_flag_and_back() -> None:
    controller = bench(*EVERYONE_FENCED, **LOST, last_known_elr=(1,))
    on, off = update((RECOVERY, 1)), update((RECOVERY, 0, SAFE))
    assert handle(controller.state, on).records == [level(RECOVERY, 1), changed(last_known_elr=(), last_known_leader=1)]
    controller.apply(handle(controller.state, on).records)
    assert (controller.partition().last_known_elr, controller.partition().last_known_leader) == ((), 1)
    controller.apply(handle(controller.state, off).records)
    assert (controller.partition().last_known_elr, controller.partition().last_known_leader) == ((1,), NO_LEADER)


@pytest.mark.parametrize("recovers", [False, True])
def test_configs_are_converted_only_where_the_flag_changes(recovers: bool) -> None:
    controller = bench(config("T", ENABLE, "true"), config(None, STRATEGY, "manual"), generation=OLD)
    update_of = update((MV, 2), (RECOVERY, 1)) if recovers else update((MV, 2))
    records = handle(controller.state, update_of).records
    assert any(isinstance(record, FeatureLevelRecord) for record in records)
    assert any(isinstance(record, ConfigRecord) for record in records) is recovers


@pytest.mark.covers("E32")
def test_enabling_recovery_completes_a_reassignment_that_is_complete_by_its_rule() -> None:
    moving: dict[str, Any] = {"replicas": (3, 1, 2, 0), "adding_replicas": (3,), "removing_replicas": (0,)}
    controller = bench(*registrations((3,)), fencing(1, 1, True), isr=(0, 2, 3), **moving)
    controller.apply(handle(controller.state, update((RECOVERY, 1))).records)
    found = controller.partition()
    assert (found.replicas, found.isr, found.leader, found.adding_replicas) == ((3, 1, 2), (2, 3), 3, ())


@pytest.mark.covers("E24", "K16")
def test_the_last_known_leader_is_elected_after_recovery_was_disabled() -> None:
    known = {"last_known_elr": (0, 1), "last_known_leader": 1}
    controller = bench(*EVERYONE_FENCED, generation=NEW, **LOST, **known)
    controller.apply(handle(controller.state, update((RECOVERY, 0, UNSAFE))).records)
    controller.apply(brokers.unfence(controller.state, 0, 0))
    assert controller.partition().leader == NO_LEADER
    controller.apply(brokers.unfence(controller.state, 1, 1))
    found = controller.partition()
    assert (found.leader, found.isr, found.last_known_elr, found.last_known_leader) == (1, (1,), (), NO_LEADER)


@pytest.mark.covers("E14")
def test_enabling_recovery_drops_an_elr_that_the_first_phase_left_behind() -> None:
    controller = bench(config("T", "min.insync.replicas", "1"), isr=(0,), eligible_leader_replicas=(1,))
    controller.apply(handle(controller.state, update((RECOVERY, 1))).records)
    assert controller.partition().elr == ()
    kept = bench(isr=(0,), eligible_leader_replicas=(1,))
    kept.apply(handle(kept.state, update((RECOVERY, 1))).records)
    assert kept.partition().elr == (1,)


@pytest.mark.covers("E34")
def test_enabling_recovery_removes_brokers_without_a_replica_from_the_elr() -> None:
    controller = bench(replicas=(0, 2), isr=(0,), eligible_leader_replicas=(1, 2))
    controller.apply(handle(controller.state, update((RECOVERY, 1))).records)
    assert controller.partition().elr == (2,)


def test_disabling_recovery_drops_a_last_known_elr_without_a_last_known_leader() -> None:
    controller = bench(generation=NEW, isr=(0,), last_known_elr=(1,))
    controller.apply(handle(controller.state, update((RECOVERY, 0, SAFE))).records)
    assert (controller.partition().last_known_elr, controller.partition().leader_epoch) == ((), 0)


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
