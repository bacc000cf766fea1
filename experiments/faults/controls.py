"""What a fault can do to a simulated cluster.

Faults overlap. Where several of them keep a node down or paused, the node starts or resumes when the last of them ends;
`Holds` counts them. What faults of one kind share with each other, and no other kind needs, is a `SharedState`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from experiments.check.engine import CheckedEngine
from experiments.engines.port import Loss
from experiments.faults.cluster_operator import ClusterOperator, CreatedTopic
from experiments.faults.quorum_operator import QuorumOperator
from experiments.faults.tolerance import grant_loss
from experiments.story.render import Heading
from protocol.ids import NodeId, is_controller
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand, Command

OPERATOR = "User:operator"
"""The principal of the requests of faults: a super user in clusters with an authorizer."""


class Holds:
    """Which holders keep which node in a state."""

    def __init__(self) -> None:
        self._holders: dict[NodeId, set[object]] = {}

    def add(self, node: NodeId, holder: object) -> None:
        self._holders.setdefault(node, set()).add(holder)

    def drop(self, node: NodeId, holder: object) -> None:
        self._holders.get(node, set()).discard(holder)

    def clear(self, node: NodeId) -> None:
        self._holders.pop(node, None)

    def __contains__(self, node: NodeId) -> bool:
        return bool(self._holders.get(node))


class SharedState:
    """State that the faults of one kind share during a run; created when the first of them needs it."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls

    @classmethod
    def in_run(cls, controls: Controls) -> Self:
        """The state of this class in the run of `controls`."""
        if cls not in controls.shared:
            controls.shared[cls] = cls(controls)
        found = controls.shared[cls]
        assert isinstance(found, cls)
        return found


class Controls:
    """The nodes, disks and links of one simulated cluster in the hands of its faults.

    `topics` are the topics as they were created, `next_id` numbers administration commands. With
    `within_tolerance` the loss of a broker's records is limited to what its partitions tolerate (`tolerance.py`), and
    `withheld` counts the losses that were refused. `headings` receives one line per fault for the story of the run.
    `on_client_death` is called when the client's process has been killed, with all commands that were open.
    """

    def __init__(
        self,
        engine: CheckedEngine,
        topics: Mapping[str, CreatedTopic],
        next_id: Callable[[], int],
        within_tolerance: bool = True,
    ) -> None:
        self.engine = engine
        self.cluster = engine.cluster
        self.topics = topics
        self.headings: list[Heading] = []
        self.withheld = 0
        self.down, self.paused = Holds(), Holds()
        self.operator = QuorumOperator(engine, self.administer)
        self.cluster_operator = ClusterOperator(engine, self.administer, topics)
        self.shared: dict[type[SharedState], SharedState] = {}
        self.on_client_death: Callable[[], None] = lambda: None
        self._next_id = next_id
        self._within_tolerance = within_tolerance

    def add_heading(self, text: str) -> None:
        """A line of the story, in front of the trace events from now on."""
        self.headings.append(Heading(text, len(self.cluster.traces)))

    def administer(self, request: AdminRequest) -> int:
        """Submits an administration command and returns its number."""
        asked = request.model_copy(update={"principal": OPERATOR})
        return self.submit(AdminCommand(command_id=0, request=asked))

    def ask(self, request: AdminRequest | Command) -> int:
        """Submits a request of administration, or a command of another kind, and returns its number."""
        return self.submit(request) if isinstance(request, Command) else self.administer(request)

    def submit(self, command: Command) -> int:
        """Submits a command under a number of its own, which it returns."""
        number = self._next_id()
        self.engine.submit(command.model_copy(update={"command_id": number}))
        return number

    def start(self, node: NodeId) -> None:
        """Starts a node that does not run, unless a fault keeps it down."""
        if not self.engine.is_running(node) and node not in self.down:
            self.engine.start(node)

    def release(self, node: NodeId, number: int) -> None:
        """The fault of that number keeps the node down no longer."""
        self.down.drop(node, number)
        self.start(node)

    def kill(self, node: NodeId, asked: Loss) -> None:
        """Ends a node's process, if it runs, and takes from its disk what was asked for and is tolerated."""
        loss = asked
        if self._within_tolerance or is_controller(node):
            loss = grant_loss(asked, node, self.engine.suite.truth, self.operator)
        if loss != asked:
            self.withheld += 1
            self.add_heading(f"node {node} loses nothing: the loss would exceed the tolerance of a partition")
        self.paused.clear(node)
        self.engine.crash(node, loss)

    def replace_client(self, client: NodeId) -> None:
        """Kills the client's process and starts another one, which does not have its commands."""
        self.kill(client, Loss())
        self.operator.forget_request()
        self.cluster_operator.forget_requests()
        self.on_client_death()
        self.engine.start(client)

    def pause(self, node: NodeId, holder: object) -> None:
        """A running node takes no input until the last of its holders resumes it."""
        if self.engine.is_running(node):
            self.paused.add(node, holder)
            if not self.engine.is_paused(node):
                self.engine.pause(node)

    def resume(self, node: NodeId, holder: object) -> None:
        self.paused.drop(node, holder)
        if node not in self.paused and self.engine.is_paused(node):
            self.engine.resume(node)
