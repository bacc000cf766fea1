"""Continuous-time Markov chains: states found from a transition function, and answers that are exact to rounding.

For a chain with generator Q three questions are answered:

- the stationary distribution, pi Q = 0 with sum(pi) = 1;
- the long-run rate of an event that flows carry, sum over flows of pi[source] * rate * count;
- the mean time from the start to the first event, 1 / g, where g is the long-run rate of the event in the chain in
  which every flow that carries the event leads back to the start (renewal theorem).

Chains of up to `DENSE` states are solved by the elimination of Grassmann, Taksar and Heyman (GTH; Operations Research
33, 1985, pp. 1107-1116). It adds, multiplies and divides positive numbers only, so nothing cancels: every component of
pi has a small *relative* error, however small it is (O'Cinneide, Numerische Mathematik 65, 1993).

Larger chains are solved by a sparse LU factorization with pivots on the diagonal only, of the equations without those
of the first state. The matrix is an M-matrix: off its diagonal, the elimination adds numbers of one sign, as GTH does.
On the diagonal it subtracts the probability of a return to the state, and that is far from cancelling where most flows
lead back to the first state (all brokers run).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

State = TypeVar("State", bound=Hashable)
Array = NDArray[np.float64]
DENSE = 300
"""Up to this number of states, GTH costs less than about 50 ms."""


class Flow(NamedTuple, Generic[State]):
    """A transition: `rate` per unit of time, the `target`, and the `events` that it carries, by name."""

    rate: float
    target: State
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain(Generic[State]):
    """The reachable `states`, the first of them the start, and the flows between them as arrays: `sources` and
    `targets` are indices of states, `rates` per unit of time, `events` what each flow carries."""

    states: Sequence[State]
    sources: Array
    targets: Array
    rates: Array
    events: Sequence[tuple[str, ...]]

    def stationary(self) -> Array:
        """The long-run probability of each state."""
        return _stationary(self.sources, self.targets, self.rates, len(self.states))

    def event_rate(self, event: str, probabilities: Array) -> float:
        """The long-run number of `event` per unit of time, given the stationary `probabilities`."""
        return float(np.sum(probabilities[self.sources] * self.rates * self._counts(event)))

    def share(self, holds: Callable[[State], bool], probabilities: Array) -> tuple[float, float]:
        """The long-run share of time in states for which `holds` is true, and how often per unit of time it begins."""
        inside = np.array([holds(state) for state in self.states])
        begins = ~inside[self.sources] & inside[self.targets]
        rate = np.sum((probabilities[self.sources] * self.rates)[begins])
        return float(np.sum(probabilities[inside])), float(rate)

    def mean_time_to(self, event: str) -> float:
        """The mean time from the start to the first `event`; infinite if there is none."""
        counts = self._counts(event)
        if not counts.any():
            return float("inf")
        probabilities = replace(self, targets=np.where(counts > 0, 0, self.targets)).stationary()
        rate = float(np.sum(probabilities[self.sources] * self.rates * (counts > 0)))
        return float("inf") if rate == 0.0 else 1.0 / rate

    def _counts(self, event: str) -> Array:
        return np.array([names.count(event) for names in self.events], dtype=float)


def explore(start: State, flows: Callable[[State], Iterable[Flow[State]]], at_most: int = 1_000_000) -> Chain[State]:
    """The chain of all states that `flows` (out of a state) reach from `start`. ValueError for more than `at_most`."""
    indices, states = {start: 0}, [start]
    found: list[tuple[int, int, float, tuple[str, ...]]] = []
    for position, state in enumerate(states):
        for rate, reached, events in flows(state):
            target = indices.setdefault(reached, len(states))
            if target == len(states):
                states.append(reached)
                if len(states) > at_most:
                    raise ValueError(f"the chain has more than {at_most} states")
            if target != position or events:
                found.append((position, target, rate, events))
    ends = np.array([(source, target) for source, target, *_ in found], dtype=int).reshape(-1, 2)
    rates = np.array([rate for _, _, rate, _ in found])
    return Chain(states, ends[:, 0], ends[:, 1], rates, [events for *_, events in found])


def gth(rates: Array) -> Array:
    """The stationary distribution of an irreducible chain by GTH elimination.

    `rates`: n x n, the rate from row to column, all >= 0; the diagonal is not read. The elements may be floats, or
    Fractions in an array of objects: the answer is then exact.
    """
    work = rates.copy()
    size = len(work)
    for last in range(size - 1, 0, -1):
        work[:last, last] = work[:last, last] / work[last, :last].sum()
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    weights = np.zeros_like(work[0])
    weights[0] = 1
    for state in range(1, size):
        weights[state] = weights[:state] @ work[:state, state]
    return np.asarray(weights / weights.sum())


def eliminate_sparse(sources: Array, targets: Array, rates: Array, size: int) -> Array:
    """The stationary distribution of an irreducible chain of `size` states by a sparse LU factorization.

    `sources`, `targets` and `rates` are the flows, none from a state to itself. The first state should be a likely one.
    """
    inflow = coo_array((rates, (targets, sources)), shape=(size, size)).tocsc()
    outflow = np.bincount(sources, weights=rates, minlength=size)
    matrix = (diags_array(outflow) - inflow).tocsc()[1:, 1:]
    factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    weights = np.concatenate([[1.0], factors.solve(inflow[1:, [0]].toarray().ravel())])
    return np.asarray(weights / weights.sum())


def _stationary(sources: Array, targets: Array, rates: Array, size: int) -> Array:
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
    flows = places[sources[kept]], places[targets[kept]], rates[kept]
    probabilities = np.zeros(size)
    if len(members) <= DENSE:
        dense = np.zeros((len(members), len(members)))
        np.add.at(dense, flows[:2], flows[2])
        probabilities[members] = gth(dense)
    else:
        probabilities[members] = eliminate_sparse(*flows, len(members))
    return probabilities
