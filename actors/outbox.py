"""The experiment's messages to a node, which leave in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import ray

from actors.peers import Handle, pieces_of
from actors.transport import pack_frame
from protocol.ids import DRIVER


@dataclass(slots=True)
class Outbox:
    """The experiment's encoded messages to a node on one channel: the `queued` ones, and the call `under_way`. Ray may
    let calls of an async actor overtake each other, so there is one call at a time."""

    queued: list[bytes] = field(default_factory=list)
    under_way: Handle = None

    def send_queued(self, deliver: Handle) -> None:
        """Sends the queued messages in one frame, unless a call is under way."""
        if self.queued and (self.under_way is None or ray.wait([self.under_way], timeout=0)[0]):
            self.under_way = deliver.remote(DRIVER, *pieces_of(pack_frame(self.queued)))
            self.queued = []
