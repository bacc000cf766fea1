"""The store as a process of its own with its directory on disk; the test plays its client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event
from typing import TypeVar

import pytest

from actors.cluster import ActorCluster
from actors.failures import NodeFailedError
from actors.storage import META_FILE
from protocol.config import ClusterConfig
from protocol.events.base import Trace
from protocol.events.store import StoreSessionEnded
from protocol.ids import DRIVER, STORE
from protocol.messages.base import Message
from protocol.messages.codec import decode
from protocol.messages.store import (
    ConnectionClosed,
    Create,
    Exists,
    ExpireSessions,
    GetData,
    OpenSession,
    SessionOpened,
    StoreError,
    StoreRead,
    StoreResponse,
    StoreWrite,
    WatchEvent,
    WatchKind,
)
from protocol.v3.store.paths import CONTROLLER_EPOCH
from protocol.v3.store.settings import StoreSettings

pytestmark = pytest.mark.usefixtures("private_ray")
M = TypeVar("M", bound=Message)
TIMEOUT_MS = 3_600_000
WITHIN_S = 60
TICK_S = 0.05


class Peer:
    """The experiment as the client of a store; `received` is what has come from it."""

    def __init__(self, cluster: ActorCluster) -> None:
        self.cluster = cluster
        self.received: list[Message] = []
        self.traces: list[Trace] = []

    def send(self, message: Message) -> None:
        self.cluster.send(STORE, message)

    def await_next(self, kind: type[M]) -> M:
        """The next message of that type; those before it are dropped."""
        until_s, pause = time.monotonic() + WITHIN_S, Event()
        while time.monotonic() < until_s:
            for node, report in self.cluster.poll(0.2):
                if report.failure is not None:
                    raise NodeFailedError(node, report.failure)
                self.received += map(decode, report.outcomes)
                self.traces += [trace for _, trace in report.traces]
            while self.received:
                message = self.received.pop(0)
                if isinstance(message, kind):
                    return message
            pause.wait(TICK_S)
        raise AssertionError(f"no {kind.__name__} has come")


@pytest.fixture
def cluster() -> Iterator[ActorCluster]:
    found = ActorCluster([STORE], ClusterConfig(), seed=1, store=StoreSettings())
    yield found
    found.close()


@pytest.mark.covers("A3")
def test_what_the_store_has_acknowledged_survives_sigkill(cluster: ActorCluster) -> None:
    cluster.start(STORE)
    peer = Peer(cluster)
    peer.send(OpenSession(connection_id=1, timeout_ms=TIMEOUT_MS))
    session = peer.await_next(SessionOpened)
    assert session.error is StoreError.NONE
    peer.send(StoreRead(connection_id=1, xid=1, operation=Exists(path="/a", watch=True)))
    peer.send(StoreWrite(connection_id=1, xid=2, operations=(Create(path="/a", data=b"x", ephemeral=True),)))
    assert peer.await_next(StoreResponse).results[0].exists is False
    event = peer.await_next(WatchEvent)
    assert (event.kind, event.path) == (WatchKind.CREATED, "/a")
    assert peer.await_next(StoreResponse).zxid == 2
    cluster.crash(STORE, "unflushed", 0)
    cluster.start(STORE)
    peer.send(OpenSession(connection_id=2, timeout_ms=TIMEOUT_MS, session_id=session.session_id))
    assert peer.await_next(SessionOpened).session_id == session.session_id
    peer.send(StoreRead(connection_id=2, xid=1, operation=GetData(path="/a")))
    assert peer.await_next(StoreResponse).results[0].data == b"x"
    peer.send(ExpireSessions(node_id=DRIVER))
    assert peer.await_next(ConnectionClosed).connection_id == 2
    assert StoreSessionEnded(session.session_id, DRIVER, True, ("/a",)) in peer.traces


def test_a_snapshot_that_was_requested_before_a_write_does_not_answer_a_later_query(cluster: ActorCluster) -> None:
    """The first request is not waited for, so its answer, without the write, arrives before the second request."""
    cluster.start(STORE)
    peer = Peer(cluster)
    peer.send(OpenSession(connection_id=1, timeout_ms=TIMEOUT_MS))
    peer.await_next(SessionOpened)
    cluster.snapshots(0)
    peer.send(StoreWrite(connection_id=1, xid=1, operations=(Create(path=CONTROLLER_EPOCH, data=b"7"),)))
    assert peer.await_next(StoreResponse).error is StoreError.NONE
    views = [snapshot.store for _, snapshot in cluster.snapshots(WITHIN_S)]
    assert views[-1] is not None
    assert views[-1].controller_epoch == 7


def test_the_directory_of_another_cluster_is_refused_in_one_line(cluster: ActorCluster) -> None:
    folder = cluster.directory(STORE)
    folder.mkdir(parents=True)
    meta = '{"format_version":1,"cluster_id":"other","node_id":2500}'
    (folder / META_FILE).write_text(meta)
    cluster.start(STORE)
    with pytest.raises(
        NodeFailedError, match=r"store failed: ForeignDirectoryError: .*found cluster 'other'"
    ) as caught:
        Peer(cluster).await_next(SessionOpened)
    assert "\n" not in str(caught.value)
    assert (folder / META_FILE).read_text() == meta
