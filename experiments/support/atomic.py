"""Files and folders on a local file system that are written under another name, synced, and renamed: a killed process
or a full disk leaves the old one, or none, and a temporary one that the next command removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of the names of files and folders that are being written."""


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Writes a file atomically, in a folder that exists. Raises OSError, and the old file is then still there."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to fill; it replaces `folder` if the block succeeds, and is removed if it raises."""
    fresh, old = folder.with_name(f"{TEMPORARY}{folder.name}"), folder.with_name(f"{TEMPORARY}old-{folder.name}")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
