"""What a client sees of a partition while its replicas fail, until KIP-966's rules have given it a leader again.

A program of the protocol alone, without a client library: every request is one that libraries send, and what is printed
is in the responses. It asks each half second, of any broker that answers, for the partition (Metadata and
DescribeTopicPartitions), writes a record with acks=all to the leader, and reads on from where it is. A line is printed
where an answer differs from the one before.

    python -m experiments.virtual.examples.end_state [elr | balanced | proactive | manual]
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.virtual.broker import crc32c
from experiments.virtual.simulation import SimulatedKafka
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.kafka.batches import build_batch, to_kafka
from protocol.kafka.wire import RequestHead, decode_response, encode_request

TOPIC = "orders"
EVERY_S = 0.5
WITHIN_S = 1.0
"""How long the program waits for a response, and a broker with acks=all for the others."""
METADATA, DESCRIBE, PRODUCE, FETCH = (3, 12), (75, 0), (0, 9), (1, 12)
_BATCH = struct.Struct(">qii7si")
"""Of a batch: base offset, length behind that field, leader epoch, what is not needed, last offset delta."""
Step = Mapping[str, object]


def crash(at_s: int, broker: int, lose: str = "none") -> Step:
    return {"at": f"{at_s}s", "crash": {"broker": broker, "lose": lose}}


def start(at_s: int, broker: int) -> Step:
    return {"at": f"{at_s}s", "start": {"broker": broker}}


ALL_DOWN = (crash(2, 2), crash(15, 1), crash(30, 0))
RUNS: Mapping[str, tuple[Mapping[str, object], Sequence[Step], int]] = {
    "elr": (
        {},
        (crash(2, 2), {"at": "15s", "shutdown": {"broker": 1}}, crash(25, 0), start(40, 1), start(50, 0)),
        60,
    ),
    "balanced": ({}, (*ALL_DOWN, start(45, 1), start(55, 0)), 65),
    "proactive": (
        {"unclean.recovery.strategy": "proactive"},
        (crash(2, 2), crash(15, 1), crash(30, 0, lose="all"), start(45, 2), start(60, 1)),
        75,
    ),
    "manual": (
        {"unclean.recovery.strategy": "manual"},
        (*ALL_DOWN, start(45, 1), start(55, 0), {"at": "65s", "elect": {"topic": TOPIC, "type": "unclean"}}),
        75,
    ),
}
"""By name: configs of the topic, the failures, and how many seconds the client looks on."""


class Broker:
    """A connection to a broker, which is opened again after an error. OSError or TimeoutError where it fails."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.partition(":")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._last = 0

    async def ask(self, api: tuple[int, int], values: Mapping[str, Any]) -> Any:
        try:
            return await asyncio.wait_for(self._ask(api, values), 2 * WITHIN_S)
        except (TimeoutError, OSError, EOFError):
            if self._streams is not None:
                self._streams[1].close()
            self._streams = None
            raise

    async def _ask(self, api: tuple[int, int], values: Mapping[str, Any]) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, int(self._port))
        reader, writer = self._streams
        self._last += 1
        writer.write(encode_request(*api, self._last, "end-state", values))
        length = int.from_bytes(await reader.readexactly(4), "big")
        return decode_response(RequestHead(*api, self._last), await reader.readexactly(length))


