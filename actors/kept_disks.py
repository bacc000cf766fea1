"""The disks that a cluster leaves for its next start. Commands read them without Ray, whose import takes seconds, and
has to wait until the environment of a private Ray is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.storage import DiskLossKind
from protocol.ids import NodeId


@dataclass(frozen=True, slots=True)
class KeptDisks:
    """The disks of a cluster that has ended: its id, the folder of its nodes' directories, and of each node how often
    it was started, the number of its present disk, and what that loses at the next start.
    """

    run: str
    folder: Path
    incarnations: Mapping[NodeId, int]
    disks: Mapping[NodeId, int]
    losses: Mapping[NodeId, tuple[DiskLossKind, int]]
