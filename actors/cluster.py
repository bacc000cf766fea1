"""A cluster of node actors on a Ray that is connected already: placement, lives, links, and its end.

Placement: brokers and controllers have a placement group each, with one small bundle per node, spread strictly where
there are as many Ray nodes as members and as well as possible elsewhere. A bundle stays where it is, so a restarted
node finds its directory again. Directories lie in a folder of the run on every machine; if a machine is lost for good,
Ray moves its bundles, and their nodes start with empty disks there.

A caller may name the Ray nodes itself instead (`homes`) and `move` a node whose machine is gone to another one. Where
Ray has lost sight of a machine, the node's old process may still live there and write to its disk; so the next life
begins with another, empty directory, also where both machines are one.

Names live in a Ray namespace of the run, so clusters do not see each other. Actors and placement groups belong to the
job that made them: if this process dies without `close`, Ray ends them.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.nodes import NodePlan, NodeSnapshot, PollReport, actor_class, pieces_of
from actors.storage import LossKind
from actors.transport import pack_frame
from protocol.config import ClusterConfig
from protocol.errors import StorageError
from protocol.ids import (
    DRIVER,
    NodeId,
    TopicPartition,
    is_broker,
    is_client,
    is_controller,
    is_recovery_manager,
    node_name,
)
from protocol.messages.base import Message
from protocol.messages.codec import encode
from protocol.quorum.voters import VoterSet

CPU_SHARE = 0.001
"""What a node's bundle reserves: enough to be placed, too little to keep anything else from running."""
PLACEMENT_TIMEOUT_S = 30.0
ORDER_TIMEOUT_S = 10.0
"""How long an order to a node may take before the node counts as unreachable."""
MAX_WAITING = 10_000
"""Messages from the experiment that may wait for a node to take those before them."""
_RETRY_S = 0.02
_STORAGE_ERRORS = {kind.__name__ for kind in (StorageError, *StorageError.__subclasses__())}

NodeCommand = Literal["pause", "resume", "flush"]


def is_connected() -> bool:
    """Whether this process is connected to a Ray cluster."""
    return ray.is_initialized()


class PlacementError(RuntimeError):
    """The Ray cluster has no room for the nodes."""


class NodeNotRunningError(RuntimeError):
    """An order was given to a node that does not run."""


class NodeBusyError(RuntimeError):
    """A node does not keep up with the messages of the experiment: it is paused, or nobody polls it."""


class NodeFailedError(RuntimeError):
    """A node broke, or could not be made: the program is wrong, or the node's disk is damaged."""

    def __init__(self, node: NodeId, what: str) -> None:
        super().__init__(f"{node_name(node)} failed: {what}")
        self.node = node


@dataclass(slots=True)
class _Mail:
    """Messages of the experiment to a node on one channel, encoded: those that `wait`, and the call `under_way`. Ray
    may let calls of an async actor overtake each other, so there is one at a time."""

    wait: list[bytes] = field(default_factory=list)
    under_way: Any = None

    def put(self, message: bytes, deliver: Any) -> None:
        self.wait.append(message)
        self.move(deliver)

    def move(self, deliver: Any) -> None:
        """Hands over what waits, unless a call is under way."""
        if self.wait and (self.under_way is None or ray.wait([self.under_way], timeout=0)[0]):
            self.under_way = deliver.remote(DRIVER, *pieces_of(pack_frame(self.wait)))
            self.wait = []


@dataclass(slots=True)
class _Member:
    """One node: where it is placed, its present actor (None while it does not run) with the poll that is under way, if
    one has been `answered` in this life, the look that is under way and the version that the last one gave (-1: none),
    what its last crash takes from its disk at the next start, how many disks it had before its present one, and the
    experiment's messages to its present life."""

    strategy: PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy
    actor: Any = None
    incarnation: int = 0
    poll: Any = None
    answered: bool = False
    look: Any = None
    version: int = -1
    loss_kind: LossKind = "none"
    loss_count: int = 0
    disk: int = 0
    mail: tuple[_Mail, _Mail] = field(default_factory=lambda: (_Mail(), _Mail()))


@dataclass(slots=True)
class _Links:
    """The directed links that are cut."""

    cut: set[tuple[NodeId, NodeId]] = field(default_factory=set)

    def of(self, node: NodeId) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        """(peers to which nothing leaves, peers from which nothing is taken)."""
        to = tuple(sorted(target for source, target in self.cut if source == node))
        return to, tuple(sorted(source for source, target in self.cut if target == node))


