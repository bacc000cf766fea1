"""Simulates a full disk: files that accept a number of further bytes and then fail with ENOSPC, as the kernel does.

A write that does not fit is done as far as there is room, and the next one fails. Overwritten bytes do not count, and
truncating a file frees no room: the disk stays full until the experiment lifts the limit. Small files that are replaced
whole (`actors.log.files`) are not counted, as file systems reserve some space.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from actors.log.files import OpenFiles


class LimitedFiles(OpenFiles):
    """Open files that may grow by `room_bytes` in all, None for no limit but that of the disk."""

    room_bytes: int | None = None

    def write_some(self, file: int, parts: Sequence[bytes], position: int) -> int:
        """One write; returns the number of bytes written. OSError(ENOSPC) where there is no room for any."""
        if self.room_bytes is None:
            return super().write_some(file, parts, position)
        size = sum(map(len, parts))
        growth = max(0, position + size - max(position, os.fstat(file).st_size))
        taken = size - max(0, growth - self.room_bytes)
        if size and taken <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write_some(file, parts if taken == size else (b"".join(parts)[:taken],), position)
        self.room_bytes -= max(0, min(growth, written - (size - growth)))
        return written
