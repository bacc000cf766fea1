"""A client node with its timers; the bench answers its requests for metadata and producer ids, the test the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from protocol.client.context import DEADLINE_PREFIX, WATCH_PREFIX
from protocol.client.partition_sender import IDENTITY_TIMER
from protocol.config import ClusterConfig
from protocol.contract import CancelTimer, Effect, Send, SetTimer
from protocol.errors import ErrorCode
from protocol.ids import DRIVER
from protocol.log.checksum import Checksum
from protocol.messages.admin import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from protocol.messages.base import Message
from protocol.messages.commands import ProduceCommand, SendRecords
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.nodes.client import ClientNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, config_of

M = TypeVar("M", bound=Message)
BACKOFF_MS, DELIVERY_MS, REQUEST_MS = 100, 30_000, 5_000


class ClientBench:
    """A client of brokers 0 and 1, or others. All nodes answer metadata requests at once with `leader` and
    `leader_epoch` for every partition of topic `t`, or not at all if `leader` is None. `producer_ids` are assigned in
    order, at once.
    """

    def __init__(
        self,
        partitions: int = 1,
        producer_ids: Sequence[int] = (5, 6, 7),
        checksum: Checksum | None = None,
        controllers: Sequence[int] = (CONTROLLER,),
        config: ClusterConfig | None = None,
        brokers: Sequence[int] = (0, 1),
    ) -> None:
        config = config or client_config()
        self.node = ClientNode(CLIENT, brokers, controllers, config, checksum=checksum)
        self.now_ms = 0
        self.partitions = partitions
        self.leader: int | None = 0
        self.leader_epoch = 0
        self.topic_id = "T"
        self.producer_ids = list(producer_ids)
        self.timers: dict[str, int] = {}
        self.outcomes: list[Message] = []
        self.sent: list[tuple[int, Message]] = []
        assert self.node.start(0) == []

    def receive(self, sender: int, message: Message) -> ClientBench:
        self.sent = []
        self._done(self.node.receive(self.now_ms, sender, message))
        return self

    def fire(self, name: str) -> ClientBench:
        """Advances the time to the timer and fires it; a prefix of its name is enough."""
        [name] = [timer for timer in self.timers if timer.startswith(name)]
        self.now_ms = max(self.now_ms, self.timers.pop(name))
        self.sent = []
        self._done(self.node.fire(self.now_ms, name))
        return self

    def run_until(self, now_ms: int) -> ClientBench:
        """Fires all timers that are due by then."""
        sent: list[tuple[int, Message]] = []
        while due := sorted((at_ms, name) for name, at_ms in self.timers.items() if at_ms <= now_ms):
            self.fire(due[0][1])
            sent += self.sent
        self.sent, self.now_ms = sent, now_ms
        return self

    def _done(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.name] = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.name, None)
        for effect in effects:
            if isinstance(effect, Send) and effect.to == DRIVER:
                self.outcomes.append(effect.message)
            elif isinstance(effect, Send):
                self.sent.append((effect.to, effect.message))
                self._answer(effect.to, effect.message)

    def _answer(self, node: int, message: Message) -> None:
        """The responses that the cluster sends at once."""
        if isinstance(message, MetadataRequest) and self.leader is not None:
            self._done(self.node.receive(self.now_ms, node, self.described(message.correlation_id)))
        elif isinstance(message, InitProducerIdRequest) and self.producer_ids:
            number, producer_id = message.correlation_id, self.producer_ids.pop(0)
            answer = InitProducerIdResponse(correlation_id=number, producer_id=producer_id, producer_epoch=0)
            self._done(self.node.receive(self.now_ms, node, answer))

    def described(self, correlation_id: int) -> MetadataResponse:
        assert self.leader is not None
        partitions = tuple(
            PartitionMetadata(partition=index, leader=self.leader, leader_epoch=self.leader_epoch)
            for index in range(self.partitions)
        )
        topics = (TopicMetadata(name="t", topic_id=self.topic_id, partitions=partitions),)
        return MetadataResponse(correlation_id=correlation_id, topics=topics)

    def produce(self, command_id: int, count: int = 1, **fields: object) -> ClientBench:
        """A produce command for `t-0` with acks=all."""
        stands: dict[str, object] = {"topic": "t", "partition": 0, "acks": -1, "payload": b"%d" % command_id}
        stands |= {"command_id": command_id, "record_count": count}
        return self.receive(DRIVER, ProduceCommand(**(stands | fields)))

    def send_records(self, command_id: int, count: int = 1, **fields: object) -> ClientBench:
        """A command for records of 12 bytes each."""
        stands: dict[str, object] = {"topic": "t", "partition": 0, "acks": -1, "record_bytes": 12}
        stands |= {"command_id": command_id, "record_count": count}
        return self.receive(DRIVER, SendRecords(**(stands | fields)))

    def answer(
        self, request: ProduceRequest, error: ErrorCode = ErrorCode.NONE, base_offset: int | None = None
    ) -> ClientBench:
        """The leader answers; the offset of an acknowledged batch equals its sequence number."""
        if base_offset is None:
            base_offset = request.batch.base_sequence if error is ErrorCode.NONE else -1
        response = ProduceResponse(correlation_id=request.correlation_id, error=error, base_offset=base_offset)
        return self.receive(0, response)

    def requests(self) -> list[ProduceRequest]:
        """The produce requests that the last input sent."""
        return self.messages(ProduceRequest)

    def messages(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def watch(self) -> ClientBench:
        """Fires the watch timer of the partition sender."""
        return self.fire(WATCH_PREFIX)

    def expire(self) -> ClientBench:
        """The delivery timeout of the oldest batches is over."""
        return self.fire(DEADLINE_PREFIX)

    def ask_again(self) -> ClientBench:
        return self.fire(IDENTITY_TIMER)

    def is_at_rest(self) -> bool:
        """Whether no request, timer or batch is left."""
        context = self.node._context
        return not (self.timers or context.timers or context.requests.waiting or self.node.buffered_bytes)


def client_config(**values: object) -> ClusterConfig:
    stands: dict[str, object] = {
        "retry_backoff_ms": BACKOFF_MS,
        "delivery_timeout_ms": DELIVERY_MS,
        "request_timeout_ms": REQUEST_MS,
    }
    return config_of(**(stands | values))


def numbers(requests: Sequence[ProduceRequest]) -> list[tuple[int, int, int]]:
    """Producer id, epoch and sequence number of each request."""
    return [(item.batch.producer_id, item.batch.producer_epoch, item.batch.base_sequence) for item in requests]
