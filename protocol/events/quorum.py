"""Events that a replica of the metadata log emits, on any controller or broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import Reason, Trace
from protocol.ids import Epoch, NodeId, Offset

QuorumEpoch = Annotated[Epoch, "epoch of the metadata quorum"]


@dataclass(slots=True)
class QuorumRoleChanged(Trace):
    """A replica of the metadata log entered another role or epoch."""

    kind: ClassVar[str] = "quorum_role"
    role: Annotated[str, "the new role, of `protocol/quorum/election.py`"]
    epoch: QuorumEpoch
    leader: Annotated[NodeId, "the leader of the epoch, -1 where it is not known"]


@dataclass(slots=True)
class QuorumLeaderResigned(Trace):
    """A leader of the metadata log resigned from its epoch."""

    kind: ClassVar[str] = "quorum_resigned"
    epoch: QuorumEpoch
    reason: Reason


@dataclass(slots=True)
class QuorumVotersChanged(Trace):
    """A leader of the metadata log appended a change of the voters."""

    kind: ClassVar[str] = "quorum_voters"
    voters: Annotated[tuple[str, ...], "the voters from then on: node id and directory id of each"]


@dataclass(slots=True)
class QuorumLogTruncated(Trace):
    """A replica of the metadata log truncated its log where it diverges from the leader's."""

    kind: ClassVar[str] = "quorum_truncated"
    end_offset: Annotated[Offset, "log end offset after the truncation"]
    epoch: QuorumEpoch


@dataclass(slots=True)
class QuorumSnapshotLoaded(Trace):
    """A replica of the metadata log loaded the leader's snapshot."""

    kind: ClassVar[str] = "quorum_snapshot"
    end_offset: Annotated[Offset, "offset behind the last record that the snapshot covers"]
    epoch: Annotated[Epoch, "epoch of that record"]
