"""The store as its clients see it: latencies, order, races, sessions that expire, restarts."""

from __future__ import annotations

import pytest

from protocol.contract import Exit, Send
from protocol.errors import ProtocolInvariantError
from protocol.events.node import RequestRefused
from protocol.events.store import StoreSessionBegan, StoreSessionEnded
from protocol.ids import STORE
from protocol.messages.commands import ShutdownCommand
from protocol.messages.store import (
    Create,
    Delete,
    Exists,
    ExpireSessions,
    GetChildren,
    GetData,
    OpenSession,
    OperationResult,
    SessionOpened,
    SessionPong,
    SetData,
    StoreError,
    StoreRead,
    StoreResponse,
    WatchKind,
)
from protocol.v3.store.settings import Latency, StoreSettings
from tests.unit.protocol.v3.store.simulation import READ_MS, TIMEOUT_MS, WRITE_MS, World

NODE_EXISTS, NONE = StoreError.NODE_EXISTS, StoreError.NONE


def response_times(world: World, client: int = 0) -> list[int]:
    return [at_ms for at_ms, _, to, message in world.sent if to == client and isinstance(message, StoreResponse)]


@pytest.mark.covers("A3")
def test_requests_of_a_session_take_their_latencies_one_after_another() -> None:
    world = World().connect()
    begin_ms = world.now_ms
    for number in range(3):
        world.submit(number, (Create(path=f"/{number}"),))
    world.submit("read", GetChildren(path="/"))
    world.submit("multi", tuple(Create(path=f"/m{number}") for number in range(100)))
    world.run_for(100)
    arrival_ms = begin_ms + 1
    steps = (WRITE_MS, WRITE_MS, WRITE_MS, READ_MS, WRITE_MS)
    assert response_times(world) == [arrival_ms + sum(steps[: at + 1]) for at in range(5)]
    assert [event[0] for event in world.clients[0].log] == ["opened", 0, 1, 2, "read", "multi"]
    assert world.clients[0].results("read")[0].children == ("0", "1", "2"), "the read is after the writes"


@pytest.mark.covers("A3")
def test_requests_of_different_sessions_are_carried_out_in_parallel() -> None:
    world = World(clients=4).connect()
    begin_ms = world.now_ms
    for client in range(4):
        for number in range(10):
            world.submit(number, (Create(path=f"/{client}-{number}"),), client)
    world.run_for(100)
    for client in range(4):
        assert response_times(world, client)[-1] == begin_ms + 1 + 10 * WRITE_MS


def test_latencies_are_drawn_with_the_injected_source() -> None:
    settings = StoreSettings(write_latency=Latency(dist="exponential", mean_ms=20))
    times = []
    for seed in (1, 1, 2):
        world = World(seed=seed, settings=settings).connect()
        for number in range(200):
            world.submit(number, (Create(path=f"/{number}"),))
        world.run_until(lambda world=world: len(response_times(world)) == 200)
        times.append(response_times(world))
    assert times[0] == times[1]
    assert times[0] != times[2]
    assert 15 < (times[0][-1] - times[0][0]) / 199 < 25


@pytest.mark.covers("A4", "A32")
@pytest.mark.parametrize("seed", range(5))
def test_a_race_to_create_a_node_has_one_winner(seed: int) -> None:
    world = World(clients=5, seed=seed, delay_ms=10).connect()
    for client in range(5):
        world.submit("race", (Create(path="/controller", data=b"%d" % client, ephemeral=True),), client)
    world.run_for(200)
    errors = [client.error("race") for client in world.clients]
    assert sorted(errors) == [NODE_EXISTS] * 4 + [NONE]
    winner = errors.index(NONE)
    [result] = world.ask(GetData(path="/controller"))
    assert result.data == b"%d" % winner
    world.submit("watch", Exists(path="/controller", watch=True), (winner + 1) % 5)
    world.run_for(50)
    world.crash(winner)
    world.run_for(TIMEOUT_MS + 50)
    assert ("watch", WatchKind.DELETED, "/controller") in world.clients[(winner + 1) % 5].log


@pytest.mark.covers("A3")
@pytest.mark.parametrize("seed", range(8))
def test_a_client_has_a_watch_event_before_a_response_that_shows_the_change(seed: int) -> None:
    """Writers change a node; a reader watches it, and reads it without a watch in between."""
    latency = Latency(dist="exponential", mean_ms=3)
    settings = StoreSettings(write_latency=latency, read_latency=latency)
    world = World(clients=3, seed=seed, settings=settings, delay_ms=20).connect()
    world.ask((Create(path="/x"),))
    reader = world.clients[2]
    seen: list[str] = []

    def watch() -> None:
        reader.submit("watching", GetData(path="/x", watch=True))

    def note(event: tuple[object, ...]) -> None:
        if event[0] == "watching" and isinstance(event[1], tuple):
            seen.append(f"set at {event[1][0].version}")
        elif event[0] == "reading" and isinstance(event[1], tuple):
            seen.append(f"read {event[1][0].version}")
        elif event[0] == "watch":
            seen.append("event")
            watch()

    reader.on_event = note
    watch()
    for _ in range(60):
        world.submit("write", (SetData(path="/x", data=b""),), world.rng.randrange(2))
        world.submit("reading", GetData(path="/x"), 2)
        world.run_for(world.rng.randint(0, 30))
    world.run_for(2_000)
    watched: int | None = None
    for what in seen:
        if what == "event":
            assert watched is not None
            watched = None
        elif what.startswith("set at"):
            watched = int(what.split()[-1])
        elif watched is not None:
            assert int(what.split()[-1]) == watched, "a response shows a change before the event of its watch"
    assert seen.count("event") > 5


