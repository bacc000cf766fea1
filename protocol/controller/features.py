"""UpdateFeatures: feature levels raised and lowered while the cluster runs (requirements K2-K11, H6-H9).

A request changes all features that it names, or none. The checks are Kafka's; the resulting levels must be compatible:
`unclean.recovery.enabled` needs the metadata version that brings ELR (K8, N24). A level that is in force already is no
change, whereas Kafka records it again. Kafka never lowers `metadata.version` across a change of the metadata, so the
effect of an unsafe downgrade is defined here.

The consequences of the new levels for partitions and configs are recorded in the same batch, each record where the
levels that it needs are in force.

- *Raising metadata.version*: partitions have no ELR until their next change (K3, M23). Leaderless ones are changed at
  once: the members of the ISR, none of which could lead, become the ELR. Otherwise Kafka's first phase would record
  "no leader" as last known leader when the last member leaves, and the partition would stay leaderless.
- *Raising it to 3* adds registrations of controllers, *lowering it* removes them with the level (`controllers.py`).
- *Lowering it to 1* removes ELR, last known ELR and last known leader with the level: a record of version 0 cannot
  remove them with the next change of each partition (K10). An ISR must not stay empty: the whole ELR returns to it,
  since each of its members has all committed records, but a single one might have lost its disk. The last known leader
  stands first, the others in the order of the assignment. Members that are active return alone, and the first of them
  leads at once; otherwise the first that comes back leads, also after an unclean restart (K7), and the others leave the
  ISR with its election (`brokers.py`). If the ELR is empty no replica is known to have all committed records: then the
  last known leader returns, else the first of the last known ELR, else the first replica, and the partition is
  RECOVERING, as after an unclean election (C12).
- *Toggling unclean.recovery.enabled* moves the last known leader between `last_known_elr`, where Kafka's first phase
  keeps it, and its own field (N15). The last known ELR starts and ends empty: one broker that led last is not a last
  known ELR in the sense of recovery (E27, F29). Enabling it also empties an ELR that an election has left although min
  ISR is reached (E14), and removes brokers from an ELR that a reassignment has removed (E34).
  `unclean.leader.election.enable` and `unclean.recovery.strategy` are converted into each other in every scope: an
  override becomes an override, and where there is none the override of the other config is removed, so that later
  changes of the wider default reach the same topics (H6-H8). `manual` becomes `balanced` on the way back (H9). Lowering
  it is safe, since the KIP defines the way back; leaderless partitions are elected for by the rules of the first phase
  in the same batch, and their recoveries end with the level.

A leader that still applies the old rule has not applied any partition change of the new level either, so it counts with
the whole ISR of before (M8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.config import (
    ENABLE_OF_STRATEGY,
    MIN_INSYNC_REPLICAS,
    STRATEGY_OF_ENABLE,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    UNCLEAN_RECOVERY_STRATEGY,
    ConfigValue,
    config_text,
)
from protocol.controller.configs import Draft, complete_reassignments, set_config
from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, named_twice, require_once
from protocol.controller.controllers import reason_unsupported
from protocol.errors import ErrorCode, Refused
from protocol.features import (
    METADATA_VERSION,
    METADATA_VERSION_ELR,
    SUPPORTED_FEATURES,
    UNCLEAN_RECOVERY_ENABLED,
    Features,
    controllers_register,
    features_at,
)
from protocol.ids import NO_LEADER, BrokerId, TopicIdPartition
from protocol.kafka_rules import FEATURE_LEVEL_ALONE
from protocol.messages.acls import AclOperation
from protocol.messages.cluster import (
    FeatureResult,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from protocol.messages.records import (
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    UnregisterControllerRecord,
)
from protocol.metadata.authorizer import require_access
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState, PartitionState


def bootstrap_records(state: ControllerState) -> list[MetadataRecord]:
    """The first records of a new cluster's metadata log: the feature levels of its generation."""
    levels = state.config.generation.feature_levels
    return [FeatureLevelRecord.unchecked(name=name, feature_level=level) for name, level in levels.items()]


