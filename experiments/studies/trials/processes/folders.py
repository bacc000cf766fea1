"""The folders of clusters whose trial was killed: the next trial on the machine removes them.

A cluster ends with the process that created it, but a process that is killed cannot remove the folder with the
directories of its nodes. So each trial leaves its process id in the folder of its cluster.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_MARK = "trial.pid"


def mark(folder: Path) -> None:
    """Marks a cluster's folder as one of this process."""
    folder.mkdir(exist_ok=True)
    (folder / _MARK).write_text(str(os.getpid()), encoding="utf-8")


def remove_orphans(parent: Path) -> None:
    """Removes the marked folders in `parent` whose process does not run any more; other trials may do so too."""
    for path in parent.glob(f"*/{_MARK}"):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8")
            if text.isdecimal() and not Path(f"/proc/{text}").exists():
                shutil.rmtree(path.parent)