@pytest.mark.covers("M39", "A52")
def test_the_session_of_a_live_client_can_expire() -> None:
    world = World(clients=2).connect()
    world.ask((Create(path="/mine", ephemeral=True),), 0)
    world.ask(Exists(path="/mine", watch=True), 1)
    [session] = [found for found in world.store.state.sessions.values() if found.owner == 0]
    world.expire(0)
    assert world.store.state.tree.find("/mine") is None
    assert world.clients[0].session.session_id == session.session_id, "the client does not know yet"
    world.run_for(50)
    assert world.clients[1].log[-1] == ("watch", WatchKind.DELETED, "/mine")
    assert [event[0] for event in world.clients[0].log[-2:]] == ["expired", "opened"]
    assert world.clients[0].session.session_id > session.session_id
    assert StoreSessionEnded(session.session_id, 0, True, ("/mine",)) in world.traces


@pytest.mark.covers("M39")
@pytest.mark.parametrize("why", ["crash", "pause", "cut"])
def test_a_silent_session_expires_after_its_timeout(why: str) -> None:
    world = World(clients=2).connect()
    world.ask((Create(path="/mine", ephemeral=True),), 0)
    world.run_for(10 * TIMEOUT_MS)
    assert world.store.state.tree.find("/mine") is not None, "pings keep an idle session alive"
    if why == "crash":
        world.crash(0)
    elif why == "pause":
        world.paused.add(0)
    else:
        world.cut |= {(0, STORE), (STORE, 0)}
    world.run_for(TIMEOUT_MS * 2 // 3 - 20)
    assert world.store.state.tree.find("/mine") is not None
    world.run_for(TIMEOUT_MS)
    assert world.store.state.tree.find("/mine") is None
    assert len(world.store.state.sessions) == 1
    if why != "crash":
        world.cut.clear()
        world.resume(0)
        world.run_for(2 * TIMEOUT_MS)
        assert [event[0] for event in world.clients[0].log[-2:]] == ["expired", "opened"]


def test_a_client_that_does_not_hear_the_store_loses_its_session() -> None:
    """As with TCP: what it sends over a connection that it cannot open does not count."""
    world = World(clients=1).connect()
    world.cut.add((STORE, 0))
    world.run_for(3 * TIMEOUT_MS)
    assert world.store.state.sessions == {}


@pytest.mark.covers("A3")
def test_a_closed_session_ends_at_once() -> None:
    world = World(clients=2).connect()
    world.ask((Create(path="/mine", ephemeral=True),), 0)
    client = world.clients[0]
    client.session.close()
    world._carry_out(0, client.drain())
    world.run_for(20)
    assert world.store.state.tree.find("/mine") is None
    assert [found.owner for found in world.store.state.sessions.values()] == [1]
    world.run_for(3 * TIMEOUT_MS)
    assert [event[0] for event in client.log][-1] != "expired"


@pytest.mark.parametrize("down_ms", [10, TIMEOUT_MS // 2, 10 * TIMEOUT_MS])
def test_sessions_go_on_after_an_outage_if_their_clients_come_back(down_ms: int) -> None:
    world = World(clients=3).connect()
    for client in range(3):
        world.ask((Create(path=f"/{client}", ephemeral=True),), client)
    world.ask(GetData(path="/1", watch=True), 0)
    world.ask(Exists(path="/new", watch=True), 0)
    world.crash()
    world.run_for(down_ms)
    world.crash(2)
    world.start_store()
    world.run_for(TIMEOUT_MS - 5)
    assert world.store.state.tree.children("/") == ("0", "1", "2"), "a timeout counts from the restart"
    assert world.ask((Create(path="/new"),), 1)[0].error is NONE
    world.run_for(TIMEOUT_MS)
    assert world.store.state.tree.children("/") == ("0", "1", "new")
    assert [event[0] for event in world.clients[1].log].count("expired") == 0
    assert world.clients[0].log[-1] == ("watch", WatchKind.CREATED, "/new")
    world.ask((SetData(path="/1", data=b"x"),), 1)
    world.run_for(10)
    assert world.clients[0].log[-1] == ("watch", WatchKind.DATA_CHANGED, "/1")


def test_a_restarted_client_gets_another_session_while_the_old_one_lasts() -> None:
    world = World(clients=1).connect()
    world.ask((Create(path="/mine", ephemeral=True),))
    world.restart_client(0)
    world.connect()
    assert world.ask((Create(path="/mine", ephemeral=True),))[0].error is NODE_EXISTS
    world.run_for(TIMEOUT_MS)
    assert world.ask((Create(path="/mine", ephemeral=True),))[0].error is NONE
    world.run_for(10 * TIMEOUT_MS)
    assert world.store.state.tree.find("/mine") is not None


def test_ephemeral_nodes_of_an_expired_session_are_deleted_with_one_transaction() -> None:
    world = World(clients=2).connect()
    for name in "abc":
        world.ask((Create(path=f"/{name}", ephemeral=True),), 0)
    world.ask(GetChildren(path="/", watch=True), 1)
    zxid = world.store.state.zxid
    world.expire(0)
    assert world.store.state.zxid == zxid + 1
    world.run_for(2)
    assert world.clients[1].log[-1] == ("watch", WatchKind.CHILDREN_CHANGED, "/")
    assert world.ask(GetChildren(path="/"), 1) == (OperationResult(version=0),)


@pytest.mark.covers("A3")
def test_a_client_has_the_event_of_its_own_write_before_the_response() -> None:
    world = World().connect()
    world.ask(Exists(path="/a", watch=True))
    world.ask((Create(path="/a"),))
    assert [event[0] for event in world.clients[0].log][-2] == "watch"
    response = world.sent[-1][3]
    assert isinstance(response, StoreResponse)
    assert response.zxid == world.store.state.zxid, "the response shows the write"


def test_requests_keep_a_session_alive_as_pings_do() -> None:
    world = World(clients=0)
    world.send_raw(7, OpenSession(connection_id=1, timeout_ms=TIMEOUT_MS))
    world.run_for(10)
    for xid in range(1, 10):
        world.run_for(TIMEOUT_MS - 10)
        world.send_raw(7, StoreRead(connection_id=1, xid=xid, operation=Exists(path="/")))
        world.run_for(5)
        assert len(world.store.state.sessions) == 1
    world.run_for(TIMEOUT_MS)
    assert world.store.state.sessions == {}


def test_watches_end_with_the_connection_over_which_they_were_set() -> None:
    world = World(clients=0)
    world.send_raw(7, OpenSession(connection_id=1, timeout_ms=TIMEOUT_MS))
    world.run_for(10)
    [session_id] = world.store.state.sessions
    world.send_raw(7, StoreRead(connection_id=1, xid=1, operation=Exists(path="/a", watch=True)))
    world.run_for(10)
    assert len(world.store.watches) == 1
    world.send_raw(7, OpenSession(connection_id=2, timeout_ms=TIMEOUT_MS, session_id=session_id))
    assert len(world.store.watches) == 0


def test_a_failed_transaction_and_reads_write_nothing() -> None:
    world = World().connect()
    zxid, end = world.store.state.zxid, world.disk.log_end("__store/0")
    assert world.ask((Create(path="/a"), Delete(path="/b")))[-1].error is StoreError.NO_NODE
    assert world.ask(GetChildren(path="/"))[0].children == ()
    assert (world.store.state.zxid, world.disk.log_end("__store/0")) == (zxid, end)


def test_what_the_store_refuses() -> None:
    world = World().connect()
    effects = world.store.receive(world.now_ms, 0, ExpireSessions(node_id=0))
    assert effects == [RequestRefused("ExpireSessions", 0, "UNSUPPORTED_VERSION")]
    effects = world.store.receive(world.now_ms, 0, SessionPong(connection_id=1, number=1))
    assert [type(effect) for effect in effects] == [RequestRefused]
    assert not any(isinstance(effect, Send) for effect in effects)
    with pytest.raises(ProtocolInvariantError, match="no timer 'x'"):
        world.store.fire(world.now_ms, "x")
    assert world.store.receive(world.now_ms, 0, ShutdownCommand()) == [Exit()]


def test_a_session_that_another_node_claims_is_refused() -> None:
    world = World(clients=2).connect()
    thief, victim = world.clients[1].session, world.clients[0].session
    thief.session_id = victim.session_id
    world.cut.add((STORE, 1))
    world.run_for(TIMEOUT_MS)
    world.cut.clear()
    world.run_for(TIMEOUT_MS)
    assert "expired" in [event[0] for event in world.clients[1].log]
    assert "expired" not in [event[0] for event in world.clients[0].log]
    assert StoreSessionBegan(victim.session_id, 0) in world.traces


@pytest.mark.parametrize(("wanted_ms", "given_ms"), [(0, 100), (-1, 100), (6_000, 6_000), (2**31 - 1, 3_600_000)])
def test_a_session_timeout_has_limits(wanted_ms: int, given_ms: int) -> None:
    world = World(clients=1).connect()
    world.store.receive(world.now_ms, 0, OpenSession(connection_id=1, timeout_ms=wanted_ms))
    effects = world.store.fire(world.now_ms + WRITE_MS, "work/1")
    [opened] = [effect.message for effect in effects if isinstance(effect, Send)]
    assert isinstance(opened, SessionOpened)
    assert opened.timeout_ms == given_ms
