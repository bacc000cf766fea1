"""What a run says against the client: what it told the application, compared with the logs and the bytes on the wire.

The kinds of findings, and what breaks:

- `acknowledged-by-the-client-alone`: a send succeeded, no broker acknowledged it on the wire, and it is not in the log.
- `offset-of-another-record`: the offset that a send returned holds another record.
- `duplicate`: with idempotence a record that the application sent once is in the log twice.
- `reordered`: of two acknowledged records of a partition the one that was sent later is first in the log.
- `stuck-...`: no progress within `WITHIN_S` on a cluster without faults, where a new client makes progress.
- `skipped`: a reader went past a record; in a group: no member has read it though its offset was passed.
- `read-twice`: a reader that has a partition alone went back in it.
- `exception`: of a type that is not Kafka's, or one that the client left to the event loop.
- `busy`: more than `BUSY` requests of one API to one broker within a second; the workload needs ten.

`cluster-...` are findings against isray: an acknowledged record is gone, an invariant is violated, what was read is not
in the log, or a new client is stuck as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from experiments.hunt.clients.application import Book
from experiments.hunt.clients.plan import TOPIC, ClientFinding, ClientPlan
from experiments.virtual.checks import acknowledged_are_kept
from experiments.virtual.simulation import RunResult
from protocol.ids import TopicPartition

BUSY = 200
LAST_MS = 20_000
Values = dict[int, bytes | None]
"""A log: the value of each offset."""


def findings(plan: ClientPlan, result: RunResult) -> list[ClientFinding]:
    """What the run shows, at most one finding of each class."""
    found = {finding.name: finding for finding in reversed([*_findings(plan, result)])}
    return list(reversed(found.values()))


def _findings(plan: ClientPlan, result: RunResult) -> Iterator[ClientFinding]:
    book: Book = result.value
    logs: dict[int, Values] = {
        number: {record.offset: record.value for record in result.logs.get(TopicPartition(TOPIC, number), ())}
        for number in range(plan.partitions)
    }
    yield from _against_the_cluster(book, result, logs)
    yield from _sends(plan, book, result, logs)
    yield from _reads(plan, book, logs)
    kind = "cluster-stuck" if book.control else "stuck"
    for who, error, detail in book.stuck:
        what = _repeated(result) if who == "reader" else error
        yield ClientFinding(kind=f"{kind}-{who}", what=what, detail="; ".join([detail, *book.control]))
    yield from _busy(result)
    for where, raised in book.errors:
        yield ClientFinding(kind="exception", what=f"{type(raised).__name__} from {where}", detail=str(raised))
    for text in result.unhandled:
        yield ClientFinding(kind="exception", what=_exception_in(text), detail=text)


def _repeated(result: RunResult) -> str:
    """The request that the client repeats at the end of the run, `silent` if it sends hardly any."""
    end_ms = max((it.sent_ms for it in result.exchanges), default=0)
    counts = Counter(it.api_key for it in result.exchanges if it.sent_ms > end_ms - LAST_MS)
    [(api_key, count)] = counts.most_common(1) or [(0, 0)]
    return f"repeats API {api_key}" if count > LAST_MS / 200 else "silent"


def _busy(result: RunResult) -> Iterator[ClientFinding]:
    counts = Counter((it.api_key, it.broker, it.sent_ms // 1_000) for it in result.exchanges)
    for (api_key, broker, second), count in counts.items():
        if count > BUSY:
            detail = f"{count} requests to broker {broker} in the second from {second} s on"
            yield ClientFinding(kind="busy", what=f"API {api_key}", detail=detail)


def _exception_in(text: str) -> str:
    """The type of the exception in a text of the loop's handler: `Task exception was never retrieved: Error(...)`."""
    message, _, error = text.partition(": ")
    return f"{error.partition('(')[0]}, {message}"


def _against_the_cluster(book: Book, result: RunResult, logs: dict[int, Values]) -> Iterator[ClientFinding]:
    for lost in acknowledged_are_kept(result):
        yield ClientFinding(kind="cluster-lost", detail=lost)
    for violation in result.violations:
        yield ClientFinding(kind="cluster-violation", what=violation.invariant, detail=violation.detail)
    for _, partition, offset, value in book.read:
        if logs[partition].get(offset, value) != value or offset not in logs[partition]:
            yield ClientFinding(kind="cluster-read", detail=f"{value!r} at {partition}/{offset} is not in the log")


def _sends(plan: ClientPlan, book: Book, result: RunResult, logs: dict[int, Values]) -> Iterator[ClientFinding]:
    on_wire = {(it.place.partition, it.value) for it in result.acknowledged}
    for send in book.sends:
        log = logs[send.partition]
        if send.outcome != "acknowledged":
            continue
        if send.value not in log.values() and (send.partition, send.value) not in on_wire:
            yield ClientFinding(
                kind="acknowledged-by-the-client-alone", detail=f"{send.value!r}, with offset {send.offset}"
            )
        elif send.offset >= 0 and log.get(send.offset) != send.value:
            found = f"{send.value!r} was said to be at {send.offset}, where {log.get(send.offset)!r} is"
            yield ClientFinding(kind="offset-of-another-record", detail=found)
    for partition, log in logs.items():
        twice = [value for value, count in Counter(log.values()).items() if count > 1]
        if twice and plan.idempotent:
            yield ClientFinding(kind="duplicate", detail=f"partition {partition}: {twice[0]!r}, {len(twice)} in all")
        acknowledged = {it.value for it in book.sends if it.partition == partition and it.outcome == "acknowledged"}
        places = {it.value: number for number, it in enumerate(book.sends)}
        firsts = [value for value in dict.fromkeys(log.values()) if value in acknowledged and value is not None]
        for before, after in pairwise(firsts):
            if places[before] > places[after]:
                yield ClientFinding(kind="reordered", detail=f"{before!r} is before {after!r} in the log")


def _reads(plan: ClientPlan, book: Book, logs: dict[int, Values]) -> Iterator[ClientFinding]:
    for partition, log in logs.items():
        offsets = [offset for _, number, offset, _ in book.read if number == partition]
        missing = [offset for offset in sorted(log) if offset not in offsets and offset < max(offsets, default=0)]
        if missing:
            yield ClientFinding(kind="skipped", detail=f"partition {partition}: offset {missing[0]}")
        back = [(before, after) for before, after in pairwise(offsets) if after <= before]
        if back and not plan.members:
            yield ClientFinding(kind="read-twice", detail=f"partition {partition}: {back[0][1]} after {back[0][0]}")
