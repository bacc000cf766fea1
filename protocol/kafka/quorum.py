"""DescribeQuorum, AddRaftVoter, RemoveRaftVoter and UpdateFeatures: the metadata log and its feature levels.

The leader of the metadata log answers; the broker passes requests on to it, and again to its successor. A request about
another log than `__cluster_metadata` gets UNKNOWN_TOPIC_OR_PARTITION for it.
"""

from __future__ import annotations

from typing import Any

from protocol.controller.topics import CLUSTER_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.kafka.calls import Handler
from protocol.kafka.forward import DEFAULT_TIMEOUT_MS, change, error_fields, member, refused
from protocol.kafka.view import NO_UUID, Client, View, text_of, uuid_of
from protocol.kafka.wire import KafkaRequest, Values, ms_of
from protocol.messages.cluster import FeatureUpdate, UpdateFeaturesRequest, UpdateFeaturesResponse, UpgradeType
from protocol.messages.quorum import (
    VOTER_CHANGE_TIMEOUT_MS,
    AddVoterRequest,
    AddVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Endpoint,
    RemoveVoterRequest,
    RemoveVoterResponse,
    ReplicaState,
)


def describe_quorum(view: View, client: Client, request: KafkaRequest) -> Handler:
    """The leader's view of the replicas of the metadata log."""
    wanted = [(topic.topic_name, item.partition_index) for topic in request.body.topics for item in topic.partitions]
    if wanted != [(CLUSTER_METADATA_TOPIC, 0)]:
        topics = [{"topic_name": name, "partitions": [_unknown(index)]} for name, index in dict.fromkeys(wanted)]
        return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": ()}
    question = DescribeQuorumRequest(correlation_id=0, principal=client.principal)
    found = yield from change(view, question, DescribeQuorumResponse, DEFAULT_TIMEOUT_MS)
    if found.error is not ErrorCode.NONE:
        return {**error_fields(found), "topics": (), "nodes": ()}
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "leader_id": found.leader_id,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "current_voters": [_replica(state) for state in found.voters],
        "observers": [_replica(state) for state in found.observers],
    }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": [{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
        "nodes": [_node(state) for state in found.voters],
    }


def _unknown(index: int) -> Values:
    return {
        "partition_index": index,
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": f"allowed: partition 0 of {CLUSTER_METADATA_TOPIC}",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": (),
        "observers": (),
    }


def _replica(state: ReplicaState) -> Values:
    return {
        "replica_id": state.replica_id,
        "replica_directory_id": uuid_of(state.replica_uuid) if state.replica_uuid else NO_UUID,
        "log_end_offset": state.log_end_offset,
        "last_fetch_timestamp": state.last_fetch_ms,
        "last_caught_up_timestamp": state.last_caught_up_ms,
    }


def _node(state: ReplicaState) -> Values:
    listeners = [{"name": it.name, "host": it.host, "port": it.port} for it in state.endpoints]
    return {"node_id": state.replica_id, "listeners": listeners}


def add_raft_voter(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Adds a voter (KIP-853). Version 0 is answered when the change is committed."""
    body = request.body
    timeout_ms = ms_of(body.timeout)
    forwarded = AddVoterRequest(
        correlation_id=0,
        principal=client.principal,
        cluster_id=body.cluster_id or "",
        voter_id=body.voter_id,
        voter_uuid=_uuid_text(body.voter_directory_id),
        endpoints=tuple(Endpoint(name=it.name, host=it.host, port=it.port) for it in body.listeners),
        timeout_ms=max(timeout_ms, 0),
        ack_when_committed=getattr(body, "ack_when_committed", True),
    )
    answer = yield from change(view, forwarded, AddVoterResponse, timeout_ms)
    return error_fields(answer)


def remove_raft_voter(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Removes a voter (KIP-853)."""
    body = request.body
    forwarded = RemoveVoterRequest(
        correlation_id=0,
        principal=client.principal,
        cluster_id=body.cluster_id or "",
        voter_id=body.voter_id,
        voter_uuid=_uuid_text(body.voter_directory_id),
    )
    answer = yield from change(view, forwarded, RemoveVoterResponse, VOTER_CHANGE_TIMEOUT_MS)
    return error_fields(answer)


def _uuid_text(uuid: Any) -> str:
    return text_of(uuid or NO_UUID)


def update_features(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Changes finalized feature levels, all or none. Before version 1 a downgrade is a flag."""
    body = request.body
    updates = []
    for item in body.feature_updates:
        kind = member(UpgradeType, _upgrade_type(item))
        if kind is None:
            text = f"found upgrade type {item.upgrade_type} of {item.feature}; allowed: 1, 2, 3"
            return {**refused(ErrorCode.INVALID_UPDATE_VERSION, text), "results": ()}
        updates.append(FeatureUpdate(feature=item.feature, max_version_level=item.max_version_level, upgrade_type=kind))
    forwarded = UpdateFeaturesRequest(
        correlation_id=0,
        principal=client.principal,
        feature_updates=tuple(updates),
        validate_only=getattr(body, "validate_only", False),
    )
    answer = yield from change(view, forwarded, UpdateFeaturesResponse, ms_of(body.timeout))
    results = [{"feature": result.feature, **error_fields(result)} for result in answer.features]
    return {**error_fields(answer), "results": results}


def _upgrade_type(item: Any) -> int:
    if hasattr(item, "upgrade_type"):
        return int(item.upgrade_type)
    kind = UpgradeType.SAFE_DOWNGRADE if item.allow_downgrade else UpgradeType.UPGRADE
    return int(kind.value)
