"""The Ray actors: a thin shell around a host, one actor per node.

An actor has the name of its node (`broker-0`, `controller-1000`, `urm`, `store`, `client-3000`) in the Ray namespace of
its cluster, so several clusters fit on one Ray. Ray runs each concurrency group of an async actor on an event loop of
its own. The node runs on the loop of the group `node`, which also carries its connections to its peers
(`actors/transport.py`) and the messages of the experiment. Commands arrive in the group `ctl`, queries in the default
group; both run their work on the node's loop.

The next incarnation of a node is a new actor with the same name on the same directory.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Any, TypeVar, cast

import ray

from actors import garbage
from actors.caller_log import CallerCall, CallerLog, Run, runs_of
from actors.clock import LoopClock
from actors.connections import Listener, tls_of_ray
from actors.host import NodeHost
from actors.listener_security import sasl_of, tls_of
from actors.load import LoadNode
from actors.log.files import OpenFiles
from actors.log.format import crc32c
from actors.machines import RACK_LABEL
from actors.metrics import NodeReadings, RayMeter
from actors.node_log import NodeLog
from actors.peers import Address, Handle, RayPeers
from actors.processes import ProcessId, own_process, set_signal_of_parents_end, signal_process
from actors.relay import AdminRelay, CallerCommand
from actors.sockets import BrokerSockets, bind, endpoint_of
from actors.storage import DiskLossKind, DiskStorage, Owner, apply_loss
from actors.transport import NodeLinks, Transport
from protocol.broker.context import ReplicaView, replica_view
from protocol.broker.recovery import hook_named
from protocol.config import INDEX_INTERVAL_BYTES, UNCLEAN_LEADER_HOOK, ClusterConfig
from protocol.contract import Node
from protocol.errors import MalformedMessageError
from protocol.events.base import Trace
from protocol.ids import (
    NO_EPOCH,
    Epoch,
    NodeId,
    Offset,
    TimeMs,
    TopicPartition,
    is_broker,
    is_client,
    is_controller,
    is_load,
    is_recovery_manager,
    is_store,
    node_name,
)
from protocol.kafka.addresses import listener_address
from protocol.log.tail import trace_of
from protocol.messages.admin import AdminRequest
from protocol.messages.codec import decode, encode
from protocol.messages.metadata_batch import pack_records
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.broker import BrokerNode
from protocol.nodes.client import ClientNode
from protocol.nodes.controller import ControllerNode
from protocol.nodes.listening_broker import ListeningBroker
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.quorum.describe import QuorumView
from protocol.quorum.state_file import format_voters
from protocol.quorum.voters import VoterSet
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.node import StoreNode
from protocol.v3.store.settings import StoreSettings
from protocol.v3.store.view import StoreView, store_view, tree_nodes

Result = TypeVar("Result")
DELIVERY_WAIT_S = 1.0
"""How long a node that exits waits until its peers have taken its last messages."""
LOCK_WAIT_S = 10.0
"""How long a node waits for the lock of its directory, which its previous process may still hold."""


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """The parameters of a node's actor.

    `run` is the Ray namespace and the cluster id. `loss_kind` and `loss_count` are applied to `directory` before the
    start (`storage.apply_loss`). Its clock is `skew_ms` ahead of Unix time. `links` are its links that are not whole at
    the start. `rack` None means the label of the Ray node. `voters` are the first voters of the quorum
    with the directory ids of their disks. `predecessor` is the last known process of the node, which is killed if it
    still runs on the same machine. `former` are the last incarnations of an earlier cluster with the same processes,
    whose frames are dropped. `label` is the label `cluster` of its metrics (empty: `run`). `records_calls`: a client
    keeps what its callers do with records for the next poll.
    """

    node: NodeId
    incarnation: int
    run: str
    directory: Path
    brokers: tuple[NodeId, ...]
    controllers: tuple[NodeId, ...]
    config: ClusterConfig
    seed: int
    loss_kind: DiskLossKind = "none"
    loss_count: int = 0
    skew_ms: int = 0
    links: NodeLinks = field(default_factory=NodeLinks)
    rack: str | None = None
    voters: VoterSet = field(default_factory=VoterSet)
    store: StoreSettings | None = None
    predecessor: ProcessId | None = None
    former: Mapping[NodeId, int] = field(default_factory=dict)
    records_calls: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The observable state of a node: the replicas of a broker; partitions, broker registrations, metrics, quorum
    view and registered controllers of a controller; what a store has published. All are empty for the other kinds.
    `broker_epoch` is the one in which this process of a broker is registered, NO_EPOCH while it is not.
    """

    replicas: Mapping[TopicPartition, ReplicaView] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    brokers: Mapping[NodeId, BrokerRegistration] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    quorum: QuorumView | None = None
    store: StoreView | None = None
    controllers: tuple[NodeId, ...] = ()
    broker_epoch: Epoch = NO_EPOCH


