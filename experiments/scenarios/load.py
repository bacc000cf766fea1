"""A client in the background: it sends records at a rate for a while, and waits for no response, while steps go on.

Record k is due k/rate seconds after the beginning. It is sent at the first `send_due` at that time or later: on the
simulator at exactly that time. A record whose outcome is an error is not acknowledged, and not sent again by this
client; its producer has retried it before, as every producer does, unless min ISR has refused it: records behind it
would wait for it until `delivery.timeout.ms`, also those of other steps, since the producer keeps their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from experiments.scenarios.clients import ScenarioClients
from experiments.support.fields import NOT_ON_THE_WIRE, DurationMs, Index, StrictModel, is_whole, one_of
from protocol.errors import ErrorCode
from protocol.ids import TimeMs, TopicPartition

MAX_RATE = 1_000


class LoadStep(StrictModel):
    """The fields of the step `load`."""

    topic: Annotated[str, Field(description="name of an existing topic")]
    partition: Index = Field(default=0, description="index of a partition of the topic")
    rate: int = Field(ge=1, le=MAX_RATE, description="records a second, each in a batch of its own")
    duration: DurationMs = Field(ge=1, description="how long the client sends; steps go on meanwhile")
    acks: Annotated[Literal[0, 1, "all"], one_of(["all"], is_whole, "0, 1 or all"), NOT_ON_THE_WIRE] = Field(
        default="all", description="acknowledgements that the client asks for"
    )


@dataclass(slots=True)
class Load:
    """One such client. `sent` counts its records, `pending` are those without an outcome, `refused` those that failed,
    by the name of the error.
    """

    clients: ScenarioClients
    partition: TopicPartition
    acks: int | str
    rate: int
    began_ms: TimeMs
    duration_ms: int
    sent: int = 0
    acknowledged: int = 0
    pending: dict[int, bytes] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many records are due in the whole duration: those with k/rate < duration."""
        return -(-self.rate * self.duration_ms // 1_000)

    def due_ms(self, number: int) -> TimeMs:
        """When a record is due, in whole milliseconds, rounded down."""
        return self.began_ms + number * 1_000 // self.rate

    def send_due(self, now_ms: TimeMs) -> None:
        """Sends the records that are due by now, and takes the outcomes that have arrived."""
        while self.sent < self.total and self.due_ms(self.sent) <= now_ms:
            command_id, payload = self.clients.send(self.partition, self.acks, ErrorCode.NOT_ENOUGH_REPLICAS)
            self.pending[command_id] = payload
            self.sent += 1
        self.collect()

    def schedule(self, call_at: Callable[[TimeMs, Callable[[], None]], None]) -> None:
        """Has `call_at`, which calls a function at a time, send each record when it is due."""

        def send() -> None:
            self.send_due(self.due_ms(self.sent))
            if self.sent < self.total:
                call_at(self.due_ms(self.sent), send)

        call_at(self.began_ms, send)

    def collect(self) -> None:
        """Takes the outcomes that have arrived."""
        for command_id in [*self.pending]:
            outcome = self.clients.take_outcome(command_id, self.partition, self.acks, self.pending[command_id])
            if outcome is None:
                continue
            del self.pending[command_id]
            if outcome.error is ErrorCode.NONE:
                self.acknowledged += 1
            else:
                self.refused[outcome.error.name] = self.refused.get(outcome.error.name, 0) + 1

    def words(self) -> str:
        """What has become of its records."""
        refused = [f"{count} {error}" for error, count in sorted(self.refused.items())]
        found = [f"{self.acknowledged} acknowledged", *refused, f"{len(self.pending)} open"]
        return f"{self.partition}: {self.sent} of {self.total} records sent, {', '.join(found)}"
