"""The commands of transcripts about the recoveries that a controller requests: those of `ControllerScript`, and more.

Once `begin` has been given, every command also prints what the controller sends to the recovery manager and to clients,
and its timers, in one line. Recoveries are numbered in the order in which they are first requested: `#1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.config import ClusterConfig
from protocol.contract import Effect, Outbox, Send, SetTimer
from protocol.controller.recovery_requests import ELECTIONS_TIMER, RECOVERY_TIMER, Awaited, RecoveryRequests
from protocol.events.controller import RecoveryBegan, RecoveryDecided
from protocol.messages.partitions import ElectLeadersResponse, PartitionResult
from protocol.messages.records import MetadataRecord
from protocol.messages.recovery import (
    CancelRecoveries,
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoverPartitions,
    RecoveryMode,
    RecoveryResults,
    ReplicaAnswer,
)
from tests.unit.protocol.controller.controller_script import ControllerScript
from tests.unit.protocol.node_helpers import CLIENT, T0, ControllerBench
from tests.unit.protocol.transcripts import Command, listed, numbers


class Bench(ControllerBench):
    """A controller's state and, from `begin` on, its recoveries, without the node around them."""

    recoveries: RecoveryRequests | None = None

    def begin(self, out: Outbox) -> RecoveryRequests:
        """As when the node becomes the active controller."""
        self.recoveries = RecoveryRequests(self.state, out)
        delta = self.state.image.take_delta()
        delta.features = True
        self.recoveries.replayed(delta)
        return self.recoveries

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[MetadataRecord]:
        for record in records:
            delta = self.state.replay(record)
            if self.recoveries is not None:
                self.recoveries.replayed(delta)
        return records


class RecoveryScript(ControllerScript):
    def __init__(self) -> None:
        super().__init__()
        self.out = Outbox()
        self.now_ms = 0
        self.requested: list[PartitionRecovery] = []
        self.recoveries: RecoveryRequests | None = None
        self.is_unsettled = False

    def start(self, records: Sequence[MetadataRecord], config: ClusterConfig) -> None:
        self.bench = Bench(*records, config=config)
        self.recoveries, self.requested = None, []

    def run(self, text: str) -> list[str]:
        printed = super().run(text)
        if self.recoveries is not None and not self.is_unsettled and text.split()[0] != "unsettled":
            self.recoveries.settle(self.now_ms)
        line = self.sent(self.out.drain())
        return [*printed, " | ".join(line)] if line else printed

    def do_begin(self, command: Command) -> None:
        """The controller becomes active; again: another one does, with the same state."""
        assert isinstance(self.bench, Bench)
        self.recoveries = self.bench.begin(self.out)

    def do_unsettled(self, command: Command) -> Iterator[str]:
        """`unsettled COMMAND`: within an input, before the controller reconsiders its recoveries."""
        self.is_unsettled = True
        yield from self.run(" ".join(command.words()))
        self.is_unsettled = False

    def do_fire(self, command: Command) -> None:
        """`fire recoveries 2000`: a timer is due at this time."""
        assert self.recoveries is not None
        name, self.now_ms = command.next(), int(command.next())
        self.recoveries.fire(self.now_ms, {"recoveries": RECOVERY_TIMER, "elections": ELECTIONS_TIMER}[name])

    def do_await(self, command: Command) -> None:
        """`await balanced timeout=3000`: a user requests an election of this mode for `t-0`."""
        assert self.recoveries is not None
        mode, timeout_ms = RecoveryMode[command.next().upper()], command.number("timeout", 60_000)
        response = ElectLeadersResponse(correlation_id=1, partitions=(PartitionResult(topic="t", partition_index=0),))
        self.recoveries.await_elections(self.now_ms, CLIENT, response, Awaited(mode, timeout_ms, {T0: 0}))

    def do_result(self, command: Command) -> Iterator[str]:
        """`result 2 answers=0,1 of=1`: recovery #1, or the last one, elects 2, with answers of these, or of all."""
        assert self.recoveries is not None
        leader, number = int(command.next()), command.number("of", len(self.requested))
        recovery = self.requested[number - 1]
        epochs = {replica.broker_id: replica.broker_epoch for replica in recovery.replicas}
        reported = tuple(
            ReplicaAnswer(broker_id=each, broker_epoch=epochs[each], last_written_leader_epoch=3, log_end_offset=each)
            for each in numbers(command.get("answers")) or epochs
        )
        result = PartitionRecoveryResult(
            recovery_id=command.number("recovery_id", recovery.recovery_id),
            topic_id="T",
            partition_id=0,
            leader_epoch=command.number("leader_epoch", recovery.leader_epoch),
            leader=leader,
            reason="it won",
            answers=reported,
            silent=numbers(command.get("silent")),
        )
        yield from self.carry_out(self.recoveries.take(RecoveryResults(results=(result,))))

    def sent(self, effects: Sequence[Effect]) -> list[str]:
        """Requests and cancellations, answers, timers, and what a result was."""
        found: list[str] = []
        began = {effect.recovery_id for effect in effects if isinstance(effect, RecoveryBegan)}
        for effect in effects:
            message = effect.message if isinstance(effect, Send) else effect
            if isinstance(message, RecoverPartitions):
                [recovery] = message.recoveries
                found.append(f"{'begin' if recovery.recovery_id in began else 'request'} {self.said_of(recovery)}")
            elif isinstance(message, CancelRecoveries):
                ids = [self.number_of(cancelled.recovery_id) for cancelled in message.recoveries]
                found.append(f"cancel {listed(ids)}")
            elif isinstance(message, ElectLeadersResponse):
                found.append(f"answer {message.partitions[0].error.name}")
            elif isinstance(message, SetTimer):
                found.append(f"{message.name} at {message.at_ms}")
            elif isinstance(message, RecoveryDecided):
                found.append(f"{message.outcome()}; required: {listed(message.required)}")
        return found

    def said_of(self, recovery: PartitionRecovery) -> str:
        if recovery.recovery_id not in (known.recovery_id for known in self.requested):
            self.requested.append(recovery)
        number = self.number_of(recovery.recovery_id)
        self.requested[int(number[1:]) - 1] = recovery
        replicas = listed(f"{replica.broker_id}@{replica.broker_epoch}" for replica in recovery.replicas)
        required = f" required={listed(recovery.required)}" if recovery.required else ""
        timeout = f" timeout={recovery.timeout_ms}" if recovery.timeout_ms != 5_000 else ""
        return (
            f"{number} {recovery.mode.name.lower()} epoch={recovery.leader_epoch} replicas={replicas} "
            f"holders={listed(recovery.holders)}{required}{timeout}"
        )

    def number_of(self, recovery_id: int) -> str:
        ids = [known.recovery_id for known in self.requested]
        return f"#{ids.index(recovery_id) + 1}" if recovery_id in ids else "another"
