"""The Ray actors: a thin shell around a host, one actor per node.

An actor is called as its node is (`broker-0`, `controller-1000`, `urm`, `client-3000`), within the Ray namespace of its
cluster, so that several clusters fit on one Ray. Ray runs every concurrency group of an async actor on an event loop
of its own. The node lives on the loop of the group `node`, in which the frames of its peers arrive, so that a message
changes threads nowhere between Ray and the node. Control frames have calls of their own and go before data in the
node's queue, so that a blocked data path does not fence a broker. Orders of the experiment arrive in `ctl`, questions
in the default group; what they want of the node is handed over to its loop.

`kill_self` is SIGKILL of the process on whichever machine it runs: no handler, no flush, no farewell. The next life of
a node is a new actor of the same name on the same directory; `life` counts them, and peers look a node up anew when
they hear from a newer life.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import RayActorError

from actors.admin_relay import AdminRelay
from actors.clock import LoopClock
from actors.full_disk import LimitedFiles
from actors.host import NodeHost
from actors.load import LoadNode
from actors.log.format import crc32c
from actors.metrics import RayMeter
from actors.storage import DiskStorage, LossKind, Owner, apply_loss
from actors.transport import PeerGoneError, Transport
from protocol.broker.recovery import hook_named
from protocol.config import INDEX_INTERVAL_BYTES, UNCLEAN_LEADER_HOOK, ClusterConfig
from protocol.contract import Node, Trace
from protocol.errors import MalformedMessageError
from protocol.ids import (
    NodeId,
    TimeMs,
    TopicPartition,
    is_broker,
    is_client,
    is_controller,
    is_load,
    is_recovery_manager,
    node_name,
)
from protocol.log.tail import trace_of
from protocol.messages.admin import AdminRequest
from protocol.messages.codec import decode, encode
from protocol.messages.metadata_batch import pack_records
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker import BrokerNode
from protocol.nodes.client import ClientNode
from protocol.nodes.controller import ControllerNode
from protocol.nodes.quorum_view import QuorumView
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.quorum.format import format_voters
from protocol.quorum.voters import ReplicaKey, VoterSet

Result = TypeVar("Result")

SETTLE_S = 1.0
"""How long a node that exits waits for its last messages to be taken."""
LOCK_WAIT_S = 10.0
"""How long a node waits for its directory: the process of its last life may not be quite dead."""
PIECE_BYTES = 96 * 1024
MAX_PIECES = 6
GC_THRESHOLDS = (50_000, 20, 20)
"""When Python looks for garbage. A node's state is many objects that live on, and they are all walked each time; by
default that takes as long as all the rest of a failover of 10,000 partitions (measured)."""
RACK_LABEL = "rack"
"""The Ray node label that names a broker's rack."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """All that an actor needs to be a node. `run` is the namespace; `started_at_s` (Unix time) is the cluster's time
    0; `loss_kind` and `loss_count` are what its last crash took from the directory (`storage.apply_loss`); `cut_to`
    and `cut_from` are the links that are cut at birth; `rack` is None where the label of its Ray node says it; `voters`
    are the first voters of the quorum, with the uuids of their disks."""

    node: NodeId
    incarnation: int
    run: str
    started_at_s: float
    directory: Path
    brokers: tuple[NodeId, ...]
    controllers: tuple[NodeId, ...]
    config: ClusterConfig
    seed: int
    loss_kind: LossKind = "none"
    loss_count: int = 0
    cut_to: tuple[NodeId, ...] = ()
    cut_from: tuple[NodeId, ...] = ()
    rack: str | None = None
    voters: tuple[tuple[NodeId, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """A broker's replica; `maximal_isr` is empty where it does not lead."""

    leads: bool
    leader_epoch: int
    log_end_offset: int
    high_watermark: int
    maximal_isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What a node shows of itself: a broker its replicas, a controller its partitions, brokers, metrics and part in the
    quorum, a client nothing.
    """

    replicas: Mapping[TopicPartition, ReplicaSnapshot]
    partitions: Mapping[TopicPartition, PartitionState]
    brokers: Mapping[NodeId, BrokerRegistration]
    metrics: Mapping[str, int]
    quorum: QuorumView | None = None


@dataclass(frozen=True, slots=True)
class PollReport:
    """The answer to `poll`. `outcomes` are encoded messages to the experiment; `exited`: the node is done and its
    process may go; `failure`: the traceback of what broke it."""

    traces: list[tuple[TimeMs, Trace]]
    outcomes: list[bytes]
    exited: bool
    failure: str | None


def build_node(plan: NodePlan, storage: DiskStorage, rack: str | None) -> Node:
    """The node that a plan asks for, on its storage. ConfigError where the config names a data-loss hook that does not
    exist.
    """
    if is_load(plan.node):
        return LoadNode(plan.node, plan.brokers)
    if is_recovery_manager(plan.node):
        return RecoveryManagerNode(plan.config)
    if is_client(plan.node):
        return ClientNode(plan.node, plan.brokers, plan.controllers, plan.config, checksum=crc32c)
    rng = Random(f"{plan.seed}/node/{plan.node}/{plan.incarnation}")
    if is_broker(plan.node):
        hook = hook_named(str(plan.config.values[UNCLEAN_LEADER_HOOK]), resolve_name)
        return BrokerNode(plan.node, plan.controllers, plan.config, storage, rng, rack, hook, crc32c, plan.run)
    voters = VoterSet.of(ReplicaKey(*voter) for voter in plan.voters)
    key = voters.key_of(plan.node)
    if plan.incarnation == 1 and key is not None:
        format_voters(storage, plan.run, key, voters)
    return ControllerNode(plan.node, plan.controllers, plan.config, storage, rng, plan.run)


def observe(node: Node) -> NodeSnapshot:
    """The snapshot of a node, between two of its inputs."""
    if isinstance(node, BrokerNode):
        replicas = {
            replica.name: ReplicaSnapshot(
                leads=replica.leadership is not None,
                leader_epoch=replica.leader_epoch,
                log_end_offset=replica.log.end_offset,
                high_watermark=replica.log.high_watermark,
                maximal_isr=() if replica.leadership is None else replica.leadership.maximal_isr,
            )
            for replica in node.context.replicas.values()
        }
        return NodeSnapshot(replicas, {}, {}, {})
    if isinstance(node, ControllerNode):
        image = node.state.image
        partitions = {image.name_of(key): state for key, state in image.partitions()}
        return NodeSnapshot({}, partitions, dict(image.brokers), node.metrics(), node.quorum)
    return NodeSnapshot({}, {}, {}, {})


def pieces_of(frame: bytes) -> list[bytes]:
    """A frame as arguments of a call, none so large that Ray would take it through its object store; or, where that
    would be many, in one piece.
    """
    if len(frame) > MAX_PIECES * PIECE_BYTES:
        return [frame]
    return [frame[at : at + PIECE_BYTES] for at in range(0, len(frame), PIECE_BYTES)]


class RayPeers:
    """Hands frames to the actors of the other nodes (`transport.Peers`). Looks names up as they are needed, off the
    loop, since that is a call to Ray's control store."""

    def __init__(self, run: str, me: NodeId) -> None:
        self._run = run
        self._me = me
        self._handles: dict[NodeId, Any] = {}
        self._incarnations: dict[NodeId, int] = {}

    async def __call__(self, peer: NodeId, frame: bytes, control: bool) -> bytes:
        handle = self._handles.get(peer) or await self._look_up(peer)
        deliver = handle.deliver_control if control else handle.deliver
        try:
            answer: bytes = await deliver.remote(self._me, *pieces_of(frame))
        except RayActorError as error:
            if self._handles.get(peer) is handle:
                del self._handles[peer]
            raise PeerGoneError(node_name(peer)) from error
        return answer

    async def _look_up(self, peer: NodeId) -> Any:
        loop = asyncio.get_running_loop()
        try:
            handle = await loop.run_in_executor(None, ray.get_actor, node_name(peer), self._run)
        except ValueError as error:
            raise PeerGoneError(node_name(peer)) from error
        self._handles[peer] = handle
        return handle

    def heard(self, peer: NodeId, incarnation: int) -> None:
        """A frame has come from this life of a peer: a handle to an older one is of no use any more."""
        if incarnation > self._incarnations.get(peer, 0):
            self._incarnations[peer] = incarnation
            self._handles.pop(peer, None)


