"""CreateTopics and DeleteTopics (A19, A20, J19, G32).

The checks, their order and their errors are Kafka's: first the request (a topic named twice, authorization), then the
total number of partitions, then each topic: its name, its configs, its partitions. A refused topic does not affect the
others.

Directories are named after topics, so a name is neither `.` nor `..`. Since metrics write `_` for `.`, two names that
differ only there collide. `__cluster_metadata` is the name of the metadata log.

Departure from Kafka's code: results come in the order of the request, one for each entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

from protocol.config import (
    DEFAULT_REPLICATION_FACTOR,
    NUM_PARTITIONS,
    UNCLEAN_RECOVERY_STRATEGY,
    ConfigError,
    parse_config,
    with_implied_strategy,
)
from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult, admitted, named_twice, require_once, topic_named
from protocol.controller.partitions import partition_records, require_batch
from protocol.controller.placement import place, usable_brokers
from protocol.errors import ErrorCode, Refused
from protocol.ids import UUID_BITS, BrokerId, uuid_text
from protocol.messages.acls import AclOperation
from protocol.messages.records import ConfigRecord, MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from protocol.metadata.authorizer import may, require_access
from protocol.metadata.image import TopicImage

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
CLUSTER_DEFAULT = -1
"""A count that the cluster's configs decide."""


def name_error(name: str) -> str | None:
    """Why a topic may not have this name; None if it may."""
    if not name:
        return "a topic's name is not empty"
    if name in (".", ".."):
        return "a topic is not called '.' or '..'"
    if len(name) > MAX_NAME_LENGTH:
        return f"a topic's name has at most {MAX_NAME_LENGTH} characters, not {len(name)}"
    if _LEGAL.fullmatch(name) is None:
        return f"{name!r}: a topic's name consists of ASCII letters, digits, '.', '_' and '-'"
    return None


def create_topics(state: ControllerState, request: CreateTopicsRequest) -> ControllerResult:
    """Creates topics by count, placed by the controller, or by assignment. Needs CREATE on the cluster or on the topic;
    the response has the counts only with DESCRIBE_CONFIGS on it. Names collide with existing topics only, as in Kafka.
    """
    image = state.image
    repeated = named_twice(topic.name for topic in request.topics)
    may_create_all = may(image, request.principal, AclOperation.CREATE)

    def admit(topic: CreatableTopic) -> None:
        require_once(topic.name, repeated)
        if topic.name == CLUSTER_METADATA_TOPIC:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{CLUSTER_METADATA_TOPIC} is not created by request")
        if not may_create_all:
            require_access(state.image, request, AclOperation.CREATE, topic.name)

    checked = admitted(request.topics, admit)
    wanted = [topic for topic, refused in checked if refused is None]
    require_batch(sum(len(each.assignments) or max(_partition_count(state, each), 0) for each in wanted))
    can_collide = any("." in topic.name or "_" in topic.name for topic in request.topics)
    neighbours = {name.replace(".", "_"): name for name in reversed(image.topic_ids if can_collide else {})}
    records: list[MetadataRecord] = []
    results = []
    for topic, refused in checked:
        try:
            if refused is not None:
                raise refused
            _require_free_name(state, topic.name, neighbours.get(topic.name.replace(".", "_")))
            made = _create(state, topic, len(records))
        except Refused as reason:
            results.append(CreatableTopicResult(name=topic.name, error=reason.error, message=reason.message))
            continue
        records += made
        results.append(
            _created(topic.name, made, may(image, request.principal, AclOperation.DESCRIBE_CONFIGS, topic.name))
        )
    response = CreateTopicsResponse(correlation_id=request.correlation_id, topics=tuple(results))
    return ControllerResult(response, records).validated(request.validate_only)


def _partition_count(state: ControllerState, topic: CreatableTopic) -> int:
    is_default = topic.num_partitions == CLUSTER_DEFAULT
    return state.image.int_config(None, NUM_PARTITIONS) if is_default else topic.num_partitions


def _require_free_name(state: ControllerState, name: str, neighbour: str | None) -> None:
    if name in state.image.topic_ids:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
    if invalid := name_error(name) or (neighbour and f"{name!r} collides with topic {neighbour!r}"):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, invalid)


def _create(state: ControllerState, topic: CreatableTopic, offset: int) -> list[MetadataRecord]:
    """The records of a topic, `offset` behind the end of the log; its id, a digest of that place, is not used again."""
    place = f"{state.image.next_offset + offset}/{topic.name}".encode()
    topic_id = uuid_text(int.from_bytes(blake2b(place, digest_size=16).digest(), "big") >> (128 - UUID_BITS))
    strategy = str(state.image.config(None, UNCLEAN_RECOVERY_STRATEGY))
    configs = with_implied_strategy(requested_configs(topic), state.image.features, strategy)
    return [
        TopicRecord.unchecked(name=topic.name, topic_id=topic_id),
        *(ConfigRecord.unchecked(topic_id=topic_id, name=name, value=value) for name, value in configs.items()),
        *partition_records(state, topic_id, 0, 0, _layout(state, topic)),
    ]


