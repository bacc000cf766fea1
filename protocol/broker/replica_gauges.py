"""The gauges of a broker over all its replicas, as Kafka's `ReplicaManager` defines them.

Only the leader of a partition counts it, so that the sum over the brokers of a cluster counts no partition twice. The
leader goes by the ISR that the controller has committed.

- *Under-replicated*: the ISR has fewer members than the partition has replicas, without those that a reassignment is
  about to add: they are out of sync by design (Kafka's `OngoingReassignmentState.replicationFactor`).
- *Below* and *at min ISR*: against effective min ISR, by which the leader refuses acks=all.

A partition without a leader is in none of these gauges; the controller's `offline_partitions_count` counts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker.context import BrokerContext, Replica
from protocol.config import MIN_INSYNC_REPLICAS


@dataclass(slots=True)
class ReplicaGauges:
    """The counts so far; `add` counts one replica more."""

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0

    def add(self, context: BrokerContext, replica: Replica) -> None:
        self.partitions += 1
        leadership = replica.leadership
        if leadership is None:
            return
        replicas, in_sync = len(leadership.replicas), len(leadership.isr)
        min_isr = context.image.min_isr(replica.key.topic_id, MIN_INSYNC_REPLICAS, replicas)
        self.leaders += 1
        if in_sync < replicas:
            state = context.image.partition(replica.key)
            adding = () if state is None else state.adding_replicas
            self.under_replicated += in_sync < sum(broker not in adding for broker in leadership.replicas)
        self.under_min_isr += in_sync < min_isr
        self.at_min_isr += in_sync == min_isr
