"""States of the cluster in a search, as tuples of numbers, and the steps between them.

A state is: the states of the nodes, the contents of the links, what is left of each bound, one bit for each queue that
is held up, and the state of the invariant suite.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from typing import NamedTuple

from experiments.engines.port import Loss
from experiments.faults.schema import Bounds
from experiments.hunt.explore.machines import Outcome
from experiments.hunt.explore.values import ValueTable
from protocol.ids import NodeId, TimeMs

BOUND_NAMES = tuple(Bounds.model_fields)
RECORDS, LOSSY, CRASHES, SHUTDOWNS, FENCES, SHRINKS, RETRIES, FAILOVERS, RECOVERIES, DELAYS = range(len(BOUND_NAMES))
HELD = len(BOUND_NAMES)
"""Behind the bounds: one bit for each queue that is held up."""

Action = tuple[object, ...]
"""What happens in a step: its kind, then the nodes, numbers or names concerned."""

State = tuple[int, ...]


@dataclass(slots=True)
class Step:
    """A step under construction: the numbers of the state, to be changed, and the outcomes of the inputs so far."""

    parts: list[int]
    outcomes: list[tuple[NodeId, Outcome]] = field(default_factory=list)
    crash: tuple[NodeId, Loss] | None = None
    now_ms: TimeMs = 0


class Successor(NamedTuple):
    """A possible step: the state after it, and the violation in that state (empty: none)."""

    action: Action
    state: State
    wrong: str
    outcomes: tuple[tuple[NodeId, Outcome], ...]


class Channels:
    """The messages in flight between nodes: each content of a channel is stored once; 0 is the empty channel."""

    def __init__(self) -> None:
        self._contents = ValueTable()
        self._contents.number(())
        self.with_last = cache(self._with_last)
        self.first_of = cache(self._first_of)

    def _with_last(self, number: int, message: int) -> int:
        return self._contents.number((*self[number], message))

    def _first_of(self, number: int) -> tuple[int, int]:
        """The first message of this content, which must not be empty, and the number of what follows it."""
        message, *left = self[number]
        return message, self._contents.number(tuple(left))

    def __getitem__(self, number: int) -> tuple[int, ...]:
        content = self._contents.value(number)
        assert isinstance(content, tuple)
        return content


def packing(length: int, held_place: int) -> Struct:
    """How states of that length are stored: 32 bits for each number, 64 for the queues that are held up."""
    return Struct(f"={held_place}IQ{length - held_place - 1}I")
