"""Limits and constants of the requests (L7, L13, L14, L15, L20)."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import Loss
from experiments.numbers.conditions import Conditions, Row, same
from experiments.numbers.measured_cluster import TOPIC, MeasuredCluster
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.messages.base import Message
from protocol.messages.codec import encode
from protocol.messages.partitions import ElectionType, ElectLeadersRequest, TopicPartitions
from protocol.messages.quorum import QuorumFetchRequest, VoteRequest
from protocol.messages.records import PartitionChangeRecord, PartitionRecord
from protocol.messages.recovery import GetReplicaLogInfoRequest
from protocol.messages.topics import DescribeTopicRequest, DescribeTopicResponse

MAX_TOPICS = 20
MAX_PARTITIONS = 2_000


def replicas_per_broker(conditions: Conditions) -> list[Row]:
    """L7: a topic is requested whose partition has two replicas on one broker."""
    expected, request = ErrorCode.INVALID_REPLICA_ASSIGNMENT.name, create_topic(TOPIC, [(1, 1)])
    outcomes = {it.value: MeasuredCluster(conditions, it).administer(request) for it in Generation}
    return [same(f"{name}: two replicas on one broker", expected, found.error.name) for name, found in outcomes.items()]


def request_limits(conditions: Conditions) -> list[Row]:
    """L13."""
    cluster = MeasuredCluster(conditions, Generation.KIP_966)
    rows = []
    for topics, expected in ((MAX_TOPICS, "accepted"), (MAX_TOPICS + 1, ErrorCode.INVALID_REQUEST.name)):
        names = [f"{TOPIC}{number}" for number in range(topics)]
        parts = tuple(TopicPartitions(topic=name, partitions=(0,)) for name in names)
        described = cluster.administer(DescribeTopicRequest(correlation_id=0, topics=tuple(names)))
        elect = ElectLeadersRequest(correlation_id=0, election_type=ElectionType.PREFERRED, topic_partitions=parts)
        for what, outcome in (("DescribeTopic", described), ("ElectLeaders", cluster.administer(elect))):
            response = outcome.response
            is_refused = response is None or response.error is not ErrorCode.NONE
            rows.append(same(f"{what} of {topics} topics", expected, outcome.error.name if is_refused else "accepted"))
    return [*rows, same("partitions in the largest GetReplicaLogInfo", MAX_PARTITIONS, largest_query(conditions))]


def largest_query(conditions: Conditions) -> int:
    """The logs of one partition more than fit into a request are asked for."""
    count = MAX_PARTITIONS + 1
    cluster = MeasuredCluster(conditions, Generation.KIP_966, brokers=1)
    cluster.create([(0,)] * count)
    cluster.engine.crash(0, Loss("all"))
    cluster.settle()
    cluster.engine.start(0)
    cluster.await_("queries", lambda: cluster.sent[GetReplicaLogInfoRequest] == 2)
    queries = [query.topic_partitions or () for _, query in cluster.messages(GetReplicaLogInfoRequest)]
    return max(sum(len(topic.partitions) for topic in query) for query in queries)


def election_timeout(conditions: Conditions) -> list[Row]:
    """L14: the default of the request that clients build."""
    request = ElectLeadersRequest(correlation_id=0, election_type=ElectionType.PREFERRED, topic_partitions=None)
    return [same("timeout of an ElectLeaders request", 60_000, request.timeout_ms, "ms")]


def sentinel(conditions: Conditions) -> list[Row]:
    """L20: the description of a topic that does not exist."""
    request = DescribeTopicRequest(correlation_id=0, topics=(TOPIC,))
    outcome = MeasuredCluster(conditions, Generation.KIP_966).administer(request)
    assert isinstance(outcome.response, DescribeTopicResponse)
    [described] = outcome.response.topics
    what = f"TopicAuthorizedOperations of a topic with {described.error.name}"
    return [same(what, -2147483648, described.topic_authorized_operations)]


ELR_FIELDS = {"eligible_leader_replicas": 1, "last_known_elr": 1, "last_known_leader": 1}
VERSIONS: Mapping[type[Message], Mapping[str, int]] = {
    PartitionRecord: ELR_FIELDS,
    PartitionChangeRecord: ELR_FIELDS,
    QuorumFetchRequest: {"replica_uuid": 14},
    VoteRequest: {"candidate_uuid": 1, "voter_uuid": 1},
}
"""The fields that the sources add to messages of older versions, with the version of each."""


def versions(conditions: Conditions) -> list[Row]:
    """L15: the versions that the codec writes and reads, and how it names a message."""
    request = ElectLeadersRequest(correlation_id=0, election_type=ElectionType.PREFERRED, topic_partitions=None)
    is_named = type(request).__name__.encode() in encode(request)
    found = "names and positions" if is_named else "keys and tags"
    return [
        same("messages and fields on the wire", "keys and tags", found),
        *(
            same(f"{message.__name__}.{field}: since version", version, message.SINCE.get(field, 0))
            for message, fields in VERSIONS.items()
            for field, version in fields.items()
        ),
    ]
