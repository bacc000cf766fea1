"""Feature levels: what a cluster may do, raised and lowered while it runs (requirements K2-K11, H6-H9).

A request changes all the features that it names, or none. Kafka's checks, all of which end in INVALID_UPDATE_VERSION:
the feature exists and is supported at that level; only a downgrade lowers it, and a downgrade does not raise it; a
safe downgrade of `metadata.version` loses no metadata. The levels must go together afterwards:
`unclean.recovery.enabled` needs the metadata version that brings ELR (K8, N24). A level that is in force already is no
change. Kafka records it anew; and it never lowers `metadata.version` across a change of the metadata, so what an unsafe
downgrade does is settled here.

What the new levels mean for partitions and configs is recorded in the same batch, each record where the levels that it
needs are in force.

- *Raising metadata.version* brings ELR, clean shutdown epochs and empty ISRs. Partitions have no ELR until their next
  change (K3, M23). For those without a leader this is that change: the members that were kept in the ISR, though none
  of them could lead, become the ELR that they would be. Left alone, Kafka's first phase would take "no leader" for the
  last known leader when the last of them goes, and wait for ever.
- *Lowering it* takes ELR, last known ELR and last known leader away. They could wait for the next change of each
  partition (K10), but a record of version 0 cannot say that they go, so they go with the level. An ISR must not stay
  empty: one member comes back into it, as before KIP-966 the last one would never have left. That is the last known
  leader if it is in the ELR (it has all that anyone has), else the first of the ELR in the order of the assignment.
  If nobody is in the ELR nobody vouches for a log: then the last known leader, else the first of the last known ELR,
  else the first replica comes back, and the partition is RECOVERING, as after an unclean election (C12). Only one
  comes back, because below this version an unclean restart takes nobody out of the ISR (K7). Whoever comes back and is
  active leads at once.
- *Toggling unclean.recovery.enabled* moves the last known leader between `last_known_elr`, where Kafka's first phase
  keeps it, and its own field (N15). The last known ELR starts and ends empty: one broker that led last is no last known
  ELR that a recovery could count (E27, F29). Enabling it also drops an ELR that an election has left behind though min
  ISR is reached (E14), and from an ELR whom a reassignment has moved away (E34). `unclean.leader.election.enable` and
  `unclean.recovery.strategy` are converted into each other, in every place: an override becomes an override, and where
  there is none the other one goes too, so that later changes of the wider default reach the same topics (H6-H8). What
  was set under the other level for the config that does not count there is overwritten; manual and back is balanced
  (H9). Lowering it is safe, since the KIP defines the way back; leaderless partitions are elected for by the rules of
  the first phase in the same batch, and what recovery was doing for them ends with the level.

Brokers learn of levels from the metadata log, as of configs. A leader that still counts by the old rule has not seen
any partition change of the new one either, so it counts with the whole ISR from before (M8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.config import (
    ENABLE_OF_STRATEGY,
    METADATA_VERSION,
    METADATA_VERSION_ELR,
    MIN_INSYNC_REPLICAS,
    STRATEGY_OF_ENABLE,
    SUPPORTED_FEATURES,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    UNCLEAN_RECOVERY_ENABLED,
    UNCLEAN_RECOVERY_STRATEGY,
    ConfigValue,
    Features,
    config_text,
    features_at,
)
from protocol.controller.configs import complete_reassignments, set_config
from protocol.controller.context import ControllerState
from protocol.controller.draft import Draft
from protocol.controller.planning import Plan, named_twice, require_once
from protocol.errors import ErrorCode, Refused
from protocol.ids import NO_LEADER, BrokerId, TopicIdPartition
from protocol.messages.acls import AclOperation
from protocol.messages.cluster import (
    FeatureResult,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from protocol.messages.records import FeatureLevelRecord, MetadataRecord, PartitionChangeRecord
from protocol.metadata.authorizer import require_cluster
from protocol.metadata.partition import LeaderRecoveryState, PartitionState


def bootstrap_records(state: ControllerState) -> list[MetadataRecord]:
    """What a new cluster's metadata log begins with: the feature levels of its generation."""
    levels = state.config.generation.feature_levels
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()]


