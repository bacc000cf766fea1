"""The workload: an application that keeps a book of what its client, aiokafka, has told it.

It sends each record once: a send that fails is not repeated, so a record that is there twice was sent twice by the
client. When all faults are over and the cluster has had `HEALTHY_MS` to come back, every partition gets a *probe*,
which is repeated until one is acknowledged, and the readers must reach the probes. What does not come about within
`WITHIN_S` is stuck. As a control a new client then does the same: where it cannot either, the cluster is to blame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from experiments.hunt.clients.plan import TOPIC, ClientPlan

HEALTHY_MS = 15_000
WITHIN_S = 60.0
PAUSE_S = 1.0
GROUP = "readers"


@dataclass(slots=True)
class Send:
    """A record, and what the client has said about it; `offset` as the client gave it, -1 where it gave none."""

    partition: int
    value: bytes
    outcome: Literal["open", "acknowledged", "failed"] = "open"
    offset: int = -1
    error: str = ""


@dataclass(slots=True)
class Book:
    """What the client has told the application. `read`: member, partition, offset and value, in order. `stuck`: who
    made no progress, with which error, and what did not come about; `control`: what a new client could not do either.
    `errors`: exceptions that are not Kafka's, and where they came from.
    """

    sends: list[Send] = field(default_factory=list)
    read: list[tuple[int, int, int, bytes | None]] = field(default_factory=list)
    stuck: list[tuple[str, str, str]] = field(default_factory=list)
    control: list[str] = field(default_factory=list)
    errors: list[tuple[str, BaseException]] = field(default_factory=list)

    def reached(self, ends: dict[int, int]) -> bool:
        """Whether every partition was read up to an offset."""
        return {*ends.items()} <= {(partition, offset) for _, partition, offset, _ in self.read}


@contextmanager
def quiet() -> Iterator[None]:
    """aiokafka writes no log during the block: the errors of a run are in the book."""
    logger = logging.getLogger("aiokafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class Library(NamedTuple):
    """Makes the clients of the workload, which have the methods of aiokafka's: a `producer` (servers, plan), and a
    `consumer` (servers, plan, member), a member of the group, or 0 for one that has all partitions.
    """

    producer: Callable[[str, ClientPlan], Any]
    consumer: Callable[[str, ClientPlan, int], Any]


def _producer(servers: str, plan: ClientPlan) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=plan.idempotent,
        linger_ms=plan.linger_ms,
        request_timeout_ms=plan.request_timeout_ms,
    )


def _consumer(servers: str, plan: ClientPlan, member: int) -> AIOKafkaConsumer:
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": plan.auto_commit}
    topics = (TOPIC,) if member else ()
    options |= {"group_id": GROUP} if member else {}
    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=servers, request_timeout_ms=max(11_000, plan.request_timeout_ms), **options
    )
    if not member:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(plan.partitions)])
    return consumer


AIOKAFKA = Library(_producer, _consumer)


async def application(servers: str, plan: ClientPlan, library: Library = AIOKAFKA) -> Book:
    """Runs the workload to its end."""
    book = Book()
    begun_s = asyncio.get_running_loop().time()
    members = range(1, plan.members + 1) if plan.members else (0,)

    def new_reader(member: int) -> Callable[[], Any]:
        return partial(library.consumer, servers, plan, member)

    readers = [asyncio.create_task(_reader(new_reader(member), plan, book, member)) for member in members]
    await _Writer(partial(library.producer, servers, plan), plan, book, begun_s).run()
    ends = {send.partition: send.offset for send in book.sends if send.value.startswith(b"probe")}
    if not await _within(lambda: book.reached(ends), WITHIN_S):
        missing = sorted({*ends.items()} - {(partition, offset) for _, partition, offset, _ in book.read})
        book.stuck.append(("reader", "", f"(partition, offset) {missing} not read"))
        if not await _control_reads(new_reader(0), plan, ends):
            book.control.append("a new consumer cannot read them either")
    for reader in readers:
        reader.cancel()
    done, open_readers = await asyncio.wait(readers, timeout=WITHIN_S)
    if open_readers:
        book.stuck.append(("consumer.stop", "", f"{len(open_readers)} consumers do not stop"))
    book.errors += [("consumer", error) for it in done if not it.cancelled() and (error := it.exception()) is not None]
    return book


class _Writer:
    """The producer's part of the workload."""

    def __init__(self, new: Callable[[], Any], plan: ClientPlan, book: Book, begun_s: float) -> None:
        self._producer, self._plan, self._book = new, plan, book
        self._healthy_s = begun_s + (plan.end_ms + HEALTHY_MS) / 1_000

    async def run(self) -> None:
        producer = await _started(self._producer)
        await asyncio.gather(*(self._send_all(producer, number) for number in range(self._plan.partitions)))
        await asyncio.sleep(max(0.0, self._healthy_s - asyncio.get_running_loop().time()))
        for number in range(self._plan.partitions):
            await self._probe(producer, number)
        if not await _within(lambda: all(send.outcome != "open" for send in self._book.sends), WITHIN_S):
            opened = [send.value.decode() for send in self._book.sends if send.outcome == "open"]
            self._book.stuck.append(("send", "", f"no outcome of {', '.join(opened[:3])}, {len(opened)} in all"))
        if not await _ends(producer.stop()):
            self._book.stuck.append(("producer.stop", "", "the producer does not stop"))

    async def _send_all(self, producer: Any, number: int) -> None:
        for record in range(self._plan.records):
            await self._send(producer, Send(number, b"%d-%d" % (number, record)))
            await asyncio.sleep(self._plan.every_ms / 1_000)

    async def _send(self, producer: Any, send: Send) -> None:
        self._book.sends.append(send)
        sending = asyncio.ensure_future(producer.send(TOPIC, send.value, partition=send.partition))
        await asyncio.wait([sending])
        if (error := sending.exception()) is not None:
            self._failed(send, error)
        else:
            sending.result().add_done_callback(partial(self._completed, send))

    def _completed(self, send: Send, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._failed(send, asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self._failed(send, error)
        else:
            send.outcome, send.offset = "acknowledged", future.result().offset

    def _failed(self, send: Send, error: BaseException) -> None:
        send.outcome, send.error = "failed", type(error).__name__
        if not isinstance(error, KafkaError):
            self._book.errors.append(("producer.send", error))

    async def _probe(self, producer: Any, number: int) -> None:
        """Sends to a partition until a record is acknowledged."""
        loop = asyncio.get_running_loop()
        until_s, attempts = loop.time() + WITHIN_S, 0
        send = Send(number, b"")
        while loop.time() < until_s:
            attempts += 1
            send = Send(number, b"probe-%d-%d" % (number, attempts))
            await self._send(producer, send)
            await _within(lambda send=send: send.outcome != "open", until_s - loop.time())  # type: ignore[misc]
            if send.outcome == "acknowledged":
                return
            await asyncio.sleep(PAUSE_S)
        words = f"partition {number}: {attempts} sends, the last one {send.outcome}"
        self._book.stuck.append(("producer", send.error, words))
        new = await _started(self._producer)
        control = Send(number, b"probe-%d-control" % number)
        await self._send(new, control)
        if not await _within(lambda: control.outcome == "acknowledged", WITHIN_S):
            self._book.control.append(f"a new producer cannot write to partition {number} either")
        await _ends(new.stop())


async def _reader(new: Callable[[], Any], plan: ClientPlan, book: Book, member: int) -> None:
    """Reads until it is cancelled; the last member is replaced once, where the plan says so."""
    if plan.restart_ms and 0 < member == plan.members:
        with suppress(TimeoutError):
            await asyncio.wait_for(_read(new, plan, book, member), plan.restart_ms / 1_000)
    await _read(new, plan, book, member)


async def _read(new: Callable[[], Any], plan: ClientPlan, book: Book, member: int) -> None:
    """Reads until it is cancelled: all partitions (member 0), or as a member of the group."""
    consumer = await _started(new)
    try:
        while True:
            try:
                record = await consumer.getone()
                book.read.append((member, record.partition, record.offset, record.value))
                if member and not plan.auto_commit:
                    await _commit(consumer, record)
            except KafkaError:
                await asyncio.sleep(PAUSE_S)
    finally:
        if not await _ends(consumer.stop()):
            book.stuck.append(("consumer.stop", "", f"member {member} does not stop"))


async def _commit(consumer: Any, record: Any) -> None:
    """Commits a record. What a rebalance refuses is read again by the partition's next owner."""
    place = TopicPartition(record.topic, record.partition)
    if place in consumer.assignment():
        await consumer.commit({place: record.offset + 1})


async def _control_reads(new: Callable[[], Any], plan: ClientPlan, ends: dict[int, int]) -> bool:
    """Whether a new consumer reads up to the ends."""
    book = Book()
    reader = asyncio.create_task(_read(new, plan, book, 0))
    is_there = await _within(lambda: book.reached(ends), WITHIN_S)
    reader.cancel()
    await asyncio.wait([reader], timeout=WITHIN_S)
    return is_there


async def _started(make: Callable[[], Any]) -> Any:
    """A client that has started; a new one until one does."""
    while True:
        client, is_up = make(), False
        try:
            with suppress(KafkaError):
                await client.start()
                is_up = True
        finally:
            if not is_up:
                await client.stop()
        if is_up:
            return client
        await asyncio.sleep(PAUSE_S)


async def _within(is_true: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes about within a time."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while not is_true() and loop.time() < until_s:
        await asyncio.sleep(0.1)
    return is_true()


async def _ends(stop: Coroutine[Any, Any, None] | Awaitable[None]) -> bool:
    """Whether a stop comes to its end in time."""
    try:
        await asyncio.wait_for(stop, WITHIN_S)
    except TimeoutError:
        return False
    return True
