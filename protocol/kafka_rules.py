"""Rules of Kafka's code that isray departs from on purpose, each a switch of a cluster's configuration.

A cluster whose `ClusterConfig.kafka_rules` names a rule decides as Kafka's code does. Two things need that.
`isray conformance` explains a recorded answer by a rule if the protocol under that rule gives exactly this answer. A
scenario with `cluster.kafka_rules` shows what the rule leads to. No other cluster has any.

All but two are about replicas that are not known to be complete, in generation `kip-966-elr`, which is Kafka's first
phase of KIP-966: `last_known_elr` holds the last known leader there. `withdrawn-replica-awaited` and
`dead-original-in-isr` are about reassignments, the former in `kip-497` as well.
"""

from __future__ import annotations

from typing import NamedTuple


class KafkaRule(NamedTuple):
    """One rule. `kafka` says what Kafka's code does; `source` where (a method of package
    `org.apache.kafka.controller`), and in which releases.
    """

    name: str
    kafka: str
    source: str


KAFKA_RULES: dict[str, KafkaRule] = {}
"""Every rule by name."""


def _declare(name: str, kafka: str, source: str) -> str:
    KAFKA_RULES[name] = KafkaRule(name, kafka, source)
    return name


RETURNING_REPLICA_ELIGIBLE = _declare(
    "returning-replica-eligible",
    kafka="A replica that a reassignment removed stays in the ELR, also when a later one brings it back.",
    source="PartitionChangeBuilder.maybePopulateTargetElr; 4.0.0 to 4.4.0",
)
REMOVED_REPLICA_BLOCKS_LAST_KNOWN_LEADER = _declare(
    "removed-replica-blocks-last-known-leader",
    kafka="The last known leader is not elected while the ELR has any member, in the assignment or not.",
    source="PartitionChangeBuilder.canElectLastKnownLeader; 4.0.0 to 4.4.0",
)
DEAD_LAST_KNOWN_LEADER_ELECTED = _declare(
    "dead-last-known-leader-elected",
    kafka="The last known leader is elected whether it is alive or not (KAFKA-19522).",
    source="PartitionChangeBuilder.canElectLastKnownLeader; 4.0.0, fixed in 4.1.0",
)
UNASSIGNED_LAST_KNOWN_LEADER_ELECTED = _declare(
    "unassigned-last-known-leader-elected",
    kafka="The last known leader is elected whether it is a replica of the assignment or not.",
    source="PartitionChangeBuilder.canElectLastKnownLeader; 4.0.0, 4.1.0",
)
WITHDRAWN_REPLICA_AWAITED = _declare(
    "withdrawn-replica-awaited",
    kafka="A reassignment waits for every adding replica, also for one that a later request withdrew: it never ends.",
    source="PartitionReassignmentReplicas.maybeCompleteReassignment; 4.3.0 to 4.4.0",
)
DEAD_ORIGINAL_IN_ISR = _declare(
    "dead-original-in-isr",
    kafka="A cancellation with no original replica in sync puts the first one into the ISR where unclean elections are"
    " enabled, dead or alive; a last known leader that it has removed is then asked for its directory, which throws.",
    source="PartitionReassignmentRevert, PartitionChangeBuilder.canElectLastKnownLeader; 4.1.1 to 4.4.0",
)
