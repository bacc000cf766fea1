"""Events that the store of generation `v3` emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import Trace
from protocol.ids import NodeId, node_name

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
