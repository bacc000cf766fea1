"""Breadth-first search: every state within the bounds, the nearest first; so a counterexample is a shortest one."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.hunt.explore.model import Model, State, Successor

_NO_PARENT = 0


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A shortest path to a state in which something is wrong."""

    wrong: str
    path: tuple[Successor, ...]

    @property
    def invariant(self) -> str:
        return self.wrong.partition(":")[0]


@dataclass(slots=True)
class Search:
    """A search and what it has found. `transitions` were taken, they led to `states` distinct states, the farthest of
    them `depth` steps away. `complete`: there are no others within the bounds.
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
        """Searches to the end, to that depth, to that number of states, or to the first state in which an invariant
        does not hold.
        """
        self._note(self.model.first, _NO_PARENT)
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
                if self._note(successor.state, number):
                    following.append(successor.state)
        return following

    def _note(self, state: State, parent: int) -> bool:
        """Whether the state was not known yet."""
        packed = _packed(state)
        if packed in self._seen:
            return False
        self._seen[packed] = len(self._parents)
        self._parents.append(parent)
        return True

    def _path_to(self, number: int) -> list[Successor]:
        """The steps from the first state to that state, found again among the successors of each on the way."""
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
