"""Administration requests for one topic or one partition, which is what experiments mostly ask for.

The correlation id is 0 in all of them: the client node gives each request its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.ids import NodeId
from protocol.messages.cluster import FeatureUpdate, UnregisterBrokerRequest, UpdateFeaturesRequest, UpgradeType
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    ConfigResourceType,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    RemovePartitionsRequest,
    RemovePartitionsTopic,
    ReplicaAssignment,
)


def config_text(value: object) -> str:
    """A config value as requests and records write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def create_topic(
    name: str, assignments: Sequence[Sequence[int]], config: Mapping[str, object] | None = None
) -> CreateTopicsRequest:
    """A topic with one replica list per partition."""
    topic = CreatableTopic(
        name=name,
        assignments=tuple(
            ReplicaAssignment(partition_index=index, broker_ids=tuple(replicas))
            for index, replicas in enumerate(assignments)
        ),
        configs=tuple(
            CreatableTopicConfig(name=key, value=config_text(value)) for key, value in (config or {}).items()
        ),
    )
    return CreateTopicsRequest(correlation_id=0, topics=(topic,))


def delete_topic(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(correlation_id=0, topics=(DeleteTopicState(name=name),))


def add_partitions(name: str, present: int, assignments: Sequence[Sequence[int]]) -> CreatePartitionsRequest:
    """More partitions for a topic that has `present` of them."""
    added = tuple(tuple(replicas) for replicas in assignments)
    wanted = CreatePartitionsTopic(name=name, count=present + len(added), assignments=added)
    return CreatePartitionsRequest(correlation_id=0, topics=(wanted,))


def remove_partitions(name: str, partitions: Sequence[int]) -> RemovePartitionsRequest:
    wanted = RemovePartitionsTopic(name=name, partitions=tuple(partitions))
    return RemovePartitionsRequest(correlation_id=0, topics=(wanted,))


def alter_config(topic: str | None, config: Mapping[str, object | None]) -> IncrementalAlterConfigsRequest:
    """Sets configs of a topic, or of the whole cluster (None); a value of None takes the override away."""
    changes = tuple(
        AlterableConfig(name=name, operation=ConfigOperation.DELETE)
        if value is None
        else AlterableConfig(name=name, value=config_text(value))
        for name, value in config.items()
    )
    kind = ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC
    resource = AlterConfigsResource(resource_type=kind, resource_name=topic or "", configs=changes)
    return IncrementalAlterConfigsRequest(correlation_id=0, resources=(resource,))


def elect_leader(
    topic: str, partition: int, election_type: ElectionType, desired_leader: int | None = None
) -> ElectLeadersRequest:
    desired = () if desired_leader is None else (desired_leader,)
    wanted = TopicPartitions(topic=topic, partitions=(partition,), desired_leaders=desired)
    return ElectLeadersRequest(correlation_id=0, election_type=election_type, topic_partitions=(wanted,))


def reassign(topic: str, partition: int, replicas: Sequence[int] | None) -> AlterPartitionReassignmentsRequest:
    """Moves a partition; `replicas` None takes the move back."""
    wanted = ReassignablePartition(partition_index=partition, replicas=None if replicas is None else tuple(replicas))
    topics = (ReassignableTopic(name=topic, partitions=(wanted,)),)
    return AlterPartitionReassignmentsRequest(correlation_id=0, topics=topics)


def unregister_broker(broker: int) -> UnregisterBrokerRequest:
    return UnregisterBrokerRequest(correlation_id=0, broker_id=broker)


def update_feature(feature: str, level: int, upgrade_type: UpgradeType = UpgradeType.UPGRADE) -> UpdateFeaturesRequest:
    update = FeatureUpdate(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    return UpdateFeaturesRequest(correlation_id=0, feature_updates=(update,))


def add_voter(controller: NodeId, uuid: str) -> AddVoterRequest:
    """Makes the controller a voter, with the disk of this uuid."""
    return AddVoterRequest(correlation_id=0, voter_id=controller, voter_uuid=uuid)


def remove_voter(controller: NodeId, uuid: str) -> RemoveVoterRequest:
    """Ends the vote of the controller with the disk of this uuid."""
    return RemoveVoterRequest(correlation_id=0, voter_id=controller, voter_uuid=uuid)
