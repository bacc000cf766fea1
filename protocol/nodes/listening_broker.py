"""A broker with a listener for Kafka's clients: one node for its host, made of two.

Messages of connections go to the listener. What the listener asks its own broker goes to it at once, within the same
input, under the node id `LISTENER`, as which the broker answers; its requests to the active controller leave in the
name of the broker, to which the controller responds. Nothing else changes for the broker.

The listener accepts connections once the broker has been unfenced, as Kafka's `SocketServer` does once the broker has
caught up. Before that the metadata may name it as a leader that it has been before its restart, and a client that
asked it for metadata would not leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import ClassVar, Protocol

from protocol.broker.context import BrokerContext
from protocol.broker.lifecycle import LifecycleState
from protocol.contract import Effect, Node, Send
from protocol.events.broker import RecordsAppended
from protocol.ids import LISTENER, NodeId, TimeMs, is_controller
from protocol.kafka.listener import TIMER, KafkaListener
from protocol.kafka.sasl import Sasl
from protocol.log.checksum import Checksum
from protocol.messages.admin import AdminResponse
from protocol.messages.base import ClientRequest, Message
from protocol.messages.connections import ClientBytes, ClientCongested, ClientConnected, ClientDisconnected
from protocol.messages.data import ProduceRequest

_OF_CONNECTIONS = (ClientBytes, ClientConnected, ClientCongested, ClientDisconnected)


class ListenedBroker(Node, Protocol):
    """What a listener needs of its broker."""

    @property
    def context(self) -> BrokerContext:
        """Replicas and image."""

    @property
    def state(self) -> LifecycleState:
        """Where the broker is in its lifecycle."""

    def withdraw(self, client: NodeId, number: int, request: ClientRequest) -> None:
        """Forgets a delayed request."""


class ListeningBroker:
    """`broker` with a listener. `checksum` computes the CRC-32C of Kafka's batches; `rng` draws members' ids. With
    `sasl` clients must authenticate. `on_produce` is called with each batch of a client and whether it was appended.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, broker: ListenedBroker, checksum: Checksum, cluster_id: str, rng: Random, sasl: Sasl | None = None
    ) -> None:
        self.broker = broker
        self.node_id = broker.node_id
        self.listener = KafkaListener(broker.context, checksum, cluster_id, rng, sasl)
        self.on_produce: Callable[[ProduceRequest, bool], None] = lambda request, is_appended: None

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return self._settle(now_ms, self.broker.start(now_ms))

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        is_listeners = isinstance(message, _OF_CONNECTIONS) or (
            isinstance(message, AdminResponse) and is_controller(sender)
        )
        if is_listeners:
            self.listener.receive(now_ms, sender, message)
            return self._settle(now_ms, [])
        return self._settle(now_ms, self.broker.receive(now_ms, sender, message))

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        if name == TIMER:
            self.listener.fire(now_ms)
            return self._settle(now_ms, [])
        return self._settle(now_ms, self.broker.fire(now_ms, name))

    def _settle(self, now_ms: TimeMs, effects: list[Effect]) -> list[Effect]:
        """The effects for the host: those between broker and listener are carried out here."""
        done: list[Effect] = []
        self._pass_on(now_ms, effects, done)
        if not self.listener.is_accepting:
            self.listener.is_accepting = self.broker.state is LifecycleState.RUNNING
        self.listener.follow_metadata(now_ms)
        to_broker, withdrawn = self.listener.tasks.to_broker, self.listener.tasks.withdrawn
        while to_broker:
            request = to_broker.popleft()
            effects = self.broker.receive(now_ms, LISTENER, request)
            if isinstance(request, ProduceRequest):
                self.on_produce(request, any(isinstance(effect, RecordsAppended) for effect in effects))
            self._pass_on(now_ms, effects, done)
        while withdrawn:
            self.broker.withdraw(LISTENER, *withdrawn.popleft())
        done += self.listener.out.drain()
        return done

    def _pass_on(self, now_ms: TimeMs, effects: list[Effect], done: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and effect.to == LISTENER:
                self.listener.receive(now_ms, LISTENER, effect.message)
            else:
                done.append(effect)
