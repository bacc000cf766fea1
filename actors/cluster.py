"""A cluster of node actors on a Ray that is connected already: placement, lives, links, and its end.

Placement: brokers and controllers have a placement group each, with one small bundle per node, spread strictly where there are as many Ray nodes as members and as well as possible
elsewhere. A bundle stays where it is, so a restarted node finds its directory again. Directories lie in a folder of the run on every machine; if a machine is lost for good, Ray moves its bundles,
and their nodes start with empty disks there.

Names live in a Ray namespace of the run, so clusters do not see each other. Actors and placement groups belong to the job that made them: if this process dies without `close`, Ray ends them.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.nodes import NodePlan, Report, actor_class
from actors.storage import LossKind
from actors.transport import pack_frame
from protocol.config import ClusterConfig
from protocol.ids import DRIVER, NodeId, is_broker, is_client, is_controller, node_name
from protocol.messages.base import Message
from protocol.messages.codec import encode

CPU_SHARE = 0.001
"""What a node's bundle reserves: enough to be placed, too little to keep anything else from running."""
PLACEMENT_TIMEOUT_S = 30.0
ORDER_TIMEOUT_S = 10.0
"""How long an order to a node may take before the node counts as unreachable."""
_RETRY_S = 0.02


class PlacementError(RuntimeError):
    """The Ray cluster has no room for the nodes."""


class NodeNotRunningError(RuntimeError):
    """An order was given to a node that does not run."""


@dataclass(slots=True)
class _Member:
    """One node: where it is placed, its present actor (None while it does not run), and what its last crash takes from its disk at the next start."""

    strategy: PlacementGroupSchedulingStrategy
    actor: Any = None
    life: int = 0
    loss_kind: LossKind = "none"
    loss_count: int = 0


@dataclass(slots=True)
class _Links:
    """The directed links that are cut."""

    cut: set[tuple[NodeId, NodeId]] = field(default_factory=set)

    def of(self, node: NodeId) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        """(peers to which nothing leaves, peers from which nothing is taken)."""
        to = tuple(sorted(target for source, target in self.cut if source == node))
        return to, tuple(sorted(source for source, target in self.cut if target == node))