def update_features(state: ControllerState, request: UpdateFeaturesRequest) -> ControllerResult:
    """Makes all updates or none. Refused: INVALID_UPDATE_VERSION; INVALID_REQUEST for a repetition. Needs ALTER."""
    require_access(state.image, request, AclOperation.ALTER)
    twice = named_twice(update.feature for update in request.feature_updates)
    present = state.image.feature_levels
    for update in request.feature_updates:
        require_once(update.feature, twice)
        _require_allowed(state.image, update)
    wanted = {update.feature: update for update in request.feature_updates}
    levels = {**present, **{name: update.max_version_level for name, update in wanted.items()}}
    if levels[UNCLEAN_RECOVERY_ENABLED] and levels[METADATA_VERSION] < METADATA_VERSION_ELR:
        needed = f"{UNCLEAN_RECOVERY_ENABLED} needs {METADATA_VERSION} {METADATA_VERSION_ELR}"
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"nothing was changed: {needed}")

    draft = Draft(state)
    if not controllers_register(levels):
        _remove_registrations(draft, wanted.get(METADATA_VERSION))
    before, after = draft.features, features_at(levels)
    if after.elr:
        _change_levels(draft, levels)
    if not (after.elr and FEATURE_LEVEL_ALONE in state.config.kafka_rules):
        _convert_partitions(draft, before, after)
    # The records of a downgrade: without ELR before and after there are none.
    if not after.elr and draft.records and wanted[METADATA_VERSION].upgrade_type is UpgradeType.SAFE_DOWNGRADE:
        raise Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"nothing was changed: {METADATA_VERSION} {levels[METADATA_VERSION]} would lose the eligible leaders "
            f"of {len(draft.records)} partitions; an unsafe downgrade does it nevertheless",
        )
    if not after.elr:
        _change_levels(draft, levels)
    _convert_configs(draft, present)
    if before.track_last_known_leader != after.track_last_known_leader:
        complete_reassignments(draft, None)
    if before.unclean_recovery and not after.unclean_recovery:
        for key in draft.state.leaderless():
            if draft.partition(key).leader == NO_LEADER:
                draft.decide(key, draft.allowed_election(key))
    results = tuple(FeatureResult(feature=update.feature) for update in request.feature_updates)
    response = UpdateFeaturesResponse(correlation_id=request.correlation_id, features=results)
    return ControllerResult(response, draft.records).validated(request.validate_only)


def _remove_registrations(draft: Draft, update: FeatureUpdate | None) -> None:
    controllers = draft.state.image.controllers
    if controllers and update is not None and update.upgrade_type is UpgradeType.SAFE_DOWNGRADE:
        raise Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"nothing was changed: {METADATA_VERSION} {update.max_version_level} would lose the registrations of "
            f"{len(controllers)} controllers; an unsafe downgrade does it nevertheless",
        )
    draft.records += (UnregisterControllerRecord(controller_id=controller) for controller in controllers)


def _require_allowed(image: MetadataImage, update: FeatureUpdate) -> None:
    present = image.feature_levels
    name, level, upgrades = update.feature, update.max_version_level, update.upgrade_type is UpgradeType.UPGRADE
    lowest, highest = SUPPORTED_FEATURES.get(name, (0, -1))
    if name not in SUPPORTED_FEATURES:
        reason = f"unknown feature; allowed: {', '.join(SUPPORTED_FEATURES)}"
    elif not lowest <= level <= highest:
        reason = f"supported are levels {lowest} to {highest}"
    elif unsupported := reason_unsupported(image, name, level):
        reason = unsupported
    elif level < present[name] and upgrades:
        reason = f"it is at {present[name]}, and an upgrade lowers nothing"
    elif level > present[name] and not upgrades:
        reason = f"it is at {present[name]}, and a downgrade raises nothing"
    else:
        return
    raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"nothing was changed: {name} {level}: {reason}")


def _change_levels(draft: Draft, levels: Mapping[str, int]) -> None:
    """Adds the new levels: raised ones in the order of SUPPORTED_FEATURES, then lowered ones in reverse order."""
    before = draft.levels
    raised = [name for name in SUPPORTED_FEATURES if levels[name] > before[name]]
    lowered = [name for name in SUPPORTED_FEATURES if levels[name] < before[name]]
    for name in (*raised, *reversed(lowered)):
        draft.add(FeatureLevelRecord(name=name, feature_level=levels[name]))


def _convert_partitions(draft: Draft, before: Features, after: Features) -> None:
    for key, partition in draft.partitions() if before != after else ():
        if not before.elr:
            changes = _with_elr(partition, after)
        elif not after.elr:
            changes = _without_elr(draft.state, partition)
        elif after.track_last_known_leader:
            changes = _with_last_known_leader(draft.state, key, partition)
        else:
            changes = _with_leader_in_elr(partition)
        if changes:
            draft.add(PartitionChangeRecord(topic_id=key.topic_id, partition_id=key.partition, **changes))