@dataclass
class Sight:
    """What the client has seen: `lines` are (seconds, subject, text)."""

    brokers: Sequence[Broker]
    lines: list[tuple[float, str, str]] = field(default_factory=list)
    last: dict[str, str] = field(default_factory=dict)
    leader: int = NO_LEADER
    epoch: int = -1
    offset: int = 0
    read_epoch: int = -1

    def note(self, subject: str, text: str) -> None:
        if self.last.get(subject) != text:
            self.last[subject] = text
            self.lines.append((asyncio.get_running_loop().time(), subject, text))

    async def look(self) -> None:
        """Asks the brokers for the partition, one after the other, until one answers."""
        for broker in self.brokers:
            try:
                told = await broker.ask(METADATA, _about(topic_id=None, name=TOPIC) | _METADATA_FLAGS)
                page = await broker.ask(DESCRIBE, _about(name=TOPIC) | {"response_partition_limit": 1, "cursor": None})
            except (TimeoutError, OSError, EOFError):
                continue
            error, found = ErrorCode(told.topics[0].partitions[0].error_code), page.topics[0].partitions[0]
            self.leader, self.epoch = found.leader_id, found.leader_epoch
            self.note("metadata", f"{error.name}, leader {self.leader}, epoch {self.epoch}")
            sets = (found.isr_nodes, found.eligible_leader_replicas, found.last_known_elr)
            names = ("ISR", "ELR", "last known ELR")
            self.note("partition", "; ".join(f"{name} {_ids(ids)}" for name, ids in zip(names, sets, strict=True)))
            return
        self.note("metadata", "no broker answers")

    async def write(self) -> None:
        batch = to_kafka(build_batch([(None, b"order")], 0, crc32c), crc32c)
        topics = [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}]
        wait_ms = int(WITHIN_S * 1000)
        asked = {"transactional_id": None, "acks": -1, "timeout": wait_ms, "topic_data": topics}
        if (answer := await self._of_leader("write", PRODUCE, asked)) is not None:
            self.note("write", ErrorCode(answer.responses[0].partition_responses[0].error_code).name)

    async def read(self) -> None:
        partition = {
            "partition": 0,
            "current_leader_epoch": self.epoch,
            "fetch_offset": self.offset,
            "last_fetched_epoch": self.read_epoch,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        asked: dict[str, Any] = {
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": 0,
        }
        asked |= {"replica_id": -1, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
        answer = await self._of_leader("read", FETCH, asked | {"topics": [{"topic": TOPIC, "partitions": [partition]}]})
        if answer is not None:
            self._take(answer.responses[0].partitions[0])

    def _take(self, found: Any) -> None:
        """The records of a response; where the log has others than those that were read, it goes back."""
        text, diverging = ErrorCode(found.error_code).name, found.diverging_epoch
        if diverging.end_offset >= 0:
            text = f"NONE, diverging: epoch {diverging.epoch} ends at {diverging.end_offset}, read up to {self.offset}"
            self.offset, self.read_epoch = diverging.end_offset, diverging.epoch
        elif found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            text += f" at {self.offset}: the log is from {found.log_start_offset} to {found.high_watermark}"
            self.offset, self.read_epoch = max(found.high_watermark, 0), -1
        elif found.records:
            self.offset, self.read_epoch = _end_of(found.records)
        self.note("read", text)

    async def _of_leader(self, subject: str, api: tuple[int, int], values: Mapping[str, Any]) -> Any:
        """The leader's answer; None without one."""
        if self.leader == NO_LEADER:
            return None
        try:
            return await self.brokers[self.leader].ask(api, values)
        except (TimeoutError, OSError, EOFError) as error:
            self.note(subject, f"broker {self.leader}: {type(error).__name__}")
            return None


_METADATA_FLAGS = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


def _about(**topic: Any) -> dict[str, Any]:
    return {"topics": [topic]}


def _ids(brokers: Sequence[int] | None) -> str:
    return " ".join(map(str, brokers or ())) or "-"


def _end_of(records: bytes) -> tuple[int, int]:
    """The offset behind the last of Kafka's batches, and its leader epoch."""
    place = end = epoch = 0
    while place < len(records):
        base, length, epoch, _, last = _BATCH.unpack_from(records, place)
        end = base + last + 1
        place += 12 + length
    return end, epoch


async def look_on(servers: str, seconds: int) -> list[tuple[float, str, str]]:
    """The client: returns its lines, with seconds from its start."""
    begun_s = asyncio.get_running_loop().time()
    sight = Sight([Broker(address) for address in servers.split(",")])
    while asyncio.get_running_loop().time() < begun_s + seconds:
        for act in (sight.look, sight.write, sight.read):
            await act()
        await asyncio.sleep(EVERY_S)
    return [(at_s - begun_s, subject, text) for at_s, subject, text in sight.lines]


def run(name: str, seed: int = 1) -> list[tuple[float, str, str]]:
    """The lines of a run, those of its failures among them. KeyError for a name that is not in `RUNS`."""
    config, steps, seconds = RUNS[name]
    topics = {TOPIC: [[0, 1, 2]]}
    kafka = SimulatedKafka(seed, steps, topics=topics, topic_config={"min.insync.replicas": 2, **config})
    failures = [(float(str(it["at"]).removesuffix("s")), "-----", _words(it)) for it in steps]
    return sorted([*failures, *kafka.run(look_on, seconds).value], key=lambda line: line[0])


def _words(step: Step) -> str:
    """A step in words."""
    ((what, fields),) = ((key, value) for key, value in step.items() if key != "at")
    assert isinstance(fields, dict)
    if what == "elect":
        return f"an operator asks for an {fields['type']} election"
    return f"{what} of broker {fields['broker']}" + (", whose disk is lost" if fields.get("lose") == "all" else "")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "elr"
    if name not in RUNS:
        sys.exit(f"found {name!r}; allowed: {', '.join(RUNS)}")
    for at_s, subject, text in run(name):
        print(f"{int(at_s):3} s  {subject:<9}  {text}")


if __name__ == "__main__":
    main()
