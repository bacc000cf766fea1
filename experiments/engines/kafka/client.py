"""The client of a scenario on a real cluster: it produces, reads and administers, and reports one outcome per command.

It speaks Kafka's protocol itself, so that it sees each error code, and keeps the rules that the project's own client
keeps (`protocol/client`): the leader is the one of the newest leader epoch that any broker names; retriable errors are
retried until `delivery.timeout.ms`; with acks=all batches have sequence numbers, and after a gap, or a batch that may
be in the log or not, the partition goes on with the next producer epoch at 0. Requests go past the links of the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

from google_crc32c import extend

from experiments.engines import admin_requests
from experiments.engines.kafka.admin import call_of, error_code, failure
from experiments.engines.kafka.segments import batches_of
from experiments.engines.kafka.wire import Connection, Unanswered
from experiments.support.errors import InputError
from protocol.config import (
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    ClusterConfig,
)
from protocol.errors import RETRIABLE, ErrorCode
from protocol.ids import NO_LEADER, NO_OFFSET, NodeId, Offset, TopicPartition
from protocol.kafka.batches import NO_PRODUCER, Pair, build_batch, to_kafka
from protocol.messages.base import Message
from protocol.messages.batch import NO_PRODUCER_ID, RecordBatch
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    Command,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
)
from protocol.messages.configs import AlterableConfig, ConfigOperation, ConfigResourceType
from protocol.messages.data import EARLIEST
from protocol.messages.quorum import AddVoterRequest

PRODUCE, FETCH, LIST_OFFSETS, METADATA, INIT_PRODUCER_ID = (0, 9), (1, 10), (2, 5), (3, 9), (22, 4)
"""APIs and versions. A fetch below version 11 is answered by the leader only (KIP-392)."""
ACKS_ALL = -1
METADATA_WITHIN_S = 2.0
FETCH_BYTES = 16 * 2**20
NO_SEGMENT = Path()
_WORKERS = 16
_LOST_SEQUENCE = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)
_PERHAPS_WRITTEN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
Address = tuple[str, int]


@dataclass(slots=True)
class _Producer:
    """The state of the producer for one partition."""

    epoch: int = 0
    sequence: int = 0
    lock: Lock = field(default_factory=Lock)

    def begin_again(self) -> None:
        """Goes on with the next producer epoch."""
        self.epoch, self.sequence = self.epoch + 1, 0


class KafkaClient:
    """`brokers` and `controllers` are the addresses of all nodes, whether they run or not; `leader` names the presumed
    active controller, which is asked first.
    """

    def __init__(
        self,
        brokers: Mapping[NodeId, Address],
        controllers: Mapping[NodeId, Address],
        config: ClusterConfig,
        leader: Callable[[], NodeId] = lambda: NO_LEADER,
    ) -> None:
        self._brokers, self._controllers, self._presumed = brokers, controllers, leader
        self._delivery_s = config.int_value(DELIVERY_TIMEOUT_MS) / 1000
        self._request_s = config.int_value(REQUEST_TIMEOUT_MS) / 1000
        self._backoff_s = config.int_value(RETRY_BACKOFF_MS) / 1000
        self._is_idempotent = bool(config.values[ENABLE_IDEMPOTENCE])
        self._pool = ThreadPoolExecutor(_WORKERS, "client")
        self._closed = Event()
        self._lock = Lock()
        self._producer_id = NO_PRODUCER_ID
        self._producers: dict[TopicPartition, _Producer] = {}
        self._running: dict[int, Future[Message]] = {}

    def submit(self, command: Command) -> None:
        """Begins a command in the background."""
        work: Callable[[Any], Message] = _WORK[type(command)].__get__(self)
        self._running[command.command_id] = self._pool.submit(work, command)

    def outcome(self, command_id: int) -> Message | None:
        """The outcome of a command, None while it is under way."""
        found = self._running.get(command_id)
        return found.result() if found is not None and found.done() else None

    def configure_broker(self, broker: NodeId, changes: Mapping[str, str | None]) -> None:
        """Sets dynamic configs of one broker, or deletes them (None). InputError where that is refused."""
        own = [
            AlterableConfig(
                name=name, operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET, value=value
            )
            for name, value in changes.items()
        ]
        request = admin_requests.alter_configs(ConfigResourceType.BROKER, str(broker), own)
        outcome = self._administer(AdminCommand(command_id=-1, request=request))
        if outcome.error is not ErrorCode.NONE:
            found = f"{outcome.error.name} ({outcome.message}) for {', '.join(changes)}"
            raise InputError(f"node {broker}", "", found, "configs that the controllers accept")

    def close(self) -> None:
        """Ends all commands; may be called again."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _produce(self, command: ProduceCommand) -> ProduceOutcome:
        partition = TopicPartition(command.topic, command.partition)
        is_idempotent = command.acks == ACKS_ALL and self._is_idempotent
        with self._lock:
            producer = self._producers.setdefault(partition, _Producer())
        with producer.lock, self._connections() as connections:
            perhaps, error, offset = False, ErrorCode.REQUEST_TIMED_OUT, NO_OFFSET
            for _ in self._attempts(self._delivery_s):
                batch = self._batch(command, producer if is_idempotent else None, connections)
                if batch is None:
                    continue
                error, offset, may_be_there = self._try_produce(command, partition, batch, connections)
                if is_idempotent and error in _LOST_SEQUENCE:
                    producer.begin_again()
                    continue
                perhaps |= may_be_there
                if error is ErrorCode.NONE or error in command.final_errors or error not in RETRIABLE:
                    break
            if error is ErrorCode.NONE:
                producer.sequence += command.record_count
                perhaps = False
            else:
                producer.begin_again()
        number = command.command_id
        return ProduceOutcome(command_id=number, error=error, base_offset=offset, unknown=perhaps)

    def _batch(
        self, command: ProduceCommand, producer: _Producer | None, connections: Connections
    ) -> RecordBatch | None:
        """The batch as the producer sends it now; None where it needs a producer id and no broker gives one."""
        numbered = NO_PRODUCER
        if producer is not None:
            identity = self._identity(connections)
            if identity == NO_PRODUCER_ID:
                return None
            numbered = (identity, producer.epoch, producer.sequence)
        pairs: list[Pair] = [(None, command.payload), *((None, b"") for _ in range(1, command.record_count))]
        return build_batch(pairs, time.time_ns() // 10**6, crc32c, numbered)

    def _try_produce(
        self, command: ProduceCommand, partition: TopicPartition, batch: RecordBatch, connections: Connections
    ) -> tuple[ErrorCode, Offset, bool]:
        """One attempt: the error, the offset, and whether the batch may be in the log all the same."""
        leader, error = self._leader(partition, connections)
        if leader is None:
            return error, NO_OFFSET, False
        partitions = [{"index": partition.partition, "records": to_kafka(batch, crc32c)}]
        topics = [{"name": partition.topic, "partition_data": partitions}]
        timeout_ms = round(self._request_s * 1000)
        values = {"transactional_id": None, "acks": command.acks, "timeout": timeout_ms, "topic_data": topics}
        try:
            if command.acks == 0:
                connections.of(leader).tell(*PRODUCE, values, self._request_s)
                return ErrorCode.NONE, NO_OFFSET, False
            response = connections.of(leader).call(*PRODUCE, values, self._request_s)
        except Unanswered as silence:
            return ErrorCode.REQUEST_TIMED_OUT, NO_OFFSET, silence.was_sent
        found = response.responses[0].partition_responses[0]
        error = error_code(int(found.error_code))
        return error, found.base_offset if error is ErrorCode.NONE else NO_OFFSET, error in _PERHAPS_WRITTEN

    def _identity(self, connections: Connections) -> int:
        """The producer id, requested from any broker with the first batch that needs it."""
        with self._lock:
            if self._producer_id == NO_PRODUCER_ID:
                values = {"transactional_id": None, "transaction_timeout": 60_000}
                for broker in self._brokers:
                    try:
                        response = connections.of(broker).call(*INIT_PRODUCER_ID, values, METADATA_WITHIN_S)
                    except Unanswered:
                        continue
                    if int(response.error_code) == 0:
                        self._producer_id = response.producer_id
                        break
            return self._producer_id

    def _leader(self, partition: TopicPartition, connections: Connections) -> tuple[NodeId | None, ErrorCode]:
        """The leader of the newest leader epoch that a broker names, or None and why."""
        newest, leader, error = -1, None, ErrorCode.LEADER_NOT_AVAILABLE
        values = {
            "topics": [{"name": partition.topic}],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        for broker in self._brokers:
            try:
                [topic] = connections.of(broker).call(*METADATA, values, METADATA_WITHIN_S).topics
            except Unanswered:
                continue
            if int(topic.error_code):
                error = error_code(int(topic.error_code))
            for found in topic.partitions:
                if found.partition_index == partition.partition and found.leader_epoch > newest:
                    newest, leader = found.leader_epoch, found.leader_id
        return (leader if leader in self._brokers else None), error

    def _consume(self, command: ConsumeCommand) -> ConsumeOutcome:
        partition = TopicPartition(command.topic, command.partition)
        number, error = command.command_id, ErrorCode.REQUEST_TIMED_OUT
        with self._connections() as connections:
            for _ in self._attempts(self._delivery_s):
                leader, error = self._leader(partition, connections)
                if leader is None:
                    continue
                try:
                    return self._read(command, partition, connections.of(leader))
                except Unanswered:
                    error = ErrorCode.REQUEST_TIMED_OUT
                except _Refused as refusal:
                    error = refusal.error
                if error in command.final_errors or error not in RETRIABLE:
                    break
        return ConsumeOutcome(command_id=number, error=error)

    def _read(self, command: ConsumeCommand, partition: TopicPartition, leader: Connection) -> ConsumeOutcome:
        """Reads to the high watermark of the first response. _Refused with the error of the leader."""
        start = _log_start(leader, partition, self._request_s)
        place = start if command.offset == EARLIEST else command.offset
        batches, mark = _read_to_the_high_watermark(leader, partition, place, self._request_s)
        return ConsumeOutcome(
            command_id=command.command_id,
            error=ErrorCode.NONE,
            batches=tuple(batches),
            high_watermark=mark,
            log_start_offset=start,
            next_offset=batches[-1].next_offset if batches else max(place, mark),
        )

    def _administer(self, command: AdminCommand) -> AdminOutcome:
        """Asks the active controller. An added voter that its leader does not reach yet is added again, as Kafka's own
        client does: the leader has aborted the change.
        """
        aborted = (AddVoterRequest, ErrorCode.REQUEST_TIMED_OUT)
        call = call_of(command.request, round(self._request_s * 1000))
        number, text = command.command_id, f"no controller answered within {self._request_s:g} s"
        with self._connections() as connections:
            for _ in self._attempts(self._request_s):
                presumed = self._presumed()
                for controller in sorted(self._controllers or self._brokers, key=lambda node: node != presumed):
                    try:
                        response = connections.of(controller).call(*call, self._request_s)
                    except Unanswered:
                        continue
                    error, message = failure(response)
                    if (type(command.request), error) == aborted:
                        text = message
                    elif error is not ErrorCode.NOT_CONTROLLER and error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                        return AdminOutcome(command_id=number, error=error, message=message)
        return AdminOutcome(command_id=number, error=ErrorCode.REQUEST_TIMED_OUT, message=text)

    # -- time and connections ------------------------------------------------------------------------------------------

    def _attempts(self, within_s: float) -> Iterator[None]:
        """Attempts with a back-off between them, the last one within the time."""
        end_s = time.monotonic() + within_s
        yield
        while time.monotonic() < end_s and not self._closed.wait(self._backoff_s):
            yield

    @contextmanager
    def _connections(self) -> Iterator[Connections]:
        """The connections of one command."""
        with closing(Connections({**self._brokers, **self._controllers})) as connections:
            yield connections


class Connections:
    """Connections to the nodes with these addresses, each opened when it is needed."""

    def __init__(self, addresses: Mapping[NodeId, Address]) -> None:
        self._addresses = addresses
        self._open: dict[NodeId, Connection] = {}

    def of(self, node: NodeId) -> Connection:
        return self._open.setdefault(node, Connection(self._addresses[node]))

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


class _Refused(Exception):
    """A leader has answered with an error."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


def fetch(leader: Connection, partition: TopicPartition, offset: Offset, within_s: float) -> Any:
    """kio's object of what a leader returns for one partition at once. _Refused with its error; Unanswered."""
    one = {"partition": partition.partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
    optional = {"current_leader_epoch": -1, "log_start_offset": -1}
    values = {
        "max_wait": 0,
        "min_bytes": 0,
        "topics": [{"topic": partition.topic, "partitions": [one | optional]}],
        "forgotten_topics_data": [],
    }
    response = leader.call(*FETCH, values, within_s)
    if int(response.error_code):
        raise _Refused(error_code(int(response.error_code)))
    found = response.responses[0].partitions[0]
    if int(found.error_code):
        raise _Refused(error_code(int(found.error_code)))
    return found


def _log_start(leader: Connection, partition: TopicPartition, within_s: float) -> Offset:
    partitions = [{"partition_index": partition.partition, "timestamp": EARLIEST, "current_leader_epoch": -1}]
    topics = [{"name": partition.topic, "partitions": partitions}]
    values = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    found = leader.call(*LIST_OFFSETS, values, within_s).topics[0].partitions[0]
    if int(found.error_code):
        raise _Refused(error_code(int(found.error_code)))
    return Offset(found.offset)


def _read_to_the_high_watermark(
    leader: Connection, partition: TopicPartition, offset: Offset, within_s: float
) -> tuple[list[RecordBatch], Offset]:
    """The batches from an offset to the high watermark of the first response, and that. _Refused; Unanswered."""
    mark, batches = -1, list[RecordBatch]()
    while mark < 0 or offset < mark:
        found = fetch(leader, partition, offset, within_s)
        mark = found.high_watermark if mark < 0 else mark
        read = batches_of(bytes(found.records or b""), NO_SEGMENT)
        fresh = [batch.stored() for batch in read if batch.next_offset > offset]
        if not fresh:
            break
        batches += (batch for batch in fresh if batch.next_offset <= mark)
        offset = fresh[-1].next_offset
    return batches, mark


def read_log(address: Address, partition: TopicPartition, within_s: float) -> tuple[list[RecordBatch], Offset] | None:
    """All batches that consumers can read from a leader, and its high watermark; None where it does not lead, or does
    not answer.
    """
    with closing(Connection(address)) as connection:
        try:
            start = _log_start(connection, partition, within_s)
            return _read_to_the_high_watermark(connection, partition, start, within_s)
        except (Unanswered, _Refused):
            return None


def high_watermark(address: Address, partition: TopicPartition, within_s: float) -> Offset | None:
    """The high watermark of a broker that leads the partition; None where it does not, or does not answer."""
    with closing(Connection(address)) as connection:
        try:
            return Offset(fetch(connection, partition, 0, within_s).high_watermark)
        except (Unanswered, _Refused):
            return None


def crc32c(data: bytes, before: int) -> int:
    return int(extend(before, data))


_WORK: Mapping[type[Command], Any] = {
    ProduceCommand: KafkaClient._produce,
    ConsumeCommand: KafkaClient._consume,
    AdminCommand: KafkaClient._administer,
}
