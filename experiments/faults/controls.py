"""What a fault can do to a cluster: `NodeControls` on any engine, `Controls` on a simulated one, which has more.

Faults overlap. Where several of them keep a node down or paused, a disk full or a link cut, that ends when the last of
them ends (`Holds`).

A crash takes from a disk what leaves every partition within its tolerance (`experiments/check/truth.py`), and nothing
where it would take more. A controller may lose its disk while a majority of the voters keep theirs
(`quorum_operator.py`); it has not acknowledged what it has not flushed. That is decided on the ground truth when the
fault begins. So leaving a fault out of a timeline never makes the other faults exceed the tolerance, which allows
timelines to be shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Generic, TypeVar

from experiments.check.engine import CheckedEngine
from experiments.check.truth import GroundTruth
from experiments.engines.port import Engine, Loss
from experiments.faults.cluster_operator import ClusterOperator, CreatedTopic
from experiments.faults.quorum_operator import QuorumOperator
from experiments.story.render import Heading
from protocol.broker.context import log_name
from protocol.events.base import Trace
from protocol.events.broker import RecordsAppended, RecordsFetched
from protocol.ids import NodeId, TimeMs, TopicPartition, is_broker, is_controller, is_store
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand, Command

OPERATOR = "User:operator"
"""The principal of the requests of faults: a super user in clusters with an authorizer."""


Subject = TypeVar("Subject", bound=Hashable)
Link = tuple[NodeId, NodeId]
"""(sender, receiver)"""


class Holds(Generic[Subject]):
    """Which holders keep a node, disk or link in a state, which `begin` sets and, after the last holder, `end` ends."""

    def __init__(self, begin: Callable[[Subject], object], end: Callable[[Subject], object]) -> None:
        self._begin, self._end = begin, end
        self._holders: dict[Subject, set[object]] = {}

    def add(self, subject: Subject, holder: object) -> None:
        self._begin(subject)
        self._holders.setdefault(subject, set()).add(holder)

    def drop(self, subject: Subject, holder: object) -> None:
        holders = self._holders.get(subject, set())
        if holder in holders:
            holders.remove(holder)
            if not holders:
                self._end(subject)

    def clear(self, subject: Subject) -> None:
        """Forgets the holders of a state that has ended without them."""
        self._holders.pop(subject, None)

    def __contains__(self, subject: Subject) -> bool:
        return bool(self._holders.get(subject))


class NodeControls:
    """The processes and links of a cluster in the hands of crashes, pauses, restarts and cuts. `call_at` takes actions,
    which `act` carries out when their times have come.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.down = Holds[NodeId](lambda node: None, self.start)
        self.cut_links = Holds[Link](partial(self.set_link, up=False), partial(self.set_link, up=True))
        self._paused = Holds[NodeId](self._pause, self._resume)
        self._due: list[tuple[TimeMs, int, Callable[[], None]]] = []
        self._calls = 0

    @property
    def now_ms(self) -> TimeMs:
        return self.engine.now_ms()

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> None:
        self._calls += 1
        heappush(self._due, (at_ms, self._calls, action))

    def act(self) -> None:
        while self._due and self._due[0][0] <= self.now_ms:
            heappop(self._due)[2]()

    def add_heading(self, text: str) -> None:
        """A line of the story, where the cluster has one."""

    def review(self) -> None:
        """What is to be done once in a while, where anything is."""

    def set_link(self, link: Link, up: bool) -> None:
        self.engine.set_link(*link, up)

    def start(self, node: NodeId) -> None:
        """Starts a node that does not run, unless a fault keeps it down."""
        if not self.engine.is_running(node) and node not in self.down:
            self.engine.start(node)

    def terminate(self, node: NodeId) -> None:
        """Has a node shut down in good order, if it runs and is not paused."""
        if self.engine.is_running(node) and not self.is_paused(node):
            self.engine.terminate(node)

    def kill(self, node: NodeId, asked: Loss) -> None:
        """Ends a node's process, if it runs, and takes from its disk what was asked for."""
        self._paused.clear(node)
        self.engine.crash(node, asked)

    def pause(self, node: NodeId, holder: object) -> None:
        """A running node takes no input until the last of its holders resumes it."""
        if self.engine.is_running(node):
            self._paused.add(node, holder)

    def resume(self, node: NodeId, holder: object) -> None:
        self._paused.drop(node, holder)

    def is_paused(self, node: NodeId) -> bool:
        return node in self._paused

    def _pause(self, node: NodeId) -> None:
        if not self.is_paused(node):
            self.engine.pause(node)

    def _resume(self, node: NodeId) -> None:
        self.engine.resume(node)


