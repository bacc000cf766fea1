"""Damages the end of a log on disk as a failing disk does: a torn write, flipped bits, a hole of zeros.

Only bytes above the log's mark (`actors.log.checkpoints`) are damaged, the part that was not flushed: recovery has to
detect the damage there, drop the records and report it. No crash damages bytes below the mark; a log with damage there
raises CorruptLogError when it is opened or read.
"""

from __future__ import annotations

from os import SEEK_END
from pathlib import Path
from random import Random
from typing import Literal

from actors.log.checkpoints import MarkFile
from actors.log.files import OpenFiles
from actors.log.segment import LOG_SUFFIX

DamageKind = Literal["torn", "flipped", "zeroed"]
MAX_DAMAGE_BYTES = 4_096


def damage_tails(directory: Path, kind: DamageKind, rng: Random) -> int:
    """Damages the newest segment of every log that has unflushed bytes, in the directory of a node that does not run.

    Returns the number of damaged logs.
    """
    logs = sorted({path.parent for path in directory.glob(f"logs/*/*/*{LOG_SUFFIX}")})
    return sum(_damage(log, kind, rng) for log in logs)


def _damage(log: Path, kind: DamageKind, rng: Random) -> bool:
    newest = max(log.glob(f"*{LOG_SUFFIX}"), key=lambda path: int(path.stem))
    files = OpenFiles()
    mark = MarkFile(log, files, is_new=False).mark
    files.close()
    base, end = int(newest.stem), newest.stat().st_size
    sound = mark.position if base == mark.segment_base else 0
    if base < mark.segment_base or end <= sound:
        return False
    begin = rng.randrange(max(sound, end - MAX_DAMAGE_BYTES), end)
    with newest.open("r+b") as file:
        if kind == "torn":
            file.truncate(begin)
            file.seek(0, SEEK_END)
            file.write(b"\xff")  # one byte of the torn batch
            return True
        file.seek(begin)
        data = file.read()
        file.seek(begin)
        file.write(bytes(len(data)) if kind == "zeroed" else bytes(byte ^ rng.randrange(1, 256) for byte in data))
    return True
