"""The APIs of Kafka's protocol that a broker's listener serves, from `protocol.kafka`."""

from __future__ import annotations

from random import Random

from experiments.engines.sim.disk import SimStorage
from experiments.reference.markdown import code, sections, table
from protocol.broker.context import BrokerContext
from protocol.config import ClusterConfig
from protocol.contract import Outbox
from protocol.ids import CLUSTER_ID
from protocol.kafka.api import Api
from protocol.kafka.listener import KafkaListener
from protocol.metadata.image import MetadataImage

TITLE = "APIs of Kafka's protocol"
SUMMARY = "the requests of Kafka's clients that brokers serve, with their versions, and those that are absent, with why"

_NOTES = {
    "ApiVersions": "with supported and finalized features from version 3 on",
    "Produce": "one batch per partition, of format 2; all codecs, which brokers do not decompress",
    "Fetch": "sessions; consumers read from leaders only",
    "ListOffsets": "timestamps -1 to -3 and times",
    "Metadata": "a topic that does not exist is not created",
    "CreateTopics": "configs of topics only that the laboratory has; others get INVALID_CONFIG",
    "DescribeConfigs": "topics, the cluster's default, and the broker that is asked",
    "AlterConfigs": "as IncrementalAlterConfigs; configs that are not named lose their overrides",
    "IncrementalAlterConfigs": "topics and the cluster's default; single brokers have no configs of their own",
    "ElectLeaders": "preferred and unclean; needs CLUSTER_ACTION (KIP-966), where Kafka needs ALTER",
    "DescribeTopicPartitions": "with ELR and last known ELR (KIP-966)",
    "DescribeLogDirs": "one directory per broker, of unknown size",
    "DescribeAcls": "entries of topics and of the cluster, for all hosts",
    "CreateAcls": "entries of topics and of the cluster, for all hosts",
    "DescribeQuorum": "answered by the leader of the metadata log",
    "UpdateFeatures": "the features of the laboratory",
    "InitProducerId": "idempotent producers; a transactional id is refused",
    "FindCoordinator": "coordinators of groups; a transactional id is refused",
    "SaslHandshake": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
}
_ABSENT = (
    ("AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, WriteTxnMarkers, DescribeTransactions, "
     "ListTransactions, DescribeProducers", "there are no transactions; producers are idempotent"),
    ("ConsumerGroupHeartbeat, ConsumerGroupDescribe", "groups of KIP-848; the classic protocol is there"),
    ("OffsetDelete", "offsets of a group are deleted with the group"),
    ("ShareGroupHeartbeat, ShareFetch, ShareAcknowledge and the other requests of share groups",
     "there are no share groups (KIP-932)"),
    ("StreamsGroupHeartbeat, StreamsGroupDescribe", "there are no streams groups (KIP-1071)"),
    ("ListOffsets with timestamps -4 and -5", "there is no tiered storage (KIP-405)"),
    ("CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken",
     "there are no delegation tokens"),
    ("DescribeUserScramCredentials, AlterUserScramCredentials",
     "users are in the configuration of the listener"),
    ("DescribeClientQuotas, AlterClientQuotas", "there are no quotas; no response throttles a client"),
    ("GetTelemetrySubscriptions, PushTelemetry", "clients send no metrics to brokers (KIP-714)"),
    ("DeleteRecords", "records are deleted by retention only"),
    ("AlterReplicaLogDirs, AssignReplicasToDirs", "a broker has one log directory"),
    ("ListConfigResources", "it is a request of the laboratory's own clients"),
    ("UnregisterBroker", "it is a request of the laboratory's own clients"),
    ("Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot, BrokerRegistration, BrokerHeartbeat, AlterPartition, "
     "AllocateProducerIds, Envelope, UpdateRaftVoter, ControllerRegistration",
     "nodes exchange [messages](messages.md) of the laboratory, not these"),
)  # fmt: skip


def page() -> str:
    return sections(
        "A broker with `listeners` serves these requests, and ApiVersions lists them. A request of another version or "
        "key ends the connection, except ApiVersions itself, which is answered with what is supported.",
        "## Served",
        table(("key", "API", "versions", "note"), (_row(api) for api in served())),
        "## Absent",
        table(("requests", "why"), _ABSENT),
    )


def served() -> list[Api]:
    """The APIs of a listener by key."""
    config = ClusterConfig()
    context = BrokerContext(0, config, MetadataImage(config), SimStorage(), Outbox())
    listener = KafkaListener(context, lambda data, start: 0, CLUSTER_ID, Random(0))
    return sorted(listener.apis, key=lambda api: api.key)


def _row(api: Api) -> tuple[object, ...]:
    versions = str(api.low) if api.low == api.high else f"{api.low} to {api.high}"
    return api.key, code(api.name), versions, _NOTES.get(api.name, "")
