"""What a recorder of a simulated run is called with, beside the trace events (`SimCluster.trace_observers`).

A recorder only reads: it changes neither the order of events nor the trace hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message

Change = Literal["started", "crashed", "exited", "paused", "resumed", "cut", "healed", "disturbed", "restored"]
"""What the experiment does to a node or to one direction of a link; `exited`: the node ended its process itself."""


class Recorder:
    """Receives what happens in a simulated cluster, in the order in which it happens. Times are true virtual time, ms,
    whatever the clocks of the nodes show. A subclass receives what it has methods for; the others do nothing.
    """

    def sent(
        self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message, arrivals: Sequence[TimeMs]
    ) -> None:
        """A node sends a message, which arrives at these times: none if it is lost at once, several if duplicated. It
        is delivered then unless the link is cut, or the target's incarnation has ended or is paused.
        """

    def delivered(self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message) -> None:
        """A node is about to handle a message; `message` is the object that was sent."""

    def fired(self, time_ms: TimeMs, node: NodeId, timer: str) -> None:
        """A node is about to handle a timer that is due."""

    def changed(self, time_ms: TimeMs, change: Change, node: NodeId, peer: NodeId | None, detail: str) -> None:
        """The experiment has changed a node, or the link from `node` to `peer`. `detail`: the kind of loss of a crash,
        the effect of a disturbance, otherwise empty.
        """
