"""The listener of a broker: the connections of its clients, and the handlers of their requests.

It is a part of the broker's process and dies with it. Bytes come as messages of the node at the other end
(`protocol/messages/connections.py`); requests become the messages that nodes exchange already (`calls.py`). The
composite node that hosts broker and listener is `protocol/nodes/listening_broker.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Generator
from functools import partial
from random import Random
from typing import Any

from kio.serial.errors import SerialError

from protocol.broker.context import BrokerContext
from protocol.contract import Outbox
from protocol.errors import ErrorCode, MalformedMessageError
from protocol.ids import NodeId, TimeMs
from protocol.kafka.api import Api
from protocol.kafka.apis import FETCH, PRODUCE, STATELESS
from protocol.kafka.calls import Tasks
from protocol.kafka.cluster import supported
from protocol.kafka.connection import Connection, Incoming, Token, UnsupportedRequest
from protocol.kafka.fetch import KafkaFetchSessions, fetch
from protocol.kafka.groups.apis import group_apis
from protocol.kafka.groups.coordinator import Coordinator
from protocol.kafka.groups.shards import Shards
from protocol.kafka.limits import ConnectionKey, Connections
from protocol.kafka.produce import NO_RESPONSE, REFUSED_WITHOUT_ACKS
from protocol.kafka.sasl import Sasl, SaslFailed, SaslSession
from protocol.kafka.view import Client, LastResponse, View
from protocol.kafka.wire import API_VERSIONS, FrameReader, KafkaRequest, Values, encode_response
from protocol.log.checksum import Checksum
from protocol.messages.base import ANONYMOUS, Response
from protocol.messages.connections import ClientBytes, ClientCongested, ClientConnected, ClientDisconnected

TIMER = "kafka/"
"""The one timer of a listener."""
TURN_BYTES = 65_536
"""How many bytes of responses end the turn of a connection whose client has sent several requests."""
PIPELINED_REQUESTS = 2
"""How many requests of the largest size may wait in the buffer of a connection; with more it ends."""


CANCELLED = (FETCH, PRODUCE)
"""The APIs whose handlers end with their connection; others go on, since they may have to finish what they changed."""


class KafkaListener:
    """The connections of one broker. What it sends is in `out`; `tasks.to_broker` has requests to its own broker. With
    `sasl` clients must authenticate.
    """

    def __init__(
        self, context: BrokerContext, checksum: Checksum, cluster_id: str, rng: Random, sasl: Sasl | None = None
    ) -> None:
        self.out = Outbox()
        self.tasks = Tasks(self.out, lambda: context.controller_id)
        self._view = View(context, self.tasks, checksum, cluster_id, rng, {})
        self._coordinator = Coordinator(Shards(self._view))
        served = (*STATELESS, *group_apis(self._coordinator), Api(FETCH, "Fetch", 4, 17, self._fetch))
        self._apis = {api.key: api for api in served}
        self._view.supported |= {api.key: (api.low, api.high) for api in served}
        self._sessions = KafkaFetchSessions()
        self._sasl = sasl
        self._connections = Connections(context.config)
        self._timer_ms: TimeMs | None = None
        self.is_accepting = False
        """Whether the broker has started; a connection is closed at once before."""

    @property
    def apis(self) -> Collection[Api]:
        return self._apis.values()

    @property
    def connections(self) -> Collection[Connection]:
        return self._connections.all()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def receive(self, now_ms: TimeMs, peer: NodeId, message: object) -> None:
        """A message of a connection, or a response of the broker or of a controller."""
        self._view.now_ms = now_ms
        if isinstance(message, ClientBytes):
            self._receive_data(now_ms, (peer, message.connection), message.data)
        elif isinstance(message, ClientConnected):
            self._open(now_ms, peer, message)
        elif isinstance(message, ClientDisconnected):
            self._remove((peer, message.connection))
        elif isinstance(message, ClientCongested):
            self._set_congested(now_ms, (peer, message.connection), message.is_congested)
        elif isinstance(message, Response):
            self.tasks.receive(now_ms, message)
        self._settle(now_ms)

    def follow_metadata(self, now_ms: TimeMs) -> None:
        """After an input of the broker: takes over what has changed in the metadata."""
        self._view.now_ms = now_ms
        self._coordinator.follow(now_ms)
        self._settle(now_ms)

    def fire(self, now_ms: TimeMs) -> None:
        """What is due."""
        self._view.now_ms = now_ms
        self._timer_ms = None
        self.tasks.fire(now_ms)
        for key in self._connections.idle(now_ms):
            self._close(key, f"idle for {self._connections.idle_ms} ms")
        self._settle(now_ms)

    def _settle(self, now_ms: TimeMs) -> None:
        """The end of an input."""
        self.tasks.settle(now_ms)
        self._set_timer()

    def _set_timer(self) -> None:
        times = (self.tasks.next_due_ms, self._connections.next_idle_ms)
        due_ms = min((time for time in times if time is not None), default=None)
        if due_ms is not None and (self._timer_ms is None or due_ms < self._timer_ms):
            self._timer_ms = due_ms
            self.out.set_timer(TIMER, due_ms)

    def _open(self, now_ms: TimeMs, peer: NodeId, opened: ClientConnected) -> None:
        key = (peer, opened.connection)
        if reason := self._connections.refusal(peer, opened.peer) if self.is_accepting else "the broker is starting":
            self._close(key, reason)
            return
        client = Client(opened.peer, principal=opened.principal or ANONYMOUS)
        limit = self._connections.request_bytes
        if self._sasl is not None:
            client.sasl, limit = SaslSession(self._sasl), self._connections.token_bytes
        self._connections.add(key, Connection(FrameReader(limit), self._supports, client), now_ms)

    def _supports(self, api_key: int, version: int) -> bool:
        api = self._apis.get(api_key)
        return api is not None and api.low <= version <= api.high

    def _receive_data(self, now_ms: TimeMs, key: ConnectionKey, data: bytes) -> None:
        connection = self._connections.get(key)
        if connection is None:  # closed by this side, which the other end does not know yet
            return
        self._connections.touch(key, now_ms)
        connection.feed(data)
        self._begin_turn(now_ms, key, connection)
        waiting = connection.frames.waiting_bytes
        if not connection.is_closed and waiting > PIPELINED_REQUESTS * self._connections.request_bytes:
            self._close(key, f"{waiting} bytes of requests wait")

    def _set_congested(self, now_ms: TimeMs, key: ConnectionKey, is_congested: bool) -> None:
        connection = self._connections.get(key)
        if connection is not None:
            connection.is_congested = is_congested
            self._handle_next(now_ms, key, connection)

    def _handle_next(self, now_ms: TimeMs, key: ConnectionKey, connection: Connection) -> None:
        """Handles requests until one of them waits, or none is left."""
        if connection.is_draining:  # a handler that was done at once: the loop goes on
            return
        connection.is_draining = True
        try:
            while not connection.is_busy and connection.turn_bytes <= TURN_BYTES:
                request = connection.next_request()
                if request is None:
                    return
                self._handle(now_ms, key, connection, request)
            if not connection.is_busy:  # the client may not read: the transport says so before the next turn
                self.tasks.at(now_ms, lambda later_ms: self._begin_turn(later_ms, key, connection))
        except MalformedMessageError as error:
            self._close(key, str(error))
        finally:
            connection.is_draining = False

    def _begin_turn(self, now_ms: TimeMs, key: ConnectionKey, connection: Connection) -> None:
        connection.turn_bytes = 0
        self._handle_next(now_ms, key, connection)

    def _handle(self, now_ms: TimeMs, key: ConnectionKey, connection: Connection, request: Incoming) -> None:
        if isinstance(request, Token):
            self._take_token(key, connection, request)
            return
        if isinstance(request, UnsupportedRequest):
            if request.api_key != API_VERSIONS:
                raise request.refusal()
            values = supported(self._view.supported, ErrorCode.UNSUPPORTED_VERSION)
            self._write(key, encode_response(API_VERSIONS, 0, request.correlation_id, values))
            return
        connection.is_busy = True
        result = self._apis[request.api_key].handler(self._view, connection.client, request)
        if isinstance(result, Generator):
            task = self.tasks.run(now_ms, result, partial(self._finish, key, connection, request))
            if connection.is_busy and request.api_key in CANCELLED:
                connection.task = task
        else:
            self._respond(key, connection, request, result)

    def _finish(
        self, key: ConnectionKey, connection: Connection, request: KafkaRequest, now_ms: TimeMs, result: Any
    ) -> None:
        self._view.now_ms = now_ms
        self._respond(key, connection, request, result)
        self._handle_next(now_ms, key, connection)

    def _respond(self, key: ConnectionKey, connection: Connection, request: KafkaRequest, result: Any) -> None:
        connection.is_busy, connection.task = False, None
        if connection.is_closed or result is NO_RESPONSE:
            return
        if result is REFUSED_WITHOUT_ACKS:
            self._close(key, "a batch with acks=0 was refused")
            return
        is_last = isinstance(result, LastResponse)
        values: Values = result.values if is_last else result
        try:
            frame = encode_response(request.api_key, request.version, request.correlation_id, values)
        except (SerialError, struct.error) as error:  # such as a text that is too long for the version
            self._close(key, f"the response to API {request.api_key} cannot be written: {error}")
            return
        self._write(key, frame)
        if is_last:
            self._close(key, "authentication failed")
        elif not connection.client.must_authenticate:
            connection.frames.max_bytes = self._connections.request_bytes

    def _take_token(self, key: ConnectionKey, connection: Connection, token: Token) -> None:
        """A token of SASL that is a frame of its own."""
        session = connection.client.sasl
        if session is None:
            raise MalformedMessageError("found a token of SASL; allowed: a request")
        try:
            answer = session.step(connection.client, token.data)
        except SaslFailed as failed:
            self._close(key, f"authentication failed: {failed}")
            return
        self._write(key, len(answer).to_bytes(4, "big") + answer)
        if session.is_complete:
            connection.frames.max_bytes = self._connections.request_bytes

    def _write(self, key: ConnectionKey, frame: bytes) -> None:
        peer, number = key
        if (connection := self._connections.get(key)) is not None:
            connection.turn_bytes += len(frame)
        self.out.send(peer, ClientBytes.unchecked(connection=number, data=frame))

    def _close(self, key: ConnectionKey, reason: str) -> None:
        peer, number = key
        self._remove(key)
        self.out.send(peer, ClientDisconnected(connection=number, reason=reason))

    def _remove(self, key: ConnectionKey) -> None:
        """Forgets a connection that has ended, with what its client waits for."""
        connection = self._connections.remove(key)
        if connection is not None and connection.task is not None:
            self.tasks.cancel(connection.task)

    def _fetch(self, view: View, client: Client, request: KafkaRequest) -> Any:
        return fetch(view, self._sessions, client, request)