class ActorCluster:
    """See the module docstring. `nodes` are all node ids, `racks` those of brokers whose rack is not their Ray node's
    label, `homes` the ids of the Ray nodes on which nodes are to live that are not to be placed, `voters` the first
    voters of the quorum, whose disks are formatted as such; PlacementError if there is no room for the nodes."""

    def __init__(
        self,
        nodes: Sequence[NodeId],
        config: ClusterConfig,
        seed: int,
        racks: Mapping[NodeId, str] | None = None,
        homes: Mapping[NodeId, str] | None = None,
        voters: VoterSet | None = None,
    ) -> None:
        self.run = f"isray-{uuid.uuid4().hex[:12]}"
        self.started_at_s = time.time()
        self._nodes = tuple(nodes)
        self._config = config
        self._seed = seed
        self._racks = dict(racks or {})
        self._voters = () if voters is None else tuple(tuple(key) for key in voters.keys)
        self._root = Path(tempfile.gettempdir()) / self.run
        self._links = _Links()
        self._groups: list[PlacementGroup] = []
        self._members: dict[NodeId, _Member] = {}
        for node, home in (homes or {}).items():
            self._members[node] = _Member(_pin(home))
        try:
            for kind in (is_broker, is_controller, is_recovery_manager, is_client):
                self._place([node for node in self._nodes if kind(node) and node not in self._members])
        except BaseException:
            self.close()
            raise

    def _place(self, nodes: Sequence[NodeId]) -> None:
        """One bundle for each of some nodes, as far from each other as they may be."""
        if not nodes:
            return
        hosts = [host for host in _machines() if host["Resources"].get("CPU", 0) > 0]
        strategy = "STRICT_SPREAD" if len(hosts) >= len(nodes) else "SPREAD"
        bundles = [{"CPU": CPU_SHARE} for _ in nodes]
        group = placement_group(bundles, strategy=strategy, name=f"{self.run}/{node_name(nodes[0])}")
        self._groups.append(group)
        if not group.wait(PLACEMENT_TIMEOUT_S):
            raise PlacementError(f"no room for {len(nodes)} nodes within {PLACEMENT_TIMEOUT_S:.0f} s")
        for index, node in enumerate(nodes):
            self._members[node] = _Member(PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index))

    @property
    def folder(self) -> Path:
        """The run's folder, which holds the disks of its nodes, on every machine that has any."""
        return self._root

    def directory(self, node: NodeId) -> Path:
        """The node's present disk, on its machine."""
        disk = self._members[node].disk
        return self._root / (f"{node_name(node)}.{disk}" if disk else node_name(node))

    # -- lives ---------------------------------------------------------------------------------------------------------

    def start(self, node: NodeId) -> None:
        """Makes the actor of a node that does not run; returns before it is up."""
        member = self._members[node]
        if member.actor is not None:
            raise RuntimeError(f"{node_name(node)} runs already")
        member.incarnation += 1
        plan = self._plan(node, member)
        options = {
            "name": node_name(node),
            "namespace": self.run,
            "num_cpus": CPU_SHARE,
            "scheduling_strategy": member.strategy,
        }
        member.actor = _when_name_is_free(lambda: actor_class(node).options(**options).remote(plan))
        member.actor.begin.remote()
        member.poll, member.answered = None, False
        member.look, member.version = None, -1
        member.mail = (_Mail(), _Mail())
        member.loss_kind, member.loss_count = "none", 0

    def _plan(self, node: NodeId, member: _Member) -> NodePlan:
        cut_to, cut_from = self._links.of(node)
        return NodePlan(
            node=node,
            incarnation=member.incarnation,
            run=self.run,
            started_at_s=self.started_at_s,
            directory=self.directory(node),
            brokers=tuple(other for other in self._nodes if is_broker(other)),
            controllers=tuple(other for other in self._nodes if is_controller(other)),
            config=self._config,
            seed=self._seed,
            loss_kind=member.loss_kind,
            loss_count=member.loss_count,
            cut_to=cut_to,
            cut_from=cut_from,
            rack=self._racks.get(node),
            voters=self._voters,
        )

    def crash(self, node: NodeId, kind: LossKind, count: int) -> list[PollReport]:
        """SIGKILLs a node. What it had to say until then, nothing where it could not be asked any more. The loss is
        taken from its disk when it starts again."""
        member = self._running(node)
        halted = member.actor.halt.remote()
        asked = [halted] if member.poll is None else [member.poll, halted]
        ray.wait(asked, num_returns=len(asked), timeout=ORDER_TIMEOUT_S)
        last = [] if member.poll is None else self._collect(node, member)
        if member.actor is not None:
            member.poll = halted
            last += self._collect(node, member)
        actor, member.actor = member.actor, None
        member.loss_kind, member.loss_count = kind, count
        if actor is not None and not ray.wait([actor.kill_self.remote()], timeout=ORDER_TIMEOUT_S)[0]:
            ray.kill(actor)
        return last

    def ended(self, node: NodeId) -> None:
        """The node has exited, or is known to have died: its process goes, its disk stays as it is."""
        member = self._running(node)
        actor, member.actor = member.actor, None
        ray.kill(actor)

    def move(self, node: NodeId, home: str) -> None:
        """The machine of a node that does not run is gone: its next life is on the Ray node `home`, with an empty
        disk.
        """
        member = self._members[node]
        if member.actor is not None:
            raise RuntimeError(f"{node_name(node)} runs")
        member.strategy = _pin(home)
        member.disk += 1

    def silence(self, nodes: Collection[NodeId]) -> None:
        """The machines on which these nodes live at present have lost their network: nothing that these lives send is
        taken by the nodes that run, whatever becomes of them; later lives are heard. Lasts until the next call, which
        names all silent nodes anew, and is not known to nodes that start meanwhile.
        """
        incarnations = {node: self._members[node].incarnation for node in nodes}
        orders = [
            self._members[node].actor.silence.remote(incarnations)
            for node in self.running()
            if node not in incarnations
        ]
        ray.wait(orders, num_returns=len(orders), timeout=ORDER_TIMEOUT_S)

    def is_running(self, node: NodeId) -> bool:
        return self._members[node].actor is not None

    def running(self) -> list[NodeId]:
        """All nodes that run, in the order of the cluster's nodes."""
        return [node for node in self._nodes if self._members[node].actor is not None]

    def _running(self, node: NodeId) -> _Member:
        member = self._members[node]
        if member.actor is None:
            raise NodeNotRunningError(f"{node_name(node)} does not run")
        return member

    # -- orders and questions ------------------------------------------------------------------------------------------

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]:
        """Polls all running nodes and returns the reports that have arrived.

        Waits at most `wait_s` for the nodes whose present incarnation has answered a poll before; a node that is still
        starting is not waited for. A node that has exited, died or failed no longer counts as running.

        NodeFailedError where a node could not be created, or has failed.
        """
        running = {node: self._members[node] for node in self.running()}
        for member in running.values():
            for control in (False, True):
                member.mail[control].move(_delivery(member.actor, control))
            if member.poll is None:
                member.poll = member.actor.poll.remote()
        known = [member.poll for member in running.values() if member.answered]
        if known:
            ray.wait(known, num_returns=len(known), timeout=wait_s)
        return [(node, report) for node, member in running.items() for report in self._collect(node, member)]

    def _collect(self, node: NodeId, member: _Member) -> list[PollReport]:
        """The answer to a member's poll, if it is there."""
        if not ray.wait([member.poll], timeout=0)[0]:
            return []
        poll, member.poll = member.poll, None
        try:
            report: PollReport = ray.get(poll)
        except RayActorError as error:
            if not member.answered:
                member.actor = None
                raise NodeFailedError(node, why_not_made(str(error))) from error
            self.ended(node)
            return []
        member.answered = True
        if report.exited or report.failure is not None:
            self.ended(node)
        if report.failure is not None:
            raise NodeFailedError(node, report.failure)
        return [report]

    def look(self, wait_s: float) -> list[tuple[NodeId, NodeSnapshot]]:
        """The state of all nodes that have answered a poll in this life, as far as it is new; waits for them at most
        `wait_s`. It may be large: nodes are only looked at where somebody wants to know.
        """
        running = {node: self._members[node] for node in self.running() if self._members[node].answered}
        for member in running.values():
            if member.look is None:
                member.look = member.actor.look.remote(member.version)
        looks = [member.look for member in running.values()]
        if looks:
            ray.wait(looks, num_returns=len(looks), timeout=wait_s)
        return [(node, found) for node, member in running.items() if (found := _seen(member)) is not None]

    def pids(self) -> dict[NodeId, int]:
        """The process id of every node that runs, each on its machine; GetTimeoutError where one does not answer."""
        asked = {node: self._members[node].actor.pid.remote() for node in self.running()}
        return dict(zip(asked, ray.get(list(asked.values()), timeout=ORDER_TIMEOUT_S), strict=True))

    def order(self, node: NodeId, name: NodeCommand) -> None:
        """Has a running node carry out an order; returns when it has."""
        ray.get(getattr(self._running(node).actor, name).remote(), timeout=ORDER_TIMEOUT_S)

    def set_room(self, node: NodeId, room_bytes: int | None) -> None:
        """Lets the logs of a running node grow by so many bytes in all before its disk is full; None lifts that."""
        ray.get(self._running(node).actor.set_room.remote(room_bytes), timeout=ORDER_TIMEOUT_S)

    def read_log(self, node: NodeId, partition: TopicPartition) -> list[bytes]:
        """The batches of a running broker's replica, encoded; empty where there is none."""
        batches: list[bytes] = ray.get(self._running(node).actor.read_log.remote(partition))
        return batches

    def read_metadata(self, controller: NodeId) -> bytes:
        """The metadata log of a running controller, packed (`protocol.messages.metadata_batch.unpack_records`)."""
        packed: bytes = ray.get(self._running(controller).actor.read_metadata.remote())
        return packed

    def send(self, node: NodeId, message: Message) -> None:
        """Hands a node a message from the experiment, in their order on each channel; does not wait for it to be
        handled. What has to wait for one before leaves with a later `send` or `poll`. NodeBusyError where too many
        wait."""
        member = self._running(node)
        if len(member.mail[message.CONTROL].wait) >= MAX_WAITING:
            raise NodeBusyError(f"{node_name(node)} has not taken {MAX_WAITING} messages")
        member.mail[message.CONTROL].put(encode(message), _delivery(member.actor, message.CONTROL))

    def set_links(self, links: Iterable[tuple[NodeId, NodeId]], up: bool) -> None:
        """Cuts or heals directed links (source, target); returns when both ends of each know."""
        links = set(links)
        self._links.cut = self._links.cut - links if up else self._links.cut | links
        concerned = sorted({node for link in links for node in link} & set(self.running()))
        orders = [self._members[node].actor.set_filter.remote(*self._links.of(node)) for node in concerned]
        if orders:
            ray.wait(orders, num_returns=len(orders), timeout=ORDER_TIMEOUT_S)

    def heal(self) -> None:
        """Heals every link."""
        self.set_links(self._links.cut, True)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all actors and placement groups and removes all directories. Does nothing where Ray is gone already,
        since they went with it."""
        if ray.is_initialized():
            names = self.running()
            for node in names:
                self.ended(node)
            for node in names:
                self._await_gone(node)
            for group in self._groups:
                remove_placement_group(group)
            self._remove_elsewhere()
        self._groups.clear()
        if self._root.exists():
            shutil.rmtree(self._root)

    def _await_gone(self, node: NodeId) -> None:
        deadline_s = time.monotonic() + ORDER_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                ray.get_actor(node_name(node), self.run)
            except ValueError:
                return
            time.sleep(_RETRY_S)

    def _remove_elsewhere(self) -> None:
        """Removes the run's folder on the other machines of the Ray cluster."""
        here = socket.gethostname()
        others = [host["NodeID"] for host in _machines() if host["NodeManagerHostname"] != here]
        pins = [_pin(host) for host in others]
        removed = [_remove_directory.options(scheduling_strategy=pin).remote(self._root) for pin in pins]
        if removed:
            ray.wait(removed, num_returns=len(removed), timeout=ORDER_TIMEOUT_S)


