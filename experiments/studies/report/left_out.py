"""What the numbers of a study were computed without: the damaged files that the analysis has put into quarantine.

The page lists them below the answer: trials that are missing for another reason than chance may bias it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from experiments.support.errors import InputError

FILE = "gold/quarantine.json"
_NAME = re.compile(r"(?:.*/)?((?:trace|trials)/_?cell-([0-9a-f]+)-[^/]+)")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is left out. `file`: its name within the study; `setting`: the one whose trials it has; `first`,
    `last`: the numbers of these trials; `reason`: what is wrong with it."""

    file: str
    setting: str
    first: int
    last: int
    reason: str

    @property
    def trials(self) -> int:
        """How many trials it has."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object of the file; `trials`: the first one, and the one after the last."""

    file: str
    reason: str
    trials: tuple[int, int]


_ENTRIES = TypeAdapter(list[_Entry])


def read_left_out(out: Path, settings: Mapping[str, str]) -> list[LeftOut]:
    """The files that `gold/quarantine.json` of the study in `out` lists. `settings`: the names of the settings by the
    digests of their cells. Raises InputError if the file is missing or damaged."""
    path = out / FILE
    try:
        entries = _ENTRIES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        found = error.strerror if isinstance(error, OSError) else "a damaged file"
        raise InputError(str(path), "", found, "what `isray study analyze` writes; run it again") from error
    left_out = []
    for entry in entries:
        name, (first, stop) = _NAME.fullmatch(entry.file), entry.trials
        file, digest = (name[1], name[2]) if name else (entry.file, "")
        left_out.append(LeftOut(file, settings.get(digest, ""), first, stop - 1, entry.reason))
    return left_out
