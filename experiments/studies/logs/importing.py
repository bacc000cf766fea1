"""From a failure log to the recorded failures of a study: reads, checks, joins, cuts, numbers the brokers, and accounts
for every line.

The record lasts from `begins` to `ends`, by default from the first time that the log mentions to the last. An outage
that has not ended by then lasts until the record ends. Outages of a node that overlap are one, of the kind that loses
more; impairments (`isolated`, `paused`) are joined with those of their kind. Every line is counted once: as an
outage, as the end of one, or under the reason for which it is left out.

Nodes become brokers 0, 1, ... in the order in which the log first names them, unless it has broker ids already
(`csv`, if all names are whole numbers) or `nodes` says. A log that names only nodes that have failed, as `lanl` does,
makes the others disappear: with `nodes` those that are asked for count, whether they have failed or not.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, NamedTuple

from experiments.studies.design.impairments import IMPAIRMENTS
from experiments.studies.design.recorded import COLUMNS, KINDS, LONGEST_NUMBER, AnyKind
from experiments.studies.logs.formats import FIELDS, LogFormat, Row, Said
from experiments.studies.logs.times import Clock, Unit
from experiments.support.durations import format_duration
from experiments.support.errors import InputError, MissingInput

_SHORT = "outages shorter than a millisecond"
_BEFORE, _AFTER = "outages before the record begins", "outages after the record ends"
_OTHERS = "lines of nodes that are not asked for"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks for. `columns`: those of the fields, where they have other names; `kind`: of outages whose
    lines have none; `nodes`: broker ids of the nodes to take, by name; `brokers`: as many nodes as the log names
    first; `begins`, `ends`: of the record, as the log writes times; `repair_ms`: where the log has no ends."""

    columns: Mapping[str, str] = field(default_factory=dict)
    unit: Unit | None = None
    kind: AnyKind | None = None
    nodes: Mapping[str, int] | None = None
    brokers: int | None = None
    begins: str | None = None
    ends: str | None = None
    repair_ms: int | None = None


Key = tuple[int, str]
"""A broker, and the kind of impairment, empty for outages."""


class Outage(NamedTuple):
    """`broker` is down from `down_ms` until `up_ms`, since the record began."""

    down_ms: int
    broker: int
    up_ms: int
    kind: AnyKind


@dataclass(slots=True)
class Imported:
    """The outages by time, and what became of the log's lines: `lines` = `len(outages)` + `joined` + `ends` + the sum
    of `left_out`. `open`: outages without an end; `cut`: those that begin or end outside of the record."""

    outages: list[Outage]
    brokers: dict[str, int]
    begins_ms: int
    length_ms: int
    lines: int
    joined: int
    ends: int
    open: int
    cut: int
    left_out: dict[str, int]
    clock: Clock

    def text(self) -> str:
        """The file that `failures:` takes."""
        lines = (f"{it.broker},{it.down_ms},{it.up_ms},{it.kind}\n" for it in self.outages)
        return "".join((",".join(COLUMNS) + "\n", *lines))


def import_log(log: LogFormat, paths: Sequence[Path], wanted: Wanted) -> Imported:
    """The failures of a log in one file or several. InputError for a line that the format does not allow, with file and
    line, for a column that is not there, and for a log without an outage that the record and the nodes include."""
    clock = _clock(log, wanted)
    read = _Read()
    for path in paths:
        for said in _lines(log, path, clock, wanted):
            read.add(said)
    source = str(paths[0])
    if not read.lines:
        raise InputError(source, "", "no line", "one line or more")
    brokers, left_out = _brokers(log, read.nodes, wanted), read.left_out
    intervals, ends = _intervals(read.events, left_out)
    begins_ms, ends_ms = _window(read, clock, wanted)
    down, counts = _down_times(intervals, brokers, begins_ms, ends_ms, wanted.kind or log.kind, left_out)
    outages = sorted(outage for each in down.values() for outage in _joined(each))
    if not outages:
        reasons = "; ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        raise InputError(source, "", f"no outage in the record ({reasons})", "at least one")
    return Imported(
        outages=outages,
        brokers=brokers,
        begins_ms=begins_ms,
        length_ms=ends_ms - begins_ms,
        lines=read.lines,
        joined=sum(map(len, down.values())) - len(outages),
        ends=ends,
        open=counts["open"],
        cut=counts["cut"],
        left_out=dict(sorted(left_out.items())),
        clock=clock,
    )


