"""A cluster of node actors on a connected Ray: incarnations, links, removal.

`placement.py` decides which Ray node each node runs on, and every actor is pinned to that one. A restarted node finds
its directory again, in a folder of the run on its machine; on another machine it starts with an empty disk.

Ray may have lost contact with a Ray node while the processes that it started go on. Before a node starts, its previous
process is killed if it still runs on the same machine, where it would write to the same disk; elsewhere it is fenced by
its epochs. A node whose machine is gone may also `move`: the next incarnation then gets another, empty directory, even
on the same machine, and the previous process goes on.

Actors belong to the job that created them: if this process dies without `close`, Ray ends them.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, cast

import ray
from ray.exceptions import RayActorError

from actors.failures import NodeBusyError, NodeNotRunningError
from actors.kept_disks import KeptDisks
from actors.links import DisturbedLinks, Link
from actors.machines import UnreachableError, damage_remotely, machines, pin, remove_remotely, send_signal
from actors.members import (
    ACTOR_GONE,
    Member,
    MessageQueue,
    await_gone,
    create_when_name_is_free,
    creation_failure,
    disks_of,
    poll_members,
    resume,
    take_snapshots,
)
from actors.metrics import ClusterMeter
from actors.nodes import NodeSetup, NodeSnapshot, PollReport, actor_class
from actors.pauses import StoppedProcesses
from actors.peers import Handle
from actors.placement import Placement
from actors.processes import ProcessId
from actors.storage import DISK_LOSSES, DamageKind, DiskLossKind
from protocol.config import ClusterConfig
from protocol.ids import NO_EPOCH, NodeId, TopicPartition, is_broker, is_controller, node_name
from protocol.messages.base import Message
from protocol.messages.codec import encode
from protocol.quorum.voters import VoterSet
from protocol.v3.store.settings import StoreSettings

CPU_SHARE = 0.001
"""CPUs that a node's bundle reserves: enough to be placed, too few to keep other work from running."""
COMMAND_TIMEOUT_S = 10.0
"""How long a node may take to carry out a command before it counts as unreachable."""
SIGNAL_WITHIN_S = 5.0
"""How long a Ray node may take to send a signal."""
MAX_QUEUED = 10_000
"""Messages of the experiment that may be queued for a node."""

NodeCommand = Literal["pause", "resume", "flush", "set_room"]