def update_features(state: ControllerState, request: UpdateFeaturesRequest) -> Plan:
    """All updates or none; refused as a whole with INVALID_UPDATE_VERSION, or INVALID_REQUEST for a feature named
    twice.
    """
    require_cluster(state.image, request, AclOperation.ALTER)
    twice = named_twice(update.feature for update in request.feature_updates)
    present = state.image.feature_levels
    for update in request.feature_updates:
        require_once(update.feature, twice)
        _require_allowed(present, update)
    wanted = {update.feature: update.max_version_level for update in request.feature_updates}
    levels = {**present, **wanted}
    if levels[UNCLEAN_RECOVERY_ENABLED] and levels[METADATA_VERSION] < METADATA_VERSION_ELR:
        needed = f"{UNCLEAN_RECOVERY_ENABLED} needs {METADATA_VERSION} {METADATA_VERSION_ELR}"
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"nothing was changed: {needed}")

    draft = Draft(state)
    before, after = draft.features, features_at(levels)
    if after.elr:
        _change_levels(draft, levels)
    _convert_partitions(draft, before, after)
    if not after.elr and draft.records and _is_safe_downgrade(present, request):
        raise Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"nothing was changed: {METADATA_VERSION} {levels[METADATA_VERSION]} would lose what {len(draft.records)} "
            "partitions know of eligible leaders; an unsafe downgrade does it all the same",
        )
    if not after.elr:
        _change_levels(draft, levels)
    _convert_configs(draft, present)
    if before != after:
        complete_reassignments(draft, None)
    if before.unclean_recovery and not after.unclean_recovery:
        _elect_for_leaderless(draft)
    results = tuple(FeatureResult(feature=update.feature) for update in request.feature_updates)
    response = UpdateFeaturesResponse(correlation_id=request.correlation_id, features=results)
    return Plan(response, draft.records).validated(request.validate_only)


def _require_allowed(present: Mapping[str, int], update: FeatureUpdate) -> None:
    """One update by itself."""
    name, level = update.feature, update.max_version_level
    if name not in SUPPORTED_FEATURES:
        reason = f"no such feature; there are {', '.join(SUPPORTED_FEATURES)}"
    else:
        lowest, highest = SUPPORTED_FEATURES[name]
        upgrades = update.upgrade_type is UpgradeType.UPGRADE
        if not lowest <= level <= highest:
            reason = f"supported are levels {lowest} to {highest}"
        elif level < present[name] and upgrades:
            reason = f"it is at {present[name]}, and an upgrade lowers nothing"
        elif level > present[name] and not upgrades:
            reason = f"it is at {present[name]}, and a downgrade raises nothing"
        else:
            return
    raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"nothing was changed: {name} {level}: {reason}")


def _is_safe_downgrade(present: Mapping[str, int], request: UpdateFeaturesRequest) -> bool:
    """Whether `metadata.version` is to be lowered only if that loses nothing."""
    return any(
        update.feature == METADATA_VERSION
        and update.max_version_level < present[METADATA_VERSION]
        and update.upgrade_type is UpgradeType.SAFE_DOWNGRADE
        for update in request.feature_updates
    )


def _change_levels(draft: Draft, levels: Mapping[str, int]) -> None:
    """Raises what others need first and lowers it last."""
    before = draft.levels
    raised = [name for name in SUPPORTED_FEATURES if levels[name] > before[name]]
    lowered = [name for name in SUPPORTED_FEATURES if levels[name] < before[name]]
    for name in (*raised, *reversed(lowered)):
        draft.add(FeatureLevelRecord(name=name, feature_level=levels[name]))


# -- partitions --------------------------------------------------------------------------------------------------------


def _convert_partitions(draft: Draft, before: Features, after: Features) -> None:
    """Adds the changes of the partitions that the new levels find otherwise than they need them."""
    if before == after:
        return
    for key, partition in draft.partitions():
        if not before.elr:
            changes = _with_elr(partition, after)
        elif not after.elr:
            changes = _without_elr(draft.state, partition)
        elif after.track_last_known_leader:
            changes = _with_field_of_its_own(draft.state, key, partition)
        else:
            changes = _with_leader_in_elr(partition)
        if changes:
            draft.add(PartitionChangeRecord(topic_id=key.topic_id, partition_id=key.partition, **changes))


