"""Recorded failures: a CSV file with the columns node, down_ms, up_ms and kind, one outage per line.

Times count from the beginning of the record, which is 0 unless the study names another time of the file (`begins`), as
for times of the Unix epoch. A record has a length: the time that was observed, by default until its last outage ends.
The content of the file is part of the study, so that another content is another study.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field

from experiments.studies.design.impairments import IMPAIRMENTS, ImpairmentKind
from experiments.studies.design.mappings import mapping_or
from experiments.support.durations import format_duration
from experiments.support.errors import InputError
from experiments.support.fields import DURATION, DurationMs, PositiveMs, WrittenModel
from experiments.support.yaml_input import read_text

OutageKind = Literal["clean", "unclean", "lossy", "disk"]
"""`clean`: a controlled shutdown. `unclean`: the process dies, the page cache survives. `lossy`: the unflushed tail of
every log is lost. `disk`: the disk is replaced by an empty one."""
AnyKind = OutageKind | ImpairmentKind
OUTAGES: tuple[OutageKind, ...] = get_args(OutageKind)
KINDS: tuple[AnyKind, ...] = (*OUTAGES, *IMPAIRMENTS)
COLUMNS = ("node", "down_ms", "up_ms", "kind")
LONGEST_NUMBER = 15
_DAY_MS = 86_400_000
_EPOCH_MS = 10**12
"""From here on times of a record without `begins` are taken for those of the Unix epoch: 31.7 years, September 2001."""


class RecordedOutage(NamedTuple):
    """One line of the file: `node` is down from `down_ms` until it is started at `up_ms`, since the record began, or is
    impaired for so long. Brokers whose isolations of one kind have the same times are isolated together."""

    node: int
    down_ms: int
    up_ms: int
    kind: AnyKind


class FailureFile(WrittenModel):
    """`replay` takes the recorded failures as they are, `blocks` draws blocks of that length. `begins`: when the record
    begins, in the file's milliseconds. `length`: of the record, by default until its last outage ends."""

    file: str = Field(min_length=1)
    mode: Literal["replay", "blocks"] = "replay"
    block_ms: DurationMs = Field(30 * _DAY_MS, gt=0)
    begins_ms: int = Field(0, ge=0)
    length_ms: Annotated[PositiveMs | None, DURATION] = None


