"""One trial of a study: a simulated cluster under failures and repairs for a period of virtual time.

`model.py` describes the model, `failures.py` draws the failures. A write follows every change of a partition's ISR or
leader, so that there is always an acknowledged record that depends on the present ISR and would show a loss.

Losses are measured against ground truth, not by the protocol's own state: the log of each new leader is compared with
the records that were acknowledged to the client. The result is a trace (`trace_schema.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from experiments.check.regressions import RegressionCounter
from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.memory import rare_collections
from experiments.engines.sim.network import NetworkModel
from experiments.faults.kinds.processes import Crash
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.failures.draw import Failure, failure, power_failure
from experiments.studies.trace.schema import (
    CRASH,
    END,
    HW_REGRESSION,
    LOSS,
    START,
    STATE,
    UNCLEAN_RECOVERY,
    TraceRow,
    TrialResult,
)
from protocol.config import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    FLUSH_MS,
    MIN_INSYNC_REPLICAS,
    UNCLEAN_RECOVERY_STRATEGY,
    ClusterConfig,
    Generation,
)
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.client import ProduceCompleted
from protocol.events.controller import PartitionChanged
from protocol.ids import FIRST_CLIENT, NO_LEADER, NodeId, TimeMs, TopicPartition
from protocol.messages.commands import AdminCommand, ProduceCommand, ProduceOutcome, ShutdownCommand
from protocol.nodes.broker import BrokerNode

TOPIC = "t"
ACKS = {"0": 0, "1": 1, "all": -1}
SET_UP_MS = 60_000
RETRY_START_MS = 1_000


class TrialSetUpError(RuntimeError):
    """The cluster of a trial did not come up."""


@dataclass(slots=True)
class _Partition:
    """The trial's view of one partition. `acked` holds (offset, payload) of acknowledged acks=all batches, by offset.
    `isr_size` is 0 without a leader: before KIP-966 the last member stays in the ISR though it is down, and no replica
    is in sync without a leader.
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


