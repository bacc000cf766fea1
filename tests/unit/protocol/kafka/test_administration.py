"""The administration APIs at every version that the broker lists, by kio as the client, against the controller's own
decisions: what a response says is what the metadata then have.
"""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import CONFIGS
from protocol.errors import ErrorCode
from protocol.kafka.apis import STATELESS
from protocol.kafka.view import NO_UUID, uuid_of
from protocol.messages.cluster import UpdateFeaturesRequest
from protocol.messages.quorum import (
    AddVoterRequest,
    DescribeQuorumRequest,
    Endpoint,
    RemoveVoterRequest,
    ReplicaState,
)
from protocol.messages.topics import CreateTopicsRequest
from tests.unit.protocol.kafka.admin_bench import AdminBench
from tests.unit.protocol.kafka.kafka_bench import TOPIC_ID, batch_bytes, one_topic
from tests.unit.protocol.node_helpers import CONTROLLER, config_of

NONE = ErrorCode.NONE
ALICE = "User:alice"


def versions(name: str) -> list[int]:
    [api] = [api for api in STATELESS if api.name == name]
    return list(range(api.low, api.high + 1))


def key(name: str) -> int:
    return next(api.key for api in STATELESS if api.name == name)


def ask(bench: AdminBench, name: str, version: int, **values: Any) -> Any:
    return bench.ask(key(name), version, values)


@pytest.fixture
def bench() -> AdminBench:
    return AdminBench(*one_topic())


def creatable(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()} | fields


def create(bench: AdminBench, *topics: dict[str, Any], version: int = 7, is_trial: bool = False) -> Any:
    return ask(bench, "CreateTopics", version, topics=topics, timeout=1000, validate_only=is_trial).topics


