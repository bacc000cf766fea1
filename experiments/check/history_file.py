"""The history of a run as a file of JSON lines, which grows while the run goes on.

A line is an object with one field, whose name is the kind of the operation and whose value lists the operation's fields
in order (`experiments.check.history`):

    {"invoked": [SEND, PRODUCER, [TOPIC, PARTITION], SIZE, IDEMPOTENT]}
    {"ended": [SEND, FIRST, SIZE, "acknowledged" | "appended" | "failed" | "unknown", OFFSET]}
    {"seen": [READER, [TOPIC, PARTITION], [[OFFSET, LEADER_EPOCH, SEND, FIRST, SIZE], ...], HIGH_WATERMARK]}

A torn last line, as a killed run may leave, is left out and reported; a damaged line elsewhere is an error.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter

from experiments.check.history import Operation
from experiments.support.errors import InputError

_ADAPTERS: dict[str, TypeAdapter[Operation]] = {it.__name__.lower(): TypeAdapter(it) for it in get_args(Operation)}


class HistoryWriter:
    """Locks the file and appends to it. InputError where another writer has it, or it holds something."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise InputError(str(path), "", "another writer", "one writer at a time") from error
        if self._file.tell():
            self._file.close()
            raise InputError(str(path), "", "a history", "no file, or an empty one")

    def write(self, operation: Operation) -> None:
        line = json.dumps({type(operation).__name__.lower(): operation}, separators=(",", ":"))
        self._file.write(f"{line}\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class HistoryReader:
    """The operations of a file, in order. After they were read `is_torn` shows whether the last line was torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_torn = False

    def __iter__(self) -> Iterator[Operation]:
        """InputError, with the line number, for a line that is no operation."""
        with self._path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    self.is_torn = True
                    return
                try:
                    [(name, fields)] = json.loads(line).items()
                    operation = _ADAPTERS[name].validate_python(fields)
                except (ValueError, KeyError, AttributeError) as error:
                    raise InputError(str(self._path), f"line {number}", line.strip()[:80], "an operation") from error
                yield operation
