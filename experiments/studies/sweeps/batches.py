"""Batches in the store of a study: committed by the worker that ran them, and taken for complete only then.

A batch is a pair of Parquet files of the same name, `cell-DIGEST-trials-A-B` (trials A up to B, not including B), in
`trace/` and in `trials/`. It is committed by its mark, a file in `trials/` with the SHA-256 digests of both
(`sha256sum -c` reads it from the directory), which is written last. A file without a mark is not read.

Batches of one cell may overlap, where two sweeps ran at the same time: a trial is the same in both, and `disjoint`
chooses the batches that hold each trial once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.studies.sweeps.storage import Folder, Store
from experiments.studies.trace.rules import COLUMNS, broken_rule
from experiments.studies.trace.schema import TRACE_SCHEMA, VERSION, VERSION_KEY
from experiments.studies.trials.batch import TRIALS_SCHEMA, Batch
from experiments.support.atomic import TEMPORARY
from experiments.support.errors import InputError

TRACE, TRIALS = "trace", "trials"
_MARK = re.compile(r"_cell-([0-9a-f]{16})-trials-(\d{7,})-(\d{7,})\.sha256")
_WHOLE = "a whole file; delete its .sha256 in trials/ and sweep again"


def batch_name(batch: Batch) -> str:
    """The name of a batch's files, without folder and ending."""
    return f"cell-{batch.cell}-trials-{batch.first:07d}-{batch.stop:07d}"


def mark_name(batch: Batch) -> str:
    """The name of a batch's mark, with its folder."""
    return f"{TRIALS}/_{batch_name(batch)}.sha256"


def file_names(batch: Batch) -> tuple[str, str]:
    """The names of a batch's files in `trace/` and in `trials/`, with their folders."""
    return f"{TRACE}/{batch_name(batch)}.parquet", f"{TRIALS}/{batch_name(batch)}.parquet"


def commit(store: Store, batch: Batch, trace: pa.Table, trials: pa.Table) -> int:
    """Writes one batch: its trace, its trials, then its mark; returns the bytes written. Raises StorageFailed."""
    marks, size = [], 0
    for name, table in zip(file_names(batch), (trace, trials), strict=True):
        content = parquet(table)
        store.write(name, content)
        marks.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
        size += len(content)
    store.write(mark_name(batch), "".join(marks).encode())
    return size


def parquet(table: pa.Table) -> memoryview:
    """The table as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return memoryview(sink.getvalue())


def trace_bytes(store: Folder, batches: Iterable[Batch]) -> int:
    """The size of the traces of batches; files that are missing count nothing."""
    traces = (store.root / file_names(batch)[0] for batch in batches)
    return sum(path.stat().st_size for path in traces if path.exists())


def committed(store: Store) -> list[Batch]:
    """The committed batches by their marks, in the order of cells and trials; their content is not read."""
    found = (_MARK.fullmatch(name) for name in store.names(TRIALS))
    return sorted(Batch(match[1], int(match[2]), int(match[3])) for match in found if match)


def disjoint(batches: Iterable[Batch], cells: Collection[str]) -> Iterator[Batch]:
    """The batches of these cells, without those that overlap one before them; `batches` in their order."""
    cell, covered = "", 0
    for batch in batches:
        if batch.cell != cell:
            cell, covered = batch.cell, 0
        if batch.cell in cells and batch.first >= covered:
            covered = batch.stop
            yield batch


def remove_leftovers(store: Store) -> None:
    """Removes what an interrupted command left in a folder: temporary files, and files of batches without a mark.
    Objects of an object store are kept: a sweep on another machine may be about to write their marks."""
    if not isinstance(store, Folder):
        return
    marked = {f"{batch_name(batch)}.parquet" for batch in committed(store)}
    for folder in ("", f"{TRACE}/", f"{TRIALS}/"):
        for name in store.names(folder):
            unmarked = folder and name.startswith("cell-") and name not in marked
            if unmarked or name.startswith(TEMPORARY):
                store.remove(f"{folder}{name}")


def read_trials(store: Store, batch: Batch) -> pa.Table:
    """The `trials/` table of a batch. Raises InputError if it is damaged or missing, StorageFailed."""
    digests, name = _digests(store, batch), file_names(batch)[1]
    return _trials(store, batch, _content(store, name, digests[name]))


def check_batch(store: Store, batch: Batch) -> tuple[int, int]:
    """The size of the batch's trace in bytes, and the number of its rows. Raises InputError naming the first file of
    the batch that is damaged, missing or of another version, StorageFailed."""
    digests = _digests(store, batch)
    trace_name, trials_name = file_names(batch)
    content = {name: _content(store, name, digest) for name, digest in digests.items()}
    trials = _trials(store, batch, content[trials_name])
    trace = _parquet(store.place(trace_name), content[trace_name])
    _require_columns(store.place(trace_name), trace.schema_arrow, TRACE_SCHEMA)
    for name in trace.schema_arrow.names:
        if trace.schema_arrow.field(name).nullable and trace.read([name])[name].null_count:
            raise InputError(store.place(trace_name), name, "nulls", "a value in each row")
    rows = trace.read(list(COLUMNS))
    broken = broken_rule(rows, trials)
    if broken is not None:
        raise InputError(store.place(trace_name), *broken)
    return len(content[trace_name]), rows.num_rows


def _digests(store: Store, batch: Batch) -> dict[str, str]:
    """The digests of a batch's files by their names, as its mark gives them."""
    names = file_names(batch)
    text = (store.read(mark_name(batch)) or b"").decode("utf-8", "replace")
    match = re.fullmatch("".join(f"(.*?)  {re.escape(name)}\n" for name in names), text)
    if match is None:
        allowed = "the digests of two files; delete it and sweep again"
        raise InputError(store.place(mark_name(batch)), "", "a damaged file", allowed)
    return dict(zip(names, match.groups(), strict=True))


def _content(store: Store, name: str, digest: str) -> bytes:
    content = store.read(name)
    if content is None or hashlib.sha256(content).hexdigest() != digest:
        found = "no such file" if content is None else "a damaged Parquet file"
        raise InputError(store.place(name), "", found, _WHOLE)
    return content


def _trials(store: Store, batch: Batch, content: bytes) -> pa.Table:
    place = store.place(file_names(batch)[1])
    trials = _parquet(place, content).read()
    _require_columns(place, trials.schema, TRIALS_SCHEMA)
    if trials["trial"].to_pylist() != list(range(batch.first, batch.stop)):
        raise InputError(place, "trial", "trials that differ from its name", f"{batch.first} to {batch.stop - 1}")
    return trials


def _parquet(place: str, content: bytes) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(content))
    except pa.ArrowException as error:
        raise InputError(place, "", f"no whole Parquet file ({error})", _WHOLE) from error


def _require_columns(place: str, schema: pa.Schema, expected: pa.Schema) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY.encode(), b"1").decode()
    if expected is TRACE_SCHEMA and version != str(VERSION):
        allowed = f"version {VERSION}; delete its .sha256 in trials/ and sweep again"
        raise InputError(place, "", f"a trace of version {version}", allowed)
    for name, kind in zip(expected.names, expected.types, strict=True):
        found = schema.field(name).type if name in schema.names else "no column"
        if found != kind:
            raise InputError(place, name, found, f"{kind}; the columns {', '.join(expected.names)}")
