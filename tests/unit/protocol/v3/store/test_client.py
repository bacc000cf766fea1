"""The client's side of a session: lost connections, lost messages, unknown outcomes, watches that are set again."""

from __future__ import annotations

from collections import Counter

import pytest

from protocol.ids import STORE
from protocol.messages.store import (
    Check,
    ConnectionClosed,
    Create,
    Exists,
    GetChildren,
    GetData,
    OpenSession,
    SessionPing,
    SetData,
    StoreError,
    StoreResponse,
    StoreWrite,
    WatchEvent,
    WatchKind,
)
from tests.unit.protocol.v3.store.simulation import TIMEOUT_MS, World

CONNECTION_LOSS, NONE = StoreError.CONNECTION_LOSS, StoreError.NONE
TO_STORE, TO_CLIENT = (0, STORE), (STORE, 0)


def connections(world: World) -> int:
    """How many connections client 0 has asked for."""
    return len({m.connection_id for _, source, _, m in world.sent if source == 0 and isinstance(m, OpenSession)})


@pytest.mark.covers("A3")
def test_requests_are_answered_in_their_order_and_those_before_the_connection_wait_for_it() -> None:
    world = World()
    for number in range(5):
        world.submit(number, (Create(path=f"/{number}"),))
        world.submit(f"read {number}", GetChildren(path="/"))
    world.run_for(200)
    expected = ["opened"]
    expected += [tag for number in range(5) for tag in (number, f"read {number}")]  # type: ignore[misc]
    assert [event[0] for event in world.clients[0].log] == expected
    assert [len(world.clients[0].results(f"read {number}")[0].children) for number in range(5)] == [1, 2, 3, 4, 5]