class ActorCluster:
    """The node actors of one run; none runs until `start`.

    `nodes` are all node ids. `racks` overrides the rack of brokers (default: the label of their Ray node). `homes`
    names the Ray node (by its id) of nodes whose place `Placement` does not choose. `voters` are the first voters of
    the quorum; their disks are formatted at their first start. `run` is the Ray namespace of the actors; `folder` holds
    the directories of the nodes, under the same path on every machine. `former`: a retired cluster, whose processes and
    names this one takes over. `label`: the label `cluster` of the metrics (default: `run`). With `records_calls` polls
    return what callers have clients do with records. PlacementError as for `Placement`.
    """

    def __init__(
        self,
        nodes: Sequence[NodeId],
        config: ClusterConfig,
        seed: int,
        racks: Mapping[NodeId, str] | None = None,
        homes: Mapping[NodeId, str] | None = None,
        voters: VoterSet | None = None,
        store: StoreSettings | None = None,
        former: ActorCluster | None = None,
        records_calls: bool = False,
        label: str = "",
    ) -> None:
        self.run: str = f"isray-{uuid.uuid4().hex[:12]}" if former is None else former.run
        self._nodes = tuple(nodes)
        self._config = config
        self._seed = seed
        self._racks = dict(racks or {})
        self._voters = voters or VoterSet()
        self._store = store
        self._records_calls = records_calls
        self._number: int = 0 if former is None else former._number + 1
        self.folder = Path(tempfile.gettempdir()) / f"{self.run}{f'.{self._number}' if self._number else ''}"
        self._links = DisturbedLinks()
        self._stopped = StoppedProcesses(self.signal, self.is_running)
        self.label = label or self.run
        self._meter = ClusterMeter(self.label)
        self._former = {} if former is None else former.incarnations()
        self._retired: dict[NodeId, Handle] = {} if former is None else former._retired
        """The actors of an earlier cluster, each of which waits to serve as the first incarnation of its node."""
        self._members = {node: Member(incarnation=self._former.get(node, 0)) for node in self._nodes}
        self.keeps_disks = False
        self._placement = Placement(self._nodes, machines(), self._racks, homes)

    def use_disks(self, kept: KeptDisks) -> None:
        """Runs on these disks, which outlive it; call before any node starts."""
        self.run, self.folder, self.keeps_disks = kept.run, kept.folder, True
        resume(self._members, kept)

    def kept_disks(self) -> KeptDisks:
        """The disks of this cluster as they are now."""
        return disks_of(self.run, self.folder, self._members)

    def directory(self, node: NodeId) -> Path:
        """The node's present directory, on its machine."""
        disk = self._members[node].disk
        return self.folder / (f"{node_name(node)}.{disk}" if disk else node_name(node))

    # -- incarnations --------------------------------------------------------------------------------------------------

    def start(self, node: NodeId) -> None:
        """Creates the actor of a node; returns before it is up. NoRayNodeError where no Ray node may take it now."""
        member = self._members[node]
        if member.actor is not None:
            raise RuntimeError(f"{node_name(node)} runs already")
        home = self._placement.home(node, machines())
        member.incarnation += 1
        setup = self._setup(node, member)
        member.actor = self._retired.pop(node, None)
        if member.actor is None:
            member.actor = self._create(setup, home)
            member.actor.begin.remote()
        else:
            member.actor.serve_next.remote(setup)
        member.asked = member.actor.process.remote()
        member.poll, member.news, member.answered, member.active_epoch = None, None, False, NO_EPOCH
        member.snapshot, member.version = None, -1
        member.queues = (MessageQueue(), MessageQueue())
        member.loss_kind, member.loss_count = "none", 0

    def _create(self, setup: NodeSetup, home: str) -> Handle:
        options = {
            "name": node_name(setup.node),
            "namespace": self.run,
            "num_cpus": CPU_SHARE,
            "scheduling_strategy": pin(home),
        }
        return create_when_name_is_free(
            lambda: actor_class(setup.node).options(**options).remote(setup), COMMAND_TIMEOUT_S
        )

    def _setup(self, node: NodeId, member: Member) -> NodeSetup:
        return NodeSetup(
            node=node,
            incarnation=member.incarnation,
            run=self.run,
            label=self.label,
            directory=self.directory(node),
            brokers=tuple(other for other in self._nodes if is_broker(other)),
            controllers=tuple(other for other in self._nodes if is_controller(other)),
            config=self._config,
            seed=self._seed,
            loss_kind=member.loss_kind,
            loss_count=member.loss_count,
            skew_ms=member.skew_ms,
            links=self._links.of(node),
            rack=self._racks.get(node),
            voters=self._voters,
            store=self._store,
            predecessor=member.process,
            former=self._former,
            records_calls=self._records_calls,
        )

    def crash(self, node: NodeId, kind: DiskLossKind, count: int) -> list[PollReport]:
        """Kills a node with SIGKILL; returns its last reports, if it answers. The loss is applied at its next start."""
        member = self._running(node)
        self._stopped.release(node)
        last = self.last_reports(node, COMMAND_TIMEOUT_S)
        actor, member.actor = member.actor, None
        member.loss_kind, member.loss_count = kind, count
        if actor is not None and not ray.wait([actor.kill_self.remote()], timeout=COMMAND_TIMEOUT_S)[0]:
            ray.kill(actor)
        return last

    def last_reports(self, node: NodeId, wait_s: float) -> list[PollReport]:
        """Has a running node handle nothing more, as if it were dead already; returns what it has to report, if it
        answers in time. Only its end may follow.
        """
        member = self._running(node)
        halted = member.actor.halt.remote()
        calls = [halted] if member.poll is None else [member.poll, halted]
        ray.wait(calls, num_returns=len(calls), timeout=wait_s)
        last = [] if member.poll is None else self._collect(node, member)
        if member.actor is not None:
            member.poll = halted
            last += self._collect(node, member)
        return last

    def signal(self, node: NodeId, number: int) -> None:
        """As `machines.send_signal`; UnreachableError also where the node's process is not known yet."""
        self._running(node)
        process = self.process(node)
        if process is None:
            raise UnreachableError("its process is still starting")
        send_signal(process, number, SIGNAL_WITHIN_S)

    def kill(self, node: NodeId) -> None:
        """Ends a node by SIGKILL, also one that is paused. A process that cannot be reached counts as ended."""
        try:
            self.signal(node, signal.SIGKILL)
        except UnreachableError:
            pass  # Ray ends it, or its machine is lost
        finally:
            self.remove_actor(node)

    def process(self, node: NodeId) -> ProcessId | None:
        """The process of a node, None where it does not run or is not up yet."""
        member = self._members[node]
        if member.actor is None:
            return None
        if member.asked is not None:
            if not ray.wait([member.asked], timeout=0)[0]:
                return None
            try:
                process: ProcessId = ray.get(member.asked)
            except ACTOR_GONE:
                return None  # the next poll reports the failure
            member.process, member.asked = process, None
        return member.process

    def lose_at_start(self, node: NodeId, kind: DiskLossKind, count: int) -> None:
        """Applies a further loss to the disk of a node that does not run, when it starts."""
        member = self._members[node]
        if member.actor is not None:
            raise RuntimeError(f"{node_name(node)} runs")
        if kind == member.loss_kind == "records":
            member.loss_count += count
        elif DISK_LOSSES.index(kind) > DISK_LOSSES.index(member.loss_kind):
            member.loss_kind, member.loss_count = kind, count

    def damage(self, node: NodeId, kind: DamageKind, seed: str) -> int:
        """Damages the log ends of a node that does not run (`storage.damage_tails`), on its machine, once its process
        has ended; returns the number of damaged logs. UnreachableError where the machine is lost or the process is not
        known.
        """
        process = self._members[node].process
        if process is None:
            raise UnreachableError("its machine is not known")
        return damage_remotely(process, self.directory(node), kind, seed, SIGNAL_WITHIN_S)

    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Sets the clock of a node so far ahead of Unix time, from its next start on."""
        self._members[node].skew_ms = skew_ms

    def remove_actor(self, node: NodeId) -> None:
        """Ends the actor of a node that has exited or died; the disk stays as it is."""
        member = self._running(node)
        self._stopped.release(node)
        actor, member.actor = member.actor, None
        ray.kill(actor)

    def move(self, node: NodeId, home: str) -> None:
        """Places the next incarnation of a node that does not run on the Ray node `home`, with an empty directory."""
        member = self._members[node]
        if member.actor is not None:
            raise RuntimeError(f"{node_name(node)} runs")
        self._placement.fix(node, home)
        member.disk += 1
        member.process = None

    def isolate(self, nodes: Collection[NodeId]) -> None:
        """Has all other running nodes drop what the present incarnations of these nodes send, as if their machines had
        lost the network. Each call replaces the set of the last one; nodes that start afterwards do not know of it.
        """
        incarnations = {node: self._members[node].incarnation for node in nodes}
        others = [node for node in self.running() if node not in incarnations]
        with self._stopped.answering(others):
            calls = [self._members[node].actor.ignore_incarnations.remote(incarnations) for node in others]
            ray.wait(calls, num_returns=len(calls), timeout=COMMAND_TIMEOUT_S)

    def is_running(self, node: NodeId) -> bool:
        return self._members[node].actor is not None

    def running(self) -> list[NodeId]:
        """The running nodes, in the order of the constructor's `nodes`."""
        return [node for node in self._nodes if self._members[node].actor is not None]

    def _running(self, node: NodeId) -> Member:
        member = self._members[node]
        if member.actor is None:
            raise NodeNotRunningError(f"{node_name(node)} does not run")
        return member

    # -- commands and queries ------------------------------------------------------------------------------------------

    def poll(self, wait_s: float, only_news: bool = False) -> list[tuple[NodeId, PollReport]]:
        """Polls all running nodes, with `only_news` unless none has anything to report since the last such poll, and
        returns the reports that have arrived; waits at most `wait_s`, and not for a node that is still starting or
        whose process is stopped. A node that has exited, died or failed no longer counts as running. The report of one
        that could not be created, or has failed, has the failure.
        """
        running = {node: self._members[node] for node in self.running()}
        poll_members(list(running.values()), only_news)
        known = [m.poll for node, m in running.items() if m.poll and m.answered and node not in self._stopped]
        if known:
            ray.wait(known, num_returns=len(known), timeout=wait_s)
        reports = [(node, report) for node, member in running.items() for report in self._collect(node, member)]
        started = {n: m for n, m in self._members.items() if m.incarnation > self._former.get(n, 0)}
        self._meter.update({node: member.active_epoch if member.actor else None for node, member in started.items()})
        return reports

    def _collect(self, node: NodeId, member: Member) -> list[PollReport]:
        """The answer to a member's poll as a list, empty where it has not arrived."""
        poll = member.poll
        if poll is None or not ray.wait([poll], timeout=0)[0]:
            return []
        member.poll = None
        try:
            report = ray.get(poll)
        except ACTOR_GONE as error:
            self.remove_actor(node)
            if member.answered:
                return []
            never_ran = not (isinstance(error, RayActorError) and error.actor_init_failed)
            return [PollReport([], [], exited=False, failure=creation_failure(str(error)), never_ran=never_ran)]
        member.answered, member.active_epoch = True, report.active_epoch
        self.process(node)
        if report.exited or report.failure is not None:
            self.remove_actor(node)
        return [report]

    def snapshots(self, wait_s: float, *, of_all: bool = False) -> list[tuple[NodeId, NodeSnapshot]]:
        """The snapshots that have changed since the last call, of nodes whose present incarnation has answered a poll;
        waits at most `wait_s`. Snapshots grow with the number of partitions: call this only where a query needs one. A
        snapshot for which an earlier call has not waited is returned before the one that is requested now. `of_all`:
        those that have not changed, too.
        """
        running = {node: self._members[node] for node in self.running() if self._members[node].answered}
        late = take_snapshots(running)
        asked = [member for node, member in running.items() if node not in self._stopped]
        for member in asked:
            if of_all:
                member.version = -1
            if member.snapshot is None:
                member.snapshot = member.actor.snapshot.remote(member.version)
        calls = [member.snapshot for member in asked]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=wait_s)
        return late + take_snapshots(running)

    def pids(self) -> dict[NodeId, int]:
        """The process id of every node that runs, each on its machine; GetTimeoutError where one does not answer."""
        running = self.running()
        asked = [self._members[node].asked for node in running]
        ray.get([call for call in asked if call is not None], timeout=COMMAND_TIMEOUT_S)
        return {node: process.pid for node in running if (process := self.process(node)) is not None}

    def run_command(self, node: NodeId, name: NodeCommand, *arguments: object) -> None:
        """Has a running node carry out a command; returns when it has. GetTimeoutError where it does not."""
        actor = self._running(node).actor
        with self._stopped.answering([node]):
            ray.get(getattr(actor, name).remote(*arguments), timeout=COMMAND_TIMEOUT_S)

    def pause(self, node: NodeId) -> None:
        """Has a running node handle no input and send nothing; one that is paused stays so."""
        self.run_command(node, "pause")
        if (asked := self._members[node].asked) is not None:
            ray.wait([asked], timeout=COMMAND_TIMEOUT_S)

    def stop_process(self, node: NodeId) -> None:
        """Stops the process of a paused node. UnreachableError where its machine is lost."""
        self._stopped.stop(node)

    def resume(self, node: NodeId) -> None:
        """Lets a paused node go on; does nothing to one that is not paused."""
        self._stopped.release(node)
        self.run_command(node, "resume")

    def read_log(self, node: NodeId, partition: TopicPartition) -> list[bytes]:
        """The encoded batches of a running broker's replica; empty where it has no such replica."""
        actor = self._running(node).actor
        with self._stopped.answering([node]):
            return cast(list[bytes], ray.get(actor.read_log.remote(partition)))

    def read_metadata(self, controller: NodeId) -> bytes:
        """The metadata log of a running controller, packed (`protocol.messages.metadata_batch.unpack_records`)."""
        actor = self._running(controller).actor
        with self._stopped.answering([controller]):
            return cast(bytes, ray.get(actor.read_metadata.remote()))

    def actor(self, node: NodeId) -> Handle:
        """The present actor of a running node."""
        return self._running(node).actor

    def active_controller(self) -> NodeId | None:
        """The running controller that was active when it reported last, None where none was."""
        active = {node: epoch for node in self.running() if (epoch := self._members[node].active_epoch) != NO_EPOCH}
        return max(active, key=active.__getitem__, default=None)

    def send(self, node: NodeId, message: Message) -> None:
        """Sends a message of the experiment to a node; messages of one channel arrive in order. While a call is under
        way it is queued, and leaves with a later `send` or `poll`. NodeBusyError where the queue is full.
        """
        member = self._running(node)
        queue = member.queues[message.CONTROL]
        if len(queue.queued) >= MAX_QUEUED:
            raise NodeBusyError(f"{node_name(node)} has not taken {MAX_QUEUED} messages")
        queue.queued.append(encode(message))
        queue.send_queued(member.actor, message.CONTROL)

    def set_links(self, links: Iterable[Link], up: bool) -> None:
        """Cuts or heals links, slow ones too; returns when both ends of each have applied that."""
        changed = set(links)
        self._links.set(changed, up)
        self._apply_links(changed)

    def slow_links(self, links: Iterable[Link], delay_ms: int) -> None:
        """Delays what is sent over whole links; returns when both ends of each have applied that."""
        changed = set(links)
        self._links.slow(changed, delay_ms)
        self._apply_links(changed)

    def heal_links(self) -> None:
        self.set_links(self._links.all(), True)

    def disturbed_links(self) -> dict[Link, int | None]:
        """The links that are not whole, in order: the delay in milliseconds, None where the link is cut."""
        return self._links.all()

    def _apply_links(self, links: Collection[Link]) -> None:
        ends = sorted({node for link in links for node in link} & set(self.running()))
        with self._stopped.answering(ends):
            calls = [self._members[node].actor.set_links.remote(self._links.of(node)) for node in ends]
            if calls:
                ray.wait(calls, num_returns=len(calls), timeout=COMMAND_TIMEOUT_S)

    # -- removal -------------------------------------------------------------------------------------------------------

    def incarnations(self) -> dict[NodeId, int]:
        """The last incarnation of every node of this cluster and of those whose processes it took over."""
        return self._former | {node: member.incarnation for node, member in self._members.items()}

    def retire(self) -> None:
        """As `close`, but the processes that answer wait for another cluster on this Ray, which takes them over."""
        if ray.is_initialized():
            self._stopped.release_all()
            calls = {self._members[node].actor.retire.remote(): node for node in self.running()}
            done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=COMMAND_TIMEOUT_S) if calls else ([], [])
            for call in done:
                with suppress(*ACTOR_GONE):
                    ray.get(call)
                    self._retired[calls[call]] = self._members[calls[call]].actor
                    self._members[calls[call]].actor = None
            self._end_running()
        self._remove_folder()

    def close(self) -> None:
        """Ends all actors, and removes all directories unless they are kept; only the local ones where Ray has been
        shut down already.
        """
        if ray.is_initialized():
            while self._retired:
                ray.kill(self._retired.popitem()[1])
            self._end_running()
            if not self.keeps_disks:
                remove_remotely(self.folder, COMMAND_TIMEOUT_S)
        self._remove_folder()

    def _end_running(self) -> None:
        nodes = self.running()
        for node in nodes:
            self.remove_actor(node)
        for node in nodes:
            await_gone(node_name(node), self.run, self._members[node].process, COMMAND_TIMEOUT_S)

    def abandon(self) -> None:
        """As `close`, where Ray's control store is gone: the nodes end themselves, as far as they can be reached."""
        calls = [self._members[node].actor.kill_self.remote() for node in self.running()]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=COMMAND_TIMEOUT_S)
        for member in self._members.values():
            member.actor = None
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self.folder.exists() and not self.keeps_disks:
            shutil.rmtree(self.folder)
