"""What a failing disk does to the end of a log: a torn write, flipped bits, a hole of zeros.

Damage goes to what lies above the mark of a log (`actors.log.checkpoints`), the part of which nobody has promised that
it is durable: there recovery has to find it, drop it and say so. Damage below the mark is of another kind, which no
crash does; a log that finds it refuses to be opened, or to be read there.

For the directory of a node that does not run.
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
    """Damages the newest segment of every log of a node's directory that has anything above its mark; how many."""
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
            file.write(b"\xff")  # of a batch that begins there, or goes on
            return True
        file.seek(begin)
        data = file.read()
        file.seek(begin)
        file.write(bytes(len(data)) if kind == "zeroed" else bytes(byte ^ rng.randrange(1, 256) for byte in data))
    return True
