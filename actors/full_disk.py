"""A disk that fills up: files that take so many bytes more and then refuse, as the kernel does.

A write that does not fit is carried out as far as there is room, and the next one fails with ENOSPC. Bytes that are
written over cost nothing, bytes that are cut off give their room back only when the limit is lifted: an experiment that
fills a disk wants it full until it says otherwise. Small files that are replaced whole (`actors.log.files`) are not
counted; a file system keeps room of its own for such things more often than not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from actors.log.files import OpenFiles


class LimitedFiles(OpenFiles):
    """Open files that may grow by `room_bytes` in all; None: as far as the disk lets them."""

    room_bytes: int | None = None

    def write_some(self, file: int, parts: Sequence[bytes], position: int) -> int:
        """One write; the number of bytes that were taken. OSError(ENOSPC) where there is room for none."""
        if self.room_bytes is None:
            return super().write_some(file, parts, position)
        size = sum(map(len, parts))
        growth = max(0, position + size - max(position, os.fstat(file).st_size))
        taken = size - max(0, growth - self.room_bytes)
        if size and taken <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if taken < size:
            written = super().write_some(file, (b"".join(parts)[:taken],), position)
        else:
            written = super().write_some(file, parts, position)
        self.room_bytes -= max(0, min(growth, written - (size - growth)))
        return written
