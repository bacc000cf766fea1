"""Administration requests as records: topics, partitions, configs, elections, reassignments.

`plan` answers with the records of a request, or with the error and a few words; nothing is changed here. Limits and
errors follow requirements G31-G33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.config import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    ConfigError,
    parse_config,
)
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import Election
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, TopicIdPartition
from protocol.messages.admin import (
    AdminRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentRequest,
    ConfigChange,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
)
from protocol.messages.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.metadata.partition import PartitionState, effective_min_isr


@dataclass(frozen=True, slots=True)
class Plan:
    """Records to append, or an error with its message and no records."""

    records: Sequence[MetadataRecord] = field(default=())
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


def plan(state: ControllerState, request: AdminRequest) -> Plan:
    """What an administration request comes to in the present state."""
    if isinstance(request, CreateTopicRequest):
        return _create_topic(state, request)
    if isinstance(request, DeleteTopicRequest):
        topic = state.image.topic_named(request.name)
        return Plan([RemoveTopicRecord(topic_id=topic.topic_id)]) if topic else _no_such_topic(request.name)
    if isinstance(request, CreatePartitionsRequest):
        return _create_partitions(state, request)
    if isinstance(request, AlterConfigsRequest):
        return _alter_configs(state, request)
    if isinstance(request, ElectLeadersRequest):
        return _elect(state, request)
    if isinstance(request, AlterPartitionReassignmentRequest):
        return _reassign(state, request)
    return Plan(error=ErrorCode.INVALID_REQUEST, message=f"unsupported request {type(request).__name__}")


def _no_such_topic(name: str) -> Plan:
    return Plan(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"no topic {name!r}")


def _create_topic(state: ControllerState, request: CreateTopicRequest) -> Plan:
    if request.name in state.image.topic_ids:
        return Plan(error=ErrorCode.TOPIC_ALREADY_EXISTS, message=f"topic {request.name!r} exists")
    if not request.assignments:
        return Plan(error=ErrorCode.INVALID_PARTITIONS, message="no partitions")
    bad = _bad_configs(request.configs)
    if bad is not None:
        return bad
    topic_id = f"{request.name}.{state.image.next_offset}"
    records: list[MetadataRecord] = [TopicRecord(name=request.name, topic_id=topic_id)]
    records += [ConfigRecord(topic_id=topic_id, name=c.name, value=c.value) for c in request.configs]
    return _with_partitions(state, records, topic_id, 0, request.assignments)


def _create_partitions(state: ControllerState, request: CreatePartitionsRequest) -> Plan:
    topic = state.image.topic_named(request.name)
    if topic is None:
        return _no_such_topic(request.name)
    if not request.assignments:
        return Plan(error=ErrorCode.INVALID_PARTITIONS, message="no partitions")
    return _with_partitions(state, [], topic.topic_id, len(topic.partitions), request.assignments)


def _with_partitions(
    state: ControllerState,
    records: list[MetadataRecord],
    topic_id: str,
    first_index: int,
    assignments: Sequence[tuple[int, ...]],
) -> Plan:
    """Adds the records of new partitions: leader and ISR are the active replicas (A19)."""
    for index, replicas in enumerate(assignments, first_index):
        unknown = sorted(set(replicas) - set(state.image.brokers))
        if not replicas or len(set(replicas)) != len(replicas) or unknown:
            reason = f"replicas {list(replicas)} of partition {index}: unknown brokers {unknown} or duplicates"
            return Plan(error=ErrorCode.INVALID_REPLICA_ASSIGNMENT, message=reason)
        isr = tuple(broker for broker in replicas if state.image.is_active(broker))
        if not isr:
            reason = f"all replicas of partition {index} are fenced or shutting down"
            return Plan(error=ErrorCode.INVALID_REPLICA_ASSIGNMENT, message=reason)
        records.append(
            PartitionRecord(topic_id=topic_id, partition_id=index, replicas=replicas, isr=isr, leader=isr[0])
        )
    return Plan(records)


def _bad_configs(changes: Sequence[ConfigChange], topic: bool = True) -> Plan | None:
    for change in changes:
        try:
            parse_config(change.name, change.value, topic=topic) if change.value is not None else None
        except ConfigError as error:
            return Plan(error=ErrorCode.INVALID_CONFIG, message=str(error))
    return None


def _alter_configs(state: ControllerState, request: AlterConfigsRequest) -> Plan:
    """Config records; where min ISR falls to the present ISR, the ELR goes first, in the same batch (E19, M6)."""
    topic_id = None
    if request.topic is not None:
        topic = state.image.topic_named(request.topic)
        if topic is None:
            return _no_such_topic(request.topic)
        topic_id = topic.topic_id
    bad = _bad_configs(request.configs, topic=request.topic is not None)
    if bad is not None:
        return bad
    records: list[MetadataRecord] = []
    for change in request.configs:
        if change.name == MIN_INSYNC_REPLICAS:
            records += _elr_clearing(state, topic_id, change.value)
        records.append(ConfigRecord(topic_id=topic_id, name=change.name, value=change.value))
        if change.name == UNCLEAN_LEADER_ELECTION_ENABLE and change.value == "true":
            records += _unclean_elections(state, topic_id)
    return Plan(records)


def _concerned(
    state: ControllerState, topic_id: str | None, config: str
) -> list[tuple[TopicIdPartition, PartitionState]]:
    """Partitions for which a change of `config` in that scope counts."""
    overridden = {scope for scope, values in state.image.configs.items() if scope is not None and config in values}
    return [
        (key, partition)
        for key, partition in state.image.partitions()
        if key.topic_id == topic_id or (topic_id is None and key.topic_id not in overridden)
    ]


def _elr_clearing(state: ControllerState, topic_id: str | None, value: str | None) -> list[MetadataRecord]:
    """Empties ELR and last known ELR of partitions whose ISR reaches the min ISR that is about to be in force."""
    if not state.config.features.elr:
        return []
    wider = state.image.config(None, MIN_INSYNC_REPLICAS) if topic_id else state.config.values[MIN_INSYNC_REPLICAS]
    min_isr = int(wider if value is None else value)
    return [
        PartitionChangeRecord(
            topic_id=key.topic_id,
            partition_id=key.partition,
            eligible_leader_replicas=() if partition.elr else None,
            last_known_elr=() if partition.last_known_elr else None,
        )
        for key, partition in _concerned(state, topic_id, MIN_INSYNC_REPLICAS)
        if (partition.elr or partition.last_known_elr)
        and len(partition.isr) >= effective_min_isr(min_isr, len(partition.replicas))
    ]


def _unclean_elections(state: ControllerState, topic_id: str | None) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    for key, partition in _concerned(state, topic_id, UNCLEAN_LEADER_ELECTION_ENABLE):
        if partition.leader == NO_LEADER:
            record = state.change(key, Election.UNCLEAN)
            if record is not None:
                records.append(record)
    return records


def _find(state: ControllerState, topic_name: str, partition: int) -> tuple[TopicIdPartition, PartitionState] | None:
    topic = state.image.topic_named(topic_name)
    if topic is None or partition not in topic.partitions:
        return None
    return TopicIdPartition(topic.topic_id, partition), topic.partitions[partition]


def _elect(state: ControllerState, request: ElectLeadersRequest) -> Plan:
    """Preferred: only if another leads now. Unclean: only if nobody leads (J2, J3, G33)."""
    found = _find(state, request.topic, request.partition)
    if found is None:
        return _no_such_topic(f"{request.topic}-{request.partition}")
    key, partition = found
    preferred = request.election_type is ElectionType.PREFERRED
    if partition.leader == partition.replicas[0] if preferred else partition.leader != NO_LEADER:
        return Plan(error=ErrorCode.ELECTION_NOT_NEEDED, message=f"broker {partition.leader} leads")
    record = state.change(key, Election.PREFERRED if preferred else Election.UNCLEAN)
    if record is None:
        error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return Plan(error=error, message="no replica that may lead")
    return Plan([record])


def _reassign(state: ControllerState, request: AlterPartitionReassignmentRequest) -> Plan:
    """Starts a move to other replicas, or takes back the one under way (E32, E33)."""
    found = _find(state, request.topic, request.partition)
    if found is None:
        return _no_such_topic(f"{request.topic}-{request.partition}")
    key, partition = found
    if request.replicas is None:
        return _cancel_reassignment(state, key, partition)
    unknown = sorted(set(request.replicas) - set(state.image.brokers))
    if not request.replicas or unknown or len(set(request.replicas)) != len(request.replicas):
        reason = f"replicas {list(request.replicas)}: none, duplicates, or unknown brokers {unknown}"
        return Plan(error=ErrorCode.INVALID_REPLICA_ASSIGNMENT, message=reason)
    removing = tuple(sorted(set(partition.replicas) - set(request.replicas)))
    adding = tuple(sorted(set(request.replicas) - set(partition.replicas)))
    record = state.change(
        key,
        target_replicas=(*request.replicas, *removing),
        target_adding=adding or None,
        target_removing=removing or None,
    )
    if record is not None and record.leader >= 0 and record.leader not in partition.replicas:
        # Only where a stale ELR names brokers that left the assignment (`kip-966-elr`); Kafka fails here as well.
        reason = f"broker {record.leader} would lead without holding a replica"
        return Plan(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=reason)
    return Plan([record] if record is not None else [])


def _cancel_reassignment(state: ControllerState, key: TopicIdPartition, partition: PartitionState) -> Plan:
    if not partition.adding_replicas and not partition.removing_replicas:
        return Plan(error=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message="no reassignment is under way")
    replicas = tuple(broker for broker in partition.replicas if broker not in partition.adding_replicas)
    isr = tuple(broker for broker in partition.isr if broker not in partition.adding_replicas)
    needed = 1
    if state.config.features.track_last_known_leader:
        needed = state.image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(replicas))
    if len(isr) < needed:
        reason = "fewer than min ISR original replicas are in sync"
        return Plan(error=ErrorCode.INVALID_REPLICA_ASSIGNMENT, message=reason)
    record = state.change(key, target_replicas=replicas, target_adding=(), target_removing=(), target_isr=isr)
    return Plan([record] if record is not None else [])
