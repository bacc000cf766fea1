"""The store and its clients on the simulator: idle sessions cost nothing, and eliding their pings changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.engine import SimEngine
from experiments.engines.sim.network import NetworkModel
from protocol.config import ClusterConfig
from protocol.events.store import StoreSessionEnded
from protocol.ids import FIRST_CLIENT, STORE, NodeId, is_client
from protocol.messages.store import Create, Delete, ExpireSessions, GetChildren, GetData, SetData, StoreError
from protocol.v3.store.node import StoreNode
from protocol.v3.store.settings import StoreSettings
from tests.unit.protocol.v3.store.simulation import Client

TIMEOUT_MS = 6_000
CLIENTS = tuple(range(FIRST_CLIENT, FIRST_CLIENT + 3))
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class StoreSpec(ClusterSpec):
    """A cluster of a store and three of its clients."""

    @property
    def client_ids(self) -> tuple[NodeId, ...]:
        return CLIENTS


class StoreRun:
    """Such a cluster; all that happens to clients, in all their incarnations, is in `history`."""

    def __init__(self, seed: int, elide_idle: bool = True, paranoid: bool = False, jitter_ms: int = 0) -> None:
        spec = StoreSpec(0, 0, ClusterConfig(), seed, store=StoreSettings())
        model = NetworkModel(base_ms=2, jitter_ms=jitter_ms)
        self.clients: dict[NodeId, Client] = {}
        self.history: list[tuple[NodeId, list[tuple[object, ...]], list[int]]] = []
        self.cluster = SimCluster(
            spec,
            model,
            elide_idle=elide_idle,
            paranoid=paranoid,
            build=self._client,
        )
        for node in spec.node_ids:
            self.cluster.start(node)

    def _client(self, node: NodeId) -> Client | None:
        if not is_client(node):
            return None
        number = self.cluster.incarnation_of(node)
        client = self.clients[node] = Client(node, Random(f"{node}/{number}"), TIMEOUT_MS)
        self.history.append((node, client.log, client.times_ms))
        client.on_event = lambda event: self._open(client) if event[0] == "opened" else None
        return client

    def _open(self, client: Client) -> None:
        """What a client does with a new session: it registers itself, and watches."""
        path = f"/client-{client.node_id}-{client.session.session_id}"
        client.submit("register", (Create(path=path, ephemeral=True),))
        client.submit("children", GetChildren(path="/", watch=True))

    @property
    def store(self) -> StoreNode:
        store = self.cluster.nodes[STORE]
        assert isinstance(store, StoreNode)
        return store

    def submit(self, node: NodeId, tag: object, operations: tuple[Create | SetData | Delete, ...]) -> None:
        if node in self.cluster.nodes and not self.cluster.is_paused(node):
            client = self.clients[node]
            client.submit(tag, operations)
            self.cluster.carry_out(node, client.drain())


def inject(run: StoreRun, kind: str, node: NodeId, rng: Random, number: int) -> None:
    """One fault, or the end of one, or a write."""
    cluster = run.cluster
    runs, is_paused = node in cluster.nodes, cluster.is_paused(node)
    if kind == "crash" and not runs:
        cluster.start(node)
    elif kind == "crash" and not is_paused:
        cluster.crash(node, Loss("unflushed"))
    elif kind == "pause" and runs:
        (cluster.resume if is_paused else cluster.pause)(node)
    elif kind == "cut" and node != STORE:
        ends = (node, STORE) if rng.random() < 0.5 else (STORE, node)
        cluster.set_link(*ends, up=cluster.network.is_cut(*ends))
    elif kind == "expire" and STORE in cluster.nodes and not cluster.is_paused(STORE):
        cluster.command(STORE, ExpireSessions(node_id=node))
    elif kind == "write" and node != STORE:
        run.submit(node, number, (Create(path=f"/{number}"),))


def disturbed(seed: int, elide_idle: bool, **options: bool) -> StoreRun:
    """Two minutes with faults: crashes, pauses, cuts, expired sessions; requests in between."""
    run, rng = StoreRun(seed, elide_idle, **options), Random(seed)
    cluster = run.cluster
    for number in range(40):
        cluster.run_until(cluster.now_ms + rng.randint(1, 5_000))
        node = rng.choice((STORE, *CLIENTS))
        inject(run, rng.choice(("crash", "pause", "cut", "expire", "write", "write")), node, rng, number)
    for ends in cluster.network.cuts():
        cluster.set_link(*ends, up=True)
    for node in (STORE, *CLIENTS):
        if node not in cluster.nodes:
            cluster.start(node)
        elif cluster.is_paused(node):
            cluster.resume(node)
    cluster.run_until(cluster.now_ms + 4 * TIMEOUT_MS)
    return run


@pytest.mark.covers("A3", "M39")
@pytest.mark.parametrize("seed", range(8))
def test_faults_of_all_kinds_heal_and_elided_pings_change_nothing(seed: int) -> None:
    elided, full = disturbed(seed, True), disturbed(seed, False)
    assert elided.history == full.history
    assert elided.cluster.trace_hash() == full.cluster.trace_hash()
    assert elided.store.state.tree.items() == full.store.state.tree.items()
    assert elided.cluster.event_count < full.cluster.event_count
    assert all(client.session.is_connected for client in elided.clients.values())
    sessions = elided.store.state.sessions.values()
    assert sorted(session.owner for session in sessions) == list(CLIENTS)
    registered = [name for name in elided.store.state.tree.children("/") if name.startswith("client")]
    assert registered == sorted(f"client-{session.owner}-{session.session_id}" for session in sessions)


def test_the_codec_changes_nothing() -> None:
    assert disturbed(3, True, paranoid=True).history == disturbed(3, True).history


def test_idle_sessions_cost_no_events() -> None:
    run = StoreRun(1, jitter_ms=2)
    run.cluster.run_until(1_000)
    events = run.cluster.event_count
    run.cluster.run_until(HOUR_MS)
    assert run.cluster.event_count == events
    run.cluster.crash(CLIENTS[0], Loss("none"))
    run.cluster.run_until(HOUR_MS + TIMEOUT_MS + 10)
    assert len(run.store.state.tree.children("/")) == 2, "a session ends all the same"
    run.cluster.crash(STORE, Loss("none"))
    events = run.cluster.event_count
    run.cluster.run_until(2 * HOUR_MS)
    assert run.cluster.event_count - events < 20, "nor does an outage"
    run.cluster.start(STORE)
    run.cluster.run_until(2 * HOUR_MS + 5_000)
    assert all(run.clients[node].session.is_connected for node in CLIENTS[1:])


def test_what_was_acknowledged_survives_a_crash() -> None:
    run = StoreRun(1)
    run.cluster.run_until(100)
    run.submit(CLIENTS[0], "write", (Create(path="/kept", data=b"x"),))
    run.cluster.run_until(200)
    assert run.clients[CLIENTS[0]].error("write") is StoreError.NONE
    run.cluster.crash(STORE, Loss("unflushed"))
    run.cluster.start(STORE)
    assert run.store.state.tree.read(GetData(path="/kept")).data == b"x"


def test_the_engine_expires_the_sessions_of_a_live_node() -> None:
    engine = SimEngine(StoreSpec(0, 0, ClusterConfig(), 1, store=StoreSettings()))
    client = Client(FIRST_CLIENT, Random(1), TIMEOUT_MS)
    engine.cluster.build = lambda node: client if is_client(node) else None
    engine.start(STORE)
    engine.start(FIRST_CLIENT)
    engine.run_for(100)
    engine.expire_sessions(FIRST_CLIENT)
    engine.run_for(100)
    assert [event[0] for event in client.log] == ["opened", "expired", "opened"]
    ended = [event.trace for event in engine.traces() if isinstance(event.trace, StoreSessionEnded)]
    assert [(trace.owner, trace.expired) for trace in ended] == [(FIRST_CLIENT, True)]
    engine.terminate(STORE)
    assert not engine.is_running(STORE)
