"""The controller's queue of commands: one per broker, one request at a time in each (A17, A36, A51, A55, M38).

Every broker has a queue of its own, so a slow broker delays no other. The next request is sent when the broker has
responded to the last, which keeps their order whatever the network does with messages. A request without a response is
repeated after `ack_timeout_ms`, with an alert: the broker is registered, but does not act (M38). It is repeated until
the broker responds or is gone, so that a lost message needs no failover; brokers obey a command twice without effect
(A25).

Commands to a broker that is not alive are dropped (A36): a broker that comes back gets INIT.

A response may refuse the request: STALE_CONTROLLER_EPOCH means that there is a newer controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

from protocol.contract import Outbox
from protocol.events.store import StoreAlert
from protocol.ids import BrokerId, TimeMs
from protocol.messages.v3 import CommandResponse, ControllerCommand, LeaderAndIsrRequest, StopReplicaRequest
from protocol.v3.controller.decisions import Author
from protocol.v3.controller.procedure import BrokerCommand

ACK_TIMEOUT_MS = 30_000
"""The default of `ack_timeout_ms` (H13)."""


@dataclass(slots=True)
class _Channel:
    """The requests for one broker. The first is under way, and due again at `due_ms`."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"due_ms"})

    requests: deque[ControllerCommand] = field(default_factory=deque)
    due_ms: TimeMs = 0


class CommandQueue:
    """The commands of one term of a controller. The owner calls `expire` at `due_ms()`."""

    def __init__(self, author: Author, out: Outbox, ack_timeout_ms: int = ACK_TIMEOUT_MS) -> None:
        self._author = author
        self._out = out
        self._ack_timeout_ms = ack_timeout_ms
        self._channels: dict[BrokerId, _Channel] = {}
        self._next_id = 0

    def put(self, now_ms: TimeMs, command: BrokerCommand) -> None:
        """Queues a command for a live broker: a LeaderAndIsr request, a StopReplica request, or both in this order."""
        if command.leader_and_isr or command.is_init:
            request = LeaderAndIsrRequest(**self._head(), is_init=command.is_init, partitions=command.leader_and_isr)
            self._put(now_ms, command.broker, request)
        if command.stop_replica:
            self._put(now_ms, command.broker, StopReplicaRequest(**self._head(), partitions=command.stop_replica))

    def responded(self, now_ms: TimeMs, broker: BrokerId, response: CommandResponse) -> None:
        """A broker has responded. A response to another request than the one under way is a copy."""
        channel = self._channels.get(broker)
        if channel is not None and channel.requests[0].correlation_id == response.correlation_id:
            channel.requests.popleft()
            self._send_next(now_ms, broker, channel)

    def keep(self, live: Collection[BrokerId]) -> None:
        """Drops the commands to brokers that are not alive."""
        for broker in self._channels.keys() - set(live):
            del self._channels[broker]

    def due_ms(self) -> TimeMs | None:
        """When the first request that is under way has to be repeated, None if none is."""
        return min((channel.due_ms for channel in self._channels.values()), default=None)

    def expire(self, now_ms: TimeMs) -> None:
        """Repeats the requests that are due, with an alert for each."""
        for broker, channel in sorted(self._channels.items()):
            if channel.due_ms <= now_ms:
                kind = type(channel.requests[0]).__name__
                self._out.trace(StoreAlert(f"broker {broker} has not responded to {kind} in {self._ack_timeout_ms} ms"))
                self._send_next(now_ms, broker, channel)

    def _head(self) -> dict[str, int]:
        self._next_id += 1
        return {
            "correlation_id": self._next_id,
            "controller_id": self._author.controller,
            "controller_epoch": self._author.controller_epoch,
            "ack_timeout_ms": self._ack_timeout_ms,
        }

    def _put(self, now_ms: TimeMs, broker: BrokerId, request: ControllerCommand) -> None:
        channel = self._channels.setdefault(broker, _Channel())
        channel.requests.append(request)
        if len(channel.requests) == 1:
            self._send_next(now_ms, broker, channel)

    def _send_next(self, now_ms: TimeMs, broker: BrokerId, channel: _Channel) -> None:
        if not channel.requests:
            del self._channels[broker]
            return
        channel.due_ms = now_ms + self._ack_timeout_ms
        self._out.send(broker, channel.requests[0])
