"""The commands of transcripts about one broker: what clients, replicas, the controller and timers bring it.

Each command prints in one line what the broker sends, its high watermark where that moves, and other events: answers to
clients (`produce 8: NONE at 0`), results for followers (`to 1: t-0@5 from 0: 0,1 hw 2`: the fetch in leader epoch 5,
and the offsets of batches), its own fetches (`fetch from 0: t-0@5 at 3`), and proposals (`propose t-0 isr=0,1`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from protocol.broker import leader, reads
from protocol.broker.fetcher import SESSIONS_PER_EPOCH
from protocol.broker.flushing import CHECKPOINT_FILE
from protocol.broker.lifecycle import LifecycleState
from protocol.broker.recovery import no_routine
from protocol.config import ClusterConfig
from protocol.contract import CancelTimer, Effect, Exit, Send
from protocol.errors import CorruptLogError, ErrorCode, StorageError, StorageFullError
from protocol.events.broker import (
    DataLossHandled,
    DataLossRoutineBegan,
    HighWatermarkAdvanced,
    LogReset,
    LogTruncated,
    SegmentsDeleted,
    StorageFailed,
)
from protocol.features import Generation
from protocol.ids import RECOVERY_MANAGER, TopicIdPartition, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionIsrResult,
)
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    ConsumeRequest,
    ConsumeResponse,
    EpochEndOffset,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.records import (
    ConfigRecord,
    MetadataRecord,
)
from protocol.messages.recovery import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse, ReplicaLogInfoTopic
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.broker.broker_words import metadata_record, said_of_log_info, said_of_read, said_of_result
from tests.unit.protocol.broker.failing_disk import BrokenLog, FailingStorage
from tests.unit.protocol.node_helpers import (
    CLIENT,
    CONTROLLER,
    BrokerBench,
    batch,
    config_of,
    registrations,
    topic_records,
)
from tests.unit.protocol.partition_words import partition_fields
from tests.unit.protocol.transcripts import Command, Script, listed, numbers


class BrokerScript(Script):
    """Broker 0, or another; brokers 0, 1, 2 have the epochs 0, 1, 2, and topic `t` has the partition `t-0`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.disk = FailingStorage()
        self.bench = BrokerBench(storage=self.disk)
        self.proposal: AlterPartitionRequest | None = None
        self.is_running = False
        self.routine_ms = 0
        self.calls: list[str] = []

    def run(self, text: str) -> list[str]:
        self.bench.effects = []
        printed = super().run(text)
        line = [*self.calls, *(said for effect in self.bench.effects if (said := self.said(effect)))]
        self.calls, self.bench.effects = [], []
        return [*printed, " | ".join(line)] if line else printed

    # -- what is given -------------------------------------------------------------------------------------------------

    def do_broker(self, command: Command) -> None:
        """`broker 1 generation=kip-497 routine=500 request.timeout.ms=5000`: one that has not started. With
        `same-disk` it has the disk of the one before it; `stored=2 epoch=1 hw=2`: on its disk are so many batches of
        `t-0`, and a checkpointed high watermark.
        """
        same_disk, me = command.flag("same-disk"), int(command.next("0"))
        generation = Generation(command.get("generation", "kip-966"))
        self.routine_ms = command.number("routine", 0)
        stored, epoch, high_watermark = (command.number(name, 0) for name in ("stored", "epoch", "hw"))
        static: dict[str, object] = {
            name: int(value) if value.isdigit() else value == "true" if value in ("true", "false") else value
            for name, value in command.named().items()
        }
        hook = self.routine if self.routine_ms else no_routine
        self.disk = self.disk if same_disk else FailingStorage()
        self.store(stored, epoch, high_watermark)
        self.bench = BrokerBench(me, ClusterConfig.of(generation, static), self.disk, hook)
        self.proposal, self.is_running = None, False

    def store(self, count: int, epoch: int, high_watermark: int) -> None:
        for offset in range(count):
            self.disk.open_log("T/0").append(batch(1, offset, epoch))
        if high_watermark:
            self.disk.write_file(CHECKPOINT_FILE, b'{"T/0": %d}' % high_watermark)

    def routine(self, partition: TopicPartition, leader_epoch: int, log_end: int) -> int:
        self.calls.append(f"called for {partition} in epoch {leader_epoch}, log end {log_end}")
        return self.routine_ms

    def do_run(self, command: Command) -> None:
        """It registers and is unfenced, without topics."""
        self.bench.run()
        self.is_running = True
        self.bench.effects = []

    def do_topic(self, command: Command) -> None:
        """`topic min_isr=1 isr=0,1 flush.ms=7`: `t-0`, on 0, 1, 2 and led by 0 if nothing else is said. A broker that
        has not started runs with it from its first metadata on, and prints nothing; with `/ removed` and so on it has
        these records at once, too.
        """
        more = self.records_after(command)
        created, *rest = topic_records(command.number("min_isr", 2), **partition_fields(command))
        configs = [ConfigRecord(topic_id="T", name=name, value=value) for name, value in command.named().items()]
        records = [created, *configs, *rest, *more]
        if self.is_running:
            self.bench.publish(*records)
            return
        self.bench.run(*records)
        self.is_running, self.bench.effects = True, []

    def do_parked(self, command: Command) -> None:
        """`parked 2`: all other members of the ISR have fetched from there; it prints nothing."""
        leadership, offset = self.bench.replica.leadership, int(command.next("0"))
        for follower in () if leadership is None else leadership.isr[1:]:
            self.bench.fetch(follower, offset)
        self.bench.effects = []

    def do_limit(self, command: Command) -> None:
        """`limit MAX_DELAYED_READS 2`: a constant of `reads.py` or `leader.py`."""
        name, value = command.next(), int(command.next())
        self.monkeypatch.setattr(reads if name == "MAX_DELAYED_READS" else leader, name, value)

    def do_at(self, command: Command) -> None:
        self.bench.now_ms = int(command.next())

    # -- metadata ------------------------------------------------------------------------------------------------------

    def records_after(self, command: Command) -> list[MetadataRecord]:
        """The records that a command names after its own words: `... / removed / partition 0 leader=1`."""
        first, *others = f" {' '.join(command.left)}".split(" / ")
        command.left = first.split()
        return [metadata_record(Command(text)) for text in others]

    def do_snapshot(self, command: Command) -> None:
        """`snapshot 12 / removed`: the broker fetches a snapshot that ends there, of topic `t` after these records."""
        image, more = MetadataImage(config_of()), self.records_after(command)
        for record in (*registrations(), *topic_records(), *more):
            image.replay(record)
        self.bench.fetched_snapshot(image, int(command.next()))

    def do_publish(self, command: Command) -> None:
        """`publish change leader=1 / fenced 2`: the broker receives these records in one batch, or none."""
        parts = " ".join(command.words()).split(" / ")
        self.bench.publish(*(metadata_record(Command(part)) for part in parts if part))

    def do_answer(self, command: Command) -> None:
        """`answer`: the controller accepts the last proposal; `answer INELIGIBLE_REPLICA`: it does not."""
        assert self.proposal is not None
        error, number, [proposed] = (
            ErrorCode[command.next("NONE")],
            self.proposal.correlation_id,
            self.proposal.partitions,
        )
        result = PartitionIsrResult(
            topic_id="T",
            partition_id=0,
            error=error,
            leader=self.bench.me,
            leader_epoch=proposed.leader_epoch,
            partition_epoch=proposed.partition_epoch + 1,
            isr=tuple(member.broker_id for member in proposed.new_isr),
            leader_recovery_state=proposed.leader_recovery_state,
        )
        self.bench.receive(CONTROLLER, AlterPartitionResponse(correlation_id=number, partitions=(result,)))

    # -- clients and replicas ------------------------------------------------------------------------------------------

    def do_produce(self, command: Command) -> None:
        """`produce count=2 acks=1 id=8`: to `t-0`, with acks=all; `sequence=0 producer=7`: with sequence numbers;
        `bytes=48 timestamp_ms=9`: its payload.
        """
        fields: dict[str, Any] = {"record_count": command.number("count", 1)}
        fields |= {"payload": b"x" * command.number("bytes", 1), "timestamp_ms": command.number("timestamp_ms", -1)}
        if sequence := command.get("sequence"):
            fields |= {"base_sequence": int(sequence), "producer_id": command.number("producer", 7)}
            fields |= {"producer_epoch": command.number("epoch", 0), "timestamp_ms": 0}
        request = ProduceRequest(
            correlation_id=command.number("id", 7),
            topic=command.get("topic", "t"),
            partition=command.number("partition", 0),
            acks=command.number("acks", -1),
            batch=RecordBatch(**fields),
        )
        self.bench.receive(CLIENT, request)

    def do_fetch(self, command: Command) -> None:
        """`fetch 1 3 epoch=4`: follower 1 fetches from 3 on, where its last record has that epoch; other fields."""
        follower, offset, epoch = int(command.next()), int(command.next()), command.get("epoch")
        fields = {name: int(value) for name, value in command.named().items()}
        self.bench.fetch(follower, offset, int(epoch) if epoch else None, **fields)

    def do_consume(self, command: Command) -> None:
        offset, number = int(command.next()), command.number("id", 5)
        fields: dict[str, Any] = {name: int(value) for name, value in command.named().items()}
        request = ConsumeRequest(correlation_id=number, topic="t", partition=0, fetch_offset=offset, **fields)
        self.bench.receive(CLIENT, request)

    def do_offsets(self, command: Command) -> None:
        """`offsets latest topic=u`: ListOffsets."""
        wanted = {"latest": LATEST, "earliest": EARLIEST}
        time, topic = command.next(), command.get("topic", "t")
        asked = wanted[time] if time in wanted else int(time)
        self.bench.receive(CLIENT, ListOffsetsRequest(correlation_id=7, topic=topic, partition=0, timestamp=asked))

    def do_result(self, command: Command) -> None:
        """`result 3 batches=2@1,1 hw=2`: the leader's result for a fetch from 3 in leader epoch 3, with batches of 2
        and 1 records, the first of epoch 1. `diverging=1@5`: epoch and end offset.
        """
        offset, found = int(command.next()), list[RecordBatch]()
        next_offset = offset
        for part in filter(None, command.get("batches").split(",")):
            count, _, epoch = part.partition("@")
            found.append(batch(int(count), next_offset, int(epoch or 3)))
            next_offset += int(count)
        epoch, _, end = command.get("diverging").partition("@")
        diverging = EpochEndOffset(leader_epoch=int(epoch), end_offset=int(end)) if end else None
        result = FetchPartitionResult(
            topic_id=command.get("topic", "T"),
            partition_id=command.number("partition", 0),
            fetch_offset=offset,
            leader_epoch=command.number("leader_epoch", 3),
            last_fetched_epoch=command.number("last", 3 if offset else -1),
            error=ErrorCode[command.get("error", "NONE")],
            high_watermark=command.number("hw", -1),
            log_start_offset=command.number("log_start", -1),
            diverging_epoch=diverging,
            batches=tuple(found),
        )
        more = command.get("also")
        others = (replace(result, partition_id=int(more)),) if more else ()
        self.respond(command, (result, *others))

    def do_response(self, command: Command) -> None:
        """`response number=3 error=FETCH_SESSION_ID_NOT_FOUND`: one without results."""
        self.respond(command, ())

    def respond(self, command: Command, results: tuple[FetchPartitionResult, ...]) -> None:
        whole = ErrorCode[command.get("whole", "NONE")]
        session = self.bench.node.context.broker_epoch * SESSIONS_PER_EPOCH + command.number("session", 1)
        number = command.number("number", 0)
        response = FetchResponse(session=session, partitions=results, number=number, error=whole)
        self.bench.receive(command.number("sender", 0), response)

    # -- time and disk -------------------------------------------------------------------------------------------------

    def do_fire(self, command: Command) -> None:
        """`fire silent/1 1000`: a timer is due, at this time."""
        name, at_ms = command.next(), command.next("")
        self.bench.fire(name, int(at_ms) if at_ms else None)

    def do_timer(self, command: Command) -> Iterator[str]:
        """`timer silent/1 COMMAND`: how the command leaves the timer."""
        name = command.next()
        yield from super().run(" ".join(command.words()))
        timer = self.bench.timer(name)
        cancelled = any(isinstance(e, CancelTimer) and e.name == name for e in self.bench.effects)
        if timer is None:
            yield f"{name} {'cancelled' if cancelled else 'as it was'}"
        else:
            yield f"{name} at {timer.at_ms}" + ("" if timer.idle_with is None else f", idle with {timer.idle_with}")

    def do_roll(self, command: Command) -> None:
        """The log begins another segment."""
        self.bench.replica.log.storage.roll()

    def do_reset_log(self, command: Command) -> None:
        self.bench.replica.log.reset(int(command.next()))

    def do_fail(self, command: Command) -> None:
        """`fail append full`: this call of the disk raises from now on; `corrupt`, or by default an I/O error. `fail
        none`: the disk works.
        """
        call, error = command.next(), command.next("broken")
        kinds = {"full": StorageFullError, "corrupt": CorruptLogError, "broken": StorageError}
        if call == "none":
            self.disk.failing.clear()
        else:
            self.disk.failing[call] = kinds[error](error)

    def do_write(self, command: Command) -> None:
        """`write NAME CONTENT`: a file of the broker's disk."""
        self.bench.storage.write_file(command.next(), command.words()[0].encode())

    def do_remove(self, command: Command) -> None:
        self.bench.storage.delete_file(command.next())

    def do_start(self, command: Command) -> None:
        """It is registered, and has no metadata yet; it prints nothing."""
        self.bench.start().registered()
        self.bench.effects = []

    def do_log_info(self, command: Command) -> None:
        """`log-info 2,0 topic=U broker=1 sender=3000`: GetReplicaLogInfo for these partitions, or `all`."""
        wanted, topic = command.next(), command.get("topic", "T")
        named = (ReplicaLogInfoTopic(topic_id=topic, partitions=numbers(wanted)),) if wanted != "all" else None
        request = GetReplicaLogInfoRequest(
            correlation_id=9, broker_id=command.number("broker", 0), topic_partitions=named
        )
        self.bench.receive(command.number("sender", RECOVERY_MANAGER), request)

    def do_break_log(self, command: Command) -> None:
        """The disk of this log has failed: its end is not known."""
        log = self.bench.node.context.replicas[TopicIdPartition("T", int(command.next()))].log
        log.storage = BrokenLog()  # type: ignore[assignment]

    def do_close(self, command: Command) -> None:
        """The replica of this partition is not open."""
        del self.bench.node.context.replicas[TopicIdPartition("T", int(command.next()))]

    def do_flush(self, command: Command) -> None:
        self.bench.node.flush_all()

    def do_show(self, command: Command) -> Iterator[str]:
        """`show`: the replica of `t-0`; `show flushed`, `show logs`, `show file NAME`, `show isr`."""
        what = command.next("replica")
        replica = self.bench.node.context.replicas.get(TopicIdPartition("T", 0))
        if what == "logs":
            yield f"logs {listed(self.bench.storage.log_names())}"
        elif what == "snapshot":
            snapshot = self.disk.open_log("T/0").snapshot()
            yield "no snapshot" if snapshot is None else f"snapshot at {snapshot[0]}"
        elif what == "epochs":
            assert replica is not None
            yield f"epochs {listed(f'{epoch} from {start}' for epoch, start in replica.log.epochs.entries())}"
        elif what == "segments":
            assert replica is not None
            yield f"segments {listed(segment.base_offset for segment in replica.log.storage.segments())}"
        elif what == "file":
            yield str(self.bench.storage.read_file(command.next()))
        elif replica is None:
            yield "no replica"
        elif what == "flushed":
            yield f"flushed {replica.log.storage.flushed_offset}"
        elif what == "batches":
            stored = replica.log.storage.read(0, 2**40)
            yield "batches " + listed(f"{item.base_offset}+{item.record_count}@{item.leader_epoch}" for item in stored)
        elif what == "isr" and replica.leadership is not None:
            of = replica.leadership
            state = " recovering" if of.recovery_state else ""
            yield f"isr={listed(of.isr)} proposed={listed(of.proposed_isr or ())}{state}"
        else:
            leads = "leads" if replica.leadership is not None else "fetches" if replica.fetch_state else "idle"
            log, epoch = replica.log, replica.leader_epoch
            yield f"{leads} in epoch {epoch}, log {log.start_offset}-{log.end_offset}, hw {log.high_watermark}"

    # -- what it printed -----------------------------------------------------------------------------------------------

    def said(self, effect: Effect) -> str:
        match effect:
            case Send():
                return self.said_of_message(effect.to, effect.message)
            case HighWatermarkAdvanced():
                return f"hw {effect.high_watermark}"
            case LogTruncated():
                return f"truncate {effect.log_end} to {effect.to_offset}"
            case LogReset():
                return f"reset {effect.log_end} to {effect.to_offset}"
            case SegmentsDeleted():
                return f"segments deleted, log start {effect.log_start}"
            case DataLossRoutineBegan():
                return f"routine of {effect.duration_ms} ms"
            case DataLossHandled():
                return f"routine over in epoch {effect.leader_epoch}"
            case Exit():
                assert self.bench.node.state is LifecycleState.STOPPED
                return "exit"
            case StorageFailed():
                return "storage error, the broker stops" if effect.halted else "storage error"
        return ""

    def said_of_message(self, to: int, message: Message) -> str:
        whose = "" if to == CLIENT else f" for {to}"
        match message:
            case ProduceResponse():
                return f"produce {message.correlation_id}{whose}: {message.error.name} at {message.base_offset}"
            case ConsumeResponse():
                return f"consume {message.correlation_id}{whose}: {said_of_read(message)} hw {message.high_watermark}"
            case ListOffsetsResponse():
                return f"offset {message.correlation_id}{whose}: {message.error.name} {message.offset}"
            case AlterPartitionRequest():
                self.proposal = message
                return "propose " + ", ".join(
                    f"t-{part.partition_id} isr={listed(member.broker_id for member in part.new_isr)}"
                    + (" recovering" if part.leader_recovery_state else "")
                    for part in message.partitions
                )
            case FetchResponse():
                error = f" {message.error.name}" if message.error is not ErrorCode.NONE else ""
                return f"to {to}:{error} " + ", ".join(said_of_result(result) for result in message.partitions)
            case FetchRequest():
                session = message.session % SESSIONS_PER_EPOCH
                new = f" as {message.replica_id}@{message.replica_epoch}, session {session}"
                states = (
                    f"t-{part.partition_id}@{part.current_leader_epoch} at {part.fetch_offset} "
                    f"after {part.last_fetched_epoch} hw {part.high_watermark}"
                    for part in message.partitions
                )
                return f"fetch from {to}{new if message.number == 0 else ''}: " + ", ".join(states)
            case GetReplicaLogInfoResponse():
                error = "" if message.error is ErrorCode.NONE else f" {message.error.name}"
                whose = f" for {to}" if to != RECOVERY_MANAGER else ""
                return f"log info {message.correlation_id}{whose}{error}: {said_of_log_info(message)}"
            case FetchRenewal():
                counts = f"{message.requests} requests, {message.answers} answers"
                renewed = f"session {message.session % SESSIONS_PER_EPOCH}"
                return f"renewal to {to} as {message.replica_id}@{message.replica_epoch}, {renewed}: {counts}"
        return ""
