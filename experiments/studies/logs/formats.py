"""The formats of failure logs: their columns, their times, and what one line of each says.

| format | a line | from |
|---|---|---|
| `csv` | an outage, in columns of any name | logs of one's own |
| `lanl` | a failure of a node | LA-UR-05-7318, Los Alamos 1996-2005; Schroeder and Gibson, DSN 2006 |
| `fta` | a node is up, or down, for a while | `event_trace.tab`, Failure Trace Archive; Kondo et al., CCGrid 2010 |
| `google` | a machine is added, removed, changed | `machine_events`, trace of 2011, version 2; Reiss and Wilkes 2011 |
| `backblaze` | a drive on a day | Backblaze's Drive Stats |

Each line either is an outage, or begins one, or ends one, or is left out for a reason that is counted (`importing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from experiments.studies.design.recorded import AnyKind
from experiments.studies.logs.times import Clock
from experiments.support.durations import UNITS_MS
from experiments.support.errors import InputError, shown

FIELDS = ("node", "down", "up", "kind")
"""What `--map` names a column for."""
OPEN = frozenset({"", "null", "none", "nan", "na", "-", "\\n"})
"""Texts of an end that is not known, in lower case: the outage lasts until the end of the record."""

ISO = Clock()


class Said(NamedTuple):
    """What a line says of `node`: it is down from `at_ms` until `until_ms` (None: not known) for an `outage`; it goes
    down or comes up at `at_ms`; or the line is left out for `reason`, and shows only that the node was observed."""

    node: str
    what: Literal["outage", "down", "up", "left out"]
    at_ms: int
    until_ms: int | None = None
    kind: str = ""
    reason: str = ""


class Row(NamedTuple):
    """A line: its values by the names of columns, the columns of the fields, and where it is."""

    values: Mapping[str, str]
    columns: Mapping[str, str]
    clock: Clock
    source: str
    place: str
    repair_ms: int

    def text(self, name: str) -> str:
        """The value of a field."""
        return self.values[self.columns[name]]

    def time_ms(self, name: str) -> int:
        """The time of a field."""
        return self.clock.parse_ms(self.text(name), self.source, f"{self.place}, {self.columns[name]}")

    def one_of(self, column: str, allowed: Mapping[str, str]) -> str:
        """What a code means; InputError for one that the format does not have."""
        if self.values[column] not in allowed:
            codes = ", ".join(f"{code} ({meaning})" for code, meaning in allowed.items())
            raise InputError(self.source, f"{self.place}, {column}", shown(self.values[column]), codes)
        return allowed[self.values[column]]


def _outage(row: Row) -> Said:
    node, down_ms = row.text("node"), row.time_ms("down")
    until_ms = None if row.text("up").lower() in OPEN else row.time_ms("up")
    if until_ms is not None and until_ms < down_ms:
        found = f"{row.text('up')}, before the outage begins ({row.text('down')})"
        raise InputError(row.source, f"{row.place}, {row.columns['up']}", found, "an end after the beginning, or none")
    return Said(node, "outage", down_ms, until_ms, row.text("kind") if "kind" in row.columns else "")


def _lanl(row: Row) -> Said:
    found = _outage(row)
    return found._replace(node=f"{row.values['System']}/{found.node}")


_FTA = {"0": "down", "1": "up", "2": "user present", "3": "CPU busy"}


def _fta(row: Row) -> Said:
    meaning, found = row.one_of("event_type", _FTA), _outage(row)
    if meaning == "down":
        return found
    reason = "periods in which the node is up" if meaning == "up" else f"periods of another kind: {meaning}"
    return found._replace(what="left out", reason=reason)


_GOOGLE = {"0": "ADD", "1": "REMOVE", "2": "UPDATE"}


def _google(row: Row) -> Said:
    event, at_ms = row.one_of("event_type", _GOOGLE), row.time_ms("down")
    if event == "UPDATE":
        return Said(row.text("node"), "left out", at_ms, reason="UPDATE events: the machine's resources change")
    return Said(row.text("node"), "down" if event == "REMOVE" else "up", at_ms)


def _backblaze(row: Row) -> Said:
    failed, day_ms = row.one_of("failure", {"0": "the drive works", "1": "its last day"}), row.time_ms("down")
    after_ms = day_ms + UNITS_MS["d"]
    if failed == "its last day":
        return Said(row.text("node"), "outage", after_ms, after_ms + row.repair_ms)
    return Said(row.text("node"), "left out", day_ms, after_ms, reason="days on which the drive works")


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A format. `columns`: the columns of the fields, by their usual names; `also`: others that it needs;
    `positions`: all columns by position where a file may have no header; `kind`: of an outage whose line has none;
    `repairs`: ends of outages are not in the log, and the user says how long a repair takes."""

    name: str
    read: Callable[[Row], Said]
    columns: Mapping[str, str]
    clock: Clock = ISO
    also: tuple[str, ...] = ()
    delimiter: str = ","
    positions: tuple[str, ...] = ()
    has_header: bool = True
    kind: AnyKind = "unclean"
    repairs: bool = False
    own_units: bool = True


_INTERVAL = {"node": "node", "down": "down", "up": "up", "kind": "kind"}
_FTA_COLUMNS = ("event_id", "component_id", "node_id", "platform_id", "node_name", "event_type")
_FTA_TIMES = ("event_start_time", "event_stop_time", "event_end_reason")
_GOOGLE_COLUMNS = ("timestamp", "machine_id", "event_type", "platform_id", "cpus", "memory")

FORMATS = {
    each.name: each
    for each in (
        LogFormat("csv", _outage, _INTERVAL, own_units=False),
        LogFormat(
            "lanl",
            _lanl,
            {"node": "nodenumz", "down": "Prob Started", "up": "Prob Fixed"},
            Clock(form="%m/%d/%Y %H:%M"),
            also=("System",),
        ),
        LogFormat(
            "fta",
            _fta,
            {"node": "node_id", "down": "event_start_time", "up": "event_stop_time"},
            Clock("s"),
            also=("event_type",),
            delimiter="\t",
            positions=(*_FTA_COLUMNS, *_FTA_TIMES),
        ),
        LogFormat(
            "google",
            _google,
            {"node": "machine_id", "down": "timestamp"},
            Clock("us", is_relative=True),
            also=("event_type",),
            positions=_GOOGLE_COLUMNS,
            has_header=False,
        ),
        LogFormat(
            "backblaze",
            _backblaze,
            {"node": "serial_number", "down": "date"},
            also=("failure",),
            kind="disk",
            repairs=True,
        ),
    )
}
"""The formats by name."""
