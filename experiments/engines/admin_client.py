"""The administration client of the command line: typed requests and responses over an `AdminChannel`.

It adds the principal, splits requests where the server limits their size (20 topics in DescribeTopic and ElectLeaders:
G31, J11, J13), and reads descriptions page by page. A response that fails as a whole raises AdminError. The results of
the parts of a request are returned part by part, since one that failed does not undo the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from experiments.engines import admin_requests
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import TopicPartition
from protocol.messages.acls import (
    AclEntry,
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResult,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedFeature,
    DescribeFeaturesRequest,
    DescribeFeaturesResponse,
    FeatureResult,
    FeatureUpdate,
    UnregisterBrokerResponse,
    UnregisterControllerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from protocol.messages.commands import (
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
)
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResponse,
    AlterConfigsResult,
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from protocol.messages.partitions import (
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
    OngoingPartitionReassignment,
    PartitionResult,
    TopicPartitions,
)
from protocol.messages.quorum import (
    AddVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Endpoint,
    RemoveVoterResponse,
)
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    MAX_TOPICS_PER_REQUEST,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    Cursor,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
    RemovePartitionsRequest,
    RemovePartitionsResponse,
    RemovePartitionsTopic,
    TopicResult,
)

R = TypeVar("R", bound=AdminResponse)
M = TypeVar("M", AdminRequest, ConsumeCommand, ProduceCommand, SendRecords)
Item = TypeVar("Item")


class AdminError(Exception):
    """A request failed as a whole, or the only part of it did: the error code and the server's message."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        self.error, self.message = error, message
        super().__init__(f"{error.name}: {message}" if message else error.name)


class AdminChannel(Protocol):
    """Carries administration requests and records to a cluster. AdminError where there is no answer."""

    def call(self, request: AdminRequest) -> AdminResponse:
        """The response to a request."""

    def send(self, records: SendRecords) -> SendOutcome:
        """The outcome of sending records, acknowledged or not."""

    def produce(self, command: ProduceCommand) -> ProduceOutcome:
        """The outcome of writing a batch, acknowledged or not."""

    def consume(self, command: ConsumeCommand) -> ConsumeOutcome:
        """The outcome of reading from a partition, with or without records."""

    def require_reachable(self) -> None:
        """AdminError where what this channel depends on has ended. To be called now and then while nothing is sent."""