def _delivery(actor: Any, control: bool) -> Any:
    """The actor's method that takes frames of a channel."""
    return actor.deliver_control if control else actor.deliver


def why_not_made(text: str) -> str:
    """Why an actor could not be made, given what Ray says of it: one line where its disk is the reason, which an
    operator can do something about; all of it else.
    """
    last = text.strip().splitlines()[-1]
    kind = last.partition(":")[0].rpartition(".")[2]
    return last.removeprefix(f"{StorageError.__module__}.") if kind in _STORAGE_ERRORS else text


def _pin(home: str) -> NodeAffinitySchedulingStrategy:
    """On the Ray node of that id, or not at all."""
    return NodeAffinitySchedulingStrategy(home, soft=False)


def _seen(member: _Member) -> NodeSnapshot | None:
    """What the member's look has brought, if it is back and there is anything new."""
    if not ray.wait([member.look], timeout=0)[0]:
        return None
    look, member.look = member.look, None
    try:
        member.version, snapshot = ray.get(look)
    except RayActorError:
        return None  # the next poll says what became of it
    found: NodeSnapshot | None = snapshot
    return found


def _machines() -> list[dict[str, Any]]:
    """Ray's description of each of its nodes that is alive."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


@ray.remote(num_cpus=0)
def _remove_directory(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _when_name_is_free(create: Callable[[], Any]) -> Any:
    """Makes a named actor as soon as the name of its last life is free: Ray frees it when it has seen the old process
    die."""
    deadline_s = time.monotonic() + ORDER_TIMEOUT_S
    while True:
        try:
            return create()
        except ValueError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_RETRY_S)
