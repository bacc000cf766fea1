"""Keeps what Ray prints out of the output of a command.

Ray prints the messages of raylets, such as the loss of a node, on the standard output of every driver, from a thread of
its own and whatever `log_to_driver` says. Standard output belongs to the command, which prints from the main thread:
its records, tables or its one JSON document.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast


class _ByThread:
    """A text stream that is `main` for the main thread and `others` for all other ones."""

    def __init__(self, main: TextIO, others: TextIO) -> None:
        self._main, self._others = main, others

    def __getattr__(self, name: str) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return getattr(self._main if is_main else self._others, name)


@contextmanager
def ray_output_to_stderr() -> Iterator[None]:
    """Has everything that other threads than the main one print go to standard error during the block."""
    with redirect_stdout(cast(TextIO, _ByThread(sys.stdout, sys.stderr))):
        yield
