"""The faults of a soak. A fault begins on a whole cluster and heals itself; so at most one broker at a time loses data,
which replication factor 3 with min ISR 2 tolerates. All draws come from the fault's own random source.

- `kill-leader`, `kill-follower`: SIGKILL; the page cache survives.
- `pause`: SIGSTOP for `PAUSE_MS`, longer than the session timeout, then SIGCONT; a paused leader resumes as a stale
  one.
- `cut`: a link between two brokers, or a broker and the active controller, in one direction or both, for `CUT_MS`.
- `full-disk`: a broker's logs have no room left. The broker must report that; it starts again once there is room.
- `corrupt-tail`: SIGKILL, then damage to the unflushed ends of the broker's logs. Recovery must drop the damaged part
  and report it; the broker fetches the rest from the leaders.
- `restart`: all brokers and controllers shut down in good order, one after the other, and start again.
- `kill-all`: SIGKILL of all brokers and controllers at once; the page caches survive. Without a clean shutdown ISR and
  ELR become empty, and the last leaders are elected, which hold all acknowledged records. (If the page caches were lost
  too, records would be lost; that case needs unclean recovery.)
- `kill-controller`: SIGKILL of the active controller. It starts again once another one is active, if there are others.
- `kill-raylet`: the machine of a broker loses its network and its raylet. The broker's process goes on as an orphan;
  the next incarnation starts on another Ray node with an empty disk. When it is registered, the orphan's network comes
  back: both incarnations then send at the same time, and peers distinguish them by their epochs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from random import Random

from experiments.engines.port import ClusterView
from experiments.engines.ray.engine import DamageKind, RayEngine
from experiments.hunt.soak.cluster import SoakCluster
from protocol.events.broker import StorageFailed
from protocol.events.host import RecordsDropped
from protocol.events.node import RequestRefused
from protocol.ids import BrokerId, NodeId

PAUSE_MS = 10_000
CUT_MS = 6_000
ORPHAN_TALKS_MS = 4_000
ROOM_BYTES = 4_096
DAMAGES: Sequence[DamageKind] = ("torn", "flipped", "zeroed")
_FENCED = ("STALE_BROKER_EPOCH", "FENCED_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_LEADER_EPOCH")

Fault = Callable[[SoakCluster, Random], str]


def _leader(cluster: SoakCluster, rng: Random) -> BrokerId:
    return cluster.leader(rng.choice(cluster.partitions))


def _follower(cluster: SoakCluster, rng: Random) -> tuple[BrokerId, BrokerId]:
    """(leader, one of its followers)."""
    leader = _leader(cluster, rng)
    return leader, rng.choice([broker for broker in cluster.brokers if broker != leader])


def _bounce(cluster: SoakCluster, nodes: Sequence[NodeId]) -> None:
    cluster.kill(nodes)
    cluster.start(nodes)


def kill_leader(cluster: SoakCluster, rng: Random) -> str:
    leader = _leader(cluster, rng)
    _bounce(cluster, [leader])
    return f"broker {leader}"


def kill_follower(cluster: SoakCluster, rng: Random) -> str:
    leader, follower = _follower(cluster, rng)
    _bounce(cluster, [follower])
    return f"broker {follower}, which follows {leader}"


def pause(cluster: SoakCluster, rng: Random) -> str:
    leader, follower = _follower(cluster, rng)
    broker = rng.choice([leader, follower])
    cluster.signal(broker, signal.SIGSTOP)
    try:
        cluster.pass_time(PAUSE_MS)
    finally:
        cluster.signal(broker, signal.SIGCONT)
    return f"broker {broker} for {PAUSE_MS / 1000:.0f} s"


def cut(cluster: SoakCluster, rng: Random) -> str:
    leader, follower = _follower(cluster, rng)
    ends: Sequence[tuple[NodeId, NodeId]] = ((leader, follower), (follower, leader))
    if rng.randrange(2):
        controller = cluster.controller()
        ends = ((leader, controller), (controller, leader))
    links = rng.choice([ends, ends[:1], ends[1:]])
    try:
        for source, target in links:
            cluster.engine.set_link(source, target, False)
        cluster.pass_time(CUT_MS)
    finally:
        for source, target in links:
            cluster.engine.set_link(source, target, True)
    return " and ".join(f"{source} to {target}" for source, target in links) + f" for {CUT_MS / 1000:.0f} s"


def full_disk(cluster: SoakCluster, rng: Random) -> str:
    broker = _leader(cluster, rng)
    before = cluster.count_traces(StorageFailed, broker)
    cluster.engine.set_room(broker, ROOM_BYTES)
    cluster.wait(
        lambda: cluster.has_reported_full_disk(broker, before) or not cluster.engine.is_running(broker),
        f"broker {broker} reports that its disk is full",
    )
    has_reported = cluster.has_reported_full_disk(broker, before)
    if cluster.engine.is_running(broker):
        cluster.kill([broker])
    cluster.start([broker])
    return f"broker {broker}" + ("" if has_reported else ", which ended without a report")


def corrupt_tail(cluster: SoakCluster, rng: Random) -> str:
    broker, damage = _leader(cluster, rng), rng.choice(DAMAGES)
    before = cluster.count_traces(RecordsDropped, broker)
    cluster.kill([broker])
    damaged = cluster.engine.damage_tails(broker, damage, str(rng.random()))
    cluster.start([broker])
    if damaged:
        cluster.wait(
            lambda: cluster.count_traces(RecordsDropped, broker) > before,
            f"broker {broker} reports the dropped records",
        )
    return f"broker {broker}: {damaged} logs {damage}"


def restart(cluster: SoakCluster, rng: Random) -> str:
    order = list(cluster.brokers)
    rng.shuffle(order)
    for node in (*order, *cluster.controllers):
        cluster.engine.terminate(node)
        cluster.wait(lambda node=node: not cluster.engine.is_running(node), f"node {node} has shut down")  # type: ignore[misc]
    cluster.start([*cluster.controllers, *order])
    return f"brokers {', '.join(map(str, order))}, then the controllers"


def kill_all(cluster: SoakCluster, rng: Random) -> str:
    order = [*cluster.controllers, *cluster.brokers]
    rng.shuffle(order)
    _bounce(cluster, order)
    return "brokers and controllers at once"


def kill_controller(cluster: SoakCluster, rng: Random) -> str:
    controller = cluster.controller()
    cluster.kill([controller])
    if len(cluster.controllers) >= 3:  # so many tolerate the loss of one
        cluster.controller()
    cluster.start([controller])
    return f"controller {controller}"


def kill_raylet(cluster: SoakCluster, rng: Random) -> str:
    nodes, engine = cluster.nodes, cluster.engine
    assert nodes is not None
    assert isinstance(engine, RayEngine)
    broker = _leader(cluster, rng)
    spare = nodes.add()
    home, cluster.homes[broker] = cluster.homes[broker], spare
    orphan = os.pidfd_open(cluster.pids[broker])
    try:
        epoch = cluster.wait_for(lambda: registered_epoch(engine.view(), broker), f"broker {broker} is registered")
        engine.cluster.isolate([broker])
        nodes.kill_raylet(home)
        cluster.wait(lambda: not cluster.engine.is_running(broker), f"Ray has lost broker {broker}")
        engine.move(broker, spare)
        cluster.start([broker])
        cluster.wait(
            lambda: (registered_epoch(engine.view(), broker) or epoch) > epoch,
            f"the next incarnation of broker {broker} is registered",
        )
        refused = _refusals(cluster, broker)
        engine.cluster.isolate([])
        cluster.wait(lambda: _refusals(cluster, broker) > refused, f"the orphan of broker {broker} is refused")
        cluster.pass_time(ORPHAN_TALKS_MS)
        refused = _refusals(cluster, broker) - refused
    finally:
        signal.pidfd_send_signal(orphan, signal.SIGKILL)
        os.close(orphan)
        nodes.reap(home)
    return f"broker {broker}, whose orphan was refused {refused} times"


def registered_epoch(view: ClusterView | None, broker: BrokerId) -> int | None:
    """The broker epoch of a broker's registration; None where no controller has answered, or does not know the broker.
    None is no epoch: any registration would be higher, also that of an incarnation which still runs.
    """
    return view.brokers[broker].broker_epoch if view is not None and broker in view.brokers else None


def _refusals(cluster: SoakCluster, sender: NodeId) -> int:
    """The number of requests of a broker that others have refused because of their epochs."""
    refused = [event.trace for event in cluster.engine.traces() if isinstance(event.trace, RequestRefused)]
    return sum(refusal.sender == sender and refusal.error in _FENCED for refusal in refused)


FAULTS: Mapping[str, Fault] = {
    "kill-leader": kill_leader,
    "kill-follower": kill_follower,
    "pause": pause,
    "cut": cut,
    "full-disk": full_disk,
    "corrupt-tail": corrupt_tail,
    "restart": restart,
    "kill-all": kill_all,
    "kill-controller": kill_controller,
    "kill-raylet": kill_raylet,
}
"""The fault functions by kind; each returns its target and variant in words."""
OWN_RAY_ONLY = ("kill-raylet",)
"""The kinds that need a Ray which the soak has started itself."""
