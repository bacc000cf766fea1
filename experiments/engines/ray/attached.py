"""The engine `attached`: a cluster that `isray up` has started, and that goes on when the experiment has ended.

What changes a node, a disk or a link is a command to the supervisor of the cluster (`node_commands.py`), which carries
out one at a time. So several engines, consoles and users of `isray node` may act on one cluster: an action that the
present state does not allow raises `ActionRefusedError` with the line that `isray node` prints, and nothing is done.
Which nodes run is in the cluster's state file, which the supervisor writes; how they are is asked of the nodes
themselves. Trace events are read as an observer, who takes them away from no one (`NodeHost.observe`): those of nodes
that run already from now on, those of later incarnations from their start on. Of a node that ends the events since the
last poll are missing; why it has ended the supervisor says (`rows`).

Commands about records and administration go through a client of the engine's own, `client-3001` or the next free one,
which starts with the first command, keeps their order, and ends with the engine. It leaves nothing on the cluster but
what it was told to.

It differs from the engine that has started its own cluster in what a running cluster cannot do: clocks are not set. A
pause is SIGSTOP: the process does not answer until it is resumed.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from actors.cluster import CPU_SHARE
from actors.cluster import NodeCommand as ClusterCommand
from actors.failures import NodeNotRunningError
from actors.frames import joined_frame
from actors.host import FROM_NOW_ON
from actors.links import Link
from actors.machines import own_node, pin
from actors.members import ACTOR_GONE, MessageQueue
from actors.nodes import NodeSetup, NodeSnapshot, PollReport, actor_class
from actors.peers import Handle
from actors.storage import DamageKind, DiskLossKind
from experiments.engines.clusters.cluster_state import ClusterState, read_state
from experiments.engines.clusters.launch import config_of
from experiments.engines.clusters.node_commands import (
    NodeAction,
    NodeAnswer,
    NodeCommand,
    NodeRow,
    NodeState,
    SupervisorGoneError,
)
from experiments.engines.port import ClusterSpec, Loss, TraceEvent
from experiments.engines.ray.connection import CLIENT_WITHIN_S, ClusterAddress, joined
from experiments.engines.ray.engine import NODE_FAILURES, PolledEngine
from experiments.engines.ray.session import uploaded_packages
from experiments.engines.ray.supervision import by_socket
from experiments.support.errors import InputError
from protocol.events.base import Trace
from protocol.events.host import IncarnationBegan
from protocol.ids import DRIVER, FIRST_CLIENT, FIRST_LOAD, NodeId, TopicPartition, node_name
from protocol.messages.base import Message
from protocol.messages.codec import encode
from protocol.messages.commands import Command, ShutdownCommand

WITHIN_S = 10.0
"""How long a node may take to carry out a command or to answer a query."""
_FROM_THE_START = 0
_FRESH_S = 0.05
"""How long the content of the state file is not read again."""


class ActionRefusedError(RuntimeError):
    """The state of the cluster does not allow an action, or it failed; the message is one line. Nothing is half done
    where `is_refused`.
    """

    def __init__(self, text: str, is_refused: bool) -> None:
        super().__init__(text)
        self.is_refused = is_refused


def carry_out(state: ClusterState, command: NodeCommand) -> NodeAnswer:
    """The supervisor's answer to a command that was possible and succeeded; ActionRefusedError otherwise."""
    try:
        answer = by_socket(state)(command)
    except SupervisorGoneError as error:
        raise ActionRefusedError(str(error), is_refused=False) from error
    what = command.node or command.action.value
    if answer.allowed:
        raise ActionRefusedError(f"{command.action}: found {answer.found}; allowed: {answer.allowed}", is_refused=True)
    if answer.failure:
        raise ActionRefusedError(f"{command.action} of {what}: {answer.failure}", is_refused=False)
    return answer


@dataclass(slots=True)
class _Watched:
    """An incarnation of a node. `cursor` is where the observer has read to; `version` is that of the last snapshot.
    `is_silent`: the last call was not answered in time, so no one waits for the next one.
    """

    pid: int
    actor: Handle
    cursor: int
    began: bool
    observed: Handle = None
    snapshot: Handle = None
    version: int = -1
    is_silent: bool = False


