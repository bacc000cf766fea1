"""The APIs that a broker serves: key, lowest and highest version, handler.

The versions are those whose fields the handlers honour. What is absent here is absent from ApiVersions: transactions,
KIP-848's consumer groups, share and streams groups, tiered storage, delegation tokens, quotas, client telemetry, and
the requests of brokers and controllers to each other. `docs/reference/kafka-apis.md` is made of this table.
"""

from __future__ import annotations

from protocol.kafka import acls, cluster, configs, offsets, partitions, produce, quorum, sasl, topics
from protocol.kafka.api import Api
from protocol.kafka.connection import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.kafka.wire import API_VERSIONS

PRODUCE = 0
FETCH = 1


STATELESS = (
    Api(PRODUCE, "Produce", 3, 13, produce.produce),
    Api(2, "ListOffsets", 1, 7, offsets.list_offsets),
    Api(3, "Metadata", 0, 12, cluster.metadata),
    Api(API_VERSIONS, "ApiVersions", 0, 4, cluster.api_versions),
    Api(22, "InitProducerId", 0, 5, produce.init_producer_id),
    Api(23, "OffsetForLeaderEpoch", 2, 4, offsets.offset_for_leader_epoch),
    Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, sasl.handshake),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, sasl.authenticate),
    Api(60, "DescribeCluster", 0, 1, cluster.describe_cluster),
    Api(19, "CreateTopics", 2, 7, topics.create_topics),
    Api(20, "DeleteTopics", 1, 6, topics.delete_topics),
    Api(29, "DescribeAcls", 1, 3, acls.describe_acls),
    Api(30, "CreateAcls", 1, 3, acls.create_acls),
    Api(31, "DeleteAcls", 1, 3, acls.delete_acls),
    Api(32, "DescribeConfigs", 1, 4, configs.describe_configs),
    Api(33, "AlterConfigs", 0, 2, configs.alter_configs),
    Api(35, "DescribeLogDirs", 1, 4, partitions.describe_log_dirs),
    Api(37, "CreatePartitions", 0, 3, topics.create_partitions),
    Api(43, "ElectLeaders", 0, 2, partitions.elect_leaders),
    Api(44, "IncrementalAlterConfigs", 0, 1, configs.incremental_alter_configs),
    Api(45, "AlterPartitionReassignments", 0, 1, partitions.alter_partition_reassignments),
    Api(46, "ListPartitionReassignments", 0, 0, partitions.list_partition_reassignments),
    Api(55, "DescribeQuorum", 0, 2, quorum.describe_quorum),
    Api(57, "UpdateFeatures", 0, 2, quorum.update_features),
    Api(75, "DescribeTopicPartitions", 0, 0, topics.describe_topic_partitions),
    Api(80, "AddRaftVoter", 0, 1, quorum.add_raft_voter),
    Api(81, "RemoveRaftVoter", 0, 0, quorum.remove_raft_voter),
)
"""The APIs whose handlers keep nothing between requests; the listener adds Fetch, which has sessions."""
