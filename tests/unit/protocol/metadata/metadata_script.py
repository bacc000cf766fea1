"""The commands of transcripts about requests that only read: what a node answers from its image.

The image comes about as a controller's does (`controller_script.py`); `as alice` before a command is the principal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from protocol.errors import ErrorCode
from protocol.messages.acls import AclOperation, DescribeAclsRequest
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.configs import (
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
)
from protocol.messages.topics import (
    NO_AUTHORIZED_OPERATIONS,
    Cursor,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
)
from protocol.metadata.authorizer import may
from protocol.metadata.queries import answer
from tests.unit.protocol.controller.controller_script import ControllerScript
from tests.unit.protocol.node_helpers import CONTROLLER
from tests.unit.protocol.transcripts import Command, listed

KINDS = {"topic": ConfigResourceType.TOPIC, "broker": ConfigResourceType.BROKER}


class MetadataScript(ControllerScript):
    """A node with the image of a cluster."""

    def read(self, request: AdminRequest) -> AdminResponse:
        if self.principal:
            request = replace(request, principal=self.principal)
        found = answer(self.bench.state.image, CONTROLLER, request)
        assert found.correlation_id == request.correlation_id == 5
        return found

    def do_may(self, command: Command) -> Iterator[str]:
        """`may READ t as=User:bob`: whether a principal, Alice if none is named, may; `may ALTER` on the cluster."""
        operation, topic = AclOperation[command.next()], command.next("")
        allowed = may(self.bench.state.image, command.get("as", "User:alice"), operation, *[topic] * bool(topic))
        yield "yes" if allowed else "no"

    def do_describe(self, command: Command) -> Iterator[str]:
        """`describe a b limit=2 cursor=b:1`: DescribeTopicPartitions; `briefly`: the indexes of partitions alone."""
        is_brief, wanted = command.flag("briefly"), command.get("cursor")
        topic, _, index = wanted.partition(":")
        cursor = Cursor(topic_name=topic, partition_index=int(index)) if wanted else None
        fields = {"response_partition_limit": int(limit)} if (limit := command.get("limit")) else {}
        names = tuple(name for word in command.words() for name in repeated(word))
        request = DescribeTopicRequest(**({"correlation_id": 5, "topics": names, "cursor": cursor} | fields))
        found = self.read(request)
        assert isinstance(found, DescribeTopicResponse)
        errors = [found.error, *(item.error for item in found.topics)]
        assert found.failure()[0] is next((error for error in errors if error), ErrorCode.NONE)
        yield from said_of_error(found)
        for item in found.topics:
            yield said_of_topic(item, is_brief)
            yield from [] if is_brief else map(said_of_partition, item.partitions)
        if found.next_cursor is not None:
            yield f"next {found.next_cursor.topic_name}:{found.next_cursor.partition_index}"

    def do_topics(self, command: Command) -> Iterator[str]:
        """`topics t1..25`: topics with one partition each, the last one first."""
        for name in reversed(repeated(command.next())):
            yield from self.run(f"partition {name}-0 replicas=0")

    def do_operations(self, command: Command) -> Iterator[str]:
        """The operations that the principal may carry out, as bits."""
        found = self.read(DescribeTopicRequest(correlation_id=5, topics=tuple(command.words())))
        assert isinstance(found, DescribeTopicResponse)
        for item in found.topics:
            bits = item.topic_authorized_operations
            yield f"{item.name} {'unknown' if bits == NO_AUTHORIZED_OPERATIONS else format(bits, 'b')}"

    def do_moves(self, command: Command) -> Iterator[str]:
        """`moves c:0,7 a:0`: ListPartitionReassignments of these partitions; `moves all`, `moves none`."""
        words = command.words()
        topics = tuple(
            ListPartitionReassignmentsTopic(name=name, partition_indexes=tuple(map(int, indexes.split(","))))
            for name, _, indexes in (word.partition(":") for word in words if ":" in word)
        )
        wanted = None if words == ["all"] else topics
        found = self.read(ListPartitionReassignmentsRequest(correlation_id=5, topics=wanted))
        assert isinstance(found, ListPartitionReassignmentsResponse)
        yield from said_of_error(found)
        yield from (
            f"{item.topic}-{item.partition_index} replicas={listed(item.replicas)} "
            f"adding={listed(item.adding_replicas)} removing={listed(item.removing_replicas)}"
            for item in found.partitions
        )

    def do_describe_cluster(self, command: Command) -> Iterator[str]:
        found = self.read(DescribeClusterRequest(correlation_id=5))
        assert isinstance(found, DescribeClusterResponse)
        yield from said_of_error(found)
        if found.error is ErrorCode.NONE:
            brokers = (f"{b.broker_id}@{b.broker_epoch}{' fenced' * b.is_fenced}" for b in found.brokers)
            yield f"controller {found.controller_id}, brokers {', '.join(brokers)}"

    def do_describe_acls(self, command: Command) -> Iterator[str]:
        found = self.read(DescribeAclsRequest(correlation_id=5))
        yield from list(said_of_error(found)) or [f"{len(found.acls)} entries"]  # type: ignore[attr-defined]

    def do_configs(self, command: Command) -> Iterator[str]:
        """`configs topic t min.insync.replicas`: DescribeConfigs, with the sources of the value in their order."""
        kind, name, keys = KINDS[command.next()], command.next(), tuple(command.words())
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name="" if name == "no-name" else name, configuration_keys=keys
        )
        found = self.read(DescribeConfigsRequest(correlation_id=5, resources=(resource,), include_synonyms=True))
        assert isinstance(found, DescribeConfigsResponse)
        [result] = found.results
        assert (result.resource_type, result.resource_name) == (kind, resource.resource_name)
        yield from said_of_configs(result)

    def do_config_resources(self, command: Command) -> Iterator[str]:
        """`config-resources topic broker`: ListConfigResources of these types, by default of all."""
        types = tuple(KINDS[word] for word in command.words())
        found = self.read(ListConfigResourcesRequest(correlation_id=5, resource_types=types))
        assert isinstance(found, ListConfigResourcesResponse)
        yield from said_of_error(found)
        yield listed(f"{item.resource_type.name} {item.resource_name or '*'}" for item in found.config_resources)


def repeated(word: str) -> list[str]:
    """`t*3`: t three times; `t1..3`: t01, t02, t03."""
    name, _, count = word.partition("*")
    prefix, dots, last = word.partition("1..")
    if dots:
        return [f"{prefix}{number:02}" for number in range(1, int(last) + 1)]
    return [name] * int(count or 1)


def said_of_error(response: AdminResponse) -> Iterator[str]:
    if response.error is not ErrorCode.NONE:
        yield f"{response.error.name}: {response.message}"


def said_of_topic(item: DescribedTopic, is_brief: bool) -> str:
    if item.error is not ErrorCode.NONE:
        assert (item.topic_id, item.partitions) == ("", ())
        return f"{item.name} {item.error.name}"
    assert item.topic_id == item.name.upper()
    indexes = listed(part.partition_index for part in item.partitions) if is_brief else len(item.partitions)
    return f"{item.name} partitions: {indexes}" + (" internal" if item.is_internal else "")


def said_of_partition(part: DescribedPartition) -> str:
    lists = {
        "replicas": part.replica_nodes,
        "isr": part.isr_nodes,
        "elr": part.eligible_leader_replicas,
        "last_known_elr": part.last_known_elr,
        "offline": part.offline_replicas,
        "adding": part.adding_replicas,
        "removing": part.removing_replicas,
    }
    said = " ".join(f"{name}={'none' if value is None else listed(value)}" for name, value in lists.items())
    last = f"last_known_leader={'none' if part.last_known_leader is None else part.last_known_leader}"
    state = f"leader={part.leader_id} epochs={part.leader_epoch}/{part.partition_epoch}"
    rules = f"recovering={part.leader_recovery_state} min_isr={part.min_insync_replicas}"
    return f"  {part.partition_index}: {state} {said} {last} {rules}"


def said_of_configs(result: DescribeConfigsResult) -> Iterator[str]:
    if result.error is not ErrorCode.NONE:
        assert result.configs == ()
        yield f"{result.error.name}: {result.message}"
    for item in result.configs:
        sources = ", ".join(f"{place.value} {place.source.name}" for place in item.synonyms)
        assert (item.value, item.source) == (item.synonyms[0].value, item.synonyms[0].source)
        yield f"{item.name}={item.value} {item.config_type}{' read-only' * item.read_only} from {sources}"
