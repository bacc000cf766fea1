"""The folder for what a command computes once and later commands only read: `~/.cache/isray`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`isray` in `XDG_CACHE_HOME`, or else in `~/.cache`."""
    given = environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "isray"