@dataclass(frozen=True, slots=True)
class PollReport:
    """The answer to `poll`: new trace events with their times, and new encoded messages to the experiment. `exited` and
    `failure` are those of the host; `never_ran`: no process of this incarnation has begun, since its Ray node is lost.
    `active_epoch`: the epoch of the metadata log in which the node is the active controller, NO_EPOCH if it is not.
    `calls`: what callers of a client have had it do with records, where that is recorded.
    """

    traces: list[tuple[TimeMs, Trace]]
    outcomes: list[bytes]
    exited: bool
    failure: str | None
    never_ran: bool = False
    active_epoch: Epoch = NO_EPOCH
    calls: Sequence[CallerCall] = ()


def build_node(
    setup: NodeSetup, storage: DiskStorage, rack: str | None, now_ms: TimeMs, endpoint: str | None = None
) -> Node:
    """Creates the node of a setup on its storage; `endpoint` is that of a broker's listener for Kafka's clients.
    ConfigError where the config names an unknown data-loss hook.
    """
    if is_load(setup.node):
        return LoadNode(setup.node, setup.brokers, crc32c)
    if is_recovery_manager(setup.node):
        return RecoveryManagerNode(setup.config)
    if is_client(setup.node):
        administrators = setup.controllers or setup.brokers
        return ClientNode(setup.node, setup.brokers, administrators, setup.config, checksum=crc32c)
    rng = _rng(setup, "node")
    if is_broker(setup.node):
        hook = hook_named(str(setup.config.values[UNCLEAN_LEADER_HOOK]), resolve_name)
        if setup.store is not None:
            return V3BrokerNode(setup.node, setup.config, setup.store, storage, rng, hook, crc32c)
        return BrokerNode(
            setup.node, setup.controllers, setup.config, storage, rng, rack, hook, crc32c, setup.run, endpoint
        )
    if is_store(setup.node) and setup.store is not None:
        return StoreNode(setup.store, storage, rng, setup.run)
    key = setup.voters.key_of(setup.node)
    if setup.incarnation == setup.former.get(setup.node, 0) + 1 and key is not None:
        format_voters(storage, setup.run, key, setup.voters, now_ms)
    return ControllerNode(setup.node, setup.controllers, setup.config, storage, rng, setup.run)


def _rng(setup: NodeSetup, use: str) -> Random:
    return Random(f"{setup.seed}/{use}/{setup.node}/{setup.incarnation}")


def snapshot_of(node: Node) -> NodeSnapshot:
    """The snapshot of a node; call between two of its inputs."""
    if isinstance(node, StoreNode):
        return NodeSnapshot(store=store_view(tree_nodes(node.state.tree)))
    if isinstance(node, BaseBroker):
        replicas = {replica.name: replica_view(replica) for replica in node.context.replicas.values()}
        return NodeSnapshot(replicas, broker_epoch=node.context.broker_epoch)
    if isinstance(node, ControllerNode):
        image = node.state.image
        partitions = {image.name_of(key): state for key, state in image.partitions()}
        registered = tuple(image.controllers)
        return NodeSnapshot({}, partitions, dict(image.brokers), node.metrics(), node.quorum, controllers=registered)
    return NodeSnapshot()


