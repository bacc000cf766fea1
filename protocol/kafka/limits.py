"""How many connections a listener has, from whom, and for how long they may be idle, under Kafka's configs.

A connection above `max.connections`, or above `max.connections.per.ip` of its address, is closed as soon as it is
opened. (Kafka closes the latter likewise, and does not accept the former until another one ends.) A connection without
a request for `connections.max.idle.ms` is closed, unless a request of it is being handled. Connections are in the order
of their last activity, so that one timer, that of the first, is enough for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from protocol.config import (
    CONNECTIONS_MAX_IDLE_MS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    SASL_MAX_RECEIVE_BYTES,
    SOCKET_REQUEST_MAX_BYTES,
    ClusterConfig,
)
from protocol.ids import NodeId, TimeMs
from protocol.kafka.connection import Connection

ConnectionKey = tuple[NodeId, int]
"""The node at the other end, and its number of the connection."""
UNLIMITED = -1


class Connections:
    """The open connections of a listener."""

    def __init__(self, config: ClusterConfig) -> None:
        self.request_bytes = config.int_value(SOCKET_REQUEST_MAX_BYTES)
        self.token_bytes = min(config.int_value(SASL_MAX_RECEIVE_BYTES), self.request_bytes)
        self.idle_ms = config.int_value(CONNECTIONS_MAX_IDLE_MS) or 1
        self._limit = config.int_value(MAX_CONNECTIONS)
        self._limit_per_host = config.int_value(MAX_CONNECTIONS_PER_IP)
        self._open: dict[ConnectionKey, Connection] = {}
        self._per_host: Counter[tuple[NodeId, str]] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> Collection[Connection]:
        return self._open.values()

    def get(self, key: ConnectionKey) -> Connection | None:
        return self._open.get(key)

    def refusal(self, peer: NodeId, address: str) -> str:
        """Why another connection from `address` (`HOST:PORT`) is not accepted; empty where it is."""
        host = _host(address)
        if len(self._open) >= self._limit:
            return f"there are {self._limit} connections ({MAX_CONNECTIONS})"
        if self._per_host[peer, host] >= self._limit_per_host:
            return f"{host} has {self._limit_per_host} connections ({MAX_CONNECTIONS_PER_IP})"
        return ""

    def add(self, key: ConnectionKey, connection: Connection, now_ms: TimeMs) -> None:
        connection.last_active_ms = now_ms
        self._open[key] = connection
        self._per_host[key[0], _host(connection.client.peer)] += 1

    def remove(self, key: ConnectionKey) -> Connection | None:
        connection = self._open.pop(key, None)
        if connection is not None:
            connection.is_closed = True
            host = (key[0], _host(connection.client.peer))
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]
        return connection

    def touch(self, key: ConnectionKey, now_ms: TimeMs) -> None:
        """The connection is active: it is the last one now."""
        connection = self._open.pop(key, None)
        if connection is not None:
            connection.last_active_ms = now_ms
            self._open[key] = connection

    def idle(self, now_ms: TimeMs) -> Iterator[ConnectionKey]:
        """The connections that are idle for too long. Those with a request that is being handled count as active."""
        while self._open and self.idle_ms != UNLIMITED:
            key, connection = next(iter(self._open.items()))
            if now_ms < connection.last_active_ms + self.idle_ms:
                return
            if connection.is_busy:
                self.touch(key, now_ms)
            else:
                yield key

    @property
    def next_idle_ms(self) -> TimeMs | None:
        """When the first connection will have been idle for too long."""
        if not self._open or self.idle_ms == UNLIMITED:
            return None
        return next(iter(self._open.values())).last_active_ms + self.idle_ms


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address
