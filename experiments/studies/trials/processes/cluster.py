"""The cluster of one trial on processes: its set-up, its writers, and the comparison of logs with acknowledgements.

Writers. Each partition has a writer, which sends one record, waits for its outcome, and sends the next one at least
`WRITE_EVERY_MS` after the last: so every state of a partition that lasts longer has an acknowledged record that depends
on it. Their client is the protocol's own, which finds leaders, retries and gives up as Kafka's does; a write that too
small an ISR refuses is not retried.

Losses. When a replica becomes leader, its log is read and compared with all records that were acknowledged before the
reading (acks=all or 1); a lost record is counted once. A leader that ends before its log was read is not compared; the
next one is.

Folders. A process that is killed cannot remove the folder with the directories of its cluster's nodes. So each trial
leaves its process id in the folder of its cluster, and the next trial on the machine removes the folders of processes
that have ended.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from experiments.engines.port import TraceEvent
from experiments.engines.ray.engine import RayEngine
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.trials.processes.rows import USED, Lost, TrialEvents
from experiments.studies.trials.setting import ACKS, SET_UP_MS, SetUpError, cluster_spec, topic_requests, write_of
from protocol.errors import ErrorCode
from protocol.events.broker import BecameLeader
from protocol.ids import NO_EPOCH, NO_LEADER, Epoch, NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import (
    ROUND_ROBIN,
    AdminCommand,
    AdminOutcome,
    Command,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
)

WRITE_EVERY_MS = 50
LOAD_RECORDS = 2_000
LOAD_RECORD_BYTES = 1_024

Acknowledged = tuple[Offset, bytes]


@dataclass(slots=True)
class _Writer:
    """The writer of a partition. `acked`: (offset, payload) of acknowledged records, by offset, none with acks=0;
    `leader`: the event of the newest leader, of `leader_epoch`, None once its log has been compared."""

    acked: list[Acknowledged] = field(default_factory=list)
    outstanding: int | None = None
    payload: bytes = b""
    sent_ms: TimeMs = 0
    leader: TraceEvent | None = None
    leader_epoch: Epoch = NO_EPOCH


class ProcessCluster:
    """The cluster of `params` on the Ray of this process. `recording` takes what happens; `paused`: the nodes whose
    processes are stopped, and whose logs are compared later."""

    def __init__(self, params: CellParameters, seed: int, recording: TrialEvents) -> None:
        self.recording = recording
        self._params = params
        self._acks = ACKS[params.acks]
        self._writers = {TopicPartition(TOPIC, index): _Writer() for index in range(params.partitions)}
        self._commands: dict[int, TopicPartition] = {}
        self._next_command = 0
        self._writing = False
        self.paused: set[NodeId] = set()
        self.engine = RayEngine(cluster_spec(params, seed), keeps=lambda trace: isinstance(trace, USED))

    def set_up(self) -> None:
        """Starts the nodes, creates the topic, and measures the throughput. SetUpError where that does not succeed."""
        engine = self.engine
        remove_orphans(engine.cluster.folder.parent)
        mark(engine.cluster.folder)
        for node in engine.spec.node_ids:
            engine.start(node)
        brokers = frozenset(engine.spec.broker_ids)
        self._await(lambda: engine.unfenced() == brokers, "brokers unfenced")
        (request,) = topic_requests(self._params)
        created = self._run(AdminCommand(command_id=self._command_id(), request=request))
        if not isinstance(created, AdminOutcome) or created.error is not ErrorCode.NONE:
            raise SetUpError(f"the topic was not created: {created}")
        self._await(self._all_serve, "leaders of all partitions with all replicas in sync")
        self.recording.throughput = self._throughput()

    def _all_serve(self) -> bool:
        view = self.engine.view()
        states = [None if view is None else view.partitions.get(name) for name in self._writers]
        return all(state and state.leader != NO_LEADER and len(state.isr) == len(state.replicas) for state in states)

    def _throughput(self) -> int:
        """Acknowledged records per second of one send of `LOAD_RECORDS` records, which the client batches, as a
        producer that is not paced does."""
        command = SendRecords(
            command_id=self._command_id(),
            topic=TOPIC,
            partition=ROUND_ROBIN,
            acks=self._acks,
            record_count=LOAD_RECORDS,
            record_bytes=LOAD_RECORD_BYTES,
        )
        began_ms = self.engine.now_ms()
        outcome = self._run(command)
        if not isinstance(outcome, SendOutcome) or outcome.error is not ErrorCode.NONE:
            raise SetUpError(f"the records of the throughput were not acknowledged: {outcome}")
        return round(LOAD_RECORDS * 1_000 / max(1, self.engine.now_ms() - began_ms))

    def _run(self, command: Command) -> Message | None:
        self.engine.submit(command)
        self._await(lambda: self.engine.outcome(command.command_id) is not None, type(command).__name__)
        return self.engine.take_outcomes().get(command.command_id)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        if not self.engine.run_until(condition, SET_UP_MS):
            raise SetUpError(f"{what}: not within {SET_UP_MS // 1_000} s")

    def _command_id(self) -> int:
        self._next_command += 1
        return self._next_command

    def begin_writing(self) -> None:
        """From now on the writers write."""
        self._writing = True

    def run_until(self, at_ms: TimeMs) -> None:
        """Lets the cluster run until this time of its clock."""
        while (left_ms := at_ms - self.engine.now_ms()) > 0:
            if self.engine.run_until(self._proceed, left_ms):
                self._compare_logs()

    def _proceed(self) -> bool:
        """Takes what the nodes have reported, and writes; returns whether there is a new leader's log to compare."""
        self._take_reports()
        now_ms = self.engine.now_ms()
        for name, writer in self._writers.items():
            if self._writing and writer.outstanding is None and now_ms - writer.sent_ms >= WRITE_EVERY_MS:
                command_id = self._command_id()
                writer.outstanding, writer.sent_ms, writer.payload = command_id, now_ms, command_id.to_bytes(8, "big")
                self.recording.sent_ms[command_id] = now_ms
                self._commands[command_id] = name
                self.engine.submit(write_of(command_id, name, self._acks, writer.payload))
        return any(self._is_comparable(writer.leader) for writer in self._writers.values())

    def _is_comparable(self, leader: TraceEvent | None) -> bool:
        return leader is not None and leader.node not in self.paused

    def _take_reports(self) -> None:
        """Takes the events and the outcomes of the polls so far."""
        events = self.engine.traces()[len(self.recording.events) :]
        self.recording.events += events
        for event in events:
            trace = event.trace
            if isinstance(trace, BecameLeader) and trace.leader_epoch > self._writers[trace.partition].leader_epoch:
                writer = self._writers[trace.partition]
                writer.leader, writer.leader_epoch = event, trace.leader_epoch
        for command_id, outcome in self.engine.take_outcomes().items():
            name = self._commands.pop(command_id, None)
            if name is not None and isinstance(outcome, ProduceOutcome):
                writer = self._writers[name]
                writer.outstanding = None
                if outcome.error is ErrorCode.NONE and self._acks != ACKS["0"]:
                    writer.acked.append((outcome.base_offset, writer.payload))

    def _compare_logs(self) -> None:
        """Compares the logs of new leaders with what was acknowledged before the reading."""
        for name, writer in self._writers.items():
            leader = writer.leader
            if leader is None or not self._is_comparable(leader):
                continue
            writer.leader = None
            if not self.engine.is_running(leader.node):
                continue
            known = len(writer.acked)
            log = self.engine.log(leader.node, name)
            self._take_reports()
            kept = kept_records(writer.acked[:known], log)
            if kept < known and writer.leader is None:  # otherwise the log of a newer leader counts
                self.recording.losses.append(Lost(leader.time_ms, name, leader.node, known - kept))
                del writer.acked[kept:known]


def kept_records(acked: Sequence[Acknowledged], log: Sequence[RecordBatch]) -> int:
    """How many of the acknowledged records, from the first on, the leader's log has, as `Observer.remove_lost`."""
    held = {batch.base_offset: batch.payload for batch in log}
    start = min(held, default=0)
    kept = len(acked)
    while kept and acked[kept - 1][0] >= start and held.get(acked[kept - 1][0]) != acked[kept - 1][1]:
        kept -= 1
    return kept


_MARK = "trial.pid"


def mark(folder: Path) -> None:
    """Marks a cluster's folder as one of this process."""
    folder.mkdir(exist_ok=True)
    (folder / _MARK).write_text(str(os.getpid()), encoding="utf-8")


def remove_orphans(parent: Path) -> None:
    """Removes the marked folders in `parent` whose process does not run any more; other trials may do so too."""
    for path in parent.glob(f"*/{_MARK}"):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8")
            if text.isdecimal() and not Path(f"/proc/{text}").exists():
                shutil.rmtree(path.parent)
