"""The faults of a soak: what each does, how it heals, and what it has to show.

Every fault begins on a cluster that is whole and ends when it has been healed; the caller waits until the cluster is
whole again before the next. So one broker at a time loses anything, which is what replication factor 3 with min ISR 2
tolerates. All draws come from the fault's own dice.

- `kill-leader`, `kill-follower`: SIGKILL; the page cache survives.
- `pause`: SIGSTOP for `PAUSE_MS`, longer than the session, then SIGCONT: a leader that does not know that it is none.
- `cut`: a link between two brokers, or a broker and the active controller, in one direction or both, for `CUT_MS`.
- `full-disk`: a broker's logs find no room any more. It must say so, and comes back once there is room.
- `corrupt-tail`: SIGKILL, then the ends of its logs are damaged where they had not been flushed. Recovery must drop
  that and say so; the rest comes from the leaders.
- `restart`: all brokers and controllers shut down in good order, one after the other, and start again.
- `kill-all`: SIGKILL of all brokers and controllers at once, with the page cache kept. Each of the last leaders has
  everything that was acknowledged, and is elected where ISR and ELR have become empty, as none of them can vouch for a
  clean shutdown. (With page caches lost the same would lose records: that is what unclean recovery is for.)
- `kill-controller`: SIGKILL of the active controller. It starts again once another is active, where there are others.
- `kill-raylet`: the machine of a broker loses its network and its Ray agent. Its process goes on as an orphan, the next
  life begins on another Ray node with an empty disk, and when that is registered the network of the orphan comes back:
  from then on the two talk at the same time, and only their epochs tell them apart.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from random import Random

from experiments.engines.ray.engine import DamageKind
from experiments.hunt.soak.cluster import SoakCluster
from protocol.errors import ErrorCode
from protocol.ids import BrokerId, NodeId, TopicPartition

PAUSE_MS = 10_000
CUT_MS = 6_000
ORPHAN_TALKS_MS = 4_000
ROOM_BYTES = 4_096
SPARE_ONE = 3
"""So many controllers can do without one."""
DAMAGES: Sequence[DamageKind] = ("torn", "flipped", "zeroed")
_FENCED = frozenset(
    error.name
    for error in (
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    )
)

Fault = Callable[[SoakCluster, Random], str]


def _partition(lab: SoakCluster, rng: Random) -> TopicPartition:
    return rng.choice(lab.partitions)


def _leader(lab: SoakCluster, rng: Random) -> BrokerId:
    return lab.leader(_partition(lab, rng))


def _follower(lab: SoakCluster, rng: Random) -> tuple[BrokerId, BrokerId]:
    """(leader, one of its followers)."""
    leader = _leader(lab, rng)
    return leader, rng.choice([broker for broker in lab.brokers if broker != leader])


def kill_leader(lab: SoakCluster, rng: Random) -> str:
    leader = _leader(lab, rng)
    lab.kill([leader])
    lab.start([leader])
    return f"broker {leader}"


def kill_follower(lab: SoakCluster, rng: Random) -> str:
    leader, follower = _follower(lab, rng)
    lab.kill([follower])
    lab.start([follower])
    return f"broker {follower}, which follows {leader}"


def pause(lab: SoakCluster, rng: Random) -> str:
    leader, follower = _follower(lab, rng)
    broker = rng.choice([leader, follower])
    lab.signal(broker, signal.SIGSTOP)
    try:
        lab.pass_time(PAUSE_MS)
    finally:
        lab.signal(broker, signal.SIGCONT)
    return f"broker {broker} for {PAUSE_MS / 1000:.0f} s"


def cut(lab: SoakCluster, rng: Random) -> str:
    leader, follower = _follower(lab, rng)
    ends: Sequence[tuple[NodeId, NodeId]] = ((leader, follower), (follower, leader))
    if rng.randrange(2):
        controller = lab.controller()
        ends = ((leader, controller), (controller, leader))
    links = rng.choice([ends, ends[:1], ends[1:]])
    for source, target in links:
        lab.engine.set_link(source, target, False)
    lab.pass_time(CUT_MS)
    for source, target in links:
        lab.engine.set_link(source, target, True)
    return " and ".join(f"{source} to {target}" for source, target in links) + f" for {CUT_MS / 1000:.0f} s"


def full_disk(lab: SoakCluster, rng: Random) -> str:
    broker = _leader(lab, rng)
    told = lab.count_traces("storage_error", broker)
    lab.engine.set_room(broker, ROOM_BYTES)
    lab.wait(
        lambda: lab.count_traces("storage_error", broker) > told or not lab.engine.is_running(broker),
        f"broker {broker} says that its disk is full",
    )
    has_told = lab.count_traces("storage_error", broker) > told
    if lab.engine.is_running(broker):
        lab.kill([broker])
    lab.start([broker])
    return f"broker {broker}" + ("" if has_told else ", which ended without a word")


def corrupt_tail(lab: SoakCluster, rng: Random) -> str:
    broker = _leader(lab, rng)
    damage = rng.choice(DAMAGES)
    told = lab.count_traces("records_dropped", broker)
    lab.kill([broker])
    damaged = lab.engine.damage_tails(broker, damage, str(rng.random()))
    lab.start([broker])
    if damaged:
        lab.wait(lambda: lab.count_traces("records_dropped", broker) > told, f"broker {broker} says what it dropped")
    return f"broker {broker}: {damaged} logs {damage}"


def restart(lab: SoakCluster, rng: Random) -> str:
    order = list(lab.brokers)
    rng.shuffle(order)
    for node in (*order, *lab.controllers):
        lab.engine.terminate(node)
        lab.wait(lambda node=node: not lab.engine.is_running(node), f"node {node} has shut down")  # type: ignore[misc]
    lab.start([*lab.controllers, *order])
    return f"brokers {', '.join(map(str, order))}, then the controllers"


def kill_all(lab: SoakCluster, rng: Random) -> str:
    order = [*lab.controllers, *lab.brokers]
    rng.shuffle(order)
    lab.kill(order)
    lab.start(order)
    return "brokers and controllers at once"


def kill_controller(lab: SoakCluster, rng: Random) -> str:
    controller = lab.controller()
    lab.kill([controller])
    if len(lab.controllers) >= SPARE_ONE:
        lab.controller()
    lab.start([controller])
    return f"controller {controller}"


def kill_raylet(lab: SoakCluster, rng: Random) -> str:
    broker = _leader(lab, rng)
    spare = lab.nodes.add()
    home, lab.homes[broker] = lab.homes[broker], spare
    orphan = os.pidfd_open(lab.pids[broker])
    try:
        epoch = _epoch(lab, broker)
        lab.engine.isolate([broker])
        lab.nodes.kill_raylet(home)
        lab.wait(lambda: not lab.engine.is_running(broker), f"Ray has lost broker {broker}")
        lab.engine.move(broker, spare)
        lab.start([broker])
        lab.wait(lambda: _epoch(lab, broker) > epoch, f"the next life of broker {broker} is registered")
        refused = _refusals(lab, broker)
        lab.engine.isolate([])
        lab.wait(lambda: _refusals(lab, broker) > refused, f"the orphan of broker {broker} is refused")
        lab.pass_time(ORPHAN_TALKS_MS)
        refused = _refusals(lab, broker) - refused
    finally:
        signal.pidfd_send_signal(orphan, signal.SIGKILL)
        os.close(orphan)
        lab.nodes.reap(home)
    return f"broker {broker}, whose orphan was refused {refused} times"


def _epoch(lab: SoakCluster, broker: BrokerId) -> int:
    view = lab.engine.view()
    return -1 if view is None or broker not in view.brokers else view.brokers[broker].broker_epoch


def _refusals(lab: SoakCluster, sender: NodeId) -> int:
    """How many requests of a broker others have refused for their epochs."""
    refused = [event.trace.detail for event in lab.engine.traces() if event.trace.kind == "refused"]
    return sum(detail["sender"] == sender and detail["error"] in _FENCED for detail in refused)


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
"""Every fault by its name."""
