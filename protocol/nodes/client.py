"""The client node: does what an application with a Kafka client library would do, one command at a time or many at
once.

A produce finds the leader by asking every node of the bootstrap list for metadata (the newest leader epoch wins: a
broker that is cut off may still think that it leads), sends its batch, and deals with the answer: done, failed for
good, or refresh the metadata and try again. While an answer is outstanding, the client keeps an eye on the metadata;
a batch is sent again only when the leader epoch has moved on, because the answer may then never come. Commands end
with exactly one outcome, at the latest after `delivery.timeout.ms`: acknowledged, definitely failed, or unknown.

Every request carries the client's principal, unless it has one already. What the client may not do fails at once: no
repetition helps. Of a metadata request this is known when every node has answered or had its time, since a node whose
metadata is old may not know of a right that is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.config import DELIVERY_TIMEOUT_MS, RETRY_BACKOFF_MS, ClusterConfig
from protocol.contract import Effect, Outbox
from protocol.errors import RETRIABLE, ErrorCode, ProtocolInvariantError
from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET, NodeId, TimeMs, TopicPartition
from protocol.messages.admin import AdminResponse, MetadataRequest, MetadataResponse, PartitionMetadata
from protocol.messages.base import ANONYMOUS, Message, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    Command,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
)
from protocol.messages.data import ConsumeRequest, ConsumeResponse, ProduceRequest, ProduceResponse
from protocol.metadata.authorizer import node_principal
from protocol.nodes.refusals import refuse

WATCH_MS = 1_000
"""How often a client that waits for an answer looks whether the leader has changed."""
GATHER_MS = 50
"""How long a client waits for the metadata of nodes that do not answer."""
WATCH_PREFIX = "watch/"
GATHER_PREFIX = "gather/"
DEADLINE_PREFIX = "deadline/"
_ANSWERS: Mapping[type[Command], type[Response]] = {
    ProduceCommand: ProduceResponse,
    ConsumeCommand: ConsumeResponse,
    AdminCommand: AdminResponse,
}


@dataclass(slots=True)
class _Task:
    """A command under way. `open_attempts` are requests whose batch may have been appended. `sent_epoch` is the
    leader epoch of the attempt whose answer is outstanding, -1 if none is; `awaited` the number of nodes that have
    not yet answered the metadata request, `found` the best answer so far, `denied` the error of a node that says that
    the client may not ask; `attempts` counts administration requests sent.
    """

    command: Command
    driver: NodeId
    request_id: int = -1
    metadata_id: int = -1
    sent_epoch: int = NO_EPOCH
    awaited: int = 0
    attempts: int = 0
    found: PartitionMetadata | None = None
    denied: ErrorCode = ErrorCode.NONE
    may_be_applied: bool = False
    last_error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT
    batches: list[RecordBatch] = field(default_factory=list)
    open_attempts: set[int] = field(default_factory=set)


class ClientNode:
    """A client; `brokers` and `controllers` are its bootstrap list. `principal` defaults to the node's own."""

    def __init__(
        self,
        client_id: NodeId,
        brokers: Sequence[NodeId],
        controllers: Sequence[NodeId],
        config: ClusterConfig,
        principal: str | None = None,
    ) -> None:
        self.node_id = client_id
        self._principal = principal or node_principal(client_id)
        self._brokers = tuple(brokers)
        self._bootstrap = (*brokers, *controllers)
        self._controllers = tuple(controllers)
        self._out = Outbox()
        self._delivery_ms = config.int_value(DELIVERY_TIMEOUT_MS)
        self._backoff_ms = config.int_value(RETRY_BACKOFF_MS)
        self._correlation_id = 0
        self._tasks: dict[int, _Task] = {}
        self._requests: dict[int, int] = {}

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return []

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, ProduceCommand | ConsumeCommand | AdminCommand):
            self._begin(now_ms, sender, message)
        elif isinstance(message, Response):
            self._take_answer(now_ms, sender, message)
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        prefix, command_id = name.split("/")
        task = self._tasks[int(command_id)]
        if prefix + "/" == DEADLINE_PREFIX:
            self._finish(task, task.last_error, unknown=task.may_be_applied)
        elif prefix + "/" == GATHER_PREFIX:
            self._leader_found(task)
        elif isinstance(task.command, AdminCommand):
            self._administer(now_ms, task)
        else:
            self._find_leader(now_ms, task)
        return self._out.drain()

    # -- one command ---------------------------------------------------------------------------------------------------

    def _begin(self, now_ms: TimeMs, driver: NodeId, command: Command) -> None:
        task = _Task(command, driver)
        self._tasks[command.command_id] = task
        self._out.set_timer(f"{DEADLINE_PREFIX}{command.command_id}", now_ms + self._delivery_ms)
        if isinstance(command, AdminCommand):
            self._administer(now_ms, task)
        else:
            self._find_leader(now_ms, task)

    def _administer(self, now_ms: TimeMs, task: _Task) -> None:
        """Sends an administration request: to the controller, or, if it only asks, to the next node of the bootstrap
        list, beginning with the controller, until one answers.
        """
        assert isinstance(task.command, AdminCommand)
        self._requests.pop(task.request_id, None)
        task.request_id = self._request_id(task)
        request = task.command.request
        principal = self._principal if request.principal == ANONYMOUS else request.principal
        request = request.model_copy(update={"correlation_id": task.request_id, "principal": principal})
        nodes = (*self._controllers, *self._brokers)
        self._out.send(nodes[task.attempts % len(nodes)], request)
        task.attempts += 1
        if request.READ_ONLY:
            self._out.set_timer(f"{WATCH_PREFIX}{task.command.command_id}", now_ms + WATCH_MS)
        else:
            task.may_be_applied = True

    def _request_id(self, task: _Task) -> int:
        self._correlation_id += 1
        self._requests[self._correlation_id] = task.command.command_id
        return self._correlation_id

    def _find_leader(self, now_ms: TimeMs, task: _Task) -> None:
        """Asks the bootstrap list who leads; comes again if nobody says."""
        topic, _ = self._target(task)
        command_id = task.command.command_id
        self._requests.pop(task.metadata_id, None)
        task.metadata_id = self._request_id(task)
        task.found, task.denied, task.awaited = None, ErrorCode.NONE, len(self._bootstrap)
        request = MetadataRequest(correlation_id=task.metadata_id, principal=self._principal, topic=topic)
        for node in self._bootstrap:
            self._out.send(node, request)
        self._out.set_timer(f"{GATHER_PREFIX}{command_id}", now_ms + GATHER_MS)
        self._out.set_timer(f"{WATCH_PREFIX}{command_id}", now_ms + WATCH_MS)

    def _target(self, task: _Task) -> tuple[str, int]:
        command = task.command
        if not isinstance(command, ProduceCommand | ConsumeCommand):
            raise ProtocolInvariantError(f"{type(command).__name__} has no partition")
        return command.topic, command.partition

    def _take_answer(self, now_ms: TimeMs, sender: NodeId, response: Response) -> None:
        """Takes an answer that a command waits for; one to a request of the past is ignored, one of another type than
        the request calls for is refused.
        """
        command_id = self._requests.get(response.correlation_id)
        task = None if command_id is None else self._tasks.get(command_id)
        if task is None:
            return
        to_metadata = response.correlation_id == task.metadata_id
        if not isinstance(response, MetadataResponse if to_metadata else _ANSWERS[type(task.command)]):
            refuse(self._out, sender, response, ErrorCode.UNSUPPORTED_VERSION)
            return
        if not to_metadata:
            del self._requests[response.correlation_id]
        self._answered(now_ms, task, response)

    def _answered(self, now_ms: TimeMs, task: _Task, message: Response) -> None:
        if isinstance(message, MetadataResponse):
            self._gathered(task, message)
        elif isinstance(message, ProduceResponse):
            self._produced(now_ms, task, message)
        elif isinstance(message, ConsumeResponse):
            self._consumed(now_ms, task, message)
        elif isinstance(message, AdminResponse):
            self._end(task)
            error, text = message.failure()
            outcome = AdminOutcome(command_id=task.command.command_id, error=error, message=text, response=message)
            self._out.send(task.driver, outcome)

    def _gathered(self, task: _Task, response: MetadataResponse) -> None:
        """One node's metadata: kept if it knows of a newer leader epoch than the others."""
        topic, index = self._target(task)
        if response.error not in (ErrorCode.NONE, *RETRIABLE):
            task.denied = response.error
        for found in (p for t in response.topics if t.name == topic for p in t.partitions if p.partition == index):
            if task.found is None or found.leader_epoch > task.found.leader_epoch:
                task.found = found
        task.awaited -= 1
        if task.awaited == 0:
            self._out.cancel_timer(f"{GATHER_PREFIX}{task.command.command_id}")
            self._leader_found(task)

    def _leader_found(self, task: _Task) -> None:
        """All have answered, or time is up: sends the attempt, unless there is no leader or it is the one already
        asked, or the client may not know.
        """
        found = task.found
        if found is None and task.denied is not ErrorCode.NONE:
            self._finish(task, task.denied, unknown=task.may_be_applied)
        elif found is None:
            task.last_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif found.leader != NO_LEADER and found.leader_epoch > task.sent_epoch:
            task.sent_epoch = found.leader_epoch
            self._send(task, found.leader)

    def _send(self, task: _Task, leader: NodeId) -> None:
        command = task.command
        self._requests.pop(task.request_id, None)
        task.request_id = self._request_id(task)
        if isinstance(command, ProduceCommand):
            batch = RecordBatch(record_count=command.record_count, payload=command.payload)
            task.may_be_applied = True
            task.open_attempts.add(task.request_id)
            self._out.send(
                leader,
                ProduceRequest(
                    correlation_id=task.request_id,
                    principal=self._principal,
                    topic=command.topic,
                    partition=command.partition,
                    acks=command.acks,
                    batch=batch,
                ),
            )
            if command.acks == 0:
                self._finish(task, ErrorCode.NONE)
        elif isinstance(command, ConsumeCommand):
            offset = task.batches[-1].next_offset if task.batches else 0
            self._out.send(
                leader,
                ConsumeRequest(
                    correlation_id=task.request_id,
                    principal=self._principal,
                    topic=command.topic,
                    partition=command.partition,
                    fetch_offset=offset,
                ),
            )

    def _produced(self, now_ms: TimeMs, task: _Task, response: ProduceResponse) -> None:
        command = task.command
        if not isinstance(command, ProduceCommand):
            raise ProtocolInvariantError("a produce answer to no produce")
        if response.error is ErrorCode.NONE:
            self._finish(task, ErrorCode.NONE, response.base_offset)
            return
        task.last_error = response.error
        if response.base_offset == NO_OFFSET:
            task.open_attempts.discard(response.correlation_id)
        task.may_be_applied = bool(task.open_attempts)
        if response.error in command.final_errors or response.error not in RETRIABLE:
            self._finish(task, response.error, unknown=task.may_be_applied)
        else:
            self._retry(now_ms, task)

    def _consumed(self, now_ms: TimeMs, task: _Task, response: ConsumeResponse) -> None:
        if response.error is not ErrorCode.NONE:
            task.last_error = response.error
            task.batches.clear()
            if response.error in (*RETRIABLE, ErrorCode.OFFSET_OUT_OF_RANGE):
                self._retry(now_ms, task)
            else:
                self._finish(task, response.error)
            return
        task.batches.extend(response.batches)
        end = task.batches[-1].next_offset if task.batches else 0
        if response.batches and end < response.high_watermark:
            task.sent_epoch = NO_EPOCH
            self._find_leader(now_ms, task)
            return
        self._end(task)
        outcome = ConsumeOutcome(
            command_id=task.command.command_id,
            error=ErrorCode.NONE,
            batches=tuple(task.batches),
            high_watermark=response.high_watermark,
        )
        self._out.send(task.driver, outcome)

    def _retry(self, now_ms: TimeMs, task: _Task) -> None:
        task.sent_epoch = NO_EPOCH
        self._out.set_timer(f"{WATCH_PREFIX}{task.command.command_id}", now_ms + self._backoff_ms)

    def _finish(self, task: _Task, error: ErrorCode, base_offset: int = NO_OFFSET, unknown: bool = False) -> None:
        command_id = task.command.command_id
        self._end(task)
        if isinstance(task.command, ProduceCommand):
            name = TopicPartition(task.command.topic, task.command.partition)
            self._out.trace(
                "produced",
                name,
                command_id=command_id,
                acks=task.command.acks,
                error=error.name,
                unknown=unknown,
                base_offset=base_offset,
            )
            self._out.send(
                task.driver,
                ProduceOutcome(command_id=command_id, error=error, base_offset=base_offset, unknown=unknown),
            )
        elif isinstance(task.command, ConsumeCommand):
            self._out.send(task.driver, ConsumeOutcome(command_id=command_id, error=error))
        else:
            self._out.send(task.driver, AdminOutcome(command_id=command_id, error=error, message="no answer in time"))

    def _end(self, task: _Task) -> None:
        command_id = task.command.command_id
        del self._tasks[command_id]
        self._requests.pop(task.request_id, None)
        self._requests.pop(task.metadata_id, None)
        self._out.cancel_timer(f"{WATCH_PREFIX}{command_id}")
        self._out.cancel_timer(f"{GATHER_PREFIX}{command_id}")
        self._out.cancel_timer(f"{DEADLINE_PREFIX}{command_id}")
