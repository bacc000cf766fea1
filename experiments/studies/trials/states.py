"""The state of each partition as a trial's trace has it, derived from the trace events of the nodes.

The controller's `PartitionChanged` sets leader, ISR and ELR; a replica's `BecameLeader` has the leader answer; a crash
of the leader's broker has it answer no more. Every change adds a `state` row. The same code serves both engines: on sim
it runs while the cluster does, for processes over their recorded events (`processes/rows.py`).

Losses. Each is a row of the kind that `acks` determines, and an `acknowledged_loss`. With acks=1 the latter also counts
what no trial with a write after each change sees: clients that write all the time have records acknowledged that no
follower has fetched yet. They are lost when another leader is elected after a crash of the leader.

Failover as clients see it: from the crash of a partition's leader to the first acknowledgement of a write that was sent
after the crash. Further crashes before that acknowledgement prolong it.

Writes *wait* from the moment at which none can be acknowledged at once until one is that was sent since: without a
leader, after a crash of the leader, while a broker is slow or impaired, and, with acks=all, while the ISR is below min
ISR or has a member that has crashed and is not fenced yet. A partition *stalls* while writes wait for such a broker; a
leader that refuses a write at once, as the ISR is too small, waits for none.
Writes have *expired* once they have waited for the delivery timeout, as producers then give up those that were begun
when the wait began; from then on the partition is not writable until writes are acknowledged within the delivery
timeout again. That time is as long as the one in which the writes that fail are begun, and later by the delivery
timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from experiments.check.regressions import RegressionCounter
from experiments.studies.design.impairments import ISOLATIONS
from experiments.studies.design.placement import Simulated
from experiments.studies.trace.kinds import (
    AcknowledgedLoss,
    Acks1Loss,
    Failover,
    HwRegression,
    Loss,
    Observation,
    State,
    UncleanRecovery,
)
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, NodeId, TimeMs, TopicPartition


@dataclass(slots=True)
class PartitionState:
    """One partition. `index`: its number in the trace; `acks`: of its producers; `configured_min_isr`: of its topic.
    `replicas`: the assignment, in a reassignment with the replicas that leave. `isr_size` is 0 without a leader: before
    KIP-966 the last member stays in the ISR though it is down. `crashed`: the leader that crashed at `crashed_ms`,
    until clients are served again. `in_flight`: that broker alone has records that were
    acknowledged with acks=1; `lost_epoch`: the leader epoch whose election lost them. `waiting_since_ms`: since when
    writes wait; `awaited`: for which brokers that have crashed or are slow, the last of them since
    `awaited_since_ms`."""

    replicas: tuple[NodeId, ...]
    index: int
    acks: str
    configured_min_isr: int
    leader: NodeId = NO_LEADER
    leader_epoch: int = 0
    isr: str = ""
    elr: str = ""
    isr_size: int = 0
    elr_size: int = 0
    last_known_elr_size: int = 0
    min_isr: int = 0
    serves: bool = False
    recovering: bool = False
    crashed: NodeId | None = None
    crashed_ms: TimeMs = 0
    in_flight: bool = False
    lost_epoch: int = -1
    waiting_since_ms: TimeMs | None = None
    expired: bool = False
    awaited: set[NodeId] = field(default_factory=set)
    awaited_since_ms: TimeMs = 0
    in_sync: frozenset[NodeId] = frozenset()


class PartitionStates:
    """The states of the trial's partitions, which are `placed` at first; `add` takes the rows of the trace, and fills
    in time and weight; `call_at` calls an action before what is handled at that time."""

    def __init__(
        self,
        placed: Sequence[Simulated],
        delivery_timeout_ms: int,
        add: Callable[[Observation], None],
        call_at: Callable[[TimeMs, Callable[[], None]], None],
    ) -> None:
        self.partitions = {
            each.name: PartitionState(each.replicas, index, each.acks, each.min_insync_replicas)
            for index, each in enumerate(placed)
        }
        self._delivery_timeout_ms = delivery_timeout_ms
        self._add = add
        self._call_at = call_at
        self._impaired: Counter[tuple[NodeId, bool]] = Counter()
        self._regressions = RegressionCounter()

    def replicas_on(self, broker: NodeId) -> list[TopicPartition]:
        """The partitions of which the broker has a replica now."""
        return [name for name, partition in self.partitions.items() if broker in partition.replicas]

    def add_all(self) -> None:
        """A `state` row for every partition."""
        for name in self.partitions:
            self._add_state(name)

    def handle_crash(self, now_ms: TimeMs, broker: NodeId) -> None:
        """The process of the broker has ended: it does not answer as leader, and writes wait for it in the ISR."""
        for name, partition in self.partitions.items():
            if partition.leader == broker:
                if partition.crashed is None:
                    partition.crashed, partition.crashed_ms = broker, now_ms
                    partition.in_flight = partition.acks == "1"
                self._wait(now_ms, name)
                self._set_serves(name, False)
            elif partition.acks == "all" and broker in partition.in_sync:
                self._await_broker(now_ms, name, broker)

    def handle_slow(self, now_ms: TimeMs, broker: NodeId, replicates: bool = True) -> None:
        """The broker is late or does not answer from now on; `replicates`: writes wait for it as a follower, too."""
        for name, partition in self.partitions.items():
            waits = replicates and partition.acks == "all" and broker in partition.in_sync
            if partition.leader == broker or waits:
                self._await_broker(now_ms, name, broker)

    def handle_impairment(self, now_ms: TimeMs, broker: NodeId, kind: str, ends: bool) -> None:
        """An impairment begins or `ends`. Until the end writes also wait for the broker in the partitions that it leads
        only later, or is in the ISR of: it may have crashed and been restarted. Nothing waits for one that only the
        controllers miss, and only the leader's clients for one that is cut off from them."""
        peers = ISOLATIONS[kind][0] if kind in ISOLATIONS else "others"
        if peers == "controllers":
            return
        self._impaired[broker, peers != "clients"] += -1 if ends else 1
        if not ends:
            self.handle_slow(now_ms, broker, replicates=peers != "clients")

    def _await_impaired(self, now_ms: TimeMs, name: TopicPartition) -> None:
        """Writes wait for those of the leader and the ISR that are impaired."""
        partition = self.partitions[name]
        for (broker, replicates), count in self._impaired.items():
            waits = replicates and partition.acks == "all" and broker in partition.in_sync
            if count and (partition.leader == broker or waits) and broker not in partition.awaited:
                partition.awaited.add(broker)
                partition.awaited_since_ms = now_ms
                self._wait(now_ms, name)

    def _await_broker(self, now_ms: TimeMs, name: TopicPartition, broker: NodeId) -> None:
        partition = self.partitions[name]
        partition.awaited.add(broker)
        partition.awaited_since_ms = now_ms
        self._wait(now_ms, name)
        self._add_state(name)

    def _wait(self, now_ms: TimeMs, name: TopicPartition) -> None:
        """Writes wait from now on, unless they do already."""
        partition = self.partitions[name]
        if partition.waiting_since_ms is None:
            partition.waiting_since_ms = now_ms
            self._call_at(now_ms + self._delivery_timeout_ms, lambda: self._expire(name, now_ms))

    def _expire(self, name: TopicPartition, since_ms: TimeMs) -> None:
        """Writes that have waited since then fail."""
        partition = self.partitions[name]
        if partition.waiting_since_ms == since_ms and not partition.expired:
            partition.expired = True
            self._add_state(name)

    def handle_change(self, now_ms: TimeMs, trace: PartitionChanged) -> None:
        """The controller has committed a new state."""
        name = trace.partition
        partition = self.partitions[name]
        same_epoch = partition.leader_epoch == trace.leader_epoch and partition.leader == trace.leader
        partition.leader, partition.leader_epoch = trace.leader, trace.leader_epoch
        partition.replicas = trace.replicas or partition.replicas
        partition.isr_size = 0 if partition.leader == NO_LEADER else len(trace.isr)
        partition.elr_size, partition.min_isr = len(trace.elr), trace.min_isr
        partition.isr, partition.elr = ",".join(map(str, trace.isr)), ",".join(map(str, trace.elr))
        partition.in_sync = frozenset(trace.isr)
        partition.awaited &= partition.in_sync
        if partition.leader == NO_LEADER or (partition.acks == "all" and partition.isr_size < partition.min_isr):
            self._wait(now_ms, name)
        if self._impaired:
            self._await_impaired(now_ms, name)
        partition.last_known_elr_size = len(trace.last_known_elr)
        partition.serves = partition.serves and same_epoch
        if trace.recovering and not partition.recovering:
            self._add(UncleanRecovery(partition.index, partition.leader))
        partition.recovering = trace.recovering
        if partition.in_flight and not same_epoch and partition.leader != NO_LEADER:
            partition.in_flight = False
            if partition.leader != partition.crashed:
                partition.lost_epoch = partition.leader_epoch
                self._add(AcknowledgedLoss(partition.index, partition.leader))
        self._add_state(name)

    def handle_loss(self, node: NodeId, name: TopicPartition, records: int) -> None:
        """The log of the broker `node`, which now leads, lacks `records` acknowledged records."""
        partition = self.partitions[name]
        self._add((Loss if partition.acks == "all" else Acks1Loss)(partition.index, node, records))
        if partition.lost_epoch != partition.leader_epoch:
            self._add(AcknowledgedLoss(partition.index, node, records))
        partition.in_flight = False

    def handle_regression(self, node: NodeId, trace: BecameLeader) -> None:
        """Adds a row if the new leader's log ends below what consumers could read."""
        if self._regressions.observe_leader(trace.partition, trace.leader_epoch, trace.log_end):
            self._add(HwRegression(self.partitions[trace.partition].index, node))

    def handle_leader(self, node: NodeId, trace: BecameLeader) -> None:
        """A replica has become leader; it answers if it is the one that the controller has elected last."""
        partition = self.partitions[trace.partition]
        if (node, trace.leader_epoch) == (partition.leader, partition.leader_epoch):
            self._set_serves(trace.partition, True)

    def handle_high_watermark(self, trace: HighWatermarkAdvanced) -> None:
        """Consumers can read up to another offset: a higher one, in generation `v3` also a lower one (N6)."""
        name = trace.partition
        if self._regressions.observe_high_watermark(name, trace.leader_epoch, trace.high_watermark):
            self._add(HwRegression(self.partitions[name].index, self.partitions[name].leader))

    def handle_acknowledgement(self, now_ms: TimeMs, name: TopicPartition, sent_ms: TimeMs) -> None:
        """A write that was sent at `sent_ms` is acknowledged: adds the failover that it ends, if any."""
        partition = self.partitions[name]
        since_ms = partition.waiting_since_ms
        if since_ms is not None and sent_ms >= since_ms and now_ms - sent_ms < self._delivery_timeout_ms:
            shown = partition.expired or bool(partition.awaited)
            partition.waiting_since_ms, partition.expired = None, False
            partition.awaited.clear()
            if shown:
                self._add_state(name)
        if partition.crashed is not None and sent_ms >= partition.crashed_ms:
            self._add(Failover(partition.index, partition.crashed, now_ms - partition.crashed_ms))
            partition.crashed = None

    def handle_refusal(self, name: TopicPartition, sent_ms: TimeMs) -> None:
        """The leader has refused a write that was sent at `sent_ms`, as the ISR is below min ISR: it answers, and what
        writes wait for are more members of the ISR."""
        partition = self.partitions[name]
        if partition.awaited and sent_ms >= partition.awaited_since_ms:
            partition.awaited.clear()
            self._add_state(name)

    def _set_serves(self, name: TopicPartition, serves: bool) -> None:
        partition = self.partitions[name]
        if partition.serves != serves:
            partition.serves = serves
            self._add_state(name)

    def _add_state(self, name: TopicPartition) -> None:
        partition = self.partitions[name]
        self._add(
            State(
                partition.index,
                leader=partition.leader,
                leader_serves=partition.serves,
                stalls=bool(partition.awaited),
                expired=partition.expired,
                isr_size=partition.isr_size,
                elr_size=partition.elr_size,
                min_isr=partition.min_isr,
                epoch=partition.leader_epoch,
                isr=partition.isr,
                elr=partition.elr,
                recovering=partition.recovering,
            )
        )
