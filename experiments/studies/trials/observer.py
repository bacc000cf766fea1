"""What a trial writes and what it sees: the workload, the ground truth of losses, and the rows of the trace.

A write follows every change of a partition's ISR or leader, so that there is always an acknowledged record that depends
on the present ISR and would show a loss. Losses are measured against ground truth, not by the protocol's own state: the
log of each new leader is compared with the records that were acknowledged to the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.check.regressions import RegressionCounter
from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.schema import HW_REGRESSION, LOSS, STATE, UNCLEAN_RECOVERY, TraceRow
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.client import ProduceCompleted
from protocol.events.controller import PartitionChanged
from protocol.ids import FIRST_CLIENT, NO_LEADER, NodeId, TimeMs, TopicPartition
from protocol.messages.commands import ProduceCommand, ProduceOutcome
from protocol.nodes.broker import BrokerNode

TOPIC = "t"
ACKS = {"0": 0, "1": 1, "all": -1}


@dataclass(slots=True)
class PartitionState:
    """The observer's view of one partition. `acked` holds (offset, payload) of acknowledged acks=all batches, by
    offset. `isr_size` is 0 without a leader: before KIP-966 the last member stays in the ISR though it is down, and no
    replica is in sync without a leader.
    """

    leader: NodeId = NO_LEADER
    leader_epoch: int = 0
    isr_size: int = 0
    elr_size: int = 0
    min_isr: int = 0
    serves: bool = False
    recovering: bool = False
    acked: list[tuple[int, bytes]] = field(default_factory=list)
    outstanding: int | None = None
    write_again: bool = False
    payload: bytes = b""


class Observer:
    """The workload and the observations of one trial on `cluster`.

    `add` takes the rows of the trace, whose time and weight it fills in. `settled` is called after each write that no
    other write follows.
    """

    def __init__(
        self,
        params: CellParameters,
        cluster: SimCluster,
        add: Callable[[TraceRow], None],
        settled: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._acks = ACKS[params.acks]
        self._add = add
        self._settled = settled
        self.partitions = {TopicPartition(TOPIC, index): PartitionState() for index in range(params.partitions)}
        self._regressions = RegressionCounter()
        self._writing = False
        self._next_command = 0
        self._commands: dict[int, TopicPartition] = {}
        cluster.trace_observers.append(self._observe)

    def command_id(self) -> int:
        """A number that no other command has."""
        self._next_command += 1
        return self._next_command

    def begin_writing(self) -> None:
        """Writes to every partition, and from now on after every change."""
        self._writing = True
        for partition in self.partitions:
            self._write(partition)

    def add_states(self) -> None:
        """A `state` row for every partition."""
        for name in self.partitions:
            self._add_state(name)

    def broker_crashed(self, broker: NodeId) -> None:
        """The partitions that it leads have a leader that does not answer."""
        for name, partition in self.partitions.items():
            if partition.leader == broker:
                self._set_serves(name, False)

    # -- workload ------------------------------------------------------------------------------------------------------

    def _write(self, name: TopicPartition) -> None:
        """Writes one record; if a write is in flight, the next one follows it."""
        partition = self.partitions[name]
        if partition.outstanding is not None:
            partition.write_again = True
            return
        command_id = self.command_id()
        partition.outstanding, partition.write_again = command_id, False
        partition.payload = command_id.to_bytes(8, "big")
        self._commands[command_id] = name
        command = ProduceCommand(
            command_id=command_id,
            topic=name.topic,
            partition=name.partition,
            acks=self._acks,
            record_count=1,
            payload=partition.payload,
            final_errors=(ErrorCode.NOT_ENOUGH_REPLICAS,),
        )
        self._cluster.call_at(self._cluster.now_ms, lambda: self._cluster.command(FIRST_CLIENT, command))

    def _handle_outcome(self, command_id: int) -> None:
        name = self._commands.pop(command_id)
        partition = self.partitions[name]
        outcome = self._cluster.outcomes.pop(command_id)
        assert isinstance(outcome, ProduceOutcome)
        partition.outstanding = None
        if outcome.error is ErrorCode.NONE and self._acks == ACKS["all"]:
            partition.acked.append((outcome.base_offset, partition.payload))
        if partition.write_again:
            self._write(name)
        else:
            self._settled()

    # -- observation ---------------------------------------------------------------------------------------------------

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, PartitionChanged):
            self._handle_partition_change(trace)
        elif isinstance(trace, BecameLeader):
            self._handle_new_leader(node, trace)
        elif isinstance(trace, HighWatermarkAdvanced):
            self._regressions.observe_high_watermark(trace.partition, trace.leader_epoch, trace.high_watermark)
        elif isinstance(trace, ProduceCompleted):
            command_id = trace.command_id
            self._cluster.call_at(now_ms, lambda: self._handle_outcome(command_id))

    def _handle_partition_change(self, trace: PartitionChanged) -> None:
        """The controller has committed a new state: adds a row, and writes a record that depends on the state."""
        name = trace.partition
        partition = self.partitions[name]
        same_epoch = partition.leader_epoch == trace.leader_epoch and partition.leader == trace.leader
        partition.leader, partition.leader_epoch = trace.leader, trace.leader_epoch
        partition.isr_size = 0 if partition.leader == NO_LEADER else len(trace.isr)
        partition.elr_size, partition.min_isr = len(trace.elr), trace.min_isr
        partition.serves = partition.serves and same_epoch
        if trace.recovering and not partition.recovering:
            self._add(TraceRow(0, UNCLEAN_RECOVERY, name.partition, partition.leader))
        partition.recovering = trace.recovering
        self._add_state(name)
        if self._writing:
            self._write(name)

    def _handle_new_leader(self, node: NodeId, trace: BecameLeader) -> None:
        """A replica has become leader: records the acknowledged records that its log lacks as a loss."""
        name = trace.partition
        if self._regressions.observe_leader(name, trace.leader_epoch, trace.log_end):
            self._add(TraceRow(0, HW_REGRESSION, name.partition, node))
        if trace.leader_epoch < self.partitions[name].leader_epoch:
            return
        lost = self.remove_lost(name, node, trace.log_end)
        if lost:
            self._add(TraceRow(0, LOSS, name.partition, node, value=lost))
        partition = self.partitions[name]
        if (node, trace.leader_epoch) == (partition.leader, partition.leader_epoch):
            self._set_serves(name, True)

    def remove_lost(self, name: TopicPartition, leader: NodeId, log_end: int) -> int:
        """Removes the acknowledged records that the leader's log lacks from `acked`; returns their number.

        Logs that agree at an offset agree before it (log matching), so the search ends at the first match from the
        end, or at the log's start offset: records that retention has deleted are not lost.
        """
        node, acked = self._cluster.nodes[leader], self.partitions[name].acked
        assert isinstance(node, BrokerNode)
        replica = node.context.replica_named(name.topic, name.partition)
        assert replica is not None
        lost = 0
        while acked:
            offset, payload = acked[-1]
            if offset < replica.log.start_offset:
                break
            if offset < log_end and replica.log.storage.read(offset, 1)[0].payload == payload:
                break
            acked.pop()
            lost += 1
        return lost

    def _set_serves(self, name: TopicPartition, serves: bool) -> None:
        partition = self.partitions[name]
        if partition.serves != serves:
            partition.serves = serves
            self._add_state(name)

    def _add_state(self, name: TopicPartition) -> None:
        partition = self.partitions[name]
        self._add(
            TraceRow(
                0,
                STATE,
                name.partition,
                leader=partition.leader,
                leader_serves=partition.serves,
                isr_size=partition.isr_size,
                elr_size=partition.elr_size,
                min_isr=partition.min_isr,
            )
        )
