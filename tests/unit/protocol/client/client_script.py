"""The commands of transcripts about a client: commands of users, answers of nodes, and time.

A command prints in one line the requests, each with a number of its own (`#1 produce to 0: t-0 1 x2 acks=-1`: the
payload and the number of records; of reads the offset and the epoch of the record before it), the nodes that are asked
for metadata, and the ends of commands (`1: NONE at 7`; of reads the batches as offset@epoch).
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.engines import admin_requests
from experiments.engines.sim.disk import SimLog
from protocol.broker.reads import read
from protocol.errors import ErrorCode
from protocol.ids import DRIVER
from protocol.log.replica_log import ReplicaLog
from protocol.messages.admin import AdminRequest, InitProducerIdRequest, MetadataRequest, MetadataResponse
from protocol.messages.base import Message
from protocol.messages.cluster import DescribeClusterRequest
from protocol.messages.commands import AdminCommand, AdminOutcome, ConsumeCommand, ConsumeOutcome, ProduceOutcome
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    ConsumeRequest,
    ConsumeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.unit.protocol.client.client_helpers import ClientBench
from tests.unit.protocol.node_helpers import batch
from tests.unit.protocol.transcripts import Command, Script, listed, numbers


class ClientScript(Script):
    """A client of brokers 0, 1, 2 and controller 1000. All nodes answer requests for metadata at once with `leader`; if
    there is none, `metadata` answers.
    """

    def __init__(self) -> None:
        self.start(ClientBench(brokers=(0, 1, 2)))

    def start(self, bench: ClientBench) -> None:
        self.bench = bench
        self.bench.leader = None
        self.log = ReplicaLog(SimLog())
        self.requests: list[tuple[int, Message]] = []
        self.metadata_id = -1
        self.ended = 0

    def run(self, text: str) -> list[str]:
        self.bench.sent = []
        printed = super().run(text)
        asked, line = list[int](), list[str]()
        for to, message in self.bench.sent:
            if isinstance(message, MetadataRequest):
                asked.append(to)
                self.metadata_id = message.correlation_id
            elif not isinstance(message, InitProducerIdRequest):
                self.requests.append((to, message))
                line.append(f"#{len(self.requests)} {said_of_request(to, message)}")
        if asked and self.bench.leader is None:
            line.insert(0, f"metadata from {listed(asked)}")
        line += [said_of_end(outcome) for outcome in self.bench.outcomes[self.ended :]]
        self.ended, self.bench.sent = len(self.bench.outcomes), []
        return [*printed, " | ".join(line)] if line else printed

    def together(self, steps: list[Callable[[], object]]) -> None:
        """What all of these steps send is printed."""
        sent = list[tuple[int, Message]]()
        for step in steps:
            step()
            sent += self.bench.sent
        self.bench.sent = sent

    # -- what is given -------------------------------------------------------------------------------------------------

    def do_client(self, command: Command) -> None:
        self.start(ClientBench(brokers=numbers(command.next("0-2"))))

    def do_leader(self, command: Command) -> None:
        """`leader 1 epoch=1`: what all nodes answer from now on; -1: that there is none."""
        self.bench.leader = int(command.next())
        self.bench.leader_epoch = command.number("epoch", self.bench.leader_epoch)

    def do_log(self, command: Command) -> None:
        """`log 0,0,2 start=10 committed=2`: the leader's log has records of these leader epochs."""
        epochs, start = numbers(command.next()), command.number("start", 0)
        self.log = ReplicaLog(SimLog())
        if start:
            self.log.reset(start)
        for epoch in epochs:
            self.log.append_as_leader(batch(), epoch)
        self.log.advance_high_watermark(command.number("committed", self.log.end_offset))

    def do_append(self, command: Command) -> None:
        self.log.append_as_leader(batch(), 0)
        self.log.advance_high_watermark(self.log.end_offset)

    # -- users ---------------------------------------------------------------------------------------------------------

    def do_produce(self, command: Command) -> None:
        """`produce 1 acks=0 final=NOT_ENOUGH_REPLICAS`: command 1, with two records."""
        final = tuple(ErrorCode[name] for name in filter(None, command.get("final").split(",")))
        self.bench.produce(int(command.next()), 2, acks=command.number("acks", -1), final_errors=final)

    def do_consume(self, command: Command) -> None:
        """`consume 1 offset=latest max_bytes=2 max_wait_ms=700 final=LEADER_NOT_AVAILABLE`."""
        number, offset = int(command.next()), command.get("offset", "earliest")
        final = tuple(ErrorCode[name] for name in filter(None, command.get("final").split(",")))
        fields: dict[str, object] = {name: int(value) for name, value in command.named().items()}
        fields |= {"command_id": number, "topic": "t", "partition": 0, "final_errors": final}
        fields["offset"] = {"earliest": EARLIEST, "latest": LATEST}.get(offset) or int(offset)
        self.bench.receive(DRIVER, ConsumeCommand(**fields))

    def do_administer(self, command: Command) -> None:
        """`administer 1 delete-topic`, or `describe-cluster`, which any node answers."""
        number, what = int(command.next()), command.next()
        requests: dict[str, AdminRequest] = {
            "delete-topic": admin_requests.delete_topic("t"),
            "describe-cluster": DescribeClusterRequest(correlation_id=0),
        }
        self.bench.receive(DRIVER, AdminCommand(command_id=number, request=requests[what]))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def do_metadata(self, command: Command) -> None:
        """`metadata 1 epoch=4 nodes=2`: the answer of these nodes, by default all; `metadata UNKNOWN_TOPIC...`."""
        what, nodes = command.next(), numbers(command.get("nodes", "0,1,2,1000"))
        epoch = command.number("epoch", 1)
        answer = MetadataResponse(correlation_id=self.metadata_id)
        if what.isupper():
            answer = MetadataResponse(correlation_id=self.metadata_id, error=ErrorCode[what])
        else:
            self.bench.leader, self.bench.leader_epoch = int(what), epoch
            answer = self.bench.described(self.metadata_id)
            self.bench.leader = None
        self.together([lambda node=node: self.bench.receive(node, answer) for node in nodes])

    def do_answer(self, command: Command) -> None:
        """`answer 1 NOT_LEADER_OR_FOLLOWER offset=4 by=2`: a node answers request #1; reads, if it is the leader."""
        number, error = int(command.next()), ErrorCode[command.next("NONE")]
        to, request = self.requests[number - 1]
        self.bench.receive(command.number("by", to), self.answer(request, error, command.number("offset", -1)))

    def answer(self, request: Message, error: ErrorCode, offset: int) -> Message:
        match request:
            case ProduceRequest(correlation_id=number):
                return ProduceResponse(correlation_id=number, error=error, base_offset=offset)
            case ConsumeRequest(correlation_id=number) if error is not ErrorCode.NONE:
                return ConsumeResponse(correlation_id=number, error=error)
            case ConsumeRequest():
                return read(self.log, request, 1)
            case ListOffsetsRequest(correlation_id=number):
                return ListOffsetsResponse(correlation_id=number, offset=self.log.high_watermark)
            case AdminRequest():
                return request.response_type()(correlation_id=request.correlation_id, error=error)
        raise ValueError(f"{type(request).__name__} has no answer")

    def do_serve(self, command: Command) -> None:
        """`serve 5`: the leader answers the newest request, one batch at a time, five times."""
        sent = list[tuple[int, Message]]()
        newest = self.requests[-1:]
        for _ in range(int(command.next("1"))):
            for to, request in newest:
                self.bench.receive(to, self.answer(request, ErrorCode.NONE, -1))
                newest = [(to, message) for to, message in self.bench.sent if not isinstance(message, MetadataRequest)]
                sent += self.bench.sent
        self.bench.sent = sent

    # -- time ----------------------------------------------------------------------------------------------------------

    def do_fire(self, command: Command) -> None:
        """`fire watch`: the time goes on to a timer, by the beginning of its name."""
        self.bench.fire(command.next())

    def do_until(self, command: Command) -> None:
        self.bench.run_until(int(command.next()))

    def do_show(self, command: Command) -> list[str]:
        """`show timers`; `show rest`: whether something is left of the commands."""
        if command.next() == "rest":
            return ["at rest" if self.bench.is_at_rest() else "not at rest"]
        return [listed(f"{name} at {at_ms}" for name, at_ms in sorted(self.bench.timers.items()))]


