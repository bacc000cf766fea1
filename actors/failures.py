"""The errors of a cluster of actors about one of its nodes."""

from __future__ import annotations

from protocol.ids import NodeId, node_name


class NodeNotRunningError(RuntimeError):
    """A command was given to a node that does not run."""


class NodeBusyError(RuntimeError):
    """The queue of messages to a node is full: the node is paused, or the experiment has stopped polling it."""


class NodeFailedError(RuntimeError):
    """A node failed or could not be created: a defect of the program, or a damaged disk."""

    def __init__(self, node: NodeId, reason: str) -> None:
        super().__init__(f"{node_name(node)} failed: {reason}")
        self.node = node
