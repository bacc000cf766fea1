"""The workload of a soak by clients of Kafka's, on the listeners of the brokers: librdkafka's idempotent producer, and
two of its consumers, each of which reads every partition.

Their operations enter the history as those of the project's own clients do, so one judge has the rules for both. A
record's value carries its name (`protocol/client/records.py`), whatever batch librdkafka puts it into; its delivery
report is its end. A report without an error is an acknowledgement at an offset. Any error leaves the outcome unknown:
librdkafka does not say whether the record may have been persisted. Records do not expire in librdkafka's queue, so that
each ends with the answer of a broker.

The first consumer's group commits what that consumer has read, one commit after the other. After each fault the
coordinator is asked for the group's committed offsets (`experiments/check/commits.py`).

A consumer does not show the high watermark of the response that a record came in. What it read is therefore recorded
with a high watermark behind the last record, and reads beyond it are not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from threading import Thread
from typing import Any, Literal

from experiments.check.history import Committed, Ended, OffsetShown, Operation, RecordOutcome, RecordRange, Seen
from experiments.engines.ray.engine import PolledEngine
from experiments.hunt.soak.workload import READERS, RECORD_BYTES, RECORDS_PER_SEND, Workload
from experiments.support.librdkafka import librdkafka
from protocol.client.records import identity, record
from protocol.ids import NO_OFFSET, Offset, TopicPartition

SETTINGS = {
    "broker.address.family": "v4",
    "log_level": 0,
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 1_000,
    "socket.timeout.ms": 6_000,
}
"""The default strategy, `rebootstrap`, forgets the brokers that it has learned of once it reaches none of them, and
goes back to those of the start. A broker on another Ray node has another port, so these may all be gone.
"""
PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.timeout.ms": 0,
    "request.timeout.ms": 5_000,
}
CONSUMER = {"auto.offset.reset": "error", "enable.auto.commit": False, "fetch.wait.max.ms": 300}
READ_RECORDS = 1_000
"""How many records a consumer takes over at a time."""
GROUP = "soak-0"
COMMIT_EVERY_MS = 500
OFFSETS_WITHIN_S, ANSWER_WITHIN_S = 30.0, 3.0
"""For the committed offsets in all, and for one request: without a coordinator librdkafka waits until the state of a
connection changes, which need not happen once it has found one.
"""
ASK_EVERY_S = 0.1
CLOSE_WITHIN_S = 10.0


class ClientGaveUpError(RuntimeError):
    """A client has met an error after which it does nothing more, or gets no answer from a cluster that is whole."""


class KafkaWorkload(Workload):
    """`Workload` by librdkafka, whose brokers are at `servers`. `close` ends its clients."""

    def __init__(
        self,
        clients: PolledEngine[Any],
        write: Callable[[Operation], None],
        partitions: Sequence[TopicPartition],
        rate: int,
        next_id: Callable[[], int],
        servers: str,
    ) -> None:
        super().__init__(clients, write, partitions, rate, next_id)
        self._module = librdkafka("--kafka-clients")
        settings = {**SETTINGS, "bootstrap.servers": servers}
        self._reports: list[tuple[TopicPartition, int, int, RecordOutcome, Offset]] = []
        self._left: dict[int, int] = {}
        self._fatal: Any = None
        self._producer = self._module.Producer({**settings, **PRODUCER, "error_cb": self._note_error})
        consumer = {**settings, **CONSUMER, "on_commit": self._note_commit}
        self._consumers = [self._module.Consumer({**consumer, "group.id": f"soak-{reader}"}) for reader in READERS]
        self._committing: dict[TopicPartition, Offset] = {}
        self._committed: dict[TopicPartition, Offset] = {}
        self._commit_due_ms = 0
        for reader in READERS:
            self._assign(reader)

    def close(self) -> None:
        """Ends the clients. librdkafka has no limit for that: a consumer waits for the end of its commit, also where no
        coordinator is found. So the threads that do not end in time are left.
        """
        self._producer.purge()
        threads = [Thread(target=consumer.close, daemon=True) for consumer in self._consumers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(CLOSE_WITHIN_S)

    def rewind(self) -> None:
        self._show_offsets()
        super().rewind()
        self._assign(READERS[-1])

    def _assign(self, reader: int) -> None:
        """Has a consumer read from the offsets of its followers on."""
        places = self._places({it.partition: it.offset for it in self._followers if it.reader == reader})
        self._consumers[reader].assign(places)

    def tick(self) -> None:
        """Takes over what the clients report, and sends what is due. ClientGaveUpError where the producer has ended."""
        self.others.update(self._clients.take_outcomes())
        self._producer.poll(0)
        if self._fatal is not None:
            raise ClientGaveUpError(f"librdkafka's producer has given up: {self._fatal.str()}")
        self._end_reported()
        self._send_due()
        if self.is_reading:
            for reader, consumer in enumerate(self._consumers):
                self._take(reader, consumer.consume(READ_RECORDS, 0))
            self._commit_due()

    def _places(self, offsets: Mapping[TopicPartition, Offset]) -> list[Any]:
        return [self._module.TopicPartition(it.topic, it.partition, offset) for it, offset in offsets.items()]

    def _commit_due(self) -> None:
        """Commits what the first reader has read since its last commit, once that one has ended."""
        now_ms = self._clients.now_ms()
        if self._committing or now_ms < self._commit_due_ms:
            return
        read = {it.partition: it.offset for it in self._followers if it.reader == READERS[0]}
        self._commit_due_ms = now_ms + COMMIT_EVERY_MS
        if any(offset > self._committed.get(it, 0) for it, offset in read.items()):
            self._committing = self._committed = read
            for partition, offset in read.items():
                self._write(Committed(GROUP, partition, offset, "sent", now_ms))
            self._consumers[READERS[0]].commit(offsets=self._places(read), asynchronous=True)

    def _note_commit(self, error: Any, places: Sequence[Any]) -> None:
        """The outcome of a commit, which librdkafka gives while the consumer is polled."""
        failed = {it.partition for it in places if it.error is not None}
        for partition, offset in self._committing.items():
            is_known = error is None and partition.partition not in failed
            self.counts.commits += is_known
            result: Literal["acknowledged", "unknown"] = "acknowledged" if is_known else "unknown"
            self._write(Committed(GROUP, partition, offset, result, self._clients.now_ms()))
        self._committing = {}

    def _show_offsets(self) -> None:
        """Records the committed offsets as the coordinator has them. ClientGaveUpError where it does not answer."""
        now_ms, deadline_s = self._clients.now_ms(), time.monotonic() + OFFSETS_WITHIN_S
        while (found := self._ask_offsets(deadline_s)) is None:
            time.sleep(ASK_EVERY_S)
        for place in found:
            shown = OffsetShown(
                GROUP, TopicPartition(place.topic, place.partition), max(place.offset, NO_OFFSET), now_ms
            )
            self._write(shown)

    def _ask_offsets(self, deadline_s: float) -> Sequence[Any] | None:
        """The committed offsets; None where librdkafka returns an error before the deadline. It returns the
        NOT_COORDINATOR of the broker that it knows to its caller, and looks for the new coordinator meanwhile.
        """
        asked = self._places(dict.fromkeys(self._partitions, 0))
        try:
            found: Sequence[Any] = self._consumers[READERS[0]].committed(asked, timeout=ANSWER_WITHIN_S)
        except self._module.KafkaException as error:
            if time.monotonic() < deadline_s:
                return None
            raise ClientGaveUpError(f"no committed offsets of {GROUP}: {error.args[0].str()}") from error
        return found

    def _note_error(self, error: Any) -> None:
        if error.fatal():
            self._fatal = error

    def _submit(self, send: int, partition: TopicPartition) -> None:
        self._left[send] = RECORDS_PER_SEND
        for place in range(RECORDS_PER_SEND):
            value = record(send, place, RECORD_BYTES)
            try:
                self._producer.produce(partition.topic, value, partition=partition.partition, on_delivery=self._report)
            except self._module.KafkaException as error:
                raise ClientGaveUpError(f"librdkafka's producer refuses a record: {error.args[0].str()}") from error

    def _report(self, error: Any, message: Any) -> None:
        """A delivery report, which librdkafka gives while it is polled."""
        partition = TopicPartition(message.topic(), message.partition())
        send, place = identity(message.value())
        if error is None:
            self._reports.append((partition, send, place, "acknowledged", message.offset()))
        else:
            self._reports.append((partition, send, place, "unknown", NO_OFFSET))

    def _end_reported(self) -> None:
        now_ms = self._clients.now_ms()
        reports, self._reports = self._reports, []
        for partition, end in ends_of(reports):
            if end.result == "acknowledged" and self.is_sending:
                self.gaps.acknowledged(partition, now_ms)
            self._end(end._replace(at_ms=now_ms))
            self._left[end.send] -= end.size
            if not self._left[end.send]:
                del self._left[end.send]
                self.sends.remove(end.send)

    def _take(self, reader: int, messages: Sequence[Any]) -> None:
        read = [message for message in messages if message.error() is None]
        self.counts.reads_failed += len(messages) - len(read)
        for follower in self._followers:
            if follower.reader == reader:
                index = follower.partition.partition
                runs = tuple(runs_of(message for message in read if message.partition() == index))
                if runs:
                    follower.offset = max(follower.offset, runs[-1].offset + runs[-1].size)
                    self._note_read(Seen(reader, follower.partition, runs, follower.offset))


def ends_of(
    reports: Iterable[tuple[TopicPartition, int, int, RecordOutcome, Offset]],
) -> Iterator[tuple[TopicPartition, Ended]]:
    """The ends of single records (partition, send, place, result, offset), with consecutive ones in one."""

    def series(item: tuple[int, tuple[TopicPartition, int, int, RecordOutcome, Offset]]) -> tuple[object, ...]:
        number, (partition, send, place, result, offset) = item
        return partition, send, result, place - number, offset if offset == NO_OFFSET else offset - number

    for _, group in groupby(enumerate(reports), series):
        (_, (partition, send, first, result, offset)), *others = group
        yield partition, Ended(send, first, 1 + len(others), result, offset)


def runs_of(messages: Iterable[Any]) -> Iterator[RecordRange]:
    """What a consumer has read of one partition, consecutive records of a send in one run."""

    def series(item: tuple[int, Any]) -> tuple[int, ...]:
        number, message = item
        send, place = identity(message.value())
        return send, place - number, message.offset() - number, message.leader_epoch()

    for _, group in groupby(enumerate(messages), series):
        (_, first), *others = group
        send, place = identity(first.value())
        yield RecordRange(first.offset(), first.leader_epoch(), send, place, 1 + len(others))