class _OwnClient:
    """The client of one engine: an actor in the namespace of the cluster, with the first free client id."""

    def __init__(self, run: str, label: str, spec: ClusterSpec) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{run}-client-"))
        self._queues: Mapping[bool, MessageQueue] = {True: MessageQueue(), False: MessageQueue()}
        self._poll: Handle = None
        for node in range(FIRST_CLIENT + 1, FIRST_LOAD):
            setup = NodeSetup(
                node=node,
                incarnation=int(time.time() * 1000),  # brokers remember those of earlier clients of this name
                run=run,
                directory=self.folder / node_name(node),
                brokers=spec.broker_ids,
                controllers=spec.controller_ids,
                config=spec.config,
                seed=spec.seed,
                label=label,
            )
            options = {
                "name": node_name(node),
                "namespace": run,
                "num_cpus": CPU_SHARE,
                "scheduling_strategy": pin(own_node()),  # its clock is the one of the experiment
            }
            with suppress(ValueError):  # another engine has this name
                self.actor: Handle = actor_class(node).options(**options).remote(setup)
                self.node = node
                self.actor.begin.remote()
                return
        raise ActionRefusedError(f"found {FIRST_LOAD - FIRST_CLIENT} clients; allowed: fewer", is_refused=True)

    def send(self, message: Message) -> None:
        queue = self._queues[message.CONTROL]
        queue.queued.append(encode(message))
        queue.send_queued(self.actor, message.CONTROL)

    def poll(self) -> Handle:
        """The call under way whose answer `report` returns."""
        for control, queue in self._queues.items():
            queue.send_queued(self.actor, control)
        self._poll = self._poll or self.actor.poll.remote()
        return self._poll

    def report(self) -> list[tuple[NodeId, PollReport]]:
        """The report that has arrived, if one has."""
        if self._poll is None or not ray.wait([self._poll], timeout=0)[0]:
            return []
        poll, self._poll = self._poll, None
        return [(self.node, cast(PollReport, ray.get(poll)))]

    def close(self) -> None:
        if ray.is_initialized():
            ray.kill(self.actor)
        shutil.rmtree(self.folder, ignore_errors=True)


