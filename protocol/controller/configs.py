"""AlterConfigs and IncrementalAlterConfigs as records, with the partition changes that follow from them.

A request names resources: topics, or the cluster-wide default (BROKER with an empty name, H15). Each resource is
altered as a whole or not at all, independently of the others. The checks and their order are Kafka's. Removing an
override that does not exist, or setting one to its present value, changes nothing and is no error; Kafka records the
latter for the cluster-wide default, so that brokers reload it.

The consequences of a change are in the same batch as the change, in an order that keeps the invariants at every offset
of the log: where min ISR falls to the size of the present ISR, ELR and last known ELR are emptied first (E19, M6), but
stay where the ISR is empty (M7); where unclean election becomes allowed, leaderless partitions are elected for, after
all configs of the request. With `unclean.recovery.enabled`, `unclean.leader.election.enable` causes no election: it
sets `unclean.recovery.strategy`, where the request does not (`protocol.config`).

The changes of one request build on each other. A `Draft` is the controller's state overlaid with the records so far, at
the cost of the changes, whatever the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from protocol.config import (
    CONFIGS,
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    UNCLEAN_RECOVERY_STRATEGY,
    ConfigError,
    ConfigValue,
    config_text,
    parse_config,
    with_implied_strategy,
)
from protocol.controller.context import ControllerState, allowed_election
from protocol.controller.controller_result import ControllerResult, named_twice, require_once, topic_named
from protocol.controller.partition_change import Election, decide
from protocol.controller.topics import name_error
from protocol.errors import ErrorCode, ProtocolInvariantError, Refused
from protocol.features import features_at
from protocol.ids import NO_LEADER, TopicIdPartition
from protocol.kafka_rules import CLUSTER_MIN_ISR_KEPT, MIN_ISR_CHANGE_CLEARS_ELR
from protocol.messages.acls import AclOperation
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResult,
    ConfigOperation,
    ConfigResourceType,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.records import ConfigRecord, FeatureLevelRecord, MetadataRecord, PartitionChangeRecord
from protocol.metadata.authorizer import require_access
from protocol.metadata.partition import PartitionState, effective_min_isr, replay_change


class Draft:
    """The `records` so far, with the configs, feature levels and partitions that result from them."""

    def __init__(self, state: ControllerState) -> None:
        self.state = state
        self.records: list[MetadataRecord] = []
        self.levels = state.image.feature_levels
        self.features = state.image.features
        self._configs: dict[tuple[str | None, str], ConfigValue | None] = {}
        self._partitions: dict[TopicIdPartition, PartitionState] = {}

    def add(self, record: ConfigRecord | FeatureLevelRecord | PartitionChangeRecord) -> None:
        """Adds a record; all later calls see its effect."""
        self.records.append(record)
        if isinstance(record, ConfigRecord):
            value = None if record.value is None else CONFIGS[record.name].parse(record.value)
            self._configs[record.topic_id, record.name] = value
        elif isinstance(record, FeatureLevelRecord):
            self.levels = {**self.levels, record.name: record.feature_level}
            self.features = features_at(self.levels)
        else:
            key = TopicIdPartition(record.topic_id, record.partition_id)
            self._partitions[key] = replay_change(self.partition(key), record)

    def override(self, topic_id: str | None, name: str) -> ConfigValue | None:
        """The topic's override, or the dynamic cluster default (`topic_id` None); None where it is not set."""
        if (topic_id, name) in self._configs:
            return self._configs[topic_id, name]
        return self.state.image.configs.get(topic_id, {}).get(name)

    def config(self, topic_id: str | None, name: str) -> ConfigValue:
        """The value in force, by the rules of `MetadataImage.config`."""
        for scope in (topic_id, None):
            value = self.override(scope, name)
            if value is not None:
                return value
        return self.state.config.values[name]

    def overridden_by(self, name: str) -> set[str]:
        topics = {topic for topic, values in self.state.image.configs.items() if topic is not None and name in values}
        for (topic, changed), value in self._configs.items():
            if topic is not None and changed == name:
                topics.discard(topic)
                topics.update({topic} if value is not None else ())
        return topics

    def partition(self, key: TopicIdPartition) -> PartitionState:
        state = self._partitions.get(key) or self.state.image.partition(key)
        if state is None:
            raise ProtocolInvariantError(f"no partition {key}")
        return state

    def partitions(self, topic_id: str | None = None) -> Iterator[tuple[TopicIdPartition, PartitionState]]:
        for key, state in self.state.image.partitions(topic_id):
            yield key, self._partitions.get(key, state)

    def allowed_election(self, key: TopicIdPartition) -> Election:
        """The election that the configs and feature levels of the draft allow (`context.allowed_election`)."""
        return allowed_election(self.features, self.config(key.topic_id, UNCLEAN_LEADER_ELECTION_ENABLE))

    def decide(self, key: TopicIdPartition, election: Election) -> None:
        """Adds the record of an election, and of the completion of a reassignment that can be completed, if any."""
        partition, features = self.partition(key), self.features
        min_isr = int(self.config(key.topic_id, MIN_INSYNC_REPLICAS))
        bound = self.state.bound_of_min_isr(key, partition)
        request = replace(
            self.state.request(key, partition, election),
            min_isr=effective_min_isr(min_isr, bound) if features.effective_min_isr else min_isr,
            elr_enabled=features.elr,
            use_last_known_leader=features.last_known_leader_in_elr,
            track_last_known_leader=features.track_last_known_leader,
        )
        record = decide(key.topic_id, key.partition, partition, request)
        if record is not None:
            self.add(record)