@pytest.mark.parametrize("version", versions("CreateTopics"))
def test_creates_topics(bench: AdminBench, version: int) -> None:
    asked = [creatable("a", configs=[{"name": "min.insync.replicas", "value": "1"}]), creatable("t")]
    made, existing = create(bench, *asked, version=version)
    assert (made.error_code, existing.error_code) == (NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    image = bench.both.broker.context.image
    topic = image.topic_named("a")
    assert topic is not None
    assert len(topic.partitions) == 2
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        sources = {config.name: config.config_source for config in made.configs}
        assert (sources["min.insync.replicas"], sources["retention.ms"]) == (1, 5)
    if version >= 7:
        assert made.topic_id == uuid_of(topic.topic_id)


def test_a_trial_creates_nothing_and_assignments_are_honoured(bench: AdminBench) -> None:
    assert create(bench, creatable("a"), is_trial=True)[0].error_code == NONE
    assert bench.both.broker.context.image.topic_named("a") is None
    by_hand = {"num_partitions": -1, "replication_factor": -1}
    by_hand |= {"assignments": [{"partition_index": 0, "broker_ids": (0,)}]}
    assert create(bench, creatable("b", **by_hand))[0].num_partitions == 1
    [bad] = create(bench, creatable("c", configs=[{"name": "no.such", "value": "1"}]))
    assert bad.error_code == ErrorCode.INVALID_CONFIG
    assert "no.such" in bad.error_message


@pytest.mark.parametrize("version", versions("DeleteTopics"))
def test_deletes_topics(bench: AdminBench, version: int) -> None:
    named = {"topic_names": ("t", "nope")}
    if version >= 6:
        named = {"topics": ({"name": None, "topic_id": uuid_of(TOPIC_ID)}, {"name": "nope", "topic_id": NO_UUID})}
    found, missing = ask(bench, "DeleteTopics", version, **named, timeout=1000).responses
    assert (found.name, found.error_code) == ("t", NONE)
    assert (missing.name, missing.error_code) == ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert bench.both.broker.context.image.topic_named("t") is None


@pytest.mark.parametrize("version", versions("CreatePartitions"))
def test_adds_partitions(bench: AdminBench, version: int) -> None:
    def add(count: int, assignments: Any = None) -> Any:
        topics = [{"name": "t", "count": count, "assignments": assignments}]
        values = {"topics": topics, "timeout": 1000, "validate_only": False}
        return ask(bench, "CreatePartitions", version, **values).results[0]

    assert add(1).error_code == ErrorCode.INVALID_PARTITIONS
    assert add(3, [{"broker_ids": (0,)}, {"broker_ids": (0,)}]).error_code == NONE
    assert add(4).error_code == NONE
    topic = bench.both.broker.context.image.topic_named("t")
    assert topic is not None
    assert len(topic.partitions) == 4


def describe(bench: AdminBench, *names: str, limit: int = 2000, cursor: Any = None) -> Any:
    topics = [{"name": name} for name in names]
    fields = {"topics": topics, "response_partition_limit": limit, "cursor": cursor}
    return ask(bench, "DescribeTopicPartitions", 0, **fields)


def test_describes_eligible_leaders() -> None:
    bench = AdminBench(*one_topic(isr=(), leader=-1, eligible_leader_replicas=(0,), last_known_leader=0))
    topic, missing = sorted(describe(bench, "t", "nope").topics, key=lambda topic: topic.error_code)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[0]
    assert (partition.leader_id, partition.eligible_leader_replicas, partition.last_known_elr) == (-1, (0,), ())


def test_pages_of_descriptions_cover_every_partition_once(bench: AdminBench) -> None:
    create(bench, *(creatable(f"n{number:02}") for number in range(45)))
    names = [f"n{number:02}" for number in range(45)]
    found, cursor, pages = [], None, 0
    while True:
        page = describe(bench, *names, limit=7, cursor=cursor)
        found += [(topic.name, item.partition_index) for topic in page.topics for item in topic.partitions]
        pages += 1
        if page.next_cursor is None:
            break
        cursor = {"topic_name": page.next_cursor.topic_name, "partition_index": page.next_cursor.partition_index}
    assert found == [(name, index) for name in names for index in (0, 1)]
    assert pages == 13  # 90 partitions, 7 to a page
    everything = describe(bench)
    assert [topic.name for topic in everything.topics] == [*names, "t"]
    wrong = describe(bench, "t", cursor={"topic_name": "a", "partition_index": 0})
    assert wrong.topics[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions("DescribeConfigs"))
def test_describes_configs(bench: AdminBench, version: int) -> None:
    wanted = [(2, "t", ("min.insync.replicas",)), (2, "nope", None), (4, "0", None), (4, "1", None), (4, "", None)]
    wanted.append((16, "x", None))
    resources = [dict(zip(("resource_type", "resource_name", "configuration_keys"), it, strict=True)) for it in wanted]
    values = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    topic, missing, me, other, default, unknown = ask(bench, "DescribeConfigs", version, **values).results
    [config] = topic.configs
    assert (config.name, config.value, config.config_source) == ("min.insync.replicas", "1", 1)
    assert [synonym.source for synonym in config.synonyms] == [1, 5]
    if version >= 3:
        assert (config.config_type, config.documentation) == (3, CONFIGS["min.insync.replicas"].text)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(me.configs) == len(CONFIGS)
    assert [other.error_code, unknown.error_code] == [ErrorCode.INVALID_REQUEST] * 2
    assert (default.error_code, default.configs) == (NONE, ())


@pytest.mark.parametrize("version", versions("IncrementalAlterConfigs"))
def test_alters_configs(bench: AdminBench, version: int) -> None:
    def change(name: str, value: str | None, operation: int = 0) -> dict[str, Any]:
        return {"name": name, "config_operation": operation, "value": value}

    resources = [
        (2, "t", [change("retention.ms", "5")]),
        (16, "x", []),
        (2, "t2", [change("retention.ms", "5", 9)]),
        (4, "", [change("retention.ms", "many")]),
    ]
    named = [dict(zip(("resource_type", "resource_name", "configs"), it, strict=True)) for it in resources]
    found = ask(bench, "IncrementalAlterConfigs", version, resources=named, validate_only=False).responses
    invalid = ErrorCode.INVALID_REQUEST
    assert [it.error_code for it in found] == [NONE, invalid, invalid, ErrorCode.INVALID_CONFIG]
    assert [it.resource_name for it in found] == ["t", "x", "t2", ""]
    image = bench.both.broker.context.image
    assert image.configs[TOPIC_ID]["retention.ms"] == 5


@pytest.mark.parametrize("version", versions("AlterConfigs"))
def test_replaces_configs(bench: AdminBench, version: int) -> None:
    for name, value in (("retention.ms", "5"), ("cleanup.policy", "compact")):
        resource = {"resource_type": 2, "resource_name": "t", "configs": [{"name": name, "value": value}]}
        [found] = ask(bench, "AlterConfigs", version, resources=[resource], validate_only=False).responses
        assert (found.error_code, found.resource_name) == (NONE, "t")
    assert bench.both.broker.context.image.configs[TOPIC_ID] == {"cleanup.policy": "compact"}


@pytest.mark.parametrize("version", versions("ElectLeaders"))
def test_elects_leaders(version: int) -> None:
    bench = AdminBench(*one_topic(replicas=(0, 1), isr=(0, 1), leader=1), brokers=(0, 1))

    def elect(kind: int, topics: Any) -> Any:
        values = {"election_type": kind, "topic_partitions": topics, "timeout": 1000}
        return ask(bench, "ElectLeaders", version, **values)

    [result] = elect(0, [{"topic": "t", "partitions": (0, 7)}]).replica_election_results
    errors = {part.partition_id: part.error_code for part in result.partition_result}
    assert errors == {0: NONE, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert bench.both.broker.context.image.topics[TOPIC_ID].partitions[0].leader == 0
    assert elect(0, None).replica_election_results == ()
    if version >= 1:
        assert elect(2, None).error_code == ErrorCode.INVALID_REQUEST
        [result] = elect(1, [{"topic": "t", "partitions": (0,)}]).replica_election_results
        assert result.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED


def test_elects_leaders_of_more_topics_than_one_request_of_the_controller_may_name(bench: AdminBench) -> None:
    topics = [{"topic": f"n{number}", "partitions": (0,)} for number in range(41)]
    values = {"election_type": 0, "topic_partitions": topics, "timeout": 1000}
    found = ask(bench, "ElectLeaders", 2, **values).replica_election_results
    assert [result.topic for result in found] == [f"n{number}" for number in range(41)]
    assert len(bench.asked) == 3


@pytest.mark.parametrize("version", versions("AlterPartitionReassignments"))
def test_reassigns_partitions(version: int) -> None:
    bench = AdminBench(*one_topic(), brokers=(0, 1))

    def reassign(replicas: Any, partition: int = 0, may_change: bool = True) -> int:
        partitions = [{"partition_index": partition, "replicas": replicas}]
        values = {"timeout": 1000, "allow_replication_factor_change": may_change}
        values["topics"] = [{"name": "t", "partitions": partitions}]
        found = ask(bench, "AlterPartitionReassignments", version, **values)
        assert found.error_code == NONE
        return found.responses[0].partitions[0].error_code

    assert reassign(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign((0,), partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 1:
        assert reassign((0, 1), may_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign((1,)) == NONE
    for topics in (None, [{"name": "t", "partition_indexes": (0,)}]):
        [topic] = ask(bench, "ListPartitionReassignments", 0, timeout=1000, topics=topics).topics
        [item] = topic.partitions
        assert (topic.name, item.adding_replicas, item.removing_replicas) == ("t", (1,), (0,))
    assert reassign(None) == NONE
    assert ask(bench, "ListPartitionReassignments", 0, timeout=1000, topics=None).topics == ()


UUID_TEXT = "AAAAAAAAAAAAAAAAAAAAAQ"
QUORUM = {
    DescribeQuorumRequest: {
        "leader_id": 1000,
        "leader_epoch": 3,
        "high_watermark": 9,
        "voters": (
            ReplicaState(
                replica_id=1000,
                replica_uuid=UUID_TEXT,
                log_end_offset=9,
                last_fetch_ms=5,
                endpoints=(Endpoint(name="CONTROLLER", host="h", port=65_535),),
            ),
        ),
        "observers": (ReplicaState(replica_id=0, replica_uuid="", log_end_offset=8),),
    },
    AddVoterRequest: {"error": ErrorCode.DUPLICATE_VOTER, "message": "is one"},
    RemoveVoterRequest: {},
}


@pytest.mark.parametrize("version", versions("DescribeQuorum"))
def test_describes_the_quorum(version: int) -> None:
    bench = AdminBench(script=QUORUM)
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    found = ask(bench, "DescribeQuorum", version, topics=topics)
    [partition] = found.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1000, 3, 9)
    assert [(it.replica_id, it.log_end_offset) for it in partition.current_voters] == [(1000, 9)]
    assert [(it.replica_id, it.log_end_offset) for it in partition.observers] == [(0, 8)]
    if version >= 2:
        assert partition.current_voters[0].replica_directory_id == uuid_of(UUID_TEXT)
        assert [(it.node_id, it.listeners[0].port) for it in found.nodes] == [(1000, 65_535)]
    wrong = [{"topic_name": "t", "partitions": [{"partition_index": 0}]}]
    found = ask(bench, "DescribeQuorum", version, topics=wrong)
    assert found.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", versions("AddRaftVoter"))
def test_changes_voters(version: int) -> None:
    bench = AdminBench(script=QUORUM)
    voter = {"cluster_id": None, "voter_id": 1001, "voter_directory_id": uuid_of(UUID_TEXT)}
    listeners = [{"name": "CONTROLLER", "host": "h", "port": 9093}]
    values = {**voter, "timeout": 1000, "listeners": listeners, "ack_when_committed": False}
    found = ask(bench, "AddRaftVoter", version, **values)
    assert (found.error_code, found.error_message) == (ErrorCode.DUPLICATE_VOTER, "is one")
    [request] = bench.asked
    assert isinstance(request, AddVoterRequest)
    assert (request.voter_uuid, request.ack_when_committed) == (UUID_TEXT, version == 0)
    assert request.endpoints == (Endpoint(name="CONTROLLER", host="h", port=9093),)
    assert ask(bench, "RemoveRaftVoter", 0, **voter).error_code == NONE


@pytest.mark.parametrize("version", versions("UpdateFeatures"))
def test_updates_features(version: int) -> None:
    bench = AdminBench()

    def update(feature: str, level: int, kind: int = 1) -> Any:
        item = {"feature": feature, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != 1}
        return ask(bench, "UpdateFeatures", version, timeout=1000, feature_updates=[item], validate_only=False)

    assert update("nope", 1).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update("unclean.recovery.enabled", 0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    done = update("unclean.recovery.enabled", 0, 2)
    assert done.error_code == NONE
    assert bench.both.broker.context.image.feature_levels["unclean.recovery.enabled"] == 0
    if version < 2:
        assert [result.feature for result in done.results] == ["unclean.recovery.enabled"]
    if version >= 1:
        asked = len(bench.asked)
        assert update("metadata.version", 1, 9).error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert len(bench.asked) == asked
    assert all(isinstance(request, UpdateFeaturesRequest) for request in bench.asked)


@pytest.mark.parametrize("version", versions("ApiVersions"))
def test_apis_and_features(bench: AdminBench, version: int) -> None:
    found = ask(bench, "ApiVersions", version, client_software_name="x", client_software_version="1")
    assert {(it.api_key, it.min_version, it.max_version) for it in found.api_keys} == {
        (api.key, api.low, api.high) for api in bench.both.listener.apis
    }
    if version >= 3:
        finalized = {it.name: it.max_version_level for it in found.finalized_features}
        assert finalized == {"metadata.version": 2, "unclean.recovery.enabled": 1}
        supported = {it.name: (it.min_version, it.max_version) for it in found.supported_features}
        assert supported["metadata.version"] == (1, 3)
        assert ("unclean.recovery.enabled" in supported) == (version >= 4)


SECURED = config_of(authorizer_class_name="standard", super_users="User:ANONYMOUS")


def entry(**fields: Any) -> dict[str, Any]:
    values = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": ALICE, "host": "*"}
    return values | {"operation": 3, "permission_type": 3} | fields


def acl_filter(**fields: Any) -> dict[str, Any]:
    values = {"resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 1, "operation": 1}
    return values | {"principal_filter": None, "host_filter": None, "permission_type": 1} | fields


@pytest.mark.parametrize("version", versions("CreateAcls"))
def test_access_control_entries(version: int) -> None:
    bench = AdminBench(*one_topic(), config=SECURED)
    wanted = [
        entry(),
        entry(resource_name="te", resource_pattern_type=4),
        entry(resource_name="*", operation=4, permission_type=2),
        entry(resource_type=5),
        entry(host="10.0.0.1"),
    ]
    created = ask(bench, "CreateAcls", version, creations=wanted).results
    assert [result.error_code for result in created] == [NONE] * 3 + [ErrorCode.INVALID_REQUEST] * 2

    def names(**fields: Any) -> list[str]:
        found = ask(bench, "DescribeAcls", version, **acl_filter(**fields))
        assert found.error_code == NONE
        return sorted(resource.resource_name for resource in found.resources)

    assert names() == ["*", "t", "te"]
    assert names(resource_name_filter="test", pattern_type_filter=2) == ["*", "te"]
    assert names(resource_name_filter="t", pattern_type_filter=2) == ["*", "t"]
    assert names(operation=4) == ["*"]
    assert names(resource_type_filter=5) == []
    wrong = ask(bench, "DescribeAcls", version, **acl_filter(resource_type_filter=0))
    assert wrong.error_code == ErrorCode.INVALID_REQUEST

    filters = [acl_filter(resource_name_filter="test", pattern_type_filter=2), acl_filter(operation=99)]
    deleted, refused = ask(bench, "DeleteAcls", version, filters=filters).filter_results
    assert sorted(match.resource_name for match in deleted.matching_acls) == ["*", "te"]
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert names() == ["t"]


def test_without_an_authorizer_there_are_no_entries(bench: AdminBench) -> None:
    assert ask(bench, "DescribeAcls", 3, **acl_filter()).error_code == ErrorCode.SECURITY_DISABLED
    [created] = ask(bench, "CreateAcls", 3, creations=[entry()]).results
    assert created.error_code == ErrorCode.SECURITY_DISABLED
    [deleted] = ask(bench, "DeleteAcls", 3, filters=[acl_filter()]).filter_results
    assert (deleted.error_code, deleted.matching_acls) == (ErrorCode.SECURITY_DISABLED, ())


@pytest.mark.parametrize("version", versions("DescribeLogDirs"))
def test_describes_log_directories(bench: AdminBench, version: int) -> None:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch_bytes(b"a" * 100)}]}]
    bench.ask(0, 8, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": data})
    for topics in (None, [{"topic": "t", "partitions": (0, 5)}, {"topic": "nope", "partitions": (0,)}]):
        [directory] = ask(bench, "DescribeLogDirs", version, topics=topics).results
        [topic] = directory.topics
        [partition] = topic.partitions
        assert (topic.name, partition.partition_index, partition.offset_lag) == ("t", 0, 0)
        assert 100 < partition.partition_size < 400


def test_what_changes_something_needs_the_clients_principal() -> None:
    bench = AdminBench(*one_topic(), config=config_of(authorizer_class_name="standard"))
    assert create(bench, creatable("a"))[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert describe(bench, "t").topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ask(bench, "DescribeLogDirs", 4, topics=None).results == ()
    assert [request.principal for request in bench.asked] == ["User:ANONYMOUS"]


def test_a_silent_controller_gets_a_change_once_and_its_successor_gets_it_too(bench: AdminBench) -> None:
    bench.is_silent = True
    bench.send(19, 7, {"topics": [creatable("a")], "timeout": 5000})
    receivers = [CONTROLLER]
    for at_ms in range(1_000, 5_000, 1_000):
        bench.node.context.controller_id = CONTROLLER if at_ms < 3_000 else CONTROLLER + 1
        bench.fire("kafka/", at_ms)
        receivers += [to for to, _ in bench.sends(CreateTopicsRequest)]
    assert receivers == [CONTROLLER, CONTROLLER + 1]
    bench.fire("kafka/", 5_000)
    [result] = bench.response(19, 7).topics
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
