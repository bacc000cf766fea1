"""The commands of transcripts about a broker of generation `v3`: commands of controllers, records, fetches.

A command prints the answers of the broker: for each partition of a command its error, of a fetch the offsets of batches
and the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from experiments.engines.sim.disk import SimStorage
from protocol.config import ClusterConfig
from protocol.contract import Effect, Send
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.features import Generation
from protocol.ids import FIRST_CLIENT, NO_EPOCH
from protocol.messages.base import Message, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from protocol.messages.topics import DescribeTopicRequest
from protocol.messages.v3 import (
    CommandResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
)
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.settings import StoreSettings
from tests.unit.protocol.transcripts import Command, Script, listed

CONTROLLER = 1


class V3BrokerScript(Script):
    """Broker 0. Commands come from controller 1 in its epoch 1, with growing numbers."""

    def __init__(self) -> None:
        self.fetches = 0
        self.effects = self.start()

    def start(self) -> list[Effect]:
        self.storage, self.number = SimStorage(), 0
        self.node = V3BrokerNode(0, ClusterConfig.of(Generation.V3), StoreSettings(), self.storage, Random(1))
        return self.node.start(0)

    def run(self, text: str) -> list[str]:
        self.effects = []
        printed = super().run(text)
        line = [said for effect in self.effects if (said := self.said(effect))]
        self.effects = []
        return [*printed, " | ".join(line)] if line else printed

    def receive(self, sender: int, message: Message) -> None:
        self.effects = self.node.receive(10, sender, message)

    def said(self, effect: Effect) -> str:
        match effect:
            case Send(_, CommandResponse() as answer):
                whole = f" {answer.error.name}" if answer.error is not ErrorCode.NONE else ""
                parts = (f"{part.topic}-{part.partition_id} {part.error.name}" for part in answer.partitions)
                return f"answer {answer.correlation_id}{whole}: {', '.join(parts) or 'no partition'}"
            case Send(to, FetchResponse() as answer):
                parts = [f"{part.error.name} {payloads(part)} hw {part.high_watermark}" for part in answer.partitions]
                return f"to {to}: {', '.join(parts)}"
            case Send(_, ProduceResponse() as answer):
                return f"produced: {answer.error.name} at {answer.base_offset}"
            case Send(to, Response() as answer):
                return f"to {to}: {answer.error.name}"
            case Send(to, message) if type(message).__name__ == "OpenSession":
                return f"session opened with {to}"
            case Trace() if effect.kind == "refused":
                return "refused"
        return ""

    def do_start(self, command: Command) -> None:
        self.effects = self.start()

    def do_stored(self, command: Command) -> None:
        """`stored U/3`: the disk has this log."""
        self.storage.open_log(command.next())

    def do_command(self, command: Command) -> None:
        """`command init 0 1=1 1@5.3 epoch=2 number=7 topic=V by=3000`: LeaderAndIsr; `1=1@5.3` is partition 1 led by
        broker 1 (by default broker 0) in leader epoch 5, at version 3 of its node.
        """
        is_init, sender = command.flag("init"), command.number("by", CONTROLLER)
        topic_id, epoch = command.get("topic", "T"), command.number("epoch", 1)
        self.number = command.number("number", self.number + 1)
        parts = []
        for word in command.words():
            place, _, decision = word.partition("@")
            index, _, leader = place.partition("=")
            leader_epoch, _, version = decision.partition(".")
            parts.append(
                LeaderAndIsrPartition(
                    topic="t",
                    topic_id=topic_id,
                    partition_id=int(index),
                    leader=int(leader or 0),
                    leader_epoch=int(leader_epoch or 0),
                    isr=(0, 1),
                    version=int(version or 0),
                    replicas=(0, 1),
                    controller_id=CONTROLLER,
                    controller_epoch=1,
                )
            )
        request = LeaderAndIsrRequest(
            correlation_id=self.number,
            controller_id=CONTROLLER,
            controller_epoch=epoch,
            ack_timeout_ms=1_000,
            is_init=is_init,
            partitions=tuple(parts),
        )
        self.receive(sender, request)

    def do_stop(self, command: Command) -> None:
        """`stop 5 topic=V`: StopReplica for partition 0 in leader epoch 5."""
        self.number += 1
        epoch = int(command.next())
        stopped = StopReplicaPartition(
            topic="t", topic_id=command.get("topic", "T"), partition_id=0, leader_epoch=epoch
        )
        request = StopReplicaRequest(
            correlation_id=self.number,
            controller_id=CONTROLLER,
            controller_epoch=1,
            ack_timeout_ms=1_000,
            partitions=(stopped,),
        )
        self.receive(CONTROLLER, request)

    def do_produce(self, command: Command) -> None:
        batch = RecordBatch(record_count=1, payload=command.next().encode())
        self.receive(FIRST_CLIENT, ProduceRequest(correlation_id=1, topic="t", partition=0, acks=1, batch=batch))

    def do_fetch(self, command: Command) -> None:
        """`fetch 1 5 by=3000`: of partition 1 from offset 5 on; `fetch none`: of no partition."""
        index, sender = command.next(), command.number("by", 1)
        wanted = FetchPartition(
            topic_id="T",
            partition_id=0 if index == "none" else int(index),
            current_leader_epoch=0,
            fetch_offset=int(command.next("0")),
            last_fetched_epoch=NO_EPOCH,
        )
        parts = () if index == "none" else (wanted,)
        self.fetches += 1
        self.receive(sender, FetchRequest(replica_id=1, replica_epoch=1, partitions=parts, session=self.fetches))

    def do_describe(self, command: Command) -> None:
        self.receive(FIRST_CLIENT, DescribeTopicRequest(correlation_id=4))

    def do_show(self, command: Command) -> Iterator[str]:
        """The replicas with their leader epochs and log ends, and the logs on the disk."""
        found = []
        for key, replica in sorted(self.node.context.replicas.items()):
            role = "leads" if replica.leadership is not None else "fetches" if replica.fetch_state else "idle"
            found.append(
                f"{key.topic_id}/{key.partition} {role} in {replica.leader_epoch} end {replica.log.end_offset}"
            )
        yield f"{', '.join(found) or 'no replica'}; logs {listed(self.storage.log_names())}"


def payloads(part: FetchPartitionResult) -> str:
    return listed(batch.payload.decode() for batch in part.batches)
