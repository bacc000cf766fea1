"""The commands of transcripts about the limits of fetch responses: a leader, and a follower that processes responses.

A command prints each response that it makes the leader send: the number of batches per partition (`0x2 1x1`), high
watermarks (`0 hw 1`), and errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.engines.sim.disk import SimLog
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import TopicIdPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.control import AlterPartitionRequest
from protocol.messages.data import FetchResponse
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.broker.leader_helpers import FOLLOWER, UNIT, Leader, sized
from tests.unit.protocol.partition_words import partition_fields
from tests.unit.protocol.transcripts import Command, Script, listed


class DamagedLog(SimLog):
    """A log whose records cannot be read."""

    def read(self, from_offset: int, max_bytes: int) -> Sequence[RecordBatch]:
        raise CorruptLogError("damaged")


class LeaderScript(Script):
    """Broker 0 leads partitions of `t`; broker 1 follows. Batches have the size of one unit if nothing else is said."""

    def __init__(self) -> None:
        self.leader = Leader()

    def do_leader(self, command: Command) -> None:
        """`leader 4 response=3 share=2 min=1`: partitions, and limits of fetches in units."""
        limits = {"response": "replica_fetch_response_max_bytes", "share": "replica_fetch_max_bytes"}
        limits["min"] = "replica_fetch_min_bytes"
        partitions = int(command.next("1"))
        self.leader = Leader(partitions, **{limits[name]: int(n) * UNIT for name, n in command.named().items()})

    def do_fill(self, command: Command) -> None:
        """`fill 2 1`: batches of one unit in partition 0, 1 and so on, which are not fetched yet."""
        self.leader.fill(dict(enumerate(map(int, command.words()))))

    def do_produce(self, command: Command) -> Iterator[str]:
        """`produce 0 1 size=9`: a batch for each of these partitions."""
        size = command.number("size", 1) * UNIT
        for partition in command.positional():
            yield from self.said(self.leader.produce(size, partition=int(partition)))

    def do_fetch(self, command: Command) -> Iterator[str]:
        """`fetch 0 1 new-session fetcher=1 offset=0 skip=1 session=-1`: the follower fetches these partitions, or all;
        from another offset, after as many requests that were lost, and with a session of that many before.
        """
        new_session, offset, skip = command.flag("new-session"), command.get("offset"), command.number("skip", 0)
        partitions = [int(word) for word in command.positional()]
        for partition in partitions or self.leader.position if offset else ():
            self.leader.position[partition] = int(offset)
        if skip:
            self.leader.requests[FOLLOWER, 0] += skip
        if older := command.number("session", 0):
            self.leader.sessions[FOLLOWER, 0] += older
        fields = {name: int(value) for name, value in command.named().items()}
        yield from self.said(self.leader.fetch(*partitions, new_session=new_session, **fields))

    def do_renew(self, command: Command) -> Iterator[str]:
        fields = {name: int(value) for name, value in command.named().items()}
        yield from self.said(self.leader.renew(**fields), numbers=True)

    def do_take(self, command: Command) -> Iterator[str]:
        """The follower processes the oldest response; then what is under way is printed."""
        self.leader.take()
        yield from self.said(self.leader.under_way)

    def do_lose(self, command: Command) -> None:
        """All responses under way are lost."""
        self.leader.under_way.clear()

    def do_damage(self, command: Command) -> None:
        """The log of this partition holds one batch, which cannot be read."""
        log = self.leader.bench.node.context.replicas[TopicIdPartition("T", int(command.next()))].log
        log.storage = DamagedLog()
        log.storage.append(sized(UNIT))

    def do_change(self, command: Command) -> Iterator[str]:
        """`change 0 leader=1`: news of a partition."""
        index = int(command.next())
        self.leader.bench.publish(PartitionChangeRecord(topic_id="T", partition_id=index, **partition_fields(command)))
        yield from self.said(self.leader.sent())

    def do_at(self, command: Command) -> None:
        self.leader.bench.now_ms = int(command.next())

    def do_fire(self, command: Command) -> Iterator[str]:
        self.leader.bench.fire(command.next(), int(command.next()))
        for _, request in self.leader.bench.sends(AlterPartitionRequest):
            yield "propose " + listed(f"{part.partition_id}:{len(part.new_isr)}" for part in request.partitions)
        yield from self.said(self.leader.sent())

    def do_timer(self, command: Command) -> Iterator[str]:
        """`timer silent/1`: how the last input left it."""
        name = command.next()
        timer = self.leader.bench.timer(name)
        idle = "" if timer is None or timer.idle_with is None else f", idle with {timer.idle_with}"
        yield f"{name} as it was" if timer is None else f"{name} at {timer.at_ms}{idle}"

    def said(self, responses: Sequence[FetchResponse], numbers: bool = False) -> Iterator[str]:
        for response in responses:
            parts = [f"fetcher {response.fetcher}"] if response.fetcher else []
            parts += [] if response.error is ErrorCode.NONE else [response.error.name]
            parts += [f"session {response.session}, number {response.number}"] if numbers else []
            for result in response.partitions:
                place = result.partition_id
                if result.error is not ErrorCode.NONE:
                    parts.append(f"{place} {result.error.name}")
                else:
                    count = len(result.batches)
                    parts.append(f"{place}x{count}" if count else f"{place} hw {result.high_watermark}")
            yield " ".join(parts)
