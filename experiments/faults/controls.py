"""What a fault can do to a simulated cluster.

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
from typing import Generic, TypeVar

from experiments.check.engine import CheckedEngine
from experiments.check.truth import GroundTruth
from experiments.engines.port import Loss
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


class Holds(Generic[Subject]):
    """Which holders keep a node, disk or link in a state, which `begin` sets and, after the last holder, `end` ends."""

    def __init__(self, begin: Callable[[Subject], object], end: Callable[[Subject], object]) -> None:
        self._begin, self._end = begin, end
        self._holders: dict[Subject, set[object]] = {}

    def add(self, subject: Subject, holder: object) -> None:
        self._holders.setdefault(subject, set()).add(holder)
        self._begin(subject)

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


class Controls:
    """The nodes, disks and links of one simulated cluster in the hands of its faults.

    `topics` are the topics as they were created, `next_id` numbers administration commands. With `within_tolerance` no
    loss of records exceeds the tolerance, and `withheld` counts the losses that were refused. `headings` receives one
    line per fault for the story of the run. `on_client_death` is called when the client's process has been killed, with
    all commands that were open.
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
        self.down = Holds[NodeId](lambda node: None, self.start)
        disks = self.cluster.disks
        self.full_disks = Holds[NodeId](
            lambda node: disks[node].set_full(True), lambda node: disks[node].set_full(False)
        )
        self.cut_links = Holds[tuple[NodeId, NodeId]](
            lambda link: engine.set_link(*link, False), lambda link: engine.set_link(*link, True)
        )
        self._paused = Holds[NodeId](self._pause, self._resume)
        self._write_ms: dict[NodeId, dict[int, int]] = {}
        self._stalls = 0
        self.operator = QuorumOperator(engine, self.administer)
        self.cluster_operator = ClusterOperator(engine, self.administer, topics)
        self.on_client_death: Callable[[], None] = lambda: None
        self._next_id = next_id
        self._within_tolerance = within_tolerance

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

    def start(self, node: NodeId) -> None:
        """Starts a node that does not run, unless a fault keeps it down."""
        if not self.engine.is_running(node) and node not in self.down:
            self.engine.start(node)

    def kill(self, node: NodeId, asked: Loss) -> None:
        """Ends a node's process, if it runs, and takes from its disk what was asked for and is tolerated."""
        loss = asked
        if self._within_tolerance or is_controller(node):
            loss = grant_loss(asked, node, self.engine.suite.truth, self.operator)
        if loss != asked:
            self.withheld += 1
            self.add_heading(f"node {node} loses nothing: the loss would exceed the tolerance of a partition")
        self._paused.clear(node)
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
            self._paused.add(node, holder)

    def resume(self, node: NodeId, holder: object) -> None:
        self._paused.drop(node, holder)

    def _pause(self, node: NodeId) -> None:
        if not self.engine.is_paused(node):
            self.engine.pause(node)

    def _resume(self, node: NodeId) -> None:
        if self.engine.is_paused(node):
            self.engine.resume(node)

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
