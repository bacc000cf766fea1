"""A listening broker on a bench behind real sockets, on an event loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from actors.clock import UnixTime
from actors.sockets import BrokerSockets
from protocol.contract import Effect, Send, SetTimer
from protocol.ids import NodeId
from protocol.messages.base import Message
from tests.unit.protocol.kafka.kafka_bench import KafkaBench

WITHIN_S = 30


class Host:
    """Runs a listening broker on an event loop of its own thread."""

    def __init__(self, bench: KafkaBench, sockets: BrokerSockets) -> None:
        self._bench = bench
        self._sockets = sockets
        self._clock = UnixTime()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(sockets.serve(self), self.loop).result(WITHIN_S)  # type: ignore[arg-type]

    def deliver(
        self, sender: NodeId, messages: Sequence[Message], control: bool, done: Callable[[], None] | None = None
    ) -> None:
        for message in messages:
            self._carry_out(self._bench.both.receive(self._clock.now_ms(), sender, message))
        if done is not None:
            done()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._sockets.send(effect.to, effect.message)
            elif isinstance(effect, SetTimer):
                wait_s = max(0, effect.at_ms - self._clock.now_ms()) / 1_000
                self.loop.call_later(wait_s, self._fire, effect.name)

    def _fire(self, name: str) -> None:
        self._carry_out(self._bench.both.fire(self._clock.now_ms(), name))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._sockets.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WITHIN_S)
        self.loop.close()