def _with_elr(partition: PartitionState, after: Features) -> dict[str, Any]:
    """Changes when the levels bring ELR, in either phase."""
    if partition.leader != NO_LEADER or not partition.isr:
        return {}
    changes: dict[str, Any] = {"isr": (), "eligible_leader_replicas": tuple(sorted(partition.isr))}
    if after.track_last_known_leader:
        return changes | {"last_known_leader": partition.isr[0]}
    return changes | {"last_known_elr": partition.isr[:1]}


def _with_last_known_leader(state: ControllerState, key: TopicIdPartition, partition: PartitionState) -> dict[str, Any]:
    """Changes from the first phase to unclean recovery."""
    changes: dict[str, Any] = {}
    elr = tuple(broker for broker in partition.elr if broker in partition.replicas)
    if len(partition.isr) >= state.image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(partition.replicas)):
        elr = ()
    if elr != partition.elr:
        changes["eligible_leader_replicas"] = elr
    if partition.last_known_elr:
        changes["last_known_elr"] = ()
        if partition.leader == NO_LEADER:
            changes["last_known_leader"] = partition.last_known_elr[0]
    return changes


def _with_leader_in_elr(partition: PartitionState) -> dict[str, Any]:
    """Changes from unclean recovery to the first phase."""
    last_known = _as_tuple(partition.last_known_leader)
    changes: dict[str, Any] = {"last_known_elr": last_known} if partition.last_known_elr != last_known else {}
    return changes | ({"last_known_leader": NO_LEADER} if last_known else {})


def _as_tuple(broker: BrokerId) -> tuple[BrokerId, ...]:
    return () if broker == NO_LEADER else (broker,)


def _without_elr(state: ControllerState, partition: PartitionState) -> dict[str, Any]:
    """Changes when the levels take ELR away, in either phase."""
    changes: dict[str, Any] = {}
    if partition.elr:
        changes["eligible_leader_replicas"] = ()
    if partition.last_known_elr:
        changes["last_known_elr"] = ()
    if partition.last_known_leader != NO_LEADER:
        changes["last_known_leader"] = NO_LEADER
    if not partition.isr:
        members = _returning_members(partition)
        active = tuple(filter(state.image.is_active, members))
        changes["isr"] = active or members
        if not set(members).issubset(partition.elr):
            changes["leader_recovery_state"] = int(LeaderRecoveryState.RECOVERING)
        if active:
            changes["leader"] = active[0]
    return changes


def _returning_members(partition: PartitionState) -> tuple[BrokerId, ...]:
    """The members that return to an empty ISR: the replicas in the ELR, the last leader first, or one replica."""
    first_phase = partition.last_known_elr if len(partition.last_known_elr) == 1 else ()
    led_last = _as_tuple(partition.last_known_leader) or first_phase
    replicas = sorted(partition.replicas, key=lambda broker: broker not in led_last)
    known = {*led_last, *partition.last_known_elr}
    eligible = tuple(broker for broker in replicas if broker in partition.elr)
    return eligible or tuple(sorted(replicas, key=lambda broker: broker not in known))[:1]


def _convert_configs(draft: Draft, before: Mapping[str, int]) -> None:
    """If the flag was toggled, sets the config that applies now to the converted value of the other one."""
    enabled = draft.levels[UNCLEAN_RECOVERY_ENABLED]
    if enabled == before[UNCLEAN_RECOVERY_ENABLED]:
        return
    configs = (UNCLEAN_LEADER_ELECTION_ENABLE, UNCLEAN_RECOVERY_STRATEGY)
    old, new = configs if enabled else configs[::-1]
    topics = {topic for name in configs for topic in draft.overridden_by(name)}
    for scope in (None, *sorted(topics)):
        value = draft.override(scope, old)
        set_config(draft, scope, new, None if value is None else _converted(value))
    static = draft.state.config.values
    in_force = _converted(draft.config(None, old))
    if draft.override(None, old) is None and config_text(static[new]) != in_force:
        set_config(draft, None, new, in_force)


def _converted(value: ConfigValue) -> str:
    return STRATEGY_OF_ENABLE[value] if isinstance(value, bool) else config_text(ENABLE_OF_STRATEGY[str(value)])
