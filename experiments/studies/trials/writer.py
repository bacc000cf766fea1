"""The producer of a simulated trial: at most one record at a time in each partition, straight to the leader.

It stands for clients that write all the time, of which a trial needs no more than one record after every change and one
before every failure: the former depends on the present ISR, the latter is what a crash of the machine finds in the page
cache. It learns of a change `LEARNING_MS` later, as by a metadata request, and of a new leader when that leader begins
to serve. A client's own back-offs, time-outs and sequence numbers are left out: they take less than a second of an
unavailability that is measured from the controller's and the leader's states (`states.py`). The trials on processes
have Kafka's producer (`processes/cluster.py`). A record whose leader has gone is given up, and another one goes to the
next leader; a response to the former is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.engines.sim.cluster import SimCluster
from experiments.studies.trace.kinds import ACKED, UNKNOWN, Observation, Produced
from experiments.studies.trace.schema import NONE
from experiments.studies.trials.reader import Reader
from experiments.studies.trials.setting import ACKS
from experiments.studies.trials.states import PartitionStates
from protocol.contract import Effect
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import FIRST_CLIENT, NodeId, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeResponse, ProduceRequest, ProduceResponse

LEARNING_MS = 5
"""Longer than the controller's brokers need to learn of the same change."""
_CHANGE_FOLLOWS = frozenset(
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER)
)
"""Errors after which the partition changes before a write can succeed."""


@dataclass(slots=True)
class Writes:
    """The writes to one partition. `acked`: (offset, payload) by offset. `outstanding`: the number of the request in
    flight, sent at `sent_ms` with `payload`; `due_ms`: when another write follows, None if none does."""

    acked: list[tuple[int, bytes]] = field(default_factory=list)
    outstanding: int | None = None
    sent_ms: TimeMs = 0
    payload: bytes = b""
    due_ms: TimeMs | None = None


class Writer:
    """A client node of `cluster` that writes to the leaders in `states`, with the acks of each partition. `add` takes
    the rows of the trace; `settled` is called after each write that no other write follows; `reader` takes the
    responses to its reads."""

    node_id = FIRST_CLIENT

    def __init__(
        self,
        cluster: SimCluster,
        states: PartitionStates,
        add: Callable[[Observation], None],
        settled: Callable[[], None],
        reader: Reader | None,
    ) -> None:
        self.writes = {name: Writes() for name in states.partitions}
        self._cluster = cluster
        self._states = states
        self._add = add
        self._settled = settled
        self._reader = reader
        self._partitions: dict[int, TopicPartition] = {}
        self._last_number = 0

    def request(self, name: TopicPartition) -> None:
        """Writes one record `LEARNING_MS` from now, and as soon as the partition has a leader that serves and no write
        is in flight. A write that is due is put off: its leader may refuse it before it has learned of this change."""
        due_ms = self.writes[name].due_ms = self._cluster.now_ms + LEARNING_MS
        self._cluster.call_at(due_ms, lambda: self._write_due(name))

    def handle_leader(self, name: TopicPartition) -> None:
        """The partition has a leader that serves in a new leader epoch: writes to it, and gives up an earlier write."""
        self.give_up(name)
        self.request(name)

    def give_up(self, name: TopicPartition) -> None:
        """The outcome of the write in flight, if any, stays unknown."""
        writes = self.writes[name]
        state = self._states.partitions[name]
        if writes.outstanding is not None and ACKS[state.acks]:
            self._add(Produced(state.index, UNKNOWN, self._cluster.now_ms - writes.sent_ms, NONE))
        writes.outstanding = None

    def start(self, now_ms: TimeMs) -> list[Effect]:
        """Nothing: writes follow changes."""
        return []

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        """Takes the response to a write or a read, and ignores those to the creation of the topic and to its moves."""
        if isinstance(message, ProduceResponse):
            self._complete(now_ms, message)
        elif isinstance(message, ConsumeResponse) and self._reader is not None:
            self._reader.complete(message)
        return []

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        """Raises ProtocolInvariantError: a writer has no timers."""
        raise ProtocolInvariantError(f"the writer has no timer {name!r}")

    def _write_due(self, name: TopicPartition) -> None:
        writes, state, now_ms = self.writes[name], self._states.partitions[name], self._cluster.now_ms
        if writes.due_ms is None or now_ms < writes.due_ms or writes.outstanding is not None or not state.serves:
            return
        self._last_number += 1
        writes.outstanding, writes.due_ms, writes.sent_ms = self._last_number, None, now_ms
        writes.payload = self._last_number.to_bytes(8, "big")
        acks = ACKS[state.acks]
        batch = RecordBatch.unchecked(record_count=1, payload=writes.payload, timestamp_ms=now_ms)
        request = ProduceRequest.unchecked(
            correlation_id=self._last_number,
            topic=name.topic,
            partition=name.partition,
            acks=acks,
            batch=batch,
        )
        self._cluster.send(FIRST_CLIENT, state.leader, request)
        if acks == 0:
            self._end(now_ms, name, ErrorCode.NONE)
        else:
            self._partitions[self._last_number] = name

    def _complete(self, now_ms: TimeMs, response: ProduceResponse) -> None:
        name = self._partitions.pop(response.correlation_id)
        writes = self.writes[name]
        if writes.outstanding == response.correlation_id:
            if response.error is ErrorCode.NONE:
                writes.acked.append((response.base_offset, writes.payload))
            detail = ACKED if response.error is ErrorCode.NONE else response.error.name
            self._add(
                Produced(self._states.partitions[name].index, detail, now_ms - writes.sent_ms, response.base_offset)
            )
            self._end(now_ms, name, response.error)

    def _end(self, now_ms: TimeMs, name: TopicPartition, error: ErrorCode) -> None:
        """Ends the write in flight. Raises ProtocolInvariantError for an error that no fault of a trial explains."""
        writes = self.writes[name]
        if error is ErrorCode.NONE:
            self._states.handle_acknowledgement(now_ms, name, writes.sent_ms)
            if writes.due_ms is None and self._states.partitions[name].waiting_since_ms is not None:
                writes.due_ms = now_ms
        elif error is ErrorCode.REQUEST_TIMED_OUT:
            writes.due_ms = now_ms
        elif error is ErrorCode.NOT_ENOUGH_REPLICAS:
            self._states.handle_refusal(name, writes.sent_ms)
        elif error not in _CHANGE_FOLLOWS:
            raise ProtocolInvariantError(f"the leader of {name} refuses a write: {error.name}")
        writes.outstanding = None
        if writes.due_ms is not None:
            self._write_due(name)
        else:
            self._settled()