class NodeShell:
    """The actor's methods; see the module docstring. A node of each kind has a class of its own below, so that lists
    of actors show it."""

    def __init__(self, plan: NodePlan) -> None:
        gc.set_threshold(*GC_THRESHOLDS)
        owner = Owner(plan.run, plan.node)
        apply_loss(plan.directory, plan.loss_kind, plan.loss_count, owner, LOCK_WAIT_S)
        labels = cast("dict[str, str]", ray.get_runtime_context().get_node_labels())
        rack = plan.rack if plan.rack is not None else labels.get(RACK_LABEL)
        self._name = node_name(plan.node)
        self._files = LimitedFiles()
        interval_bytes = plan.config.int_value(INDEX_INTERVAL_BYTES)
        self._storage = DiskStorage(plan.directory, owner, interval_bytes, self._files, LOCK_WAIT_S)
        self._told_of = 0
        self._node = build_node(plan, self._storage, rack)
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._transport = Transport(
            plan.incarnation, RayPeers(plan.run, plan.node), lambda error: self._host.fail(repr(error))
        )
        self._transport.cut(plan.cut_to, plan.cut_from)
        read = self._node.metrics if isinstance(self._node, ControllerNode) else None
        self._clock = clock = LoopClock(plan.started_at_s)
        meter = RayMeter(plan.run, self._name, clock, read)
        self._admin_relay = AdminRelay(self._transport)
        self._host = NodeHost(self._node, clock, self._admin_relay, meter)
        self._transport.serve(self._host)

    def __repr__(self) -> str:
        return self._name

    # -- from peers ----------------------------------------------------------------------------------------------------

    @ray.method(concurrency_group="node")
    async def begin(self) -> None:
        """The node's first input; does nothing where a peer has been quicker."""
        self._begin()

    @ray.method(concurrency_group="node")
    async def deliver(self, sender: NodeId, *pieces: bytes) -> bytes:
        """Takes a frame of the data channel; returns the frame that goes back when it has been handled."""
        self._begin()
        return await self._transport.receive(sender, b"".join(pieces), False)

    @ray.method(concurrency_group="node")
    async def deliver_control(self, sender: NodeId, *pieces: bytes) -> bytes:
        """Takes a frame of the control channel; returns the frame that goes back when it has been handled."""
        self._begin()
        return await self._transport.receive(sender, b"".join(pieces), True)

    def _begin(self) -> None:
        if not self._loop.done():
            self._loop.set_result(asyncio.get_running_loop())
            self._host.start()

    # -- orders of the experiment --------------------------------------------------------------------------------------

    @ray.method(concurrency_group="ctl")
    async def set_filter(self, to: tuple[NodeId, ...], sources: tuple[NodeId, ...]) -> None:
        """The links that are cut from now on: to these peers, and from these."""
        await self._call(lambda: self._transport.cut(to, sources))

    @ray.method(concurrency_group="ctl")
    async def silence(self, incarnations: Mapping[NodeId, int]) -> None:
        """Lives of peers from which, as from older ones, nothing is taken from now on."""
        await self._call(lambda: self._transport.silence(incarnations))

    @ray.method(concurrency_group="ctl")
    async def pause(self) -> None:
        """Takes no input and sends nothing until `resume`."""

        def act() -> None:
            self._host.pause()
            self._transport.pause()

        await self._call(act)

    @ray.method(concurrency_group="ctl")
    async def resume(self) -> None:
        """Ends a pause."""

        def act() -> None:
            self._transport.resume()
            self._host.resume()

        await self._call(act)

    @ray.method(concurrency_group="ctl")
    async def flush(self) -> None:
        """Has a broker write all its logs through to the disk."""
        if isinstance(self._node, BrokerNode):
            await self._call(self._node.flush_all)

    @ray.method(concurrency_group="ctl")
    async def set_room(self, room_bytes: int | None) -> None:
        """The logs may grow by so many bytes before the disk is full; None: as far as the disk itself lets them."""

        def act() -> None:
            self._files.room_bytes = room_bytes

        await self._call(act)

    @ray.method(concurrency_group="ctl")
    async def halt(self) -> PollReport:
        """The moment of a crash: nothing is taken and nothing leaves any more. What was seen until then."""

        def act() -> PollReport:
            self._transport.close()
            self._host.halt()
            return self._report(self._host.exited)

        return await self._call(act)

    @ray.method(concurrency_group="ctl")
    async def kill_self(self) -> None:
        """SIGKILL to this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    # -- questions -----------------------------------------------------------------------------------------------------

    async def pid(self) -> int:
        """The id of the process on its machine."""
        return os.getpid()

    async def poll(self) -> PollReport:
        """What happened since the last poll."""
        return await self._on_loop(self._poll())

    async def _poll(self) -> PollReport:
        exited = self._host.exited
        if exited:
            await self._transport.settle(SETTLE_S)
        return self._report(exited)

    def _report(self, exited: bool) -> PollReport:
        traces, outcomes = self._host.drain()
        traces += self._dropped()
        return PollReport(traces, [encode(message) for message in outcomes], exited, self._host.failure)

    def _dropped(self) -> list[tuple[TimeMs, Trace]]:
        """What recovery has dropped from logs since this was last asked."""
        news, self._told_of = self._storage.dropped[self._told_of :], len(self._storage.dropped)
        return [(self._clock.now_ms(), trace_of(dropped)) for dropped in news]

    async def look(self, version: int) -> tuple[int, NodeSnapshot | None]:
        """What the node is, and a version of that; None where nothing happened since `version`."""
        return await self._call(lambda: self._look(version))

    def _look(self, version: int) -> tuple[int, NodeSnapshot | None]:
        taken = self._host.inputs_taken
        return taken, None if taken == version else observe(self._node)

    async def read_log(self, partition: TopicPartition) -> list[bytes]:
        """The batches of a broker's replica, encoded; empty where there is none."""
        return await self._call(lambda: self._read_log(partition))

    def _read_log(self, partition: TopicPartition) -> list[bytes]:
        if not isinstance(self._node, BrokerNode):
            return []
        replica = self._node.context.replica_named(*partition)
        if replica is None:
            return []
        return [encode(batch) for batch in replica.log.storage.read(0, sys.maxsize)]

    async def read_metadata(self) -> bytes:
        """A controller's metadata log, packed; nothing where the controller has not all of it."""
        return await self._call(self._read_metadata)

    def _read_metadata(self) -> bytes:
        if not isinstance(self._node, ControllerNode) or self._node.first_record:
            return pack_records(())
        return pack_records(self._node.records)

    # -- the node's loop -----------------------------------------------------------------------------------------------

    async def _call(self, action: Callable[[], Result]) -> Result:
        async def act() -> Result:
            return action()

        return await self._on_loop(act())

    async def _on_loop(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        loop = await asyncio.shield(asyncio.wrap_future(self._loop))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


_OPTIONS: Any = {"concurrency_groups": {"node": 1000, "ctl": 1000}, "max_restarts": 0, "max_task_retries": 0}
_AS_ACTOR = ray.remote(**_OPTIONS)


@_AS_ACTOR
class BrokerActor(NodeShell):
    """A broker."""


@_AS_ACTOR
class ControllerActor(NodeShell):
    """A controller."""


@_AS_ACTOR
class RecoveryManagerActor(NodeShell):
    """The unclean recovery manager."""


@_AS_ACTOR
class ClientActor(NodeShell):
    """A client."""

    @ray.method(concurrency_group="ctl")
    async def ask(self, request: bytes) -> bytes:
        """Makes an administration request (encoded) for the caller alone; its outcome, an AdminOutcome, encoded.
        CodecError where the bytes are no such request.
        """
        asked = decode(request)
        if not isinstance(asked, AdminRequest):
            raise MalformedMessageError(f"found {type(asked).__name__}; allowed: an administration request")
        return encode(await self._on_loop(self._admin_relay.request(self._host, asked)))


@_AS_ACTOR
class LoadActor(NodeShell):
    """A load generator."""


def actor_class(node: NodeId) -> Any:
    """The actor class for a node of this kind."""
    if is_broker(node):
        return BrokerActor
    if is_controller(node):
        return ControllerActor
    if is_recovery_manager(node):
        return RecoveryManagerActor
    return LoadActor if is_load(node) else ClientActor
