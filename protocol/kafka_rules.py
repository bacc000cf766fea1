"""Rules of Kafka's code that isray departs from on purpose, each a switch of a cluster's configuration.

A cluster whose `ClusterConfig.kafka_rules` names a rule decides as Kafka's code does. Two things need that.
`isray conformance` explains a recorded answer by a rule if the protocol under that rule gives exactly this answer. A
scenario with `cluster.kafka_rules` shows what the rule leads to. No other cluster has any.

Most are about replicas that are not known to be complete, in generation `kip-966-elr`, which is Kafka's first phase of
KIP-966: `last_known_elr` holds the last known leader there. `withdrawn-replica-awaited`, `first-partition-counts` and
`registration-fences` hold in `kip-497` as well.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.kafka_release import KafkaRelease, kafka_release


class KafkaRule(NamedTuple):
    """One rule. `kafka` says what Kafka's code does; `source` where (a method of package
    `org.apache.kafka.controller`); `first` and `last` are the exact releases between which it was seen, empty where
    that was not looked for.
    """

    name: str
    kafka: str
    source: str
    first: str = ""
    last: str = ""

    @property
    def where(self) -> str:
        """The source with its releases."""
        return f"{self.source}; {self.first} to {self.last}" if self.first else self.source

    def holds_in(self, release: KafkaRelease) -> bool:
        """Whether controllers and brokers of the release have the rule."""
        order = list(KafkaRelease)
        return (
            bool(self.first)
            and release in order[order.index(kafka_release(self.first)) : order.index(kafka_release(self.last)) + 1]
        )


KAFKA_RULES: dict[str, KafkaRule] = {}
"""Every rule by name."""


def _declare(name: str, kafka: str, source: str, first: str = "4.0.0", last: str = "4.4.0") -> str:
    KAFKA_RULES[name] = KafkaRule(name, kafka, source, first, last)
    return name


RETURNING_REPLICA_ELIGIBLE = _declare(
    "returning-replica-eligible",
    kafka="A replica that a reassignment removed stays in the ELR, also when a later one brings it back.",
    source="PartitionChangeBuilder.maybePopulateTargetElr",
)
REMOVED_REPLICA_BLOCKS_LAST_KNOWN_LEADER = _declare(
    "removed-replica-blocks-last-known-leader",
    kafka="The last known leader is not elected while the ELR has any member, in the assignment or not.",
    source="PartitionChangeBuilder.canElectLastKnownLeader",
)
DEAD_LAST_KNOWN_LEADER_ELECTED = _declare(
    "dead-last-known-leader-elected",
    kafka="The last known leader is elected whether it is alive or not (KAFKA-19522).",
    source="PartitionChangeBuilder.canElectLastKnownLeader",
    last="4.0.0",
)
UNASSIGNED_LAST_KNOWN_LEADER_ELECTED = _declare(
    "unassigned-last-known-leader-elected",
    kafka="The last known leader is elected whether it is a replica of the assignment or not.",
    source="PartitionChangeBuilder.canElectLastKnownLeader",
    last="4.1.0",
)
WITHDRAWN_REPLICA_AWAITED = _declare(
    "withdrawn-replica-awaited",
    kafka="A reassignment waits for every adding replica, also for one that a later request withdrew: it never ends.",
    source="PartitionReassignmentReplicas.maybeCompleteReassignment",
    first="4.3.0",
)
MIN_ISR_CHANGE_CLEARS_ELR = _declare(
    "min-isr-change-clears-elr",
    kafka="A change of min.insync.replicas empties ELR and last known ELR of every partition of the topic, or of all"
    " topics, also without a leader, and where the value or the topic's own one stays (KAFKA-16540).",
    source="ConfigurationControlManager.createClearElrRecordsAsNeeded, ReplicationControlManager.removeTopicElrs",
)
FIRST_PARTITION_COUNTS = _declare(
    "first-partition-counts",
    kafka="Partition 0's present number of replicas, with those that are to be removed, bounds the min ISR of every"
    " partition of the topic, and is the number that new partitions must have (of any partition, if they differ).",
    source="ReplicationControlManager.getTopicEffectiveMinIsr, createPartitions",
)
UNREGISTERED_BROKER_ELIGIBLE = _declare(
    "unregistered-broker-eligible",
    kafka="A broker that is unregistered leaves ISRs as one that is fenced does, and joins or stays in ELRs.",
    source="ReplicationControlManager.handleBrokerUnregistered",
)
CLUSTER_MIN_ISR_KEPT = _declare(
    "cluster-min-isr-kept",
    kafka="With ELR the cluster-wide min.insync.replicas cannot be removed (INVALID_CONFIG), only set.",
    source="ConfigurationControlManager.isDisallowedClusterMinIsrTransition",
)
FEATURE_LEVEL_ALONE = _declare(
    "feature-level-alone",
    kafka='A raised level of the ELR changes no partition: one without a leader keeps its ISR, and "none" may be'
    " its last known leader later.",
    source="ConfigurationControlManager.updateFeatures",
)
REGISTRATION_FENCES = _declare(
    "registration-fences",
    kafka="A registration after a clean shutdown, or without ELR, is handled as a fencing: the broker leaves the ISRs"
    " that it is still in, with an election.",
    source="ReplicationControlManager.handleBrokerShutdown",
)
DEAD_ORIGINAL_IN_ISR = _declare(
    "dead-original-in-isr",
    kafka="A cancellation with no original replica in sync puts the first one into the ISR where unclean elections are"
    " enabled, dead or alive; a last known leader that it has removed is then asked for its directory, which throws.",
    source="PartitionReassignmentRevert, PartitionChangeBuilder.canElectLastKnownLeader",
    first="4.1.1",
)
RECOVERED_WITH_NEXT_CHANGE = _declare(
    "recovered-with-next-change",
    kafka="A leader that was elected uncleanly counts as recovered at once, and says so with its next change of the"
    " ISR: the partition stays RECOVERING until then.",
    source="kafka.cluster.Partition.makeLeader, seen on real clusters",
    first="4.1.2",
)
COMPLETE_FOLLOWER_KEPT = _declare(
    "complete-follower-kept",
    kafka="A follower that no longer fetches stays in the ISR for as long as its log ends where the leader's does.",
    source="kafka.cluster.Partition.getOutOfSyncReplicas, seen on real clusters",
    first="4.1.2",
)
NEW_DIRECTORY_REPORTED = _declare(
    "new-directory-reported",
    kafka="Where a broker with another disk reports the new log directory of a replica, the partition epoch rises"
    " (KIP-858).",
    source="ReplicationControlManager.handleAssignReplicasToDirs, seen on real clusters",
    first="4.1.2",
)
NEW_DIRECTORY_ELECTS_NO_LEADER = _declare(
    "new-directory-elects-no-leader",
    kafka="A broker with another disk may lead a replica once the controllers know its new log directory (KIP-858)."
    " Where they hear of it after they have unfenced the broker, that change of the partition elects no leader: without"
    " a leader it waits for its next election.",
    source="ReplicationControlManager.handleAssignReplicasToDirs, LeaderAcceptor; seen on a real 4.1.2 and 4.4.0, in"
    " a part of the runs",
    first="",
    last="",
)
NEW_DIRECTORY_EMPTIES_ELR = _declare(
    "new-directory-empties-elr",
    kafka="Where a broker with another disk reports the new log directory of a replica, the partition's ELR is"
    " emptied.",
    source="ReplicationControlManager.handleAssignReplicasToDirs, seen on real clusters; fixed in 4.3.0 (PR 20716)",
    first="4.1.2",
    last="4.2.1",
)
NEW_DIRECTORY_RULES = frozenset({NEW_DIRECTORY_REPORTED, NEW_DIRECTORY_ELECTS_NO_LEADER, NEW_DIRECTORY_EMPTIES_ELR})
"""Rules for which a broker says at its registration that its disk is new."""