def test_an_idle_client_pings_three_times_in_a_timeout() -> None:
    world = World().connect()
    world.sent.clear()
    world.run_for(10 * TIMEOUT_MS + 5)
    assert len([m for _, source, _, m in world.sent if source == 0 and isinstance(m, SessionPing)]) == 30
    assert len(world.sent) == 60, "each is answered, and nothing else is sent"


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_write_in_flight_when_the_connection_is_lost_has_an_unknown_outcome(is_carried_out: bool) -> None:
    world = World().connect()
    session_id = world.clients[0].session.session_id
    world.cut.add(TO_CLIENT if is_carried_out else TO_STORE)
    world.submit("write", (Create(path="/a"),))
    world.submit("read", Exists(path="/a"))
    world.run_until(lambda: not world.clients[0].session.is_connected, within_ms=TIMEOUT_MS * 2 // 3 + 1)
    assert world.clients[0].log[1:] == [("write", world.clients[0].results("write"))]
    assert world.clients[0].error("write") is CONNECTION_LOSS
    world.cut.clear()
    world.run_for(TIMEOUT_MS)
    assert world.clients[0].results("read")[0].exists is is_carried_out, "a read is sent again"
    assert world.clients[0].session.session_id == session_id
    assert "expired" not in [event[0] for event in world.clients[0].log]


@pytest.mark.covers("A3")
def test_nothing_of_an_older_connection_is_carried_out_once_a_newer_one_is_open() -> None:
    """Five writes are with the store when the client gives the connection up; the read after it sees the last word."""
    world = World().connect()
    for number in range(5):
        world.submit(number, (Create(path=f"/{number}"),))
    world.run_for(1)
    client = world.clients[0].session
    client.receive(world.now_ms, ConnectionClosed(connection_id=client._connection_id))
    world._carry_out(0, world.clients[0].drain())
    assert [world.clients[0].error(number) for number in range(5)] == [CONNECTION_LOSS] * 5
    children = world.ask(GetChildren(path="/"))[0].children
    world.run_for(10 * TIMEOUT_MS)
    assert world.store.state.tree.children("/") == children
    assert len(children) < 5


def test_a_copy_of_a_connection_that_arrives_late_carries_nothing_out_again() -> None:
    world = World().connect()
    world.ask((Create(path="/a"),))
    copies = [m for _, source, _, m in world.sent if source == 0 and isinstance(m, OpenSession | StoreWrite)]
    world.store.receive(world.now_ms, 0, copies[0])
    for message in (*copies, *copies):
        world.store.receive(world.now_ms, 0, message)
    zxid = world.store.state.zxid
    world.run_for(3 * TIMEOUT_MS)
    assert world.store.state.zxid == zxid
    assert (len(world.store.state.sessions), connections(world)) == (1, 1)


@pytest.mark.parametrize("what", [StoreResponse, WatchEvent])
def test_a_lost_message_of_the_store_is_missed_with_the_next_ping(what: type) -> None:
    """The last message of the store is lost, and no other one follows."""
    world = World(clients=2).connect()
    world.ask((Create(path="/a"),))
    world.ask(GetData(path="/a", watch=True))
    if what is StoreResponse:
        world.submit("lost", GetData(path="/a"))
        world.run_for(1)
    world.cut.add(TO_CLIENT)
    if what is WatchEvent:
        world.ask((SetData(path="/a", data=b""),), 1)
    world.run_for(5)
    world.cut.clear()
    world.run_for(TIMEOUT_MS * 2 // 3)
    assert connections(world) == 2
    if what is StoreResponse:
        assert world.clients[0].results("lost")[0].version == 0
    else:
        assert world.clients[0].log[-1] == ("watch", WatchKind.DATA_CHANGED, "/a")


def test_a_lost_request_is_missed_with_the_next_ping() -> None:
    world = World().connect()
    world.cut.add(TO_STORE)
    world.submit("lost", (Create(path="/a"),))
    world.run_for(1)
    world.cut.clear()
    world.run_for(TIMEOUT_MS // 3 + 10)
    assert world.clients[0].error("lost") is CONNECTION_LOSS
    assert world.clients[0].session.is_connected


def test_watches_are_set_again_before_anything_else() -> None:
    world = World(clients=2).connect()
    world.ask((Create(path="/set"), Create(path="/kept"), Create(path="/parent")), 1)
    for path in ("/set", "/kept"):
        world.ask(GetData(path=path, watch=True))
    world.ask(Exists(path="/kept", watch=True))
    world.ask(Exists(path="/new", watch=True))
    world.ask(GetChildren(path="/parent", watch=True))
    assert world.ask(GetData(path="/none", watch=True))[0].error is StoreError.NO_NODE
    world.cut |= {TO_STORE, TO_CLIENT}
    changes = (SetData(path="/set", data=b""), Create(path="/new"), Create(path="/parent/x"), Create(path="/none"))
    world.ask(changes, 1)
    world.run_for(TIMEOUT_MS // 2)
    world.submit("read", GetData(path="/set"))
    world.cut.clear()
    world.run_for(TIMEOUT_MS // 2)
    assert world.clients[0].log[-4:-1] == [
        ("watch", WatchKind.DATA_CHANGED, "/set"),
        ("watch", WatchKind.CREATED, "/new"),
        ("watch", WatchKind.CHILDREN_CHANGED, "/parent"),
    ]
    assert world.clients[0].results("read")[0].version == 1, "the event was before the response"
    world.ask((SetData(path="/kept", data=b""), SetData(path="/set", data=b"")), 1)
    world.run_for(10)
    assert world.clients[0].log[-1] == ("watch", WatchKind.DATA_CHANGED, "/kept")
    assert Counter(event[0] for event in world.clients[0].log)["watch"] == 4


def test_expiry_ends_watches_and_requests_and_begins_a_new_session() -> None:
    world = World(clients=2).connect()
    client = world.clients[0]
    world.ask(Exists(path="/a", watch=True))
    world.ask((Create(path="/mine", ephemeral=True),))
    client.on_event = lambda event: client.submit("next", GetChildren(path="/")) if event[0] == "opened" else None
    world.cut |= {TO_STORE, TO_CLIENT}
    world.run_for(2 * TIMEOUT_MS)
    world.submit("write", (Create(path="/b"),))
    world.submit("read", Exists(path="/b"))
    first = client.session.session_id
    assert first > 0, "the client does not know yet"
    world.cut.clear()
    world.run_for(TIMEOUT_MS)
    assert [event[0] for event in client.log[-5:]] == ["write", "read", "expired", "opened", "next"]
    assert client.error("write") is client.error("read") is StoreError.SESSION_EXPIRED
    assert client.results("next")[0].children == ()
    assert client.session.session_id > first
    world.ask((Create(path="/a"),), 1)
    world.run_for(10)
    assert client.log[-1][0] == "next", "the watch is gone"


def test_a_store_that_has_lost_its_disk_gets_new_sessions() -> None:
    world = World(clients=2).connect()
    for number in range(9):
        world.ask((Create(path=f"/{number}"),))
    world.crash()
    world.disk.__init__()  # type: ignore[misc]
    world.start_store()
    world.run_for(2 * TIMEOUT_MS)
    assert [event[0] for event in world.clients[0].log[-2:]] == ["expired", "opened"]
    world.ask((Create(path="/0"),), 1)
    world.ask(GetData(path="/0", watch=True))
    world.cut |= {TO_STORE, TO_CLIENT}
    world.ask((SetData(path="/0", data=b""),), 1)
    world.run_for(TIMEOUT_MS // 2)
    world.cut.clear()
    world.run_for(TIMEOUT_MS)
    assert world.clients[0].log[-1] == ("watch", WatchKind.DATA_CHANGED, "/0"), "zxids start again"


@pytest.mark.covers("A3")
@pytest.mark.parametrize("seed", range(10))
def test_with_a_network_of_any_kind_each_request_has_one_outcome_and_no_write_is_made_twice(seed: int) -> None:
    """Clients increase the version of one node. Messages are lost, copied and reordered, and the store crashes. Every
    answered write has been made once, an unknown one at most once, so the version is their number.
    """
    world = World(clients=3, seed=seed, delay_ms=6, snapshot_every=7).connect()
    world.ask((Create(path="/counter"),))
    world.lose, world.copy, world.reorder = 0.01, 0.05, 0.03
    for number in range(60):
        for client in range(3):
            world.submit(
                ("write", number), (Check(path="/counter", version=-1), SetData(path="/counter", data=b"")), client
            )
            world.submit(("read", number), GetData(path="/counter", watch=number % 5 == 0), client)
        world.run_for(world.rng.randint(0, 40))
        if world.rng.random() < 0.05:
            world.crash()
            world.run_for(world.rng.randint(0, TIMEOUT_MS // 4))
            world.start_store()
    world.lose = world.copy = world.reorder = 0.0
    world.run_for(5 * TIMEOUT_MS)
    made = unknown = 0
    for client in world.clients:
        tags = Counter(event[0] for event in client.log if isinstance(event[0], tuple))
        assert set(tags.values()) == {1}
        assert len(tags) == 120
        errors = Counter(client.error(("write", number)) for number in range(60))
        made, unknown = made + errors[NONE], unknown + errors[CONNECTION_LOSS]
        versions = [
            results[0].version for number in range(60) if (results := client.results(("read", number)))[0].error is NONE
        ]
        assert versions == sorted(versions)
    node = world.store.state.tree.find("/counter")
    assert node is not None
    assert made <= node.version <= made + unknown
    assert made > 60
    assert unknown > 0


def test_a_closed_session_takes_no_messages() -> None:
    world = World().connect()
    client = world.clients[0]
    world.submit("lost", (Create(path="/a"),))
    client.session.close()
    world._carry_out(0, client.drain())
    world.run_for(3 * TIMEOUT_MS)
    assert [event[0] for event in client.log] == ["opened"]
    assert world.store.state.sessions == {}