def alter_configs(
    state: ControllerState, request: AlterConfigsRequest | IncrementalAlterConfigsRequest
) -> ControllerResult:
    """Sets or removes the named overrides; where the request is not incremental, also removes all others."""
    incremental = isinstance(request, IncrementalAlterConfigsRequest)
    twice = named_twice((resource.resource_type, resource.resource_name) for resource in request.resources)
    draft = Draft(state)
    results = []
    switched: list[str | None] = []
    for resource in request.resources:
        error, message = ErrorCode.NONE, ""
        try:
            require_once((resource.resource_type, resource.resource_name), twice)
            _require_well_formed(resource, incremental)
            topic_id = _admitted(state, request, resource)
        except Refused as refused:
            error, message = refused.error, refused.message
        else:
            strategy = str(draft.config(topic_id, UNCLEAN_RECOVERY_STRATEGY))
            replaced = () if incremental else sorted(state.image.configs.get(topic_id, {}))
            named = {change.name: _new_value(change) for change in resource.configs}
            changes = with_implied_strategy({**dict.fromkeys(replaced), **named}, draft.features, strategy)
            for name, value in changes.items():
                set_config(draft, topic_id, name, value)
            if UNCLEAN_LEADER_ELECTION_ENABLE in changes:
                switched.append(topic_id)
        results.append(
            AlterConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name, error=error, message=message
            )
        )
    for topic_id in switched:
        _elect_uncleanly(draft, topic_id)
    response = AlterConfigsResponse(correlation_id=request.correlation_id, resources=tuple(results))
    return ControllerResult(response, draft.records).validated(request.validate_only)


def _require_well_formed(resource: AlterConfigsResource, incremental: bool) -> None:
    """Raises Refused with INVALID_REQUEST for a resource that is malformed whatever the state of the cluster."""
    is_topic = resource.resource_type is ConfigResourceType.TOPIC
    if is_topic and not resource.resource_name:
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic needs a name; the default of topics is the cluster's")
    if not is_topic and resource.resource_name:
        reason = "single brokers have no configs; an empty name is the cluster's default"
        raise Refused(ErrorCode.INVALID_REQUEST, reason)
    twice = named_twice(change.name for change in resource.configs)
    for change in resource.configs:
        require_once(change.name, twice)
        if not incremental and change.operation is not ConfigOperation.SET:
            reason = f"{change.name}: {change.operation.name} is for incremental changes"
            raise Refused(ErrorCode.INVALID_REQUEST, reason)
        if change.operation is not ConfigOperation.DELETE and change.value is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{change.name}: no value")


