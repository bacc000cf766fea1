"""The clients of a scenario: they produce, read and administer, and record what was acknowledged.

Every record has a number of its own; an acknowledged batch is recorded with its partition, offset and acks. What has
become of these records is counted as in `experiments/check/losses.py`, against the present leader's log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgpack

from experiments.check.client_history import ended, seen
from experiments.check.final_logs import log_start
from experiments.check.history import ACKS_OF, Ended, Invoked, Operation, RecordRange
from experiments.check.losses import ALL, Acks, Losses, total
from experiments.check.regressions import RegressionCounter
from experiments.engines.port import Engine
from protocol.config import ENABLE_IDEMPOTENCE
from protocol.errors import ErrorCode
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.controller import PartitionChanged, PartitionRemoved, TopicDeleted
from protocol.ids import NO_LEADER, NodeId, Offset, TopicPartition
from protocol.messages import commands
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch

OUTCOME_WITHIN_MS = 90_000
PRODUCER, READER = 0, 0
ACKS = {0: 0, 1: 1, "all": -1}


class NoOutcomeError(AssertionError):
    """A client reported no outcome of a command in time."""


@dataclass(slots=True)
class ScenarioClients:
    """`operations` is the history that `experiments.check.history` judges."""

    engine: Engine
    operations: list[Operation] = field(default_factory=list)
    acknowledged: dict[TopicPartition, list[tuple[Offset, bytes, Acks]]] = field(default_factory=dict)
    _next_id: int = 0
    _regressions: RegressionCounter = field(default_factory=RegressionCounter)

    def _run(self, command: commands.AdminCommand | commands.ConsumeCommand) -> Message:
        self.engine.submit(command)
        return self._await_outcome(command.command_id)

    def _await_outcome(self, command_id: int) -> Message:
        if not self.engine.run_until(lambda: self.engine.outcome(command_id) is not None, OUTCOME_WITHIN_MS):
            raise NoOutcomeError(f"no outcome of command {command_id} within {OUTCOME_WITHIN_MS // 1000} s")
        outcome = self.engine.outcome(command_id)
        assert outcome is not None
        return outcome

    def next_id(self) -> int:
        """A number for a command."""
        self._next_id += 1
        return self._next_id

    def produce(self, partition: TopicPartition, acks: int | str, expected: ErrorCode) -> commands.ProduceOutcome:
        """Sends one record as a batch of its own and waits for the outcome."""
        command_id, payload = self.send(partition, acks, expected)
        self._await_outcome(command_id)
        outcome = self.take_outcome(command_id, partition, acks, payload)
        assert outcome is not None
        return outcome

    def send(
        self, partition: TopicPartition, acks: int | str, expected: ErrorCode = ErrorCode.NONE
    ) -> tuple[int, bytes]:
        """Sends one record as a batch of its own; returns the number of the command and the record's payload."""
        command_id = self.next_id()
        payload: bytes = msgpack.packb([command_id])
        command = commands.ProduceCommand(
            command_id=command_id,
            topic=partition.topic,
            partition=partition.partition,
            acks=ACKS[acks],
            record_count=1,
            payload=payload,
            final_errors=() if expected is ErrorCode.NONE else (expected,),
        )
        idempotent = acks == ALL and bool(self.engine.spec.config.values[ENABLE_IDEMPOTENCE])
        self.operations.append(Invoked(command_id, PRODUCER, partition, 1, idempotent))
        self.engine.submit(command)
        return command_id, payload

    def take_outcome(
        self, command_id: int, partition: TopicPartition, acks: int | str, payload: bytes
    ) -> commands.ProduceOutcome | None:
        """The outcome of a record, which is noted as acknowledged where it is; None while it is under way."""
        outcome = self.engine.outcome(command_id)
        if outcome is None:
            return None
        assert isinstance(outcome, commands.ProduceOutcome)
        [end] = ended(outcome, ACKS[acks], self.engine.now_ms())
        if end.result in ACKS_OF:
            self.acknowledged.setdefault(partition, []).append((end.offset, payload, ACKS_OF[end.result]))
        self.operations.append(end)
        return outcome

    def administer(self, request: AdminRequest) -> commands.AdminOutcome:
        outcome = self._run(commands.AdminCommand(command_id=self.next_id(), request=request))
        assert isinstance(outcome, commands.AdminOutcome)
        return outcome

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its records are not lost, and a later topic of that name is a different one."""
        named = [*self.acknowledged, *(op.partition for op in self.operations if not isinstance(op, Ended))]
        self.forget(sorted({partition for partition in named if partition.topic == topic}))

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions were removed together with their records."""
        for partition in partitions:
            self.acknowledged.pop(partition, None)
        gone = {op.send for op in self.operations if isinstance(op, Invoked) and op.partition in partitions}
        self.operations = [
            op
            for op in self.operations
            if not (op.send in gone if isinstance(op, Invoked | Ended) else op.partition in partitions)
        ]

    def consume(self, partition: TopicPartition) -> commands.ConsumeOutcome:
        """What a consumer reads from the start of the partition."""
        outcome = self._run(
            commands.ConsumeCommand(command_id=self.next_id(), topic=partition.topic, partition=partition.partition)
        )
        assert isinstance(outcome, commands.ConsumeOutcome)
        return outcome

    def visible(self, partition: TopicPartition) -> int | None:
        """How many records a consumer reads from the start of the partition; None if the read fails."""
        outcome = self.consume(partition)
        if outcome.error is not ErrorCode.NONE:
            return None
        self.operations.append(seen(READER, partition, outcome, ranges_of))
        return sum(batch.record_count for batch in outcome.batches)

    def losses(self, partition: TopicPartition) -> Losses:
        """What has become of the records that are acknowledged so far, by the log of the present leader."""
        found, records = Losses(), self.acknowledged.get(partition, ())
        leader, reason = self._leader_of(partition)
        if reason:
            found.undecided.update(acks for _, _, acks in records)
            found.reasons += [reason] if records else []
            return found
        replica, batches = self.engine.replica(leader, partition), self.engine.log(leader, partition)
        assert replica is not None
        held = {batch.payload for batch in batches}
        start = log_start(batches, replica.log_end_offset)
        found.deleted.update(acks for offset, payload, acks in records if offset < start and payload not in held)
        found.lost.update(acks for offset, payload, acks in records if offset >= start and payload not in held)
        return found

    def _leader_of(self, partition: TopicPartition) -> tuple[NodeId, str]:
        """The present leader, or why its log cannot be read."""
        view = self.engine.published()
        state = None if view is None else view.partitions.get(partition)
        if state is None:
            return NO_LEADER, "no controller is active" if view is None else f"the controller does not know {partition}"
        if state.leader == NO_LEADER:
            return NO_LEADER, f"{partition} has no leader"
        replica = self.engine.replica(state.leader, partition)
        leads = replica is not None and replica.leads
        return state.leader, "" if leads else f"the leader of {partition}, broker {state.leader}, does not answer"

    def losses_everywhere(self) -> Losses:
        return total(self.losses(partition) for partition in sorted(self.acknowledged))

    def high_watermark_regressions(self, partition: TopicPartition) -> int:
        """How often a new leader took back what consumers could read."""
        events, counter = self.engine.traces(), self._regressions
        for event in events[counter.seen :]:
            match event.trace:
                case HighWatermarkAdvanced(partition=name, leader_epoch=epoch, high_watermark=offset):
                    counter.observe_high_watermark(name, epoch, offset)
                case BecameLeader(partition=name, leader_epoch=epoch, log_end=offset):
                    counter.observe_leader(name, epoch, offset)
                case PartitionChanged(partition=name, leader_epoch=epoch):
                    counter.observe_partition(name, epoch)
                case PartitionRemoved(partition=name):
                    counter.observe_removal(name)
                case TopicDeleted(topic=topic):
                    counter.observe_topic_deletion(topic)
        counter.seen = len(events)
        return counter.counts.get(partition, 0)

    def broker_epoch(self, broker: NodeId) -> int | None:
        view = self.engine.published()
        registration = None if view is None else view.brokers.get(broker)
        return None if registration is None else registration.broker_epoch


def ranges_of(batch: RecordBatch) -> Iterator[RecordRange]:
    """The one record of a batch that `ScenarioClients.produce` has made."""
    [number] = msgpack.unpackb(batch.payload)
    yield RecordRange(batch.base_offset, batch.leader_epoch, number, 0, batch.record_count)