def _query(act: Callable[..., Result]) -> Callable[..., Coroutine[Any, Any, Result]]:
    """Makes a function a method of the actor that runs on the loop of the node, between two of its inputs."""

    @wraps(act)
    async def method(shell: NodeShell, *arguments: object) -> Result:
        async def run() -> Result:
            return act(shell, *arguments)

        return await shell.run_on_loop(run())

    return method


def _command(act: Callable[..., Result]) -> Callable[..., Coroutine[Any, Any, Result]]:
    """As `_query`, in the group of commands, which Ray reads from the innermost function."""
    ray.method(concurrency_group="ctl")(act)
    return _query(act)


class NodeShell:
    """The methods of a node's actor. Each kind of node has a subclass, which Ray's lists of actors show."""

    def __init__(self, setup: NodeSetup) -> None:
        gc.set_threshold(*garbage.THRESHOLDS)
        self._name = node_name(setup.node)
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._serves = asyncio.Event()
        """Set unless the node has retired."""
        self._host_node(setup)

    def _host_node(self, setup: NodeSetup) -> None:
        if setup.predecessor is not None:
            with suppress(ProcessLookupError):
                signal_process(setup.predecessor, signal.SIGKILL)
        owner = Owner(setup.run, setup.node)
        apply_loss(setup.directory, setup.loss_kind, setup.loss_count, owner, LOCK_WAIT_S)
        labels = cast("dict[str, str]", ray.get_runtime_context().get_node_labels())
        rack = setup.rack if setup.rack is not None else labels.get(RACK_LABEL)
        self._files = OpenFiles()
        interval_bytes = setup.config.int_value(INDEX_INTERVAL_BYTES)
        self._storage = DiskStorage(setup.directory, owner, interval_bytes, self._files, LOCK_WAIT_S)
        self._reported_drops = 0
        self._clock = clock = LoopClock(setup.skew_ms)
        address = listener_address(setup.config) if is_broker(setup.node) else None
        machine = ray.util.get_node_ip_address()
        bound = None if address is None else bind(address, setup.node, self._storage, machine)
        endpoint = None if bound is None else endpoint_of(bound)
        self._node = build_node(setup, self._storage, rack, clock.now_ms(), endpoint)
        listener = Listener(machine, setup.incarnation, tls_of_ray(os.environ))
        self._transport = Transport(
            setup.node, listener, RayPeers(setup.run), lambda error: self._host.fail(repr(error))
        )
        self._transport.set_links(setup.links)
        self._transport.ignore_incarnations(setup.former)
        self._meter = RayMeter(setup.label or setup.run, self._name, clock, NodeReadings(self._node))
        self._calls = CallerLog(setup.node, setup.incarnation, clock.now_ms) if setup.records_calls else None
        self._log = NodeLog(self._name, clock.now_ms)
        self._log.note("INFO", f"incarnation {setup.incarnation} on {setup.directory}")
        self._admin_relay = AdminRelay(self._transport.send, setup.incarnation, self._calls)
        node, send = self._node, self._admin_relay.send
        self._sockets: BrokerSockets | None = None
        if address is not None and bound is not None and isinstance(node, BaseBroker):
            self._sockets = BrokerSockets(bound, send, tls_of(address, setup.config))
            sasl, rng = sasl_of(address, setup.config), _rng(setup, "listener")
            listening = ListeningBroker(node, crc32c, setup.run, rng, sasl)
            listening.on_produce = self._meter.record_kafka_produce
            node, send = listening, self._sockets.send
        self._host = NodeHost(node, clock, send, self._meter)
        self._serves.set()

    def __repr__(self) -> str:
        return self._name

    @ray.method(concurrency_group="node")
    async def begin(self) -> None:
        self._begin()

    @ray.method(concurrency_group="node")
    async def address(self) -> Address:
        """Where peers open connections; of the next node after this one has retired."""
        await self._serves.wait()
        self._begin()
        return self._transport.address

    @ray.method(concurrency_group="node")
    async def deliver(self, sender: NodeId, control: bool, data: bytes) -> None:
        """Returns once the frame `data` has been handled, by the next node after this one has retired."""
        await self._serves.wait()
        self._begin()
        await self._transport.handle(sender, control, data)

    def _begin(self) -> None:
        if not self._loop.done():
            loop = asyncio.get_running_loop()
            self._loop.set_result(loop)
            self._host.start()
            garbage.collect_when_idle(self._host)
            self._transport.serve(self._host)
            if self._sockets is not None:
                self._serving = loop.create_task(self._sockets.serve(self._host))

    @ray.method(concurrency_group="ctl")
    async def retire(self) -> None:
        """Ends the node as a crash does, once its last frames have been taken; the process waits for `serve_next`."""

        async def act() -> None:
            self._host.halt()
            self._meter.stop()
            await self._transport.await_delivery(DELIVERY_WAIT_S)
            self._transport.close()
            self._close_sockets()
            self._storage.close()
            self._serves.clear()
            self._loop = Future()

        await self.run_on_loop(act())

    @ray.method(concurrency_group="node")
    async def serve_next(self, setup: NodeSetup) -> None:
        """Starts the node of this setup, of the next cluster, in the place of the one that has retired."""
        self._host_node(setup)
        self._begin()

    @_command
    def set_links(self, links: NodeLinks) -> None:
        """Sets which links are cut and which are slow; all others are whole."""
        self._transport.set_links(links)

    @_command
    def ignore_incarnations(self, incarnations: Mapping[NodeId, int]) -> None:
        """Drops frames of these incarnations of peers, and of older ones, from now on."""
        self._transport.ignore_incarnations(incarnations)

    @_command
    def pause(self) -> None:
        """Handles no input and sends nothing until `resume`. The process may be stopped now; as a stopped one does not
        notice that its Ray node is gone, it ends with that."""
        self._host.pause()
        self._transport.pause()
        set_signal_of_parents_end(signal.SIGKILL)

    @_command
    def resume(self) -> None:
        set_signal_of_parents_end(0)
        self._transport.resume()
        self._host.resume()

    @_command
    def flush(self) -> None:
        """Flushes all logs of a broker; does nothing on other nodes."""
        if isinstance(self._node, BaseBroker):
            self._node.flush_all()

    @_command
    def set_room(self, room_bytes: int | None) -> None:
        """Limits the growth of the node's logs to `room_bytes` in all; None lifts the limit."""
        self._files.room_bytes = room_bytes

    @_command
    def halt(self) -> PollReport:
        """Stops the node for a crash: it handles and sends nothing more. Returns its last report."""
        self._transport.close()
        self._close_sockets()
        self._host.halt()
        return self._report(self._host.exited)

    def _close_sockets(self) -> None:
        if self._sockets is not None:
            self._sockets.close()

    @ray.method(concurrency_group="ctl")
    async def kill_self(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def process(self) -> ProcessId:
        return own_process(ray.get_runtime_context().get_node_id())

    async def poll(self) -> PollReport:
        """The trace events and outcomes since the last poll; waits for the last messages of a node that has exited."""

        async def act() -> PollReport:
            exited = self._host.exited
            if exited:
                await self._transport.await_delivery(DELIVERY_WAIT_S)
            return self._report(exited)

        return await self.run_on_loop(act())

    async def await_news(self, within_s: float) -> None:
        """Returns when the next poll has something to report, at the latest after `within_s`."""
        await self.run_on_loop(self._host.await_news(within_s))

    def _note_drops(self) -> None:
        """Passes what the recovery of the logs has dropped on to those who read the trace events."""
        drops, self._reported_drops = self._storage.dropped[self._reported_drops :], len(self._storage.dropped)
        for dropped in drops:
            self._host.note(trace_of(dropped))

    def _report(self, exited: bool) -> PollReport:
        self._note_drops()
        traces, outcomes = self._host.drain()
        self._log.write(traces)
        if self._host.failure is not None:
            self._log.note("ERROR", self._host.failure)
        active_epoch = self._node.active_epoch if isinstance(self._node, ControllerNode) else NO_EPOCH
        outgoing = [encode(message) for message in outcomes]
        calls = () if self._calls is None else self._calls.take()
        return PollReport(traces, outgoing, exited, self._host.failure, active_epoch=active_epoch, calls=calls)

    @_query
    def observe(self, since: int) -> tuple[int, list[tuple[TimeMs, Trace]]]:
        """As `NodeHost.observe`."""
        self._note_drops()
        return self._host.observe(since)

    @_query
    def snapshot(self, version: int) -> tuple[int, NodeSnapshot | None]:
        """(version, snapshot) of the node; the snapshot is None where nothing has changed since `version`."""
        taken = self._host.inputs_taken
        return taken, None if taken == version else snapshot_of(self._node)

    @_query
    def broker_epoch(self) -> Epoch:
        """As in `NodeSnapshot`."""
        return self._node.context.broker_epoch if isinstance(self._node, BaseBroker) else NO_EPOCH

    @ray.method(concurrency_group="ctl")
    async def request(self, encoded: bytes) -> bytes:
        """The encoded answer to an encoded administration request: an outcome of a client, a response of another node.
        A client also carries out a command about records (`CallerCommand`). CodecError for other bytes.
        """
        message, has_commands = decode(encoded), isinstance(self._node, ClientNode)
        if has_commands and isinstance(message, AdminRequest | CallerCommand):
            return encode(await self.run_on_loop(self._admin_relay.request(self._host, message)))
        if not isinstance(message, AdminRequest):
            allowed = f"an administration request{' or a command about records' if has_commands else ''}"
            raise MalformedMessageError(f"found {type(message).__name__}; allowed: {allowed}")
        return encode(await self.run_on_loop(self._admin_relay.query(self._host, message)))

    @_query
    def read_log(self, partition: TopicPartition) -> list[bytes]:
        """The encoded batches of a broker's replica; empty where it has no such replica."""
        replica = self._node.context.replica_named(*partition) if isinstance(self._node, BaseBroker) else None
        return [] if replica is None else [encode(batch) for batch in replica.log.storage.read(0, sys.maxsize)]

    @_query
    def read_runs(self, partition: TopicPartition, begin: Offset, max_bytes: int) -> list[Run]:
        """The records of a broker's replica from `begin` on as runs (`caller_log.runs_of`), about `max_bytes` of them;
        empty at the end of the log, or where it has no such replica.
        """
        replica = self._node.context.replica_named(*partition) if isinstance(self._node, BaseBroker) else None
        batches = () if replica is None else replica.log.storage.read(begin, max_bytes)
        return [run for batch in batches for run in runs_of(batch, partition.partition)]

    @_query
    def read_metadata(self, begin: Offset = 0) -> bytes:
        """A controller's metadata log from `begin` on, packed; no records where a later snapshot begins the log."""
        if not isinstance(self._node, ControllerNode) or self._node.first_record > begin:
            return pack_records(())
        return pack_records(self._node.records[begin - self._node.first_record :])

    async def run_on_loop(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """The result of a coroutine that runs on the loop of the node."""
        loop = await asyncio.shield(asyncio.wrap_future(self._loop))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


def _actor(name: str) -> Handle:
    """The actor class of this name."""
    options: Any = {"concurrency_groups": {"node": 1000, "ctl": 1000}, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(**options)(type(name, (NodeShell,), {}))


_ACTORS: Sequence[tuple[Callable[[NodeId], bool], Handle]] = (
    (is_broker, _actor("BrokerActor")),
    (is_controller, _actor("ControllerActor")),
    (is_recovery_manager, _actor("RecoveryManagerActor")),
    (is_store, _actor("StoreActor")),
    (is_load, _actor("LoadActor")),
    (is_client, _actor("ClientActor")),
)


def actor_class(node: NodeId) -> Handle:
    """The actor class for the kind of this node."""
    return next(actor for includes, actor in _ACTORS if includes(node))
