"""The load generator: a node that produces at a given concurrency and measures latencies, hosted as the cluster's
client is, so that its frames take the path of any client's frames. It runs one command at a time
(`protocol.messages.commands`):

- *load*: looks up the leaders once, then keeps a number of batches under way over all partitions in turn. Each response
  makes room for the next batch; after an error response (the broker does not lead, or lacks replicas) the generator
  waits `RETRY_MS` and looks up the leaders again.
- *probe*: measures how soon partitions are served again after the loss of their leader. The generator sends the batch
  to all remaining brokers until one acknowledges it, and looks up no leaders. Once the partitions that are probed ahead
  have acknowledged theirs, it looks up the leaders of all others with one request, as a client does, and sends each
  batch to its leader.

It reads a high-resolution clock for latencies, which a node of the protocol must not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median_low, quantiles

from protocol.contract import Effect, Outbox
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import NO_LEADER, BrokerId, NodeId, TimeMs
from protocol.log.checksum import Checksum, checksum_of
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.base import Message, changed
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import LoadCommand, LoadOutcome, ProbeCommand, ProbeOutcome
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.metadata.authorizer import node_principal

RETRY_MS = 50
LOOK_UP_TIMER = "load/look-up"
BEGIN_TIMER = "load/begin"
END_TIMER = "load/end"
PROBE_TIMER = "probe/retry"


@dataclass(slots=True)
class _Load:
    """A load under way; times in seconds of the generator's clock. `sent` has the send time of each batch under way, by
    correlation id; `idle` is the number of batches that may be sent once the leaders are known.
    """

    command: LoadCommand
    driver: NodeId
    batch: RecordBatch
    idle: int
    leaders: dict[int, BrokerId] = field(default_factory=dict)
    turn: int = 0
    sent: dict[int, float] = field(default_factory=dict)
    began_s: float | None = None
    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0
    last_error: ErrorCode = ErrorCode.NONE
    awaits_leaders: bool = False


@dataclass(slots=True)
class _Probe:
    """A probe under way. `waiting` are partitions without a request yet, `offered` has the partition of each request by
    correlation id, `open_offers` the number of brokers that have not answered for a partition, `refused` the partitions
    that all brokers have refused. `later` are those that are probed once all others have acknowledged.
    """

    command: ProbeCommand
    driver: NodeId
    batch: RecordBatch
    waiting: deque[int]
    later: Sequence[int] = ()
    leaders: dict[int, BrokerId] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)
    open_offers: dict[int, int] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    acknowledged_ms: dict[int, TimeMs] = field(default_factory=dict)


class LoadNode:
    """The load generator as a `contract.Node`. Its batches carry the checksum that a producer computes; `clock_s` is a
    monotonic clock in seconds.
    """

    def __init__(
        self,
        node_id: NodeId,
        brokers: Sequence[BrokerId],
        checksum: Checksum,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.node_id = node_id
        self._principal = node_principal(node_id)
        self._brokers = tuple(brokers)
        self._checksum = checksum
        self._clock_s = clock_s
        self._out = Outbox()
        self._correlation_id = 0
        self._load: _Load | None = None
        self._probe: _Probe | None = None

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return []

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        """Handles a command or a response. ProtocolInvariantError for a command while another one is under way."""
        if isinstance(message, LoadCommand | ProbeCommand):
            if self._load is not None or self._probe is not None:
                raise ProtocolInvariantError("a load generator takes one command at a time")
            self._begin(now_ms, sender, message)
        elif isinstance(message, MetadataResponse) and self._load is not None:
            self._handle_metadata(self._load, message, now_ms)
        elif isinstance(message, ProduceResponse) and self._load is not None:
            self._handle_load_response(self._load, message, now_ms)
        elif isinstance(message, MetadataResponse) and self._probe is not None:
            self._handle_leaders(self._probe, message, now_ms)
        elif isinstance(message, ProduceResponse) and self._probe is not None:
            self._handle_probe_response(self._probe, message, now_ms)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        if self._load is not None and name == LOOK_UP_TIMER:
            self._look_up(self._load, now_ms)
        elif self._load is not None and name == BEGIN_TIMER:
            self._load.began_s = self._clock_s()
            self._out.set_timer(END_TIMER, now_ms + self._load.command.duration_ms)
        elif self._load is not None and name == END_TIMER:
            self._end(self._load)
        elif self._probe is not None and name == PROBE_TIMER:
            refused, self._probe.refused = self._probe.refused, []
            for partition in refused:
                self._offer(self._probe, partition, now_ms)
        return self._out.drain()

    def _begin(self, now_ms: TimeMs, driver: NodeId, command: LoadCommand | ProbeCommand) -> None:
        count = command.record_count if isinstance(command, LoadCommand) else 1
        batch = RecordBatch(record_count=count, payload=b"\xa5" * command.payload_bytes)
        if isinstance(command, LoadCommand):
            self._load = _Load(command, driver, batch, idle=command.in_flight)
            self._look_up(self._load, now_ms)
            self._out.set_timer(BEGIN_TIMER, now_ms + command.warm_up_ms)
        else:
            first = command.ahead or len(command.partitions)
            ahead, later = deque(command.partitions[:first]), command.partitions[first:]
            self._probe = _Probe(command, driver, batch, ahead, later)
            self._offer_more(self._probe, now_ms)

    def _produce(
        self, now_ms: TimeMs, broker: BrokerId, command: LoadCommand | ProbeCommand, partition: int, batch: RecordBatch
    ) -> int:
        """Sends the batch with the present time as its timestamp; returns the correlation id of the request."""
        self._correlation_id += 1
        sent = changed(batch, timestamp_ms=now_ms)
        request = ProduceRequest(
            correlation_id=self._correlation_id,
            principal=self._principal,
            topic=command.topic,
            partition=partition,
            acks=command.acks,
            batch=changed(sent, crc=checksum_of(sent, self._checksum)),
        )
        self._out.send(broker, request)
        return self._correlation_id

    def _look_up(self, load: _Load, now_ms: TimeMs) -> None:
        """Requests metadata from all brokers, and again after `RETRY_MS` unless a response names every leader."""
        self._correlation_id += 1
        load.awaits_leaders = True
        request = MetadataRequest(
            correlation_id=self._correlation_id, principal=self._principal, topic=load.command.topic
        )
        for broker in self._brokers:
            self._out.send(broker, request)
        self._out.set_timer(LOOK_UP_TIMER, now_ms + RETRY_MS)

    def _handle_metadata(self, load: _Load, response: MetadataResponse, now_ms: TimeMs) -> None:
        found = {p.partition: p.leader for topic in response.topics for p in topic.partitions}
        leaders = {partition: found.get(partition, NO_LEADER) for partition in load.command.partitions}
        if not load.awaits_leaders or response.correlation_id != self._correlation_id or NO_LEADER in leaders.values():
            return
        load.leaders, load.awaits_leaders = leaders, False
        self._out.cancel_timer(LOOK_UP_TIMER)
        self._send_batches(load, now_ms)

    def _send_batches(self, load: _Load, now_ms: TimeMs) -> None:
        partitions = load.command.partitions
        for _ in range(load.idle):
            partition = partitions[load.turn % len(partitions)]
            load.turn += 1
            number = self._produce(now_ms, load.leaders[partition], load.command, partition, load.batch)
            load.sent[number] = self._clock_s()
        load.idle = 0

    def _handle_load_response(self, load: _Load, response: ProduceResponse, now_ms: TimeMs) -> None:
        sent_s = load.sent.pop(response.correlation_id, None)
        if sent_s is None:
            return
        load.idle += 1
        if response.error is not ErrorCode.NONE:
            load.refused += load.began_s is not None
            load.last_error = response.error
            if not load.awaits_leaders:
                load.awaits_leaders = True
                self._out.set_timer(LOOK_UP_TIMER, now_ms + RETRY_MS)
            return
        if load.began_s is not None:
            load.latencies_s.append(self._clock_s() - sent_s)
        if not load.awaits_leaders:
            self._send_batches(load, now_ms)

    def _end(self, load: _Load) -> None:
        self._load = None
        self._out.cancel_timer(LOOK_UP_TIMER)
        assert load.began_s is not None
        latencies_us = [round(latency * 1e6) for latency in load.latencies_s]
        p50_us, p99_us = p50_and_p99(latencies_us)
        outcome = LoadOutcome(
            command_id=load.command.command_id,
            acknowledged=len(latencies_us),
            refused=load.refused,
            unanswered=len(load.sent),
            elapsed_us=round((self._clock_s() - load.began_s) * 1e6),
            p50_us=p50_us,
            p99_us=p99_us,
            last_error=load.last_error,
        )
        self._out.send(load.driver, outcome)

    def _offer_more(self, probe: _Probe, now_ms: TimeMs) -> None:
        while probe.waiting and len(probe.open_offers) + len(probe.refused) < probe.command.in_flight:
            self._offer(probe, probe.waiting.popleft(), now_ms)

    def _offer(self, probe: _Probe, partition: int, now_ms: TimeMs) -> None:
        """Sends the batch to the leader, if it has been looked up and none was sent to it yet, else to all brokers."""
        leader, command = probe.leaders.pop(partition, NO_LEADER), probe.command
        brokers = (leader,) if leader in command.brokers else command.brokers
        probe.open_offers[partition] = len(brokers)
        for broker in brokers:
            probe.offered[self._produce(now_ms, broker, command, partition, probe.batch)] = partition

    def _find_leaders(self, probe: _Probe) -> None:
        self._correlation_id += 1
        request = MetadataRequest(
            correlation_id=self._correlation_id, principal=self._principal, topic=probe.command.topic
        )
        self._out.send(probe.command.brokers[0], request)

    def _handle_leaders(self, probe: _Probe, response: MetadataResponse, now_ms: TimeMs) -> None:
        if response.correlation_id == self._correlation_id and probe.later:
            probe.leaders = {p.partition: p.leader for topic in response.topics for p in topic.partitions}
            probe.waiting, probe.later = deque(probe.later), ()
            self._offer_more(probe, now_ms)

    def _handle_probe_response(self, probe: _Probe, response: ProduceResponse, now_ms: TimeMs) -> None:
        partition = probe.offered.pop(response.correlation_id, None)
        if partition is None or partition in probe.acknowledged_ms:
            return
        if response.error is ErrorCode.NONE:
            probe.acknowledged_ms[partition] = now_ms
            del probe.open_offers[partition]
            self._offer_more(probe, now_ms)
            if len(probe.acknowledged_ms) == len(probe.command.partitions):
                self._probe = None
                times = tuple(probe.acknowledged_ms[partition] for partition in probe.command.partitions)
                self._out.send(probe.driver, ProbeOutcome(command_id=probe.command.command_id, acknowledged_ms=times))
            elif probe.later and not probe.open_offers and not probe.refused:
                self._find_leaders(probe)
            return
        probe.open_offers[partition] -= 1
        if not probe.open_offers[partition]:
            del probe.open_offers[partition]
            if not probe.refused:
                self._out.set_timer(PROBE_TIMER, now_ms + probe.command.retry_ms)
            probe.refused.append(partition)


def p50_and_p99(values: Sequence[int]) -> tuple[int, int]:
    """The median (the lower of the two middle values) and the 99th percentile (interpolated); 0 for no values."""
    if len(values) < 2:
        only = values[0] if values else 0
        return only, only
    return median_low(values), round(quantiles(values, n=100, method="inclusive")[98])
