"""Generation `v3` under random faults of brokers, store and links: what holds of the control plane once all is healed.

What acknowledged records are worth in `v3` is not promised here: its rules of replication are known to lose some, and
to leave logs that differ at equal offsets (M42, N1, N5).
"""

from __future__ import annotations

from random import Random

import pytest

from experiments.engines.admin_requests import reassign
from experiments.engines.port import Loss
from protocol.ids import STORE
from protocol.v3.store.settings import StoreSettings
from tests.sim.seed_helpers import seeds
from tests.sim.v3_cluster_helpers import V3Bench

BROKERS = (0, 1, 2, 3)
NODES = (*BROKERS, STORE)
FAULTS = ("crash", "crash", "pause", "cut", "expire", "produce", "reassign", "heal")
HEALED_MS = 150_000


def inject(bench: V3Bench, kind: str, node: int, rng: Random) -> None:
    """One fault, the end of one, or a request."""
    cluster = bench.cluster
    runs, is_paused = node in cluster.nodes, cluster.is_paused(node)
    if kind == "crash" and not runs:
        cluster.start(node)
    elif kind == "crash" and not is_paused:
        cluster.crash(node, Loss("unflushed"))
    elif kind == "pause" and runs:
        (cluster.resume if is_paused else cluster.pause)(node)
    elif kind == "cut":
        cluster.set_link(node, rng.choice([other for other in NODES if other != node]), False)
    elif kind == "heal":
        bench.engine.heal_links()
    elif kind == "expire" and STORE in cluster.nodes and not cluster.is_paused(STORE):
        bench.engine.expire_sessions(rng.choice(BROKERS))
    elif kind == "produce":
        bench.produce(rng.choice((-1, 1)), rng.randrange(2))
    elif kind == "reassign":
        bench.administer(reassign("t", rng.randrange(2), tuple(rng.sample(BROKERS, 3))))


def disturbed(seed: int, role: str, *, elide_idle: bool = True) -> V3Bench:
    """A minute of faults, and the time that healing takes."""
    rng = Random(seed)
    bench = V3Bench(
        brokers=4,
        replicas=((0, 1, 2), (1, 2, 3)),
        seed=seed,
        config={"replica.lag.time.max.ms": 5_000, "inter.broker.protocol.isr.updates": role},
        store=StoreSettings(sessions=rng.choice((1, 3)), multi=rng.choice((1, 10))),
        elide_idle=elide_idle,
    )
    for _ in range(30):
        bench.run_for(rng.randint(1, 4_000))
        inject(bench, rng.choice(FAULTS), rng.choice(NODES), rng)
    bench.engine.heal_links()
    for node in NODES:
        if node not in bench.cluster.nodes:
            bench.cluster.start(node)
        elif bench.cluster.is_paused(node):
            bench.cluster.resume(node)
    bench.run_for(HEALED_MS)
    return bench


@pytest.mark.covers("A33", "A35", "A36", "M33", "M34", "M39")
@pytest.mark.parametrize("role", ["leader", "controller"])
@pytest.mark.parametrize("seed", seeds(range(12), fast=3))
def test_the_control_plane_converges_after_faults(seed: int, role: str) -> None:
    bench = disturbed(seed, role)
    published = bench.engine.store_view()
    assert sorted(published.brokers) == list(BROKERS)
    assert [broker for broker in BROKERS if bench.broker(broker).controller.term is not None] == [published.controller]
    for partition, state in published.partitions.items():
        assert sorted(state.isr) == sorted(state.replicas), "no reassignment is left, and all are in sync"
        held = {broker: bench.engine.replica(broker, partition) for broker in BROKERS}
        assert sorted(broker for broker, replica in held.items() if replica is not None) == sorted(state.replicas)
        assert {replica.leader_epoch for replica in held.values() if replica is not None} == {state.leader_epoch}
        assert [broker for broker, replica in held.items() if replica and replica.leads] == [state.leader]
    written = [bench.produce(partition=partition) for partition in range(2)]
    bench.run_for(5_000)
    assert all(bench.acked(number) for number in written)


@pytest.mark.parametrize("seed", range(3))
def test_eliding_idle_timers_changes_nothing(seed: int) -> None:
    elided, full = disturbed(seed, "leader"), disturbed(seed, "leader", elide_idle=False)
    assert elided.engine.trace_hash() == full.engine.trace_hash()
    assert elided.cluster.event_count < full.cluster.event_count