@dataclass(slots=True)
class _Read:
    """What is kept of the lines: `nodes` in the order of their names in the log, the times that it mentions, what
    begins or ends outages, and how many lines are left out for which reason."""

    lines: int = 0
    nodes: dict[str, None] = field(default_factory=dict)
    first_ms: int = sys.maxsize
    last_ms: int = -sys.maxsize
    events: list[Said] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, said: Said) -> None:
        self.lines += 1
        self.nodes[said.node] = None
        self.first_ms = min(self.first_ms, said.at_ms)
        self.last_ms = max(self.last_ms, said.at_ms if said.until_ms is None else said.until_ms)
        if said.what == "left out":
            self.left_out[said.reason] += 1
        else:
            self.events.append(said)


def _clock(log: LogFormat, wanted: Wanted) -> Clock:
    """How the log writes times. Raises InputError for an option that the format does not leave open."""
    if wanted.unit is not None and log.own_units:
        raise InputError("--unit", "", wanted.unit, f"no unit with --format {log.name}, which fixes that of its times")
    if log.repairs and wanted.repair_ms is None:
        raise MissingInput("--repair", f"a duration: --format {log.name} does not say how long a repair takes")
    if not log.repairs and wanted.repair_ms is not None:
        allowed = f"no such option with --format {log.name}, which has the ends of outages"
        raise InputError("--repair", "", format_duration(wanted.repair_ms), allowed)
    if wanted.columns and not log.has_header:
        raise InputError("--map", "", *_words(wanted.columns), f"none with --format {log.name}, which has no header")
    unknown = [name for name in wanted.columns if name not in FIELDS]
    if unknown:
        raise InputError("--map", "", unknown[0], f"FIELD=COLUMN, with the fields {', '.join(FIELDS)}")
    return replace(log.clock, unit=wanted.unit) if wanted.unit else log.clock


def _words(columns: Mapping[str, str]) -> tuple[str]:
    return (",".join(f"{name}={column}" for name, column in columns.items()),)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _lines(log: LogFormat, path: Path, clock: Clock, wanted: Wanted) -> Iterator[Said]:
    """What each line of a file says."""
    try:
        with _open(path) as stream:
            yield from _said(log, csv.reader(stream, delimiter=log.delimiter, strict=True), str(path), clock, wanted)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or str(error)
        raise InputError(str(path), "", found, f"a failure log, format {log.name}") from error


def _said(log: LogFormat, rows: Iterator[list[str]], source: str, clock: Clock, wanted: Wanted) -> Iterator[Said]:
    header: Sequence[str] = () if log.has_header and not log.positions else log.positions
    columns: dict[str, str] = {} if not header else _columns(log, header, source, 1, wanted)
    try:
        for number, cells in enumerate(rows, 1):
            row = [cell.strip() for cell in cells]
            if not any(row):
                continue
            if number == 1 and log.has_header and (not log.positions or row[0].startswith("#")):
                header = [row[0].removeprefix("#").strip(), *row[1:]]
                columns = _columns(log, header, source, number, wanted)
                continue
            if len(row) != len(header):
                raise InputError(source, f"line {number}", f"{len(row)} values", f"{len(header)}: {', '.join(header)}")
            values = dict(zip(header, row, strict=True))
            found = log.read(Row(values, columns, clock, source, f"line {number}", wanted.repair_ms or 0))
            yield _checked(found, source, number)
    except csv.Error as error:
        number = getattr(rows, "line_num", 0)
        raise InputError(source, f"line {number}", str(error), "values, separated, quotes closed") from error


def _checked(said: Said, source: str, number: int) -> Said:
    if not said.node:
        raise InputError(source, f"line {number}", "no node", "the name of a node")
    if said.kind and said.kind not in KINDS:
        allowed = f"one of {', '.join(KINDS)}; without a column for the kind, --kind says that of all outages"
        raise InputError(source, f"line {number}", f"kind {said.kind!r}", allowed)
    return said


def _columns(log: LogFormat, header: Sequence[str], source: str, number: int, wanted: Wanted) -> dict[str, str]:
    """The columns of the fields. Raises InputError for one that the header does not have, or has twice."""
    columns = dict(log.columns) | dict(wanted.columns)
    if columns.get("kind") not in header and "kind" not in wanted.columns:
        columns.pop("kind", None)
    for column in (*columns.values(), *log.also):
        if header.count(column) != 1:
            how = "--map FIELD=COLUMN names others" if column not in log.also else f"--format {log.name} needs it"
            found = f"no column {column!r}" if column not in header else f"the column {column!r} twice"
            raise InputError(source, f"line {number}", found, f"one of {', '.join(dict.fromkeys(header))}; {how}")
    return columns