class AdminClient:
    """Administration of one cluster in the name of `principal` (`User:alice`), None for an anonymous one. Every method
    raises AdminError where the request fails as a whole. Records are written and read through the `channel` itself, by
    commands `on_behalf` of the principal.
    """

    def __init__(self, channel: AdminChannel, principal: str | None = None) -> None:
        self.channel = channel
        self._principal = principal

    def on_behalf(self, message: M) -> M:
        """The request or command with the principal."""
        return message if self._principal is None else replace(message, principal=self._principal)

    def _call(self, request: AdminRequest, answer: type[R]) -> R:
        response = self.channel.call(self.on_behalf(request))
        if response.error is not ErrorCode.NONE:
            raise AdminError(response.error, response.message)
        if not isinstance(response, answer):
            raise ProtocolInvariantError(f"{type(response).__name__} answers a {type(request).__name__}")
        return response

    def create_topics(self, *topics: CreatableTopic) -> Sequence[CreatableTopicResult]:
        return self._call(CreateTopicsRequest(correlation_id=0, topics=topics), CreateTopicsResponse).topics

    def delete_topics(self, names: Sequence[str]) -> Sequence[DeletableTopicResult]:
        topics = tuple(DeleteTopicState(name=name) for name in names)
        return self._call(DeleteTopicsRequest(correlation_id=0, topics=topics), DeleteTopicsResponse).topics

    def create_partitions(self, *topics: CreatePartitionsTopic) -> Sequence[TopicResult]:
        return self._call(CreatePartitionsRequest(correlation_id=0, topics=topics), CreatePartitionsResponse).topics

    def remove_partitions(self, *topics: RemovePartitionsTopic) -> Sequence[TopicResult]:
        return self._call(RemovePartitionsRequest(correlation_id=0, topics=topics), RemovePartitionsResponse).topics

    def describe_topics(
        self, names: Sequence[str] | None = None, limit: int = MAX_PARTITIONS_PER_RESPONSE
    ) -> list[DescribedTopic]:
        """The topics of these names, or all that the principal may describe (None), each with all its partitions. Reads
        `limit` partitions per request. A topic that cannot be described carries its error.
        """
        chunks: Iterable[tuple[str, ...]] = [()] if names is None else _chunks(names)
        return [topic for chunk in chunks for topic in self._describe(chunk, limit)]

    def _describe(self, names: tuple[str, ...], limit: int) -> list[DescribedTopic]:
        topics: dict[str, DescribedTopic] = {}
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicRequest(
                correlation_id=0, topics=names, response_partition_limit=limit, cursor=cursor
            )
            response = self._call(request, DescribeTopicResponse)
            for page in response.topics:
                before = topics.get(page.name)
                partitions = page.partitions if before is None else (*before.partitions, *page.partitions)
                topics[page.name] = replace(page, partitions=partitions)
            if response.next_cursor is None:
                return list(topics.values())
            if response.next_cursor == cursor:
                raise ProtocolInvariantError(f"the description does not get beyond {cursor}")
            cursor = response.next_cursor

    def elect_leaders(
        self, election_type: ElectionType, partitions: Mapping[TopicPartition, int | None] | None
    ) -> dict[TopicPartition, PartitionResult]:
        """Elects leaders for the given partitions, or for all of them (None); returns the result of each. The values of
        `partitions` are the designated leaders for `ElectionType.DESIGNATION`, None otherwise.
        """
        topics = [
            TopicPartitions(
                topic=topic,
                partitions=tuple(index for index, _ in elections),
                desired_leaders=tuple(leader for _, leader in elections if leader is not None),
            )
            for topic, elections in _by_topic(partitions or {}).items()
        ]
        results: dict[TopicPartition, PartitionResult] = {}
        for chunk in [None] if partitions is None else _chunks(topics):
            request = ElectLeadersRequest(correlation_id=0, election_type=election_type, topic_partitions=chunk)
            results |= _by_partition(self._call(request, ElectLeadersResponse).partitions)
        return results

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], may_change_factor: bool = True
    ) -> dict[TopicPartition, PartitionResult]:
        """Starts to reassign partitions to these replicas, or cancels that (None); returns the result of each."""
        request = admin_requests.reassign_partitions(targets, may_change_factor)
        return _by_partition(self._call(request, AlterPartitionReassignmentsResponse).partitions)

    def list_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, OngoingPartitionReassignment]:
        """The reassignments under way, of these partitions or of all (None)."""
        topics = None
        if partitions is not None:
            topics = tuple(
                ListPartitionReassignmentsTopic(name=topic, partition_indexes=tuple(index for index, _ in indexes))
                for topic, indexes in _by_topic(dict.fromkeys(partitions)).items()
            )
        request = ListPartitionReassignmentsRequest(correlation_id=0, topics=topics)
        response = self._call(request, ListPartitionReassignmentsResponse)
        return {TopicPartition(item.topic, item.partition_index): item for item in response.partitions}

    def list_config_resources(self, kind: ConfigResourceType) -> Sequence[str]:
        """The names of the resources of a type whose configs the principal may describe."""
        request = ListConfigResourcesRequest(correlation_id=0, resource_types=(kind,))
        resources = self._call(request, ListConfigResourcesResponse).config_resources
        return [resource.resource_name for resource in resources]

    def describe_configs(
        self, resources: Sequence[tuple[ConfigResourceType, str]], synonyms: bool = False
    ) -> Sequence[DescribeConfigsResult]:
        """All configs of each resource (type and name), in the order of the resources."""
        named = tuple(DescribeConfigsResource(resource_type=kind, resource_name=name) for kind, name in resources)
        request = DescribeConfigsRequest(correlation_id=0, resources=named, include_synonyms=synonyms)
        return self._call(request, DescribeConfigsResponse).results

    def alter_configs(
        self, kind: ConfigResourceType, name: str, changes: Sequence[AlterableConfig]
    ) -> AlterConfigsResult:
        [result] = self._call(admin_requests.alter_configs(kind, name, changes), AlterConfigsResponse).resources
        return result

    def describe_cluster(self) -> DescribeClusterResponse:
        return self._call(DescribeClusterRequest(correlation_id=0), DescribeClusterResponse)

    def describe_features(self) -> Sequence[DescribedFeature]:
        return self._call(DescribeFeaturesRequest(correlation_id=0), DescribeFeaturesResponse).features

    def update_features(
        self, updates: Sequence[FeatureUpdate], validate_only: bool = False
    ) -> Mapping[str, FeatureResult]:
        """The result of each update, by feature. The server applies all updates or none, so the error of the request as
        a whole is returned as the result of each.
        """
        request = UpdateFeaturesRequest(correlation_id=0, feature_updates=tuple(updates), validate_only=validate_only)
        try:
            results = self._call(request, UpdateFeaturesResponse).features
        except AdminError as error:
            names = [update.feature for update in updates]
            return {name: FeatureResult(feature=name, error=error.error, message=error.message) for name in names}
        return {result.feature: result for result in results}

    def describe_quorum(self) -> DescribeQuorumResponse:
        return self._call(DescribeQuorumRequest(correlation_id=0), DescribeQuorumResponse)

    def add_voter(self, voter_id: int, voter_uuid: str, endpoints: Sequence[Endpoint] = ()) -> None:
        """Adds a controller with this directory id to the voters; returns when the change is committed (D30)."""
        self._call(admin_requests.add_voter(voter_id, voter_uuid, endpoints), AddVoterResponse)

    def remove_voter(self, voter_id: int, voter_uuid: str) -> None:
        """Removes a controller with this directory id from the voters; returns when the change is committed (D30)."""
        self._call(admin_requests.remove_voter(voter_id, voter_uuid), RemoveVoterResponse)

    def unregister_broker(self, broker_id: int) -> None:
        """Removes the registration of a broker; returns when the change is committed."""
        self._call(admin_requests.unregister_broker(broker_id), UnregisterBrokerResponse)

    def unregister_controller(self, controller_id: int) -> None:
        """Removes the registration of a controller; returns when the change is committed (KIP-1312)."""
        self._call(admin_requests.unregister_controller(controller_id), UnregisterControllerResponse)

    def create_acls(self, entries: Sequence[AclEntry]) -> Sequence[Result]:
        return self._call(CreateAclsRequest(correlation_id=0, creations=tuple(entries)), CreateAclsResponse).results

    def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[DeleteAclsResult]:
        request = DeleteAclsRequest(correlation_id=0, filters=tuple(filters))
        return self._call(request, DeleteAclsResponse).filter_results

    def describe_acls(self, matching: AclFilter) -> Sequence[AclEntry]:
        return self._call(DescribeAclsRequest(correlation_id=0, filter=matching), DescribeAclsResponse).acls


def _chunks(items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    for start in range(0, len(items), MAX_TOPICS_PER_REQUEST):
        yield tuple(items[start : start + MAX_TOPICS_PER_REQUEST])


def _by_topic(partitions: Mapping[TopicPartition, Item]) -> dict[str, list[tuple[int, Item]]]:
    """(partition index, value) by topic, topics in the order of their first partition."""
    topics: dict[str, list[tuple[int, Item]]] = {}
    for partition, item in partitions.items():
        topics.setdefault(partition.topic, []).append((partition.partition, item))
    return topics


def _by_partition(results: Sequence[PartitionResult]) -> dict[TopicPartition, PartitionResult]:
    return {TopicPartition(result.topic, result.partition_index): result for result in results}
