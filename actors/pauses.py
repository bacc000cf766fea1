"""The processes of paused nodes, which are stopped by SIGSTOP: connections, event loops and collector stand still.

A pause takes place in two steps: the node stops between two of its inputs, then its process is stopped. What the
experiment itself does to a paused node (it cuts a link of it, reads its log, kills it) needs an answer of the process.
So the process runs for that moment, in which the node still does nothing. A stopped process does not notice that the
one that supervises it has gone: the kernel ends it then (`set_signal_of_parents_end`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from actors.machines import UnreachableError
from protocol.ids import NodeId


class StoppedProcesses:
    """The nodes of a cluster whose processes are stopped. `send` sends a signal to the process of a node, and raises
    UnreachableError or ProcessLookupError where that is impossible; `is_running`: whether a node has a process."""

    def __init__(self, send: Callable[[NodeId, int], None], is_running: Callable[[NodeId], bool]) -> None:
        self._send, self._is_running = send, is_running
        self._nodes: set[NodeId] = set()

    def __contains__(self, node: NodeId) -> bool:
        return node in self._nodes

    def stop(self, node: NodeId) -> None:
        """Stops the process of a paused node, unless it is stopped."""
        if node not in self._nodes:
            self._send(node, signal.SIGSTOP)
            self._nodes.add(node)

    def release(self, node: NodeId) -> None:
        """Continues the process of a node, if it is stopped; the node itself stays paused."""
        if node in self._nodes:
            self._nodes.remove(node)
            with suppress(UnreachableError, ProcessLookupError):
                self._send(node, signal.SIGCONT)

    def release_all(self) -> None:
        """Continues all processes, so that they can end."""
        for node in sorted(self._nodes):
            self.release(node)

    @contextmanager
    def answering(self, nodes: Iterable[NodeId]) -> Iterator[None]:
        """While the context lasts, stopped processes of these nodes run and answer."""
        stopped = sorted(self._nodes.intersection(nodes))
        for node in stopped:
            self.release(node)
        try:
            yield
        finally:
            for node in stopped:
                if self._is_running(node):
                    self.stop(node)