class AttachedCluster:
    """`NodeCluster` for a running cluster; `state` is its state file at the beginning. `on_began` is called with each
    node that begins a new incarnation, before its first events are reported.
    """

    def __init__(self, state: ClusterState, spec: ClusterSpec) -> None:
        assert state.namespace is not None
        self.run = state.namespace
        self.state = state
        self.on_began: Callable[[NodeId], None] = lambda node: None
        self._spec = spec
        self._known = {node_name(node): node for node in spec.member_ids}
        self._watched: dict[NodeId, _Watched] = {}
        self._starting: set[NodeId] = set()
        self._client: _OwnClient | None = None
        self._pids: dict[NodeId, int] = {}
        self._read_at_s = 0.0
        for node in self.running():
            self._watch(node, FROM_NOW_ON)

    # -- actions -------------------------------------------------------------------------------------------------------

    def rows(self) -> dict[NodeId, NodeRow]:
        """The nodes as the supervisor sees them: state, process, machine, directory. ActionRefusedError as for all
        actions where it does not answer.
        """
        rows = carry_out(self.state, NodeCommand(action=NodeAction.LIST)).rows
        return {self._known[row.node]: row for row in rows if row.node in self._known}

    def links(self) -> dict[Link, int | None]:
        """The links that are not whole: the delay in milliseconds, None where the link is cut."""
        rows = carry_out(self.state, NodeCommand(action=NodeAction.LINKS)).links
        return {(self._known[row.source], self._known[row.target]): row.delay_ms for row in rows}

    def require_whole_links(self) -> None:
        """InputError where a link is cut or slow."""
        for source, target in self.links():
            link = f"a disturbed link from {node_name(source)} to {node_name(target)}"
            raise InputError("--name", "", link, "a cluster whose links are whole (isray net heal --all)")

    def start(self, node: NodeId) -> None:
        self._act(NodeAction.START, node)
        self._starting.add(node)

    def kill(self, node: NodeId) -> None:
        self.crash(node, "none", 0)

    def crash(self, node: NodeId, kind: DiskLossKind, count: int) -> list[PollReport]:
        """Kills a node with SIGKILL; the loss is applied at its next start. Returns nothing: see the module."""
        self._act(NodeAction.KILL, node, loss_kind=kind, loss_count=count)
        self._starting.discard(node)
        return []

    def lose_at_start(self, node: NodeId, kind: DiskLossKind, count: int) -> None:
        if kind != "none":
            self._act(NodeAction.LOSE, node, loss_kind=kind, loss_count=count)

    def damage(self, node: NodeId, kind: DamageKind, seed: str) -> int:
        """Kills a node that runs, and damages the ends of its logs; returns the number of damaged logs."""
        return self._act(NodeAction.CORRUPT_TAIL, node, damage=kind, seed=seed).damaged

    def signal(self, node: NodeId, number: int) -> None:
        """SIGKILL, SIGSTOP or SIGCONT to a node's process. KeyError for other signals."""
        actions = {
            signal.SIGKILL: NodeAction.KILL,
            signal.SIGSTOP: NodeAction.PAUSE,
            signal.SIGCONT: NodeAction.RESUME,
        }
        self._act(actions[signal.Signals(number)], node)

    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        raise ActionRefusedError("found a clock to set; allowed: a cluster of its own (isray scenario run)", True)

    def run_command(self, node: NodeId, name: ClusterCommand, *arguments: object) -> None:
        """As `ActorCluster.run_command`; `set_room` limits the growth of the logs, without an argument lifts that."""
        if name == "flush":
            self._ask(node, "flush")
        elif name == "set_room":
            [room] = arguments
            action = NodeAction.FREE_DISK if room is None else NodeAction.FILL_DISK
            self._act(action, node, room_bytes=room or 0)
        else:
            self._act(NodeAction(name), node)

    def set_links(self, links: Iterable[Link], up: bool) -> None:
        present = self.links()
        for link in links:
            if up == (link in present) or (not up and present.get(link) is not None):
                self._act_on_link(NodeAction.HEAL if up else NodeAction.CUT, link)

    def slow_links(self, links: Iterable[Link], delay_ms: int) -> None:
        for link in links:
            self._act_on_link(NodeAction.SLOW, link, delay_ms=delay_ms)

    def heal_links(self) -> None:
        carry_out(self.state, NodeCommand(action=NodeAction.HEAL))

    def _act_on_link(self, action: NodeAction, link: Link, **fields: object) -> None:
        self._act(action, link[0], peer=node_name(link[1]), **fields)

    def _act(self, action: NodeAction, node: NodeId, **fields: object) -> NodeAnswer:
        """Has the supervisor carry out an action on a node. ActionRefusedError where that is not possible or fails."""
        command = NodeCommand.model_validate({"action": action, "node": node_name(node), **fields})
        self._read_at_s = 0.0
        if action is NodeAction.PAUSE and node in self._watched:
            self._watched[node].is_silent = True
        return carry_out(self.state, command)

    def send(self, node: NodeId, message: Message) -> None:
        """Sends a command through the engine's own client; any other message to `node`."""
        if isinstance(message, Command):
            self._own_client().send(message)
        elif isinstance(message, ShutdownCommand):
            self._act(NodeAction.STOP, node)
        else:
            self._actor(node).deliver.remote(DRIVER, message.CONTROL, joined_frame([encode(message)]))

    def _own_client(self) -> _OwnClient:
        if self._client is None:
            self._client = _OwnClient(self.run, self.state.options.name, self._spec)
        return self._client

    def require_client(self) -> None:
        """Returns when the engine's own client runs. ActionRefusedError where it does not start in time."""
        if not ray.wait([self._own_client().actor.process.remote()], timeout=CLIENT_WITHIN_S)[0]:
            raise ActionRefusedError(f"its client has not started within {CLIENT_WITHIN_S:.0f} s", is_refused=False)

    # -- queries -------------------------------------------------------------------------------------------------------

    def pids(self) -> dict[NodeId, int]:
        """The process id of every node that runs, each on its machine. InputError where the cluster has ended."""
        now_s = time.monotonic()
        if now_s - self._read_at_s > _FRESH_S:
            self._pids, self._read_at_s = self._read_pids(), now_s
        return self._pids

    def _read_pids(self) -> dict[NodeId, int]:
        found = read_state(self.state.options.name)
        if found is None or not found.is_running or found.namespace != self.run:
            text = "has been ended" if found is None or found.namespace != self.run else f"has ended: {found.end}"
            raise InputError("--name", "", f"{self.state.options.name}, which {text}", "a cluster that runs")
        return {self._known[name]: pid for name, pid in found.pids.items() if name in self._known}

    def running(self) -> list[NodeId]:
        """The nodes that have a process, and those that this engine has started and that have none yet."""
        pids = self.pids()
        self._starting -= pids.keys()
        if self._starting:
            rows = self.rows()
            up = (NodeState.STARTING, NodeState.WAITING)
            self._starting = {node for node in self._starting if node in rows and rows[node].state in up}
        return [node for node in self._spec.member_ids if node in pids or node in self._starting]

    def is_running(self, node: NodeId) -> bool:
        return node in self.running()

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]:
        """The new trace events and outcomes; waits at most `wait_s`, and not for a node that did not answer in time
        when it was asked last. ActionRefusedError where the engine's own client has ended; the next command starts one.
        """
        watched = self._present()
        for it in watched.values():
            if it.observed is None:
                it.observed = it.actor.observe.remote(it.cursor)
        self._wait({node: it.observed for node, it in watched.items()}, wait_s)
        reports = [(node, report) for node, it in watched.items() for report in self._collect(node, it)]
        try:
            return reports + ([] if self._client is None else self._client.report())
        except ACTOR_GONE as error:
            self._client = None
            why = "the client of this command has ended: its process or its Ray node is lost"
            raise ActionRefusedError(why, is_refused=False) from error

    def _present(self) -> dict[NodeId, _Watched]:
        """The running incarnations whose actors are known."""
        pids = self.pids()
        for node in [node for node in self._watched if node not in pids]:
            del self._watched[node]
        for node, pid in pids.items():
            if node not in self._watched or self._watched[node].pid != pid:
                self._watch(node, _FROM_THE_START)
        return dict(self._watched)

    def _watch(self, node: NodeId, cursor: int) -> None:
        pid = self.pids().get(node)
        if pid is not None:
            with suppress(ValueError):  # the actor is gone, and its state file lags behind
                actor = ray.get_actor(node_name(node), self.run)
                self._watched[node] = _Watched(pid, actor, cursor, began=cursor == FROM_NOW_ON)

    def _wait(self, calls: Mapping[NodeId, Handle], wait_s: float) -> None:
        """Waits for the answers of the nodes that are not silent, and for the engine's own client."""
        awaited = [call for node, call in calls.items() if not self._watched[node].is_silent]
        awaited += [] if self._client is None else [self._client.poll()]
        if awaited:
            ray.wait(awaited, num_returns=len(awaited), timeout=wait_s)
        answered = set(ray.wait(list(calls.values()), num_returns=len(calls), timeout=0)[0]) if calls else set()
        for node, call in calls.items():
            self._watched[node].is_silent = call not in answered

    def _collect(self, node: NodeId, it: _Watched) -> Iterator[PollReport]:
        if it.observed is None or not ray.wait([it.observed], timeout=0)[0]:
            return
        observed, it.observed = it.observed, None
        try:
            it.cursor, traces = ray.get(observed)
        except ACTOR_GONE:
            return  # the state file says so soon
        if not it.began:
            it.began = True
            self.on_began(node)
        yield PollReport(traces, [], exited=False, failure=None)

    def snapshots(self, wait_s: float) -> list[tuple[NodeId, NodeSnapshot]]:
        """As `ActorCluster.snapshots`, for the nodes that are not silent."""
        watched = self._present()
        for it in watched.values():
            if it.snapshot is None:
                it.snapshot = it.actor.snapshot.remote(it.version)
        self._wait({node: it.snapshot for node, it in watched.items()}, wait_s)
        found = []
        for node, it in watched.items():
            if not ray.wait([it.snapshot], timeout=0)[0]:
                continue
            call, it.snapshot = it.snapshot, None
            with suppress(*ACTOR_GONE):
                it.version, snapshot = ray.get(call)
                found += [] if snapshot is None else [(node, snapshot)]
        return found

    def _actor(self, node: NodeId) -> Handle:
        found = self._present().get(node)
        if found is None:
            raise NodeNotRunningError(f"{node_name(node)} does not run")
        return found.actor

    def _ask(self, node: NodeId, method: str, *arguments: object) -> object:
        """What a node answers. NodeNotRunningError where it does not run, ActionRefusedError where it is silent."""
        try:
            return ray.get(getattr(self._actor(node), method).remote(*arguments), timeout=WITHIN_S)
        except ACTOR_GONE as error:
            raise NodeNotRunningError(f"{node_name(node)} has ended") from error
        except GetTimeoutError as error:
            raise ActionRefusedError(f"{node_name(node)} does not answer", is_refused=False) from error

    def read_log(self, node: NodeId, partition: TopicPartition) -> list[bytes]:
        return cast(list[bytes], self._ask(node, "read_log", partition))

    def read_metadata(self, controller: NodeId) -> bytes:
        return cast(bytes, self._ask(controller, "read_metadata"))

    def close(self) -> None:
        """Ends the engine's own client; the cluster goes on."""
        if self._client is not None:
            self._client.close()