def _admitted(
    state: ControllerState,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    resource: AlterConfigsResource,
) -> str | None:
    """The topic id of a resource that may be altered as requested, None for the cluster-wide one; raises Refused."""
    name = resource.resource_name if resource.resource_type is ConfigResourceType.TOPIC else None
    require_access(state.image, request, AclOperation.ALTER_CONFIGS, name)
    _require_valid(resource, is_topic=name is not None)
    if name is None:
        _require_min_isr(state, resource)
        return None
    if reason := name_error(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    return topic_named(state, name).topic_id


def _require_valid(resource: AlterConfigsResource, is_topic: bool) -> None:
    """Raises Refused with INVALID_CONFIG for an unknown, read-only or invalid config of the resource."""
    for change in resource.configs:
        if change.operation is ConfigOperation.DELETE:
            continue
        if change.operation is not ConfigOperation.SET:
            message = f"{change.name}: {change.operation.name} is for lists, and this config is not a list"
            raise Refused(ErrorCode.INVALID_CONFIG, message)
        try:
            parse_config(change.name, change.value, topic=is_topic)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
        if CONFIGS[change.name].read_only:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{change.name} cannot be changed while the cluster runs")


def _require_min_isr(state: ControllerState, resource: AlterConfigsResource) -> None:
    """Raises Refused where one of Kafka's rules keeps the cluster-wide min ISR."""
    removed = [change.name for change in resource.configs if change.operation is ConfigOperation.DELETE]
    is_kept = CLUSTER_MIN_ISR_KEPT in state.config.kafka_rules and state.image.features.elr
    if is_kept and MIN_INSYNC_REPLICAS in removed:
        raise Refused(ErrorCode.INVALID_CONFIG, f"the cluster's {MIN_INSYNC_REPLICAS} cannot be removed with ELR")


def _new_value(change: AlterableConfig) -> str | None:
    return None if change.operation is ConfigOperation.DELETE else config_text(CONFIGS[change.name].parse(change.value))


def set_config(draft: Draft, topic_id: str | None, name: str, value: str | None) -> None:
    """Sets or removes (None) an override, cluster-wide without `topic_id`; updates ELRs and reassignments."""
    present = draft.override(topic_id, name)
    clears_all = MIN_ISR_CHANGE_CLEARS_ELR in draft.state.config.kafka_rules
    if topic_id is None and name == MIN_INSYNC_REPLICAS and clears_all:
        _clear_elr(draft, topic_id, value)
    if value == (None if present is None else config_text(present)):
        return
    if name == MIN_INSYNC_REPLICAS:
        _clear_elr(draft, topic_id, value)
    draft.add(ConfigRecord(topic_id=topic_id, name=name, value=value))
    if name == MIN_INSYNC_REPLICAS and draft.features.track_last_known_leader:
        complete_reassignments(draft, topic_id)  # the other generations ask for no min ISR


def _clear_elr(draft: Draft, topic_id: str | None, value: str | None) -> None:
    """Empties ELR and last known ELR where the ISR reaches the new min ISR `value` (None: of the wider scope)."""
    if not draft.features.elr:
        return
    static = draft.state.config.values[MIN_INSYNC_REPLICAS]
    wider = static if topic_id is None else draft.config(None, MIN_INSYNC_REPLICAS)
    min_isr = int(wider if value is None else value)
    untouched = draft.overridden_by(MIN_INSYNC_REPLICAS) if topic_id is None else frozenset[str]()
    clears_all = MIN_ISR_CHANGE_CLEARS_ELR in draft.state.config.kafka_rules
    for key, partition in draft.partitions(topic_id):
        reached = len(partition.isr) >= effective_min_isr(min_isr, len(partition.replicas))
        if (clears_all or (key.topic_id not in untouched and reached)) and (partition.elr or partition.last_known_elr):
            draft.add(
                PartitionChangeRecord(
                    topic_id=key.topic_id,
                    partition_id=key.partition,
                    eligible_leader_replicas=() if partition.elr else None,
                    last_known_elr=() if partition.last_known_elr else None,
                )
            )


def complete_reassignments(draft: Draft, topic_id: str | None) -> None:
    """Completes the reassignments that are complete under the configs and feature levels of the draft (E32)."""
    for key, partition in list(draft.partitions(topic_id)):
        if partition.adding_replicas or partition.removing_replicas:
            draft.decide(key, Election.ONLINE)


def _elect_uncleanly(draft: Draft, topic_id: str | None) -> None:
    """Elects for the leaderless partitions of a topic, or of all topics (None), where unclean election is allowed."""
    leaderless = draft.state.leaderless()
    if topic_id is not None:
        leaderless = [key for key, state in draft.partitions(topic_id) if state.leader == NO_LEADER]
    for key in leaderless:
        if draft.allowed_election(key) is Election.UNCLEAN:
            draft.decide(key, Election.UNCLEAN)
