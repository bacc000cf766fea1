"""Events that the store of generation `v3` emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import Reason, Trace
from protocol.ids import BrokerId, Epoch, NodeId, node_name

SessionId = Annotated[int, "id of the session"]
Owner = Annotated[NodeId, "the node whose session it is"]


@dataclass(slots=True)
class StoreSessionBegan(Trace):
    """A node opened a session of the store."""

    kind: ClassVar[str] = "store_session"
    session: SessionId
    owner: Owner

    def sentence(self) -> str:
        return f"{node_name(self.owner)} opens session {self.session} of the store"


@dataclass(slots=True)
class StoreSessionEnded(Trace):
    """A session of the store ended: it was closed, or it expired. Its ephemeral nodes are gone."""

    kind: ClassVar[str] = "store_session_ended"
    session: SessionId
    owner: Owner
    expired: Annotated[bool, "whether it expired"]
    ephemerals: Annotated[tuple[str, ...], "paths of its ephemeral nodes"]

    def sentence(self) -> str:
        how = "expires" if self.expired else "is closed"
        return f"session {self.session} of {node_name(self.owner)} {how}"


@dataclass(slots=True)
class StoreChanged(Trace):
    """The store carried out a change of one of its nodes."""

    kind: ClassVar[str] = "store_changed"
    path: Annotated[str, "path of the node"]
    version: Annotated[int, "version of the node after the change, -1 if it was deleted"]
    data: Annotated[str, "data of the node after the change"]

    def sentence(self) -> str:
        return f"{self.path} is deleted" if self.version < 0 else f"{self.path} := {self.data}, version {self.version}"


@dataclass(slots=True)
class ControllerElected(Trace):
    """A broker became the controller."""

    kind: ClassVar[str] = "controller_elected"
    words: ClassVar[str] = "is elected controller in epoch {0.epoch}"
    epoch: Annotated[Epoch, "controller epoch of its term"]


@dataclass(slots=True)
class ControllerDeposed(Trace):
    """A broker is not the controller any more."""

    kind: ClassVar[str] = "controller_deposed"
    words: ClassVar[str] = "is not the controller of epoch {0.epoch} any more"
    epoch: Annotated[Epoch, "controller epoch of the term that has ended"]


@dataclass(slots=True)
class CommandCarriedOut(Trace):
    """A broker answered a command of a controller."""

    kind: ClassVar[str] = "command"
    command: Annotated[str, "LeaderAndIsrRequest or StopReplicaRequest"]
    controller: Annotated[BrokerId, "the controller that sent it"]
    controller_epoch: Annotated[Epoch, "controller epoch of that controller"]
    is_init: Annotated[bool, "whether replicas that the command does not name were deleted"]
    partitions: Annotated[tuple[str, ...], "the partitions of the command"]
    error: Annotated[str, "NONE, or why the command was refused"]

    def sentence(self) -> str:
        what = f"{self.command.removesuffix('Request')}{' (INIT)' if self.is_init else ''}"
        of = f"of controller {self.controller}, epoch {self.controller_epoch}"
        if self.error != "NONE":
            return f"refuses {what} {of}: {self.error}"
        return f"obeys {what} {of}: {', '.join(self.partitions) or 'no partitions'}"


@dataclass(slots=True)
class StoreAlert(Trace):
    """A broker or the controller of generation `v3` alerts the operator."""

    kind: ClassVar[str] = "store_alert"
    words: ClassVar[str] = "ALERT: {0.reason}"
    reason: Reason