class AttachedEngine(PolledEngine[AttachedCluster]):
    """The engine of a running cluster; see the module. Its time counts from its creation."""

    def __init__(self, state: ClusterState, resources: ExitStack, keeps: Callable[[Trace], bool]) -> None:
        spec = spec_of(state)
        cluster = AttachedCluster(state, spec)
        resources.callback(cluster.close)
        super().__init__(spec, cluster, resources, keeps)
        cluster.on_began = self._begin

    def _begin(self, node: NodeId) -> None:
        self._pass_on(TraceEvent(self.now_ms(), node, IncarnationBegan()))

    def start(self, node: NodeId) -> None:
        self._act()
        self.cluster.start(node)

    def crash(self, node: NodeId, loss: Loss) -> None:
        """As `PolledEngine.crash`, once the last events of the node have been read."""
        self._refresh_events()
        super().crash(node, loss)


def spec_of(state: ClusterState) -> ClusterSpec:
    """What a running cluster has been started with."""
    options = state.options
    return ClusterSpec(options.brokers, options.controllers, config_of(options), racks=options.racks or 0)


@contextmanager
def attached(state: ClusterState, keeps: Callable[[Trace], bool] = lambda trace: True) -> Iterator[AttachedEngine]:
    """The engine of a running cluster of this user on this machine (`connection.state_of`), which ends with the block;
    the cluster goes on. InputError where its Ray does not answer; ActionRefusedError where the block fails as Ray or a
    node is lost.
    """
    if state.address is None or state.namespace is None:
        raise InputError("--name", "", f"{state.options.name}, which is still starting", "a cluster that is ready")
    target = ClusterAddress(state.address, state.namespace, state.is_private)
    try:
        with joined(target, "--address", None if state.is_private else uploaded_packages()), ExitStack() as resources:
            engine = AttachedEngine(state, resources.pop_all(), keeps)
            try:
                yield engine
            finally:
                engine.close()
    except (RayError, *NODE_FAILURES) as error:
        raise ActionRefusedError(f"{state.options.name}: {' '.join(str(error).split())}", is_refused=False) from error