class ActorCluster:
    """See the module docstring. `nodes` are all node ids; PlacementError if there is no room for them."""

    def __init__(self, nodes: Sequence[NodeId], config: ClusterConfig, seed: int) -> None:
        self.run = f"isray-{uuid.uuid4().hex[:12]}"
        self.started_at_s = time.time()
        self._nodes = tuple(nodes)
        self._config = config
        self._seed = seed
        self._root = Path(tempfile.gettempdir()) / self.run
        self._links = _Links()
        self._groups: list[PlacementGroup] = []
        self._members: dict[NodeId, _Member] = {}
        try:
            for kind in (is_broker, is_controller, is_client):
                self._place(tuple(node for node in self._nodes if kind(node)))
        except BaseException:
            self.close()
            raise

    def _place(self, nodes: Sequence[NodeId]) -> None:
        """One bundle for each of some nodes, as far from each other as they may be."""
        hosts = sum(1 for host in ray.nodes() if host["Alive"] and host["Resources"].get("CPU", 0) > 0)
        strategy = "STRICT_SPREAD" if hosts >= len(nodes) else "SPREAD"
        group = placement_group([{"CPU": CPU_SHARE} for _ in nodes], strategy=strategy)
        self._groups.append(group)
        if not group.wait(PLACEMENT_TIMEOUT_S):
            raise PlacementError(f"no room for {len(nodes)} nodes within {PLACEMENT_TIMEOUT_S:.0f} s")
        for index, node in enumerate(nodes):
            self._members[node] = _Member(PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index))

    # -- lives ---------------------------------------------------------------------------------------------------------

    def start(self, node: NodeId) -> None:
        """Makes the actor of a node that does not run; returns before it is up."""
        member = self._members[node]
        if member.actor is not None:
            raise RuntimeError(f"{node_name(node)} runs already")
        member.life += 1
        plan = self._plan(node, member)
        options = {
            "name": node_name(node),
            "namespace": self.run,
            "num_cpus": CPU_SHARE,
            "scheduling_strategy": member.strategy,
        }
        member.actor = _when_name_is_free(lambda: actor_class(node).options(**options).remote(plan))
        member.loss_kind, member.loss_count = "none", 0

    def _plan(self, node: NodeId, member: _Member) -> NodePlan:
        cut_to, cut_from = self._links.of(node)
        return NodePlan(
            node=node,
            life=member.life,
            run=self.run,
            started_at_s=self.started_at_s,
            directory=self._root / node_name(node),
            brokers=tuple(other for other in self._nodes if is_broker(other)),
            controllers=tuple(other for other in self._nodes if is_controller(other)),
            config=self._config,
            seed=self._seed,
            loss_kind=member.loss_kind,
            loss_count=member.loss_count,
            cut_to=cut_to,
            cut_from=cut_from,
        )

    def crash(self, node: NodeId, kind: LossKind, count: int) -> Report | None:
        """SIGKILLs a node. What it had seen until then, None where it could not be asked any more. The loss is taken from its disk when it starts again."""
        member = self._running(node)
        actor, member.actor = member.actor, None
        member.loss_kind, member.loss_count = kind, count
        halted = actor.halt.remote()
        report = None
        if ray.wait([halted], timeout=ORDER_TIMEOUT_S)[0]:
            try:
                report = ray.get(halted)
            except RayActorError:
                return None
        if not ray.wait([actor.kill_self.remote()], timeout=ORDER_TIMEOUT_S)[0]:
            ray.kill(actor)
        return report

    def ended(self, node: NodeId) -> None:
        """The node has exited, or is known to have died: its process goes, its disk stays as it is."""
        member = self._running(node)
        actor, member.actor = member.actor, None
        ray.kill(actor)

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

    def actor(self, node: NodeId) -> Any:
        """The handle of a running node's actor; NodeNotRunningError where it does not run."""
        return self._running(node).actor

    def send(self, node: NodeId, message: Message) -> None:
        """Hands a node a message from the experiment; does not wait for it to be handled."""
        actor = self.actor(node)
        deliver = actor.deliver_control if message.CONTROL else actor.deliver
        deliver.remote(pack_frame([encode(message)]), DRIVER, 0)

    def set_links(self, links: Iterable[tuple[NodeId, NodeId]], up: bool) -> None:
        """Cuts or heals directed links (source, target); returns when both ends of each know."""
        links = set(links)
        self._links.cut = self._links.cut - links if up else self._links.cut | links
        concerned = sorted({node for link in links for node in link} & set(self.running()))
        orders = [self.actor(node).set_filter.remote(*self._links.of(node)) for node in concerned]
        if orders:
            ray.wait(orders, num_returns=len(orders), timeout=ORDER_TIMEOUT_S)

    def heal(self) -> None:
        """Heals every link."""
        self.set_links(self._links.cut, True)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all actors and placement groups and removes all directories. Does nothing where Ray is gone already, since they went with it."""
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
        others = [host["NodeID"] for host in ray.nodes() if host["Alive"] and host["NodeManagerHostname"] != here]
        removed = [
            _remove_directory.options(scheduling_strategy=NodeAffinitySchedulingStrategy(host, soft=False)).remote(self._root)
            for host in others
        ]
        if removed:
            ray.wait(removed, num_returns=len(removed), timeout=ORDER_TIMEOUT_S)


@ray.remote(num_cpus=0)
def _remove_directory(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _when_name_is_free(create: Callable[[], Any]) -> Any:
    """Makes a named actor as soon as the name of its last life is free: Ray frees it when it has seen the old process die."""
    deadline_s = time.monotonic() + ORDER_TIMEOUT_S
    while True:
        try:
            return create()
        except ValueError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_RETRY_S)
