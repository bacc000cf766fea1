"""How a broker runs procedures on its sessions with the store: the outlets of its runners.

A broker has several runners, each with a name: one for its own registration and elections, one for the ISRs that it
writes, one for requests of admins, and one for its term as controller. Each carries out one procedure at a time. Their
timers are `runner/NAME/TIMER`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from protocol.contract import Outbox
from protocol.errors import ProtocolInvariantError
from protocol.events.store import StoreAlert
from protocol.ids import TimeMs
from protocol.messages.store import OperationResult
from protocol.v3.controller.procedure import BrokerCommand
from protocol.v3.controller.runner import Runner
from protocol.v3.store.client import Operations, StoreSession

RUNNER_PREFIX = "runner/"


@dataclass(slots=True, eq=False)
class SessionOutlet:
    """What the runner `name` does outside itself; `sessions` are those that its requests are spread over.
    `on_command` takes commands, which only a controller's procedures have; `on_deposed` is called after the runner has
    aborted everything.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_timers"})  # to be cancelled with the procedures

    name: str
    sessions: Sequence[StoreSession]
    out: Outbox
    on_deposed: Callable[[TimeMs], None] | None = None
    on_command: Callable[[TimeMs, BrokerCommand], None] | None = None
    _timers: set[str] = field(default_factory=set)
    _runner: Runner | None = None

    def attach(self, runner: Runner) -> Runner:
        """Binds the runner that gets the answers, and returns it."""
        self._runner = runner
        return runner

    def request(self, session: int, call: int, operations: Operations) -> None:
        self.sessions[session].submit(operations, partial(self._answered, call))

    def _answered(self, call: int, now_ms: TimeMs, results: tuple[OperationResult, ...]) -> None:
        if self._runner is not None:
            self._runner.answered(now_ms, call, results)

    def command(self, now_ms: TimeMs, command: BrokerCommand) -> None:
        if self.on_command is None:
            raise ProtocolInvariantError(f"runner {self.name} has commands, and is no controller's")
        self.on_command(now_ms, command)

    def set_timer(self, name: str, due_ms: TimeMs) -> None:
        self._timers.add(name)
        self.out.set_timer(f"{RUNNER_PREFIX}{self.name}/{name}", due_ms)

    def alert(self, text: str) -> None:
        self.out.trace(StoreAlert(text))

    def deposed(self, now_ms: TimeMs) -> None:
        if self.on_deposed is not None:
            self.on_deposed(now_ms)

    def cancel_timers(self) -> None:
        """Cancels the timers of everything that the runner ran."""
        for name in sorted(self._timers):
            self.out.cancel_timer(f"{RUNNER_PREFIX}{self.name}/{name}")
        self._timers.clear()