def _brokers(log: LogFormat, nodes: Iterable[str], wanted: Wanted) -> dict[str, int]:
    """The broker of each node that is asked for."""
    if wanted.nodes is not None:
        return dict(wanted.nodes)
    names = list(nodes)
    if not log.own_units and all(name.isascii() and name.isdecimal() and len(name) <= LONGEST_NUMBER for name in names):
        numbers = sorted(names, key=int)
        return {name: int(name) for name in numbers if wanted.brokers is None or int(name) < wanted.brokers}
    return {name: index for index, name in enumerate(names[: wanted.brokers])}


def _intervals(said: Iterable[Said], left_out: Counter[str]) -> tuple[list[Said], int]:
    """All outages, and how many lines only end one: a node that goes down is up at its next `up`."""
    found, ends, down = [], 0, dict[str, Said]()
    for each in sorted(said, key=lambda each: each.at_ms):
        if each.what == "outage":
            found.append(each)
        elif each.what == "down":
            if each.node in down:
                left_out["nodes that go down while they are down"] += 1
            else:
                down[each.node] = each
        elif each.node in down:
            found.append(down.pop(each.node)._replace(until_ms=each.at_ms))
            ends += 1
        else:
            left_out["nodes that come up for the first time, or are up"] += 1
    return [*found, *down.values()], ends


def _window(read: _Read, clock: Clock, wanted: Wanted) -> tuple[int, int]:
    """When the record begins and ends."""
    begins_ms = read.first_ms if wanted.begins is None else clock.parse_ms(wanted.begins, "--begins", "")
    ends_ms = read.last_ms if wanted.ends is None else clock.parse_ms(wanted.ends, "--ends", "")
    if ends_ms <= begins_ms:
        raise InputError("--ends", "", clock.written(ends_ms), f"a time after {clock.written(begins_ms)}")
    return begins_ms, ends_ms


def _down_times(
    intervals: Iterable[Said],
    brokers: Mapping[str, int],
    begins_ms: int,
    ends_ms: int,
    kind: AnyKind,
    left_out: Counter[str],
) -> tuple[dict[Key, list[Outage]], Counter[str]]:
    """The outages of each broker within the record, each kind of impairment apart, and how many are open, and cut."""
    down: dict[Key, list[Outage]] = {}
    counts: Counter[str] = Counter()
    for each in intervals:
        until_ms = ends_ms if each.until_ms is None else each.until_ms
        reason = _reason(each, brokers, begins_ms, ends_ms)
        if reason:
            left_out[reason] += 1
            continue
        broker, down_ms, up_ms = brokers[each.node], max(each.at_ms, begins_ms), min(until_ms, ends_ms)
        counts["open"] += each.until_ms is None
        counts["cut"] += (down_ms, up_ms) != (each.at_ms, until_ms)
        own = next((known for known in KINDS if known == each.kind), kind)
        down.setdefault((broker, own if own in IMPAIRMENTS else ""), []).append(
            Outage(down_ms - begins_ms, broker, up_ms - begins_ms, own)
        )
    return down, counts


def _reason(said: Said, brokers: Mapping[str, int], begins_ms: int, ends_ms: int) -> str:
    """Why an outage is left out; empty if it is taken."""
    if said.node not in brokers:
        return _OTHERS
    if said.until_ms is not None and said.until_ms <= said.at_ms:
        return _SHORT
    if said.until_ms is not None and said.until_ms <= begins_ms:
        return _BEFORE
    return _AFTER if said.at_ms >= ends_ms else ""


def _joined(outages: Iterable[Outage]) -> list[Outage]:
    """The outages of a broker by time; those that overlap are one, and so are its impairments of one kind."""
    found: dict[str, list[Outage]] = {}
    for outage in sorted(outages):
        alike = found.setdefault(outage.kind if outage.kind in IMPAIRMENTS else "down", [])
        if alike and outage.down_ms < alike[-1].up_ms:
            kind = max(outage.kind, alike[-1].kind, key=KINDS.index)
            alike[-1] = alike[-1]._replace(up_ms=max(outage.up_ms, alike[-1].up_ms), kind=kind)
        else:
            alike.append(outage)
    return sorted(outage for alike in found.values() for outage in alike)
