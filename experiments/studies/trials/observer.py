"""What a simulated trial writes and what it sees: the workload, the ground truth of losses, and the rows of the trace.

A write follows every change of a partition's ISR or leader, so that there is always an acknowledged record that depends
on the present ISR and would show a loss. Losses are measured against ground truth, not by the protocol's own state: the
log of each new leader is compared with the records that were acknowledged to the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.schema import ACKS_1_LOSS, LOSS, TraceRow
from experiments.studies.trials.setting import ACKS, write_of
from experiments.studies.trials.states import PartitionStates
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.client import ProduceCompleted
from protocol.events.controller import PartitionChanged
from protocol.ids import FIRST_CLIENT, NodeId, TimeMs, TopicPartition
from protocol.messages.commands import ProduceOutcome
from protocol.nodes.broker import BrokerNode

_OBSERVED = frozenset((PartitionChanged, BecameLeader, HighWatermarkAdvanced, ProduceCompleted))


@dataclass(slots=True)
class Writes:
    """The writes to one partition. `acked`: (offset, payload) of acknowledged batches, by offset; none with acks=0;
    `outstanding` the id of the write in flight, which was sent at `sent_ms`, and `again` whether another follows it.
    """

    acked: list[tuple[int, bytes]] = field(default_factory=list)
    outstanding: int | None = None
    sent_ms: TimeMs = 0
    again: bool = False
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
        self.states = PartitionStates(params.partitions, add)
        self.writes = {name: Writes() for name in self.states.partitions}
        self._cluster = cluster
        self._acks = ACKS[params.acks]
        self._add = add
        self._settled = settled
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
        self.write_all()

    def write_all(self) -> None:
        """Writes to every partition."""
        for name in self.writes:
            self._write(name)

    # -- workload ------------------------------------------------------------------------------------------------------

    def _write(self, name: TopicPartition) -> None:
        """Writes one record; if a write is in flight, the next one follows it."""
        writes, cluster = self.writes[name], self._cluster
        if writes.outstanding is not None:
            writes.again = True
            return
        command_id = self.command_id()
        writes.outstanding, writes.sent_ms, writes.again = command_id, cluster.now_ms, False
        writes.payload = command_id.to_bytes(8, "big")
        self._commands[command_id] = name
        command = write_of(command_id, name, self._acks, writes.payload)
        cluster.call_at(cluster.now_ms, lambda: cluster.command(FIRST_CLIENT, command))

    def _handle_outcome(self, command_id: int) -> None:
        name = self._commands.pop(command_id)
        writes = self.writes[name]
        outcome = self._cluster.outcomes.pop(command_id)
        assert isinstance(outcome, ProduceOutcome)
        writes.outstanding = None
        if outcome.error is ErrorCode.NONE:
            self.states.handle_acknowledgement(self._cluster.now_ms, name, writes.sent_ms)
            if self._acks != ACKS["0"]:
                writes.acked.append((outcome.base_offset, writes.payload))
        if writes.again:
            self._write(name)
        else:
            self._settled()

    # -- observation ---------------------------------------------------------------------------------------------------

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if type(trace) not in _OBSERVED:
            return
        if isinstance(trace, PartitionChanged):
            self.states.handle_change(trace)
            if self._writing:
                self._write(trace.partition)
        elif isinstance(trace, BecameLeader):
            self._handle_new_leader(node, trace)
        elif isinstance(trace, HighWatermarkAdvanced):
            self.states.handle_high_watermark(trace)
        elif isinstance(trace, ProduceCompleted):
            command_id = trace.command_id
            self._cluster.call_at(now_ms, lambda: self._handle_outcome(command_id))

    def _handle_new_leader(self, node: NodeId, trace: BecameLeader) -> None:
        """A replica has become leader: records the acknowledged records that its log lacks as a loss."""
        self.states.handle_regression(node, trace)
        if self.states.is_outdated(trace):
            return
        lost = self.remove_lost(trace.partition, node, trace.log_end)
        if lost:
            kind = LOSS if self._acks == ACKS["all"] else ACKS_1_LOSS
            self._add(TraceRow(0, kind, trace.partition.partition, node, value=lost))
        self.states.handle_leader(node, trace)

    def remove_lost(self, name: TopicPartition, leader: NodeId, log_end: int) -> int:
        """Removes the acknowledged records that the leader's log lacks from `acked`; returns their number.

        Logs that agree at an offset agree before it (log matching), so the search ends at the first match from the
        end, or at the log's start offset: records that retention has deleted are not lost.
        """
        node, acked = self._cluster.nodes[leader], self.writes[name].acked
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
