"""Breadth-first search of all states within the bounds, so that the first counterexample is a shortest one."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct

from experiments.hunt.explore.model import Model
from experiments.hunt.explore.states import State, Successor, packing


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nearly everything that a search makes it keeps, so the collector of garbage would look at all of it again and
    again for the few copies of nodes that were in a known state. They stay until the search has ended; then everything
    joins the objects that the collector looks at most rarely.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A shortest path to a state that violates an invariant; `wrong` is `Invariant: detail`."""

    wrong: str
    path: tuple[Successor, ...]


@dataclass(slots=True)
class Search:
    """A search and its results so far: `transitions` steps led to `states` distinct states, at most `depth` steps from
    the first. `complete`: these are all states within the bounds.
    """

    model: Model
    transitions: int = 0
    depth: int = 0
    complete: bool = False
    counterexample: Counterexample | None = None
    _form: Struct = field(init=False)
    _seen: dict[bytes, int] = field(default_factory=dict)
    _parents: array[int] = field(default_factory=lambda: array("L"))

    def __post_init__(self) -> None:
        self._form = packing(len(self.model.first), self.model.held_place)

    @property
    def states(self) -> int:
        return len(self._seen)

    @_without_collector()
    def run(
        self,
        max_depth: int | None = None,
        max_states: int | None = None,
        progress: Callable[[Search], None] | None = None,
    ) -> Search:
        """Searches until all states are reached, or that depth, or that number of states, or a violation."""
        self._add(self.model.first, 0)
        layer = [self._form.pack(*self.model.first)]
        while layer and (max_depth is None or self.depth < max_depth):
            if max_states is not None and self.states >= max_states:
                return self
            following = self._expand(layer)
            if self.counterexample is not None:
                return self
            layer = following
            self.depth += bool(layer)
            if progress is not None:
                progress(self)
        self.complete = not layer
        return self

    def _expand(self, layer: list[bytes]) -> list[bytes]:
        following: list[bytes] = []
        form, successors = self._form, self.model.successors
        for number, packed in enumerate(layer, self.states - len(layer)):
            for successor in successors(form.unpack(packed)):
                self.transitions += 1
                if successor.wrong:
                    self.depth += 1
                    self.counterexample = Counterexample(successor.wrong, (*self._path_to(number), successor))
                    return []
                found = self._add(successor.state, number)
                if found is not None:
                    following.append(found)
        return following

    def _add(self, state: State, parent: int) -> bytes | None:
        """Adds the state, and returns it packed if it is new."""
        packed = self._form.pack(*state)
        if packed in self._seen:
            return None
        self._seen[packed] = len(self._parents)
        self._parents.append(parent)
        return packed

    def _path_to(self, number: int) -> list[Successor]:
        """The steps from the first state to that state, computed again from the successors of each state passed."""
        numbers = []
        while number != 0:
            numbers.append(number)
            number = self._parents[number]
        wanted = set(numbers)
        states = {found: packed for packed, found in self._seen.items() if found in wanted}
        path, state = [], self.model.first
        for step in reversed(numbers):
            wanted_state = self._form.unpack(states[step])
            path.append(next(found for found in self.model.successors(state) if found.state == wanted_state))
            state = path[-1].state
        return path
