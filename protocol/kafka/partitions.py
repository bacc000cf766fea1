"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and DescribeLogDirs.

ElectLeaders at the listener has the types of Kafka's releases, preferred and unclean; those of KIP-966 that query the
replicas, and designations, are requests of the project's own clients. A request about more topics than one of the
project's (20) becomes several.

A broker has one log directory. It does not know the size of its file system, which Kafka's protocol allows to say (-1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import node_name
from protocol.kafka.calls import CONTROLLER, Call, Calls, Handler
from protocol.kafka.forward import change, error_fields, parts, read
from protocol.kafka.view import Client, View
from protocol.kafka.wire import KafkaRequest, Values, ms_of
from protocol.messages.acls import AclOperation
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
    PartitionResult,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from protocol.messages.topics import MAX_TOPICS_PER_REQUEST
from protocol.metadata.authorizer import may

_ELECTIONS = {0: ElectionType.PREFERRED, 1: ElectionType.UNCLEAN}


def elect_leaders(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Elects leaders for the named partitions, or for all that need it. Version 0 elects preferred leaders."""
    body = request.body
    kind = _ELECTIONS.get(getattr(body, "election_type", 0))
    if kind is None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": ()}
    timeout_ms = ms_of(body.timeout)
    requests = [
        ElectLeadersRequest(
            correlation_id=0,
            principal=client.principal,
            election_type=kind,
            topic_partitions=topics,
            timeout_ms=max(timeout_ms, 0),
        )
        for topics in _in_pieces(body.topic_partitions)
    ]
    calls = [Call(CONTROLLER, item, is_change=True) for item in requests]
    answers = yield Calls(calls, view.now_ms + timeout_ms)
    error, results = ErrorCode.NONE, []
    for item, found in zip(requests, answers, strict=True):
        answer = found if isinstance(found, ElectLeadersResponse) else _timed_out()
        error = error or answer.error
        named = _named(item.topic_partitions)
        if answer.error is not ErrorCode.NONE:
            results += [
                (topic, index, part) for (topic, index), part in zip(named, parts(answer, len(named)), strict=True)
            ]
        else:
            results += [(part.topic, part.partition_index, part) for part in answer.partitions]
    partitions = [(topic, {"partition_id": index, **error_fields(part)}) for topic, index, part in results]
    return {
        "error_code": error,
        "replica_election_results": [
            {"topic": topic, "partition_result": items} for topic, items in _by_topic(partitions).items()
        ],
    }


def _timed_out() -> ElectLeadersResponse:
    return ElectLeadersResponse(correlation_id=0, error=ErrorCode.REQUEST_TIMED_OUT)


def _in_pieces(topics: Any) -> list[tuple[TopicPartitions, ...] | None]:
    if topics is None:
        return [None]
    named = [TopicPartitions(topic=topic.topic, partitions=tuple(topic.partitions)) for topic in topics]
    size = MAX_TOPICS_PER_REQUEST
    return [tuple(named[start : start + size]) for start in range(0, len(named), size)]


def _named(topics: tuple[TopicPartitions, ...] | None) -> list[tuple[str, int]]:
    return [(topic.topic, index) for topic in topics or () for index in topic.partitions]


def _by_topic(items: Iterable[tuple[str, Values]]) -> dict[str, list[Values]]:
    """Results of partitions by topic, in the order in which topics appear first."""
    found: dict[str, list[Values]] = {}
    for topic, values in items:
        found.setdefault(topic, []).append(values)
    return found


def alter_partition_reassignments(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Starts and cancels (no replicas) reassignments, independently per partition."""
    body = request.body
    is_allowed = getattr(body, "allow_replication_factor_change", True)
    topics = tuple(
        ReassignableTopic(
            name=topic.name,
            partitions=tuple(
                ReassignablePartition(
                    partition_index=item.partition_index,
                    replicas=None if item.replicas is None else tuple(item.replicas),
                )
                for item in topic.partitions
            ),
        )
        for topic in body.topics
    )
    timeout_ms = ms_of(body.timeout)
    forwarded = AlterPartitionReassignmentsRequest(
        correlation_id=0,
        principal=client.principal,
        topics=topics,
        timeout_ms=max(timeout_ms, 0),
        allow_replication_factor_change=is_allowed,
    )
    answer = yield from change(view, forwarded, AlterPartitionReassignmentsResponse, timeout_ms)
    results = [
        (result.topic, {"partition_index": result.partition_index, **error_fields(result)})
        for result in answer.partitions
        if isinstance(result, PartitionResult)
    ]
    return {
        "allow_replication_factor_change": is_allowed,
        **error_fields(answer),
        "responses": [{"name": topic, "partitions": items} for topic, items in _by_topic(results).items()],
    }


def list_partition_reassignments(view: View, client: Client, request: KafkaRequest) -> Values:
    """The partitions, of those named or of all, that are being reassigned."""
    body = request.body
    topics = None
    if body.topics is not None:
        topics = tuple(
            ListPartitionReassignmentsTopic(name=topic.name, partition_indexes=tuple(topic.partition_indexes))
            for topic in body.topics
        )
    question = ListPartitionReassignmentsRequest(correlation_id=0, principal=client.principal, topics=topics)
    answer = read(view, question, ListPartitionReassignmentsResponse)
    ongoing = [
        (
            item.topic,
            {
                "partition_index": item.partition_index,
                "replicas": item.replicas,
                "adding_replicas": item.adding_replicas,
                "removing_replicas": item.removing_replicas,
            },
        )
        for item in answer.partitions
    ]
    named = [{"name": topic, "partitions": items} for topic, items in _by_topic(ongoing).items()]
    return {**error_fields(answer), "topics": named}


def describe_log_dirs(view: View, client: Client, request: KafkaRequest) -> Values:
    """The sizes in bytes of this broker's logs, of the named partitions or of all; those that it has none of are left
    out. `offset_lag` is by how much a log ends below the high watermark.
    """
    if not may(view.image, client.principal, AclOperation.DESCRIBE):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results": ()}
    topics = request.body.topics
    named = None if topics is None else {(topic.topic, index) for topic in topics for index in topic.partitions}
    found = []
    for replica in sorted(view.context.replicas.values(), key=lambda replica: replica.name):
        if named is not None and tuple(replica.name) not in named:
            continue
        log = replica.log
        values = {
            "partition_index": replica.name.partition,
            "partition_size": sum(segment.size_bytes for segment in log.storage.segments()),
            "offset_lag": max(log.high_watermark - log.end_offset, 0),
            "is_future_key": False,
        }
        found.append((replica.name.topic, values))
    directory = {
        "error_code": ErrorCode.NONE,
        "log_dir": node_name(view.me),
        "topics": [{"name": topic, "partitions": items} for topic, items in _by_topic(found).items()],
    }
    return {"error_code": ErrorCode.NONE, "results": [directory]}
