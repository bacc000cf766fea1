"""Requests at random, most of them damaged, against a listener; with a number of frames, a seed and a scene:
`python -m tests.unit.protocol.kafka.kafka_fuzz 2000 1 groups`.

A request is a value of its schema at random: of an API and a version that the broker lists, with names that exist and
that do not, numbers at the ends of their ranges, batches that are whole or damaged. Then it is left as it is, or cut
off, extended, changed in some bytes, or gets another length, key or version. Each is sent on a connection of its own,
whole or in two pieces; what remains open is closed by the client, and time goes on by `STEP_MS`.

In the scene `groups` the broker coordinates a group with a member, whose id is among the names. In `sasl` clients must
authenticate: of the connections a third has done so, a third is at any step of it, and the others begin with the frame.

What must hold, or `fuzz` raises: no input of the broker fails; nothing is sent but bytes and ends of connections to
clients, and requests to the controller; a connection that was open all the time is served after each `CHECK_EVERY`
frames; buffers are empty at the end.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from random import Random
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from kio.index import load_request_schema
from kio.serial import entity_writer

from protocol.kafka.sasl import Sasl
from protocol.kafka.view import uuid_of
from protocol.kafka.wire import entity_builder
from protocol.messages.connections import ClientBytes, ClientDisconnected
from tests.unit.protocol.kafka.kafka_bench import HOST, TOPIC_ID, KafkaBench, batch_bytes, one_topic
from tests.unit.protocol.kafka.test_groups import joined, offsets_topic

STEP_MS = 20
CHECK_EVERY = 500
_HEALTHY = 0
NAMES = ("t", "nope", "", "__cluster_metadata", "__consumer_offsets", "retention.ms", "x" * 300, "g", "PLAIN")
_USERS = {"alice": "secret"}
_STEPS = 2
"""Of the authentication: the handshake and the token."""
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UNSIGNED = {"uint16": 16, "uint32": 32}


def fuzz(count: int, seed: int, scene: str = "plain") -> Counter[str]:
    """Sends `count` frames; returns how many connections were answered, closed, or left waiting."""
    random = Random(seed)
    sasl = Sasl(_USERS, Random(3).randbytes) if scene == "sasl" else None
    bench = KafkaBench(sasl=sasl).run(*one_topic(), *(offsets_topic() if scene == "groups" else ()))
    names = [*NAMES, joined(bench, connection=_HEALTHY)] if scene == "groups" else NAMES
    if scene != "groups":
        bench.connect(_HEALTHY)
    if sasl is not None:
        _authenticate(bench, _HEALTHY, _STEPS)
    ranges = served(bench)
    outcomes: Counter[str] = Counter()
    for number in range(1, count + 1):
        data = damaged(random, request(random, ranges, names))
        bench.connect(number, f"10.0.0.{number % 250}:1")
        if sasl is not None:
            _authenticate(bench, number, random.choice((0, _STEPS, random.randint(1, _STEPS))))
            bench.sent_bytes.pop(number, None)
        cut = random.randrange(len(data) + 1) if random.random() < 0.2 else len(data)
        for piece in (data[:cut], data[cut:]):
            bench.receive(HOST, ClientBytes(connection=number, data=piece))
        outcomes[_outcome(bench, number)] += 1
        bench.receive(HOST, ClientDisconnected(connection=number))
        bench.sent_bytes.pop(number, None)
        bench.closed.pop(number, None)
        bench.now_ms += STEP_MS
        for name in [name for name, at_ms in bench.timers.items() if at_ms <= bench.now_ms]:
            if name.startswith(("kafka/", "read-wait")):
                del bench.timers[name]
                bench.fire(name)
        if number % CHECK_EVERY == 0:
            bench.sent_bytes.pop(_HEALTHY, None)
            assert bench.ask(18, 0, {}, _HEALTHY).error_code == 0
            assert bench.both.listener.connection_count == 1
    assert all(connection.frames.waiting_bytes == 0 for connection in bench.both.listener.connections)
    return outcomes


def served(bench: KafkaBench) -> list[tuple[int, int, int]]:
    """The key, the lowest and the highest version of each API of a listener."""
    return [(api.key, api.low, api.high) for api in bench.both.listener.apis]


def _outcome(bench: KafkaBench, number: int) -> str:
    if number in bench.closed:
        return "closed"
    return "answered" if number in bench.sent_bytes else "waiting"


def _authenticate(bench: KafkaBench, connection: int, steps: int) -> None:
    """The first steps of a client of PLAIN: the handshake and the token, each of which is answered."""
    if steps > 0:
        bench.ask(17, 1, {"mechanism": "PLAIN"}, connection)
    if steps > 1:
        assert bench.ask(36, 2, {"auth_bytes": b"\0alice\0secret"}, connection).error_code == 0


def request(random: Random, ranges: list[tuple[int, int, int]], names: Sequence[str] = NAMES) -> bytes:
    """The body of a request at random, with names of these."""
    key, low, high = random.choice(ranges)
    version = random.randint(low, high)
    schema = load_request_schema(key, version)
    header = schema.__header_schema__
    buffer = BytesIO()
    fields = {"request_api_key": key, "request_api_version": version, "correlation_id": random.randrange(2**31)}
    entity_writer(header)(buffer, header(**fields, client_id=random.choice((None, "fuzz"))))
    entity_writer(schema)(buffer, entity_builder(schema)(_Drawn(random, names).fields(schema, depth=0)))
    return buffer.getvalue()


def damaged(random: Random, body: bytes) -> bytes:
    """The frame of a request, or something like it."""
    length = len(body).to_bytes(4, "big")
    damage = random.randrange(8)
    if damage == 0:
        body = body[: random.randrange(len(body) + 1)]
        length = len(body).to_bytes(4, "big")
    elif damage == 1:
        body += random.randbytes(random.randrange(1, 40))
        length = len(body).to_bytes(4, "big")
    elif damage == 2:
        length = random.choice((b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", random.randbytes(4)))
    elif damage == 3:
        body = random.choice((random.randbytes(2), body[:2])) + random.randbytes(2) + body[4:]
    elif damage in (4, 5):
        changed = bytearray(body)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(len(changed))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        body = bytes(changed)
    elif damage == 6:
        start = random.randrange(len(body))
        body = body[:start] + random.randbytes(random.randrange(20)) + body[start + random.randrange(20) :]
        length = len(body).to_bytes(4, "big")
    return length + body


class _Drawn:
    """Values of schemas at random."""

    def __init__(self, random: Random, names: Sequence[str]) -> None:
        self._random, self._names = random, names

    def fields(self, schema: type[Any], depth: int) -> dict[str, Any]:
        hints = get_type_hints(schema)
        return {
            field.name: self._value(field.metadata.get("kafka_type"), hints[field.name], depth)
            for field in dataclasses.fields(schema)
            if field.name != "throttle_time"
        }

    def _value(self, kafka_type: str | None, hint: Any, depth: int) -> Any:
        random = self._random
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if type(None) in kinds and random.random() < 0.2:
            return None
        many = next((kind for kind in kinds if get_origin(kind) is tuple), None)
        if many is not None:
            item = get_args(many)[0]
            count = random.choice((0, 1, 1, 2, 3 if depth else 25))
            return [self._value(kafka_type, item, depth + 1) for _ in range(count)]
        nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        return self._scalar(kafka_type) if nested is None else self.fields(nested, depth + 1)  # type: ignore[arg-type]

    def _scalar(self, kafka_type: str | None) -> Any:
        random = self._random
        if kafka_type in ("timedelta_i32", "timedelta_i64"):
            return random.choice((-1, 0, 1, 1_000, 2**31 - 1))
        if kafka_type in _BITS:
            end = 2 ** _BITS[kafka_type]
            return random.choice((0, 0, 1, -1, 2, 3, end - 1, -end, random.randrange(-end, end)))
        if kafka_type in _UNSIGNED:
            return random.choice((0, 1, 2 ** _UNSIGNED[kafka_type] - 1))
        if kafka_type == "records":
            whole = batch_bytes(b"x" * random.randrange(50), b"y")
            return random.choice((whole, damaged(random, whole)[4:], b"", None))
        makers: dict[str | None, Any] = {
            "string": lambda: random.choice(self._names),
            "bool": lambda: random.random() < 0.5,
            "uuid": lambda: random.choice((uuid_of(TOPIC_ID), UUID(int=0), UUID(int=1))),
            "bytes": lambda: random.randbytes(random.randrange(20)),
            "float64": random.random,
            "error_code": lambda: 0,
        }
        return makers[kafka_type]()


if __name__ == "__main__":
    wanted, first, which = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv[3:], "plain")[0]
    started = time.process_time()
    found = fuzz(wanted, first, which)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{wanted} frames, {time.process_time() - started:.0f} s, peak {peak_mib:.0f} MiB: {dict(found)}")
