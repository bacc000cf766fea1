"""Continuous-time Markov chains: states found from a transition function, and answers that are exact to rounding.

A chain is given by its start state and a function that lists the flows out of a state. :func:`explore` visits every
reachable state once, breadth first. For a chain with generator Q three questions are answered:

- the stationary distribution, pi Q = 0 with sum(pi) = 1;
- the long-run rate of an event that flows carry, sum over flows of pi[source] * rate * count;
- the mean time from the start to the first event, 1 / g, where g is the long-run rate of the event in the chain in
  which every flow that carries the event leads back to the start (renewal theorem).

All are computed by the elimination of Grassmann, Taksar and Heyman (GTH; Operations Research 33, 1985, pp. 1107-1116).
It adds, multiplies and divides positive numbers only, so nothing cancels: every component of pi has a small *relative*
error, however small it is (O'Cinneide, Numerische Mathematik 65, 1993). A plain solve of pi Q = 0 has a small absolute
error instead, and returns noise for a probability of 1e-20.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

State = TypeVar("State", bound=Hashable)


class Flow(NamedTuple, Generic[State]):
    """A transition: `rate` per unit of time, the `target`, and the `events` that it carries, by name."""

    rate: float
    target: State
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain(Generic[State]):
    """The reachable `states`, the first of them the start, and the flows between them as arrays of equal length:
    `sources` and `targets` are indices of states, `rates` are per unit of time, `events` what each flow carries.
    """

    states: Sequence[State]
    sources: np.ndarray[Any, Any]
    targets: np.ndarray[Any, Any]
    rates: np.ndarray[Any, Any]
    events: Sequence[tuple[str, ...]]

    def stationary(self) -> np.ndarray[Any, Any]:
        """The long-run probability of each state."""
        return _stationary(self.sources, self.targets, self.rates, len(self.states))

    def event_rate(self, event: str, probabilities: np.ndarray[Any, Any]) -> float:
        """The long-run number of `event` per unit of time, given the stationary `probabilities`."""
        counts = self._counts(event)
        return float(np.sum(probabilities[self.sources] * self.rates * counts))

    def share(self, holds: Callable[[State], bool], probabilities: np.ndarray[Any, Any]) -> float:
        """The long-run share of time in states for which `holds` is true."""
        return float(sum(float(probabilities[i]) for i, state in enumerate(self.states) if holds(state)))

    def mean_time_to(self, event: str) -> float:
        """The mean time from the start to the first `event`; infinite if there is none."""
        counts = self._counts(event)
        if not counts.any():
            return float("inf")
        targets = np.where(counts > 0, 0, self.targets)
        probabilities = _stationary(self.sources, targets, self.rates, len(self.states))
        rate = float(np.sum(probabilities[self.sources] * self.rates * (counts > 0)))
        return float("inf") if rate == 0.0 else 1.0 / rate

    def _counts(self, event: str) -> np.ndarray[Any, Any]:
        return np.array([names.count(event) for names in self.events], dtype=float)


def explore(start: State, flows: Callable[[State], Iterable[Flow[State]]], at_most: int = 1_000_000) -> Chain[State]:
    """The chain of all states that `flows` reaches from `start`. ValueError if there are more than `at_most`."""
    indices = {start: 0}
    states = [start]
    sources: list[int] = []
    targets: list[int] = []
    rates: list[float] = []
    events: list[tuple[str, ...]] = []
    position = 0
    while position < len(states):
        for flow in flows(states[position]):
            target = indices.setdefault(flow.target, len(states))
            if target == len(states):
                states.append(flow.target)
                if len(states) > at_most:
                    raise ValueError(f"the chain has more than {at_most} states")
            if target != position or flow.events:
                sources.append(position)
                targets.append(target)
                rates.append(flow.rate)
                events.append(flow.events)
        position += 1
    return Chain(states, np.array(sources, dtype=int), np.array(targets, dtype=int), np.array(rates), events)


def gth(rates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The stationary distribution of an irreducible chain by GTH elimination.

    `rates`: n x n, the rate from row to column, all >= 0; the diagonal is not read. The elements may be floats, or
    Fractions in an array of objects: the answer is then exact.
    """
    work = rates.copy()
    size = len(work)
    for last in range(size - 1, 0, -1):
        work[:last, last] = work[:last, last] / work[last, :last].sum()
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    weights = np.zeros_like(work[0]) if work.dtype != object else np.array([0 * work[0, 0]] * size, dtype=object)
    weights[0] = 1 + weights[0]
    for state in range(1, size):
        weights[state] = weights[:state] @ work[:state, state]
    return np.asarray(weights / weights.sum())


def _stationary(
    sources: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], rates: np.ndarray[Any, Any], size: int
) -> np.ndarray[Any, Any]:
    """The stationary distribution over all states: zero outside the one class of states that is never left.

    ValueError if there are several such classes: the long run then depends on chance.
    """
    graph = coo_array((np.ones(len(sources)), (sources, targets)), shape=(size, size))
    count, labels = connected_components(graph, directed=True, connection="strong")
    is_left = np.zeros(count, dtype=bool)
    is_left[labels[sources[labels[sources] != labels[targets]]]] = True
    closed = np.flatnonzero(~is_left)
    if len(closed) != 1:
        raise ValueError(f"{len(closed)} closed classes of states; a stationary distribution needs one")
    members = np.flatnonzero(labels == closed[0])
    places = np.full(size, -1)
    places[members] = np.arange(len(members))
    kept = (places[sources] >= 0) & (sources != targets)
    dense = np.zeros((len(members), len(members)))
    np.add.at(dense, (places[sources[kept]], places[targets[kept]]), rates[kept])
    probabilities = np.zeros(size)
    probabilities[members] = gth(dense)
    return probabilities