class Controls(NodeControls):
    """The nodes, disks and links of one simulated cluster in the hands of its faults.

    `topics` are the topics as they were created, `next_id` numbers administration commands. With `within_tolerance` no
    loss of records exceeds the tolerance, and `withheld` counts the losses that were refused. `headings` receives one
    line per fault for the story of the run. `on_client_death` is called when the client's process has been killed, with
    all commands that were open.
    """

    engine: CheckedEngine

    def __init__(
        self,
        engine: CheckedEngine,
        topics: Mapping[str, CreatedTopic],
        next_id: Callable[[], int],
        within_tolerance: bool = True,
    ) -> None:
        super().__init__(engine)
        self.cluster = engine.cluster
        self.topics = topics
        self.headings: list[Heading] = []
        self.withheld = 0
        disks = self.cluster.disks
        self.full_disks = Holds[NodeId](
            lambda node: disks[node].set_full(True), lambda node: disks[node].set_full(False)
        )
        self._write_ms: dict[NodeId, dict[int, int]] = {}
        self._stalls = 0
        self.operator = QuorumOperator(engine, self.administer)
        self.cluster_operator = ClusterOperator(engine, self.administer, topics)
        self.on_client_death: Callable[[], None] = lambda: None
        self._next_id = next_id
        self._within_tolerance = within_tolerance

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> None:
        """Has the simulator carry out an action."""
        self.cluster.call_at(at_ms, action)

    def review(self) -> None:
        """Has the operator of the quorum do what is to be done."""
        if len(self.engine.spec.controller_ids) > 1:
            self.operator.review()

    def add_heading(self, text: str) -> None:
        """A line of the story, in front of the trace events from now on."""
        self.headings.append(Heading(text, len(self.cluster.traces)))

    def administer(self, request: AdminRequest) -> int:
        asked = replace(request, principal=OPERATOR)
        return self.submit(AdminCommand(command_id=0, request=asked))

    def ask(self, request: AdminRequest | Command) -> int:
        """Submits a request of administration, or another command, and returns its number."""
        return self.submit(request) if isinstance(request, Command) else self.administer(request)

    def submit(self, command: Command) -> int:
        """Submits a command under a number of its own, which it returns."""
        number = self._next_id()
        self.engine.submit(replace(command, command_id=number))
        return number

    def kill(self, node: NodeId, asked: Loss) -> None:
        """As in general, but only what is tolerated is taken from the disk."""
        loss = asked
        if self._within_tolerance or is_controller(node):
            loss = grant_loss(asked, node, self.engine.suite.truth, self.operator)
        if loss != asked:
            self.withheld += 1
            self.add_heading(f"node {node} loses nothing: the loss would exceed the tolerance of a partition")
        super().kill(node, loss)

    def replace_client(self, client: NodeId) -> None:
        """Kills the client's process and starts another one, which does not have its commands."""
        self.kill(client, Loss())
        self.operator.forget_request()
        self.cluster_operator.forget_requests()
        self.on_client_death()
        self.engine.start(client)

    def is_paused(self, node: NodeId) -> bool:
        """Whether it is paused, by a fault or otherwise."""
        return self.engine.is_paused(node)

    def _resume(self, node: NodeId) -> None:
        if self.is_paused(node):
            super()._resume(node)

    def slow_disk(self, node: NodeId, holder: int, write_ms: int) -> None:
        """After each write to a log the node takes no input for this time; of several holders the slowest counts."""
        if not self._write_ms:
            self.cluster.trace_observers.append(self._stall_after_write)
        self._write_ms.setdefault(node, {})[holder] = write_ms

    def end_slow_disk(self, node: NodeId, holder: int) -> None:
        del self._write_ms[node][holder]

    def _stall_after_write(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        slow = self._write_ms.get(node)
        if slow and isinstance(trace, RecordsAppended | RecordsFetched):
            self.cluster.call_at(now_ms, partial(self._stall, node, max(slow.values())))

    def _stall(self, node: NodeId, duration_ms: int) -> None:
        self._stalls += 1
        holder = ("write", self._stalls)
        self.pause(node, holder)
        self.cluster.call_at(self.cluster.now_ms + duration_ms, partial(self.resume, node, holder))


# -- tolerance ---------------------------------------------------------------------------------------------------------


def grant_loss(loss: Loss, node: NodeId, truth: GroundTruth, operator: QuorumOperator) -> Loss:
    """The loss that was asked for, or no loss where it would exceed the tolerance of a partition or of the quorum."""
    if loss.kind == "none":
        return loss
    if is_store(node):
        return loss if loss.kind == "unflushed" else Loss()
    if not is_broker(node):
        return Loss() if loss.kind == "all" and not operator.can_replace(node) else loss
    at_stake = _partitions_at_stake(loss, node, truth)
    if at_stake is None or any(not _tolerates_loss(partition, node, truth) for partition in at_stake):
        return Loss()
    return loss


def _partitions_at_stake(loss: Loss, node: NodeId, truth: GroundTruth) -> list[TopicPartition] | None:
    """Partitions of which the broker's disk could lose records; None while no controller names them."""
    image, disk = truth.controller_image(), truth.cluster.disks[node]
    if image is None:
        return None
    names, found = set(disk.log_names()), []
    for key, _ in image.partitions():
        if log_name(key) in names:
            log = disk.open_log(log_name(key))
            at_stake = log.end_offset - (log.start_offset if loss.kind == "all" else log.flushed_offset)
            if at_stake > 0:
                found.append(image.name_of(key))
    return found


def _tolerates_loss(partition: TopicPartition, node: NodeId, truth: GroundTruth) -> bool:
    """Whether the partition keeps its promise if this broker loses records of it."""
    state, known = truth.controller_state(partition), truth.of(partition)
    if state is None or not truth.features.elr or not known.reached_min_isr:
        return False
    min_isr = truth.min_isr(partition, state)
    return min_isr == known.min_isr and len(known.lossy | {node}) <= min_isr - 1
