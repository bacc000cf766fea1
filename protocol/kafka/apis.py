"""The APIs that a broker serves: key, lowest and highest version, handler.

The versions are those whose fields the handlers honour. What is absent here is absent from ApiVersions: transactions,
KIP-848's consumer groups, share and streams groups, tiered storage, delegation tokens, quotas, client telemetry, and
the requests of brokers and controllers to each other. `docs/reference/kafka-apis.md` is made of this table.
"""

from __future__ import annotations

from protocol.kafka import cluster, offsets, produce
from protocol.kafka.api import Api

PRODUCE = 0
FETCH = 1
API_VERSIONS = 18
SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36


STATELESS = (
    Api(PRODUCE, "Produce", 3, 13, produce.produce),
    Api(2, "ListOffsets", 1, 7, offsets.list_offsets),
    Api(3, "Metadata", 0, 12, cluster.metadata),
    Api(API_VERSIONS, "ApiVersions", 0, 3, cluster.api_versions),
    Api(22, "InitProducerId", 0, 5, produce.init_producer_id),
    Api(23, "OffsetForLeaderEpoch", 2, 4, offsets.offset_for_leader_epoch),
    Api(60, "DescribeCluster", 0, 1, cluster.describe_cluster),
)
"""The APIs whose handlers keep nothing between requests; the listener adds Fetch, which has sessions."""