def requested_configs(topic: CreatableTopic) -> dict[str, str]:
    """The configs of a new topic, of one that is named twice the last value. Raises Refused with INVALID_CONFIG."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{config.name}: a new topic's config has a value")
        try:
            parse_config(config.name, config.value, topic=True)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
        configs[config.name] = config.value
    return configs


def assigned_layout(topic: CreatableTopic) -> Sequence[tuple[BrokerId, ...]]:
    """The replicas of each partition as `assignments` has them. Raises Refused with INVALID_REPLICA_ASSIGNMENT."""
    replicas = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
    if sorted(replicas) != list(range(len(topic.assignments))):
        reason = "the assignments' partition indexes are not 0, 1, 2, ... with each once"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return [brokers for _, brokers in sorted(replicas.items())]


def _layout(state: ControllerState, topic: CreatableTopic) -> Sequence[tuple[BrokerId, ...]]:
    if topic.assignments:
        if (topic.num_partitions, topic.replication_factor) != (CLUSTER_DEFAULT, CLUSTER_DEFAULT):
            raise Refused(ErrorCode.INVALID_REQUEST, "with assignments, number of partitions and replicas are -1")
        return assigned_layout(topic)
    replication_factor, partition_count = topic.replication_factor, _partition_count(state, topic)
    if replication_factor == CLUSTER_DEFAULT:
        replication_factor = state.image.int_config(None, DEFAULT_REPLICATION_FACTOR)
    if replication_factor <= 0:
        reason = f"replication factor {replication_factor}; allowed: above 0, or -1 for the cluster's default"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    if partition_count <= 0:
        reason = f"{partition_count} partitions; allowed: above 0, or -1 for the cluster's default"
        raise Refused(ErrorCode.INVALID_PARTITIONS, reason)
    return place(usable_brokers(state.image), partition_count, replication_factor, state.rng)


def _created(name: str, made: Sequence[MetadataRecord], with_counts: bool) -> CreatableTopicResult:
    partitions = [record for record in made if isinstance(record, PartitionRecord)]
    count, factor = (len(partitions), len(partitions[0].replicas)) if with_counts else (-1, -1)
    topic_id = partitions[0].topic_id
    return CreatableTopicResult(name=name, topic_id=topic_id, num_partitions=count, replication_factor=factor)


def delete_topics(state: ControllerState, request: DeleteTopicsRequest) -> ControllerResult:
    """Deletes topics by name or id. Needs DELETE on the cluster or on the topic. Without DESCRIBE the response
    discloses neither whether a topic of that name exists nor the name of the topic with that id.
    """
    repeated = named_twice((wanted.name, wanted.topic_id) for wanted in request.topics)
    found: dict[int, TopicImage] = {}

    def admit(item: tuple[int, DeleteTopicState]) -> None:
        index, wanted = item
        require_once((wanted.name, wanted.topic_id), repeated)
        found[index] = _deletable(state, request, wanted)

    checked = admitted(list(enumerate(request.topics)), admit)
    resolved_twice = named_twice(topic.topic_id for topic in found.values())
    require_batch(len(found))
    records: list[MetadataRecord] = []
    results = []
    for (index, wanted), refused in checked:
        try:
            if refused is not None:
                raise refused
            require_once(found[index].topic_id, resolved_twice)
        except Refused as reason:
            result = DeletableTopicResult(
                name=_disclosed_name(state, request, wanted),
                topic_id=wanted.topic_id,
                error=reason.error,
                message=reason.message,
            )
        else:
            records.append(RemoveTopicRecord(topic_id=found[index].topic_id))
            result = DeletableTopicResult(name=found[index].name, topic_id=found[index].topic_id)
        results.append(result)
    return ControllerResult(DeleteTopicsResponse(correlation_id=request.correlation_id, topics=tuple(results)), records)


def _may_on(state: ControllerState, request: DeleteTopicsRequest, operation: AclOperation, topic: str) -> bool:
    """DELETE on the cluster includes DELETE and DESCRIBE on every topic."""
    image, principal = state.image, request.principal
    return may(image, principal, AclOperation.DELETE) or may(image, principal, operation, topic)


def _deletable(state: ControllerState, request: DeleteTopicsRequest, wanted: DeleteTopicState) -> TopicImage:
    if (wanted.name is None) == (wanted.topic_id is None):
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic is named either by its name or by its id")
    unauthorized = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{request.principal} may not DELETE this topic")
    topic = state.image.topics.get(wanted.topic_id or "")
    if wanted.name is not None:
        if not _may_on(state, request, AclOperation.DESCRIBE, wanted.name):
            raise unauthorized
        topic = topic_named(state, wanted.name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {wanted.topic_id!r}")
    if not _may_on(state, request, AclOperation.DELETE, topic.name):
        raise unauthorized
    return topic


def _disclosed_name(state: ControllerState, request: DeleteTopicsRequest, wanted: DeleteTopicState) -> str | None:
    topic = state.image.topics.get(wanted.topic_id or "")
    is_disclosed = topic is not None and _may_on(state, request, AclOperation.DESCRIBE, topic.name)
    return topic.name if topic is not None and wanted.name is None and is_disclosed else wanted.name
