"""Breadth-first search of all states within the bounds, so that the first counterexample is a shortest one."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.hunt.explore.model import Model
from experiments.hunt.explore.states import State, Successor

_NO_PARENT = 0


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A shortest path to a state that violates an invariant; `wrong` is `Invariant: detail`."""

    wrong: str
    path: tuple[Successor, ...]

    @property
    def invariant(self) -> str:
        return self.wrong.partition(":")[0]


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
    layers: list[int] = field(default_factory=list)
    _seen: dict[bytes, int] = field(default_factory=dict)
    _parents: array[int] = field(default_factory=lambda: array("L"))

    @property
    def states(self) -> int:
        return len(self._seen)

    def run(
        self,
        max_depth: int | None = None,
        max_states: int | None = None,
        progress: Callable[[Search], None] | None = None,
    ) -> Search:
        """Searches until all states are reached, or that depth, or that number of states, or a violation."""
        self._add(self.model.first, _NO_PARENT)
        layer = [self.model.first]
        while layer and (max_depth is None or self.depth < max_depth):
            if max_states is not None and self.states >= max_states:
                return self
            self.layers.append(len(layer))
            following = self._expand(layer)
            if self.counterexample is not None:
                return self
            layer = following
            self.depth += bool(layer)
            if progress is not None:
                progress(self)
        self.complete = not layer
        return self

    def _expand(self, layer: list[State]) -> list[State]:
        following: list[State] = []
        for state in layer:
            number = self._seen[_packed(state)]
            for successor in self.model.successors(state):
                self.transitions += 1
                if successor.wrong:
                    self.depth += 1
                    path = (*self._path_to(number), successor)
                    self.counterexample = Counterexample(successor.wrong, path)
                    return []
                if self._add(successor.state, number):
                    following.append(successor.state)
        return following

    def _add(self, state: State, parent: int) -> bool:
        """Adds the state; returns whether it is new."""
        packed = _packed(state)
        if packed in self._seen:
            return False
        self._seen[packed] = len(self._parents)
        self._parents.append(parent)
        return True

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
            taken = next(found for found in self.model.successors(state) if _packed(found.state) == states[step])
            path.append(taken)
            state = taken.state
        return path


def _packed(state: State) -> bytes:
    return array("I", state).tobytes()