def said_of_request(to: int, message: Message) -> str:
    match message:
        case ProduceRequest():
            records = f"{message.batch.payload.decode()} x{message.batch.record_count}"
            return f"produce to {to}: {message.topic}-{message.partition} {records} acks={message.acks}"
        case ConsumeRequest():
            limits = f"{message.max_bytes} bytes" if message.max_bytes < 1_000 else ""
            wait = f"{message.max_wait_ms} ms" if message.max_wait_ms else ""
            bounds = ", ".join(filter(None, (limits, wait)))
            at = f"{message.fetch_offset} after {message.last_fetched_epoch}"
            return f"consume from {to}: {at}" + (f", at most {bounds}" if bounds else "")
    return f"{type(message).__name__} to {to}"


def said_of_end(outcome: Message) -> str:
    match outcome:
        case ProduceOutcome():
            unknown = " unknown" if outcome.unknown else ""
            return f"{outcome.command_id}: {outcome.error.name} at {outcome.base_offset}{unknown}"
        case ConsumeOutcome():
            records = listed(f"{item.base_offset}@{item.leader_epoch}" for item in outcome.batches)
            valid = f"next {outcome.next_offset}, valid {outcome.log_start_offset}-{outcome.high_watermark}"
            return f"{outcome.command_id}: {outcome.error.name} {records}, {valid}"
        case AdminOutcome():
            kind = "" if outcome.response is None else f" {type(outcome.response).__name__}"
            return f"{outcome.command_id}: {outcome.error.name}{kind}"
    raise ValueError(type(outcome).__name__)
