"""`isray study import-failures`: from a failure log to the file that `failures:` of a study takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json, option, print_result
from experiments.support.durations import ALLOWED, format_duration, parse_duration_ms
from experiments.support.errors import InputError

if TYPE_CHECKING:
    from experiments.studies.logs.importing import Imported
SHOWN_NODES = 12
MOST_BROKERS = 999
"""Of a cell."""


def import_failures(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The log; with .gz it is compressed.")],
    out: Annotated[Path, option("FILE", "The file to write: what failures: of a study takes.")],
    format_name: Annotated[
        str, option("FORMAT", "csv, lanl, fta, google or backblaze: whose columns the log has.", "--format")
    ] = "csv",
    columns: Annotated[
        str | None,
        option("FIELD=COLUMN,...", "The columns of node, down, up and kind, where they have other names.", "--map"),
    ] = None,
    unit: Annotated[str | None, option("UNIT", "Of times that are numbers: s, ms or us.")] = None,
    kind: Annotated[
        str | None, option("KIND", "Of outages whose lines have none: clean, unclean, lossy, disk, or an impairment.")
    ] = None,
    nodes: Annotated[str | None, option("NAME=BROKER,...", "The nodes to take, and their broker ids.")] = None,
    brokers: Annotated[int | None, option("N", "Take the N nodes that the log names first.", min=1)] = None,
    begins: Annotated[
        str | None, option("TIME", "When the record begins, as the log writes times; by default its first time.")
    ] = None,
    ends: Annotated[str | None, option("TIME", "When the record ends; by default the last time of the log.")] = None,
    repair: Annotated[str | None, option("DURATION", "How long a repair takes, where the log does not say.")] = None,
    as_json: Json = False,
) -> None:
    """Convert a failure log to recorded failures of a study; say what was read, joined, and left out, and why."""
    from experiments.studies.design.recorded import KINDS
    from experiments.studies.logs.formats import FORMATS
    from experiments.studies.logs.importing import Wanted, import_log
    from experiments.studies.logs.times import UNITS
    from experiments.support.atomic import write_text

    if not out.parent.is_dir() or out.is_dir():
        raise InputError("--out", "", out, "a file in a directory that exists")
    if nodes is not None and brokers is not None:
        raise InputError("--brokers", "", "--nodes as well", "one of the two")
    wanted = Wanted(
        columns=_pairs("--map", columns, "FIELD=COLUMN"),
        unit=None if unit is None else UNITS[_index("--unit", unit, UNITS)],
        kind=None if kind is None else KINDS[_index("--kind", kind, KINDS)],
        nodes=None if nodes is None else _broker_ids(_pairs("--nodes", nodes, "NAME=BROKER")),
        brokers=brokers,
        begins=begins,
        ends=ends,
        repair_ms=_duration_ms(repair),
    )
    names = tuple(FORMATS)
    found = import_log(FORMATS[names[_index("--format", format_name, names)]], files, wanted)
    write_text(out, found.text())
    print_result(as_json, _document(found, out), typer.echo, "\n".join(_told(found, out)))


def _index(name: str, text: str, allowed: tuple[str, ...]) -> int:
    if text not in allowed:
        raise InputError(name, "", repr(text), f"one of {', '.join(allowed)}")
    return allowed.index(text)


def _pairs(name: str, text: str | None, form: str) -> dict[str, str]:
    """The pairs of a list; no name twice."""
    found: dict[str, str] = {}
    for word in (text or "").split(",") if text is not None else ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (equals and key and value) or key in found:
            raise InputError(name, "", repr(word.strip()), f"{form},..., each name once")
        found[key] = value
    return found


def _broker_ids(named: dict[str, str]) -> dict[str, int]:
    allowed = f"NAME=BROKER,..., each broker once, from 0 to {MOST_BROKERS - 1}"
    for name, text in named.items():
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < MOST_BROKERS):
            raise InputError("--nodes", "", f"{name}={text}", allowed)
    found = {name: int(text) for name, text in named.items()}
    if len(set(found.values())) < len(found):
        raise InputError("--nodes", "", "a broker twice", allowed)
    return found


def _duration_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = parse_duration_ms(text)
    except ValueError as error:
        raise InputError("--repair", "", repr(text), ALLOWED) from error
    if not found:
        raise InputError("--repair", "", repr(text), "a duration above 0")
    return found


def _used(found: Imported, out: Path) -> str:
    return f"{{file: {out.name}, length: {format_duration(found.length_ms)}}}"


def _document(found: Imported, out: Path) -> dict[str, object]:
    return {
        "out": str(out),
        "lines": found.lines,
        "outages": len(found.outages),
        "joined": found.joined,
        "ends": found.ends,
        "left_out": found.left_out,
        "open": found.open,
        "cut": found.cut,
        "begins": found.clock.written(found.begins_ms),
        "ends_at": found.clock.written(found.begins_ms + found.length_ms),
        "length_ms": found.length_ms,
        "nodes": found.brokers,
        "failures": _used(found, out),
    }


def _told(found: Imported, out: Path) -> list[str]:
    """The report in lines."""
    lasts = f"{found.length_ms / 86_400_000:,.2f} days"
    begins, ends = (found.clock.written(at_ms) for at_ms in (found.begins_ms, found.begins_ms + found.length_ms))
    lines = [
        f"{found.lines} lines: {len(found.outages)} outages, {found.joined} joined to others that they overlap, "
        f"{found.ends} ends of outages, {sum(found.left_out.values())} left out",
        *(f"  left out: {count} {reason}" for reason, count in found.left_out.items()),
        f"record: {begins} to {ends}, {lasts}; {found.open} outages without an end, {found.cut} cut at an edge",
    ]
    shown = [f"{name} = {broker}" for name, broker in list(found.brokers.items())[:SHOWN_NODES]]
    more = len(found.brokers) - len(shown)
    lines.append(f"brokers: {', '.join(shown)}" + (f" and {more} more (--json lists them)" if more else ""))
    return [
        *lines,
        f"{out}; in a study of {max(found.brokers.values()) + 1} brokers:",
        f"failures: {_used(found, out)}",
    ]
