"""Builders of administration requests for one topic, partition, broker or voter, used on both engines.

The correlation id is 0 in all of them: the client node assigns one to each request. `admin_client` covers requests
about several topics, and reads answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.controller.topics import CLUSTER_DEFAULT
from protocol.ids import NodeId, TopicPartition
from protocol.messages.cluster import (
    FeatureUpdate,
    UnregisterBrokerRequest,
    UnregisterControllerRequest,
    UpdateFeaturesRequest,
    UpgradeType,
)
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
from protocol.messages.quorum import AddVoterRequest, Endpoint, RemoveVoterRequest
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
    """A config value in the spelling of requests and records: `true`, `1000`, `delete`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def create_topic(
    name: str,
    assignments: Sequence[Sequence[int]],
    config: Mapping[str, object] | None = None,
    partitions: int = CLUSTER_DEFAULT,
    replication_factor: int = CLUSTER_DEFAULT,
) -> CreateTopicsRequest:
    """CreateTopics for one topic: `assignments` has one replica list per partition, `config` the topic's configs. With
    no assignments the controller places so many `partitions` and replicas, by default as many as its configs say.
    """
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
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
    """CreatePartitions for a topic that has `present` partitions; `assignments` has one replica list per new one."""
    added = tuple(tuple(replicas) for replicas in assignments)
    topic = CreatePartitionsTopic(name=name, count=present + len(added), assignments=added)
    return CreatePartitionsRequest(correlation_id=0, topics=(topic,))


def grow_topic(name: str, count: int) -> CreatePartitionsRequest:
    """CreatePartitions for a topic that is to have `count` partitions; the controller places the new ones."""
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(correlation_id=0, topics=(topic,))


def remove_partitions(name: str, partitions: Sequence[int]) -> RemovePartitionsRequest:
    topic = RemovePartitionsTopic(name=name, partitions=tuple(partitions))
    return RemovePartitionsRequest(correlation_id=0, topics=(topic,))


def alter_config(topic: str | None, config: Mapping[str, object | None]) -> IncrementalAlterConfigsRequest:
    """IncrementalAlterConfigs for a topic, or the cluster-wide defaults (None); a value of None removes an override."""
    changes = tuple(
        AlterableConfig(name=name, operation=ConfigOperation.DELETE)
        if value is None
        else AlterableConfig(name=name, value=config_text(value))
        for name, value in config.items()
    )
    return alter_configs(ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC, topic or "", changes)


def alter_configs(
    kind: ConfigResourceType, name: str, changes: Sequence[AlterableConfig]
) -> IncrementalAlterConfigsRequest:
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=tuple(changes))
    return IncrementalAlterConfigsRequest(correlation_id=0, resources=(resource,))


def elect_leader(
    topic: str, partition: int, election_type: ElectionType, desired_leader: int | None = None
) -> ElectLeadersRequest:
    """ElectLeaders for one partition; `desired_leader` only with `ElectionType.DESIGNATION` (F22)."""
    desired = () if desired_leader is None else (desired_leader,)
    partitions = TopicPartitions(topic=topic, partitions=(partition,), desired_leaders=desired)
    return ElectLeadersRequest(correlation_id=0, election_type=election_type, topic_partitions=(partitions,))


def reassign(
    topic: str, partition: int, replicas: Sequence[int] | None, may_change_factor: bool = True
) -> AlterPartitionReassignmentsRequest:
    """AlterPartitionReassignments of one partition to `replicas`; None cancels the reassignment under way. Without
    `may_change_factor` a change of the replication factor is refused (KIP-860).
    """
    return reassign_partitions({TopicPartition(topic, partition): replicas}, may_change_factor)


def reassign_partitions(
    targets: Mapping[TopicPartition, Sequence[int] | None], may_change_factor: bool = True
) -> AlterPartitionReassignmentsRequest:
    """As `reassign`, for several partitions."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, index), replicas in targets.items():
        target = ReassignablePartition(partition_index=index, replicas=None if replicas is None else tuple(replicas))
        topics.setdefault(topic, []).append(target)
    named = tuple(ReassignableTopic(name=topic, partitions=tuple(moves)) for topic, moves in topics.items())
    return AlterPartitionReassignmentsRequest(
        correlation_id=0, topics=named, allow_replication_factor_change=may_change_factor
    )


def unregister_broker(broker: int) -> UnregisterBrokerRequest:
    return UnregisterBrokerRequest(correlation_id=0, broker_id=broker)


def unregister_controller(controller: NodeId) -> UnregisterControllerRequest:
    return UnregisterControllerRequest(correlation_id=0, controller_id=controller)


def update_feature(feature: str, level: int, upgrade_type: UpgradeType = UpgradeType.UPGRADE) -> UpdateFeaturesRequest:
    update = FeatureUpdate(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    return UpdateFeaturesRequest(correlation_id=0, feature_updates=(update,))


def add_voter(
    controller: NodeId, uuid: str, endpoints: Sequence[Endpoint] = (), ack_when_committed: bool = True
) -> AddVoterRequest:
    """AddVoter for a controller whose disk has this directory id (KIP-853)."""
    return AddVoterRequest(
        correlation_id=0,
        voter_id=controller,
        voter_uuid=uuid,
        endpoints=tuple(endpoints),
        ack_when_committed=ack_when_committed,
    )


def remove_voter(controller: NodeId, uuid: str) -> RemoveVoterRequest:
    """RemoveVoter for the controller whose disk has this directory id (KIP-853)."""
    return RemoveVoterRequest(correlation_id=0, voter_id=controller, voter_uuid=uuid)