def _with_elr(partition: PartitionState, after: Features) -> dict[str, Any]:
    """From the time before to either phase."""
    if partition.leader != NO_LEADER or not partition.isr:
        return {}
    changes: dict[str, Any] = {"isr": (), "eligible_leader_replicas": tuple(sorted(partition.isr))}
    if after.track_last_known_leader:
        return changes | {"last_known_leader": partition.isr[0]}
    return changes | {"last_known_elr": partition.isr[:1]}


def _with_field_of_its_own(state: ControllerState, key: TopicIdPartition, partition: PartitionState) -> dict[str, Any]:
    """From the first phase to unclean recovery."""
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
    """From unclean recovery to the first phase."""
    changes: dict[str, Any] = {}
    last_known = _named(partition.last_known_leader)
    if partition.last_known_elr != last_known:
        changes["last_known_elr"] = last_known
    if last_known:
        changes["last_known_leader"] = NO_LEADER
    return changes


def _named(broker: BrokerId) -> tuple[BrokerId, ...]:
    return () if broker == NO_LEADER else (broker,)


def _without_elr(state: ControllerState, partition: PartitionState) -> dict[str, Any]:
    """From either phase to the time before."""
    changes: dict[str, Any] = {}
    if partition.elr:
        changes["eligible_leader_replicas"] = ()
    if partition.last_known_elr:
        changes["last_known_elr"] = ()
    if partition.last_known_leader != NO_LEADER:
        changes["last_known_leader"] = NO_LEADER
    if not partition.isr:
        member = _last_member(partition)
        changes["isr"] = (member,)
        if member not in partition.elr:
            changes["leader_recovery_state"] = int(LeaderRecoveryState.RECOVERING)
        if state.image.is_active(member):
            changes["leader"] = member
    return changes


def _last_member(partition: PartitionState) -> BrokerId:
    """Who comes back into an empty ISR; see the module docstring."""
    first_phase = partition.last_known_elr if len(partition.last_known_elr) == 1 else ()
    led_last = [broker for broker in _named(partition.last_known_leader) or first_phase if broker in partition.replicas]
    eligible = [broker for broker in partition.replicas if broker in partition.elr]
    known = [broker for broker in partition.replicas if broker in partition.last_known_elr]
    vouched_for = [broker for broker in led_last if broker in partition.elr]
    return (*vouched_for, *eligible, *led_last, *known, *partition.replicas)[0]


def _elect_for_leaderless(draft: Draft) -> None:
    """Nobody recovers what recovery has left without a leader: who may lead by the rules of before leads at once."""
    for key in draft.state.leaderless():
        if draft.partition(key).leader == NO_LEADER:
            draft.decide(key, draft.allowed_election(key))


# -- configs -----------------------------------------------------------------------------------------------------------


def _convert_configs(draft: Draft, before: Mapping[str, int]) -> None:
    """Says in the config that counts from here on what the other one has said, if the flag was toggled."""
    enabled = draft.levels[UNCLEAN_RECOVERY_ENABLED]
    if enabled == before[UNCLEAN_RECOVERY_ENABLED]:
        return
    configs = (UNCLEAN_LEADER_ELECTION_ENABLE, UNCLEAN_RECOVERY_STRATEGY)
    said_in, says_in = configs if enabled else configs[::-1]
    topics = {topic for name in configs for topic in draft.overridden_by(name)}
    for scope in (None, *sorted(topics)):
        said = draft.override(scope, said_in)
        set_config(draft, scope, says_in, None if said is None else _converted(said))
    static = draft.state.config.values
    in_force = _converted(draft.config(None, said_in))
    if draft.override(None, said_in) is None and config_text(static[says_in]) != in_force:
        set_config(draft, None, says_in, in_force)


def _converted(value: ConfigValue) -> str:
    """A value of one of the two configs as a value of the other."""
    return STRATEGY_OF_ENABLE[value] if isinstance(value, bool) else config_text(ENABLE_OF_STRATEGY[str(value)])