class RecordedFailures(FailureFile):
    """A file of recorded failures with its content: the outages by time, which counts from the record's beginning."""

    length_ms: DurationMs = Field(gt=0)
    outages: tuple[RecordedOutage, ...]

    @property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of BLAKE2b over the outages."""
        return hashlib.blake2b(repr(self.outages).encode(), digest_size=6).hexdigest()


def _write(value: object) -> str:
    if not isinstance(value, FailureFile):
        return "none"
    return f"{value.file}, {value.mode}" + (f" of {format_duration(value.block_ms)}" if value.mode == "blocks" else "")


_FORM = "FILE.csv, or {file: FILE.csv, mode: replay | blocks, block: DURATION, begins: MILLISECONDS, length: DURATION}"
RECORDED = replace(mapping_or("none", _FORM, short=(str, "file")), write=_write)


@dataclass(slots=True)
class Contents:
    """The contents of files that a study names, by their names: as the study has them, otherwise as `folder` has."""

    texts: dict[str, str]
    folder: Path

    def text(self, name: str, what: str = "recorded failures", form: str = "CSV") -> str:
        """The content of a file, with line feeds at the ends of lines. `what` it is to be, and its form, for errors.
        Raises InputError if it cannot be read."""
        if name not in self.texts:
            text = read_text(self.folder / name, what, form)
            self.texts[name] = "".join(f"{line}\n" for line in text.removeprefix("\ufeff").splitlines())
        return self.texts[name]


def record(file: FailureFile, text: str, source: str, brokers: Sequence[int], duration_ms: int) -> RecordedFailures:
    """The failures in `text`, the content of the file (`source` in errors), for trials of that duration. `brokers`: the
    ids of the brokers, of which the trials have the numbers from 0 on, in this order.

    Raises InputError for a wrong line, with its number, and for a record that is too short or has no outage that a
    trial meets.
    """
    outages = _since(file, _checked(_lines(text, source, brokers), source), source, duration_ms)
    end_ms = max((outage.up_ms for outage in outages), default=0)
    length_ms = end_ms if file.length_ms is None else file.length_ms
    if length_ms < end_ms:
        found = f"{format_duration(length_ms)}, and an outage that ends at {end_ms} ms"
        raise InputError(source, "length", found, "a length that covers all outages")
    needed_ms, mode = (duration_ms, "duration") if file.mode == "replay" else (file.block_ms, "block")
    if length_ms < needed_ms:
        found = f"a record of {length_ms / _DAY_MS:.3g} days"
        allowed = f"at least the {mode} ({format_duration(needed_ms)}); length says how long the record is"
        raise InputError(source, "length", found, f"{allowed}, and mode blocks draws from shorter ones")
    number = {broker: index for index, broker in enumerate(brokers)}
    numbered = tuple(outage._replace(node=number[outage.node]) for outage in outages)
    return RecordedFailures(
        file=file.file, mode=file.mode, block_ms=file.block_ms, length_ms=length_ms, outages=numbered
    )


def _lines(text: str, source: str, brokers: Sequence[int]) -> list[tuple[int, RecordedOutage]]:
    """The outages with the numbers of their lines."""
    rows = csv.reader(text.splitlines())
    try:
        header = tuple(cell.strip() for cell in next(rows, []))
        if header != COLUMNS:
            raise InputError(
                source,
                "line 1",
                ",".join(header) or "nothing",
                f"the header {','.join(COLUMNS)}, which isray study import-failures writes from other logs",
            )
        found = [(rows.line_num, _outage([cell.strip() for cell in row], rows.line_num, source)) for row in rows if row]
    except csv.Error as error:
        raise InputError(source, f"line {rows.line_num}", str(error), "values separated by commas") from error
    if not found:
        raise InputError(source, "line 2", "no outage", "one line or more below the header")
    for number, outage in found:
        if outage.node not in brokers:
            is_range = list(brokers) == list(range(len(brokers)))
            names = f"0 to {len(brokers) - 1}" if is_range else ", ".join(map(str, brokers))
            allowed = f"a broker of the cell, {names}"
            raise InputError(source, f"line {number}", f"node {outage.node}", allowed)
    return found


def _outage(row: list[str], number: int, source: str) -> RecordedOutage:
    place = f"line {number}"
    if len(row) != len(COLUMNS):
        raise InputError(source, place, f"{len(row)} values", f"{len(COLUMNS)} values: {', '.join(COLUMNS)}")
    for name, value in zip(COLUMNS, row[:3], strict=False):
        if not (value.isascii() and value.isdecimal() and len(value) <= LONGEST_NUMBER):
            allowed = f"a whole number from 0, at most {LONGEST_NUMBER} digits"
            raise InputError(source, place, f"{name} {value[:30]!r}", allowed)
    node, down_ms, up_ms = map(int, row[:3])
    if up_ms <= down_ms:
        raise InputError(source, place, f"up_ms {up_ms}", f"a time after down_ms ({down_ms})")
    for kind in KINDS:
        if kind == row[3]:
            return RecordedOutage(node, down_ms, up_ms, kind)
    raise InputError(source, place, f"kind {row[3]!r}", f"one of {', '.join(KINDS)}")


def _checked(lines: list[tuple[int, RecordedOutage]], source: str) -> list[tuple[int, RecordedOutage]]:
    """The lines by time. Raises InputError if two outages of a node overlap, or two impairments of one kind; an
    impairment may overlap outages and those of other kinds."""
    last: dict[tuple[int, str], tuple[int, RecordedOutage]] = {}
    ordered = sorted(lines, key=lambda line: (line[1].down_ms, line[1].node))
    for number, outage in ordered:
        kind = outage.kind if outage.kind in IMPAIRMENTS else "down"
        other, before = last.get((outage.node, kind), (0, None))
        if before is not None and outage.down_ms < before.up_ms:
            found = f"node {outage.node} {kind} at {outage.down_ms}, in its outage of line {other}"
            allowed = f"outages of a node that do not overlap (from {before.up_ms})"
            raise InputError(source, f"line {number}", found, allowed)
        last[outage.node, kind] = number, outage
    return ordered


def _since(
    file: FailureFile, lines: list[tuple[int, RecordedOutage]], source: str, duration_ms: int
) -> list[RecordedOutage]:
    """The outages by time, since the record began. InputError if that is after the first or long before it."""
    (number, first), begins_ms = lines[0], file.begins_ms
    if first.down_ms < begins_ms:
        allowed = f"a time from {begins_ms} on, at which the record begins"
        raise InputError(source, f"line {number}", f"down_ms {first.down_ms}", allowed)
    after_ms, is_replay = first.down_ms - begins_ms, file.mode == "replay"
    if after_ms >= (min(duration_ms, _EPOCH_MS) if is_replay else _EPOCH_MS):
        days = after_ms / _DAY_MS
        after = f"{days:,.0f} days" if days >= 10 else f"{24 * days:,.1f} hours"
        found = f"down_ms {first.down_ms} as the first outage, {after} after the record begins"
        within = f"an outage within the duration ({format_duration(duration_ms)})" if is_replay else "an outage"
        allowed = (
            f"{within}, in milliseconds since the record began; begins gives that time of the file, as in "
            f"{{file: {file.file}, begins: {first.down_ms}}}"
        )
        raise InputError(source, f"line {number}", found, allowed)
    return [outage._replace(down_ms=outage.down_ms - begins_ms, up_ms=outage.up_ms - begins_ms) for _, outage in lines]