class _Trial:
    """State and callbacks of one trial."""

    def __init__(self, params: CellParameters, seed: int) -> None:
        self.params = params
        self.random = Random(f"{seed}/faults")
        self.cluster = SimCluster(
            ClusterSpec(params.brokers, 1, _cluster_config(params), seed),
            NetworkModel(base_ms=params.network_latency_ms),
            keep_traces=False,
            instant_detection=params.detection_ms is None,
        )
        self.rows: list[TraceRow] = []
        self.partitions = {TopicPartition(TOPIC, index): _Partition() for index in range(params.partitions)}
        self.regressions = RegressionCounter()
        self.began_ms: TimeMs = 0
        self.measuring = False
        self.next_command = 0
        self.commands: dict[int, TopicPartition] = {}
        self.repairing: dict[NodeId, TimeMs] = {}

    # -- set-up and end ------------------------------------------------------------------------------------------------

    def run(self) -> TrialResult:
        cluster, duration_ms = self.cluster, self.params.duration_ms
        cluster.trace_observers.append(self._observe)
        self._set_up()
        self.began_ms = cluster.now_ms
        self.measuring = True
        for partition in self.partitions:
            self._add_state(partition)
            self._write(partition)
        for broker in cluster.spec.broker_ids:
            self._schedule_failure(broker)
        self._schedule_power_event()
        cluster.run_until(self.began_ms + duration_ms)
        self.rows.append(TraceRow(duration_ms, END))
        return TrialResult(self.rows, cluster.trace_hash(), cluster.event_count)

    def _set_up(self) -> None:
        cluster, params = self.cluster, self.params
        for node in cluster.spec.node_ids:
            cluster.start(node)
        cluster.run_until(1_000)
        assignments = tuple(
            tuple((index + offset) % params.brokers for offset in range(params.replication_factor))
            for index in range(params.partitions)
        )
        request = create_topic(TOPIC, assignments, {MIN_INSYNC_REPLICAS: params.min_insync_replicas})
        cluster.command(FIRST_CLIENT, AdminCommand(command_id=self._command_id(), request=request))
        while not all(partition.serves for partition in self.partitions.values()):
            if not cluster.step(SET_UP_MS):
                raise TrialSetUpError(f"no leaders after {SET_UP_MS} ms: {params}")

    def _command_id(self) -> int:
        self.next_command += 1
        return self.next_command

    # -- faults --------------------------------------------------------------------------------------------------------

    def _schedule_failure(self, broker: NodeId) -> None:
        at_ms = self.cluster.now_ms + self.params.broker_mttf.sample_ms(self.random)
        incarnation = self.cluster.incarnation_of(broker)
        self.cluster.call_at(at_ms, lambda: self._fail(broker, incarnation))

    def _fail(self, broker: NodeId, incarnation: int) -> None:
        """The broker's time to failure is over; nothing happens if it has failed otherwise in the meantime."""
        if self.cluster.incarnation_of(broker) == incarnation:
            self._inject(failure(self.params, self.random, broker, self.cluster.now_ms))

    def _inject(self, fault: Failure) -> None:
        """Injects a failure and schedules the repair, unless one is scheduled."""
        broker = fault.node
        if isinstance(fault, Crash):
            self._crash(fault)
        else:
            self._add(TraceRow(self._time_ms, CRASH, node=broker, detail="clean"))
            self.cluster.command(broker, ShutdownCommand())
        if broker not in self.repairing:
            self.repairing[broker] = fault.end_ms
            self.cluster.call_at(fault.end_ms, lambda: self._repair(broker))

    def _crash(self, fault: Crash) -> None:
        detail = "unclean" if fault.loses == "nothing" else "lossy"
        self._add(TraceRow(self._time_ms, CRASH, node=fault.node, detail=detail))
        self.cluster.crash(fault.node, fault.loss)
        for name, partition in self.partitions.items():
            if partition.leader == fault.node:
                self._set_serves(name, False)

    def _repair(self, broker: NodeId) -> None:
        if broker in self.cluster.nodes:
            self.cluster.call_at(self.cluster.now_ms + RETRY_START_MS, lambda: self._repair(broker))
            return
        del self.repairing[broker]
        self._add(TraceRow(self._time_ms, START, node=broker))
        self.cluster.start(broker)
        self._schedule_failure(broker)

    def _schedule_power_event(self) -> None:
        if self.params.power_events_per_year > 0:
            gap_ms = round(self.random.expovariate(self.params.power_events_per_year / YEAR_MS)) + 1
            self.cluster.call_at(self.cluster.now_ms + gap_ms, self._power_event)

    def _power_event(self) -> None:
        now_ms = self.cluster.now_ms
        for broker in self.cluster.spec.broker_ids:
            if broker in self.cluster.nodes:
                self._inject(power_failure(self.params, self.random, broker, now_ms, self.repairing.get(broker)))
        self._schedule_power_event()

    # -- workload ------------------------------------------------------------------------------------------------------

    def _write(self, name: TopicPartition) -> None:
        """Writes one record; if a write is in flight, the next one follows it."""
        partition = self.partitions[name]
        if partition.outstanding is not None:
            partition.write_again = True
            return
        command_id = self._command_id()
        partition.outstanding, partition.write_again = command_id, False
        partition.payload = command_id.to_bytes(8, "big")
        self.commands[command_id] = name
        command = ProduceCommand(
            command_id=command_id,
            topic=name.topic,
            partition=name.partition,
            acks=ACKS[self.params.acks],
            record_count=1,
            payload=partition.payload,
            final_errors=(ErrorCode.NOT_ENOUGH_REPLICAS,),
        )
        self.cluster.call_at(self.cluster.now_ms, lambda: self.cluster.command(FIRST_CLIENT, command))

    def _handle_outcome(self, name: TopicPartition, command_id: int) -> None:
        partition = self.partitions[name]
        outcome = self.cluster.outcomes.pop(command_id)
        assert isinstance(outcome, ProduceOutcome)
        partition.outstanding = None
        if outcome.error is ErrorCode.NONE and self.params.acks == "all":
            partition.acked.append((outcome.base_offset, partition.payload))
        if partition.write_again:
            self._write(name)

    # -- observation ---------------------------------------------------------------------------------------------------

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, PartitionChanged):
            self._handle_partition_change(trace)
        elif isinstance(trace, BecameLeader):
            self._handle_new_leader(node, trace)
        elif isinstance(trace, HighWatermarkAdvanced):
            self.regressions.observe_high_watermark(trace.partition, trace.leader_epoch, trace.high_watermark)
        elif isinstance(trace, ProduceCompleted):
            command_id = trace.command_id
            self.cluster.call_at(now_ms, lambda: self._handle_outcome(self.commands.pop(command_id), command_id))

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
            self._add(TraceRow(self._time_ms, UNCLEAN_RECOVERY, name.partition, partition.leader))
        partition.recovering = trace.recovering
        self._add_state(name)
        if self.measuring:
            self._write(name)

    def _handle_new_leader(self, node: NodeId, trace: BecameLeader) -> None:
        """A replica has become leader: records the acknowledged records that its log lacks as a loss."""
        name = trace.partition
        if self.regressions.observe_leader(name, trace.leader_epoch, trace.log_end):
            self._add(TraceRow(self._time_ms, HW_REGRESSION, name.partition, node))
        if trace.leader_epoch < self.partitions[name].leader_epoch:
            return
        lost = self._remove_lost(name, node, trace.log_end)
        if lost:
            self._add(TraceRow(self._time_ms, LOSS, name.partition, node, value=lost))
        partition = self.partitions[name]
        if (node, trace.leader_epoch) == (partition.leader, partition.leader_epoch):
            self._set_serves(name, True)

    def _remove_lost(self, name: TopicPartition, leader: NodeId, log_end: int) -> int:
        """Removes the acknowledged records that the leader's log lacks from `acked`; returns their number.

        Logs that agree at an offset agree before it (log matching), so the search ends at the first match from the
        end, or at the log's start offset: records that retention has deleted are not lost.
        """
        node, acked = self.cluster.nodes[leader], self.partitions[name].acked
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
                self._time_ms,
                STATE,
                name.partition,
                leader=partition.leader,
                leader_serves=partition.serves,
                isr_size=partition.isr_size,
                elr_size=partition.elr_size,
                min_isr=partition.min_isr,
            )
        )

    @property
    def _time_ms(self) -> TimeMs:
        """Virtual time since the measurement began."""
        return self.cluster.now_ms - self.began_ms

    def _add(self, row: TraceRow) -> None:
        if self.measuring:
            self.rows.append(row)


def _cluster_config(params: CellParameters) -> ClusterConfig:
    """The brokers' configs that follow from the parameters."""
    overrides: dict[str, object] = {UNCLEAN_RECOVERY_STRATEGY: params.unclean_recovery_strategy}
    if params.detection_ms is not None:
        overrides[BROKER_SESSION_TIMEOUT_MS] = params.detection_ms
        overrides[BROKER_HEARTBEAT_INTERVAL_MS] = params.heartbeat_interval_ms
    if params.flush_interval_ms is not None:
        overrides[FLUSH_MS] = params.flush_interval_ms
    return ClusterConfig.of(Generation(params.generation), overrides)


def run_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial; a pure function of its arguments."""
    with rare_collections():
        return _Trial(params, seed).run()
