"""The solver of Markov chains: exact against rationals, and accurate where probabilities are tiny."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from experiments.studies.theory.chain import Flow, eliminate_sparse, explore, gth
from experiments.studies.theory.model import Model
from experiments.studies.theory.partition import Rules

STIFF = [[0, 3, 1, 0], [10**5, 0, 2, 0], [0, 10**6, 0, 1], [10**7, 0, 0, 0]]
"""Rates of a small chain, in units of 1e-6: its last state has a probability of about 1e-12."""


def _exact() -> list[Fraction]:
    rates = np.array([[Fraction(rate, 10**6) for rate in row] for row in STIFF], dtype=object)
    return list(gth(rates))


def test_elimination_with_rationals_gives_the_stationary_distribution() -> None:
    exact = _exact()
    assert sum(exact) == 1
    for state, probability in enumerate(exact):
        inflow = sum(exact[other] * Fraction(STIFF[other][state], 10**6) for other in range(4))
        assert inflow == probability * Fraction(sum(STIFF[state]), 10**6)


def test_elimination_with_floats_has_a_small_relative_error() -> None:
    found = gth(np.array(STIFF, dtype=float) / 1e6)
    for probability, exact in zip(found, _exact(), strict=True):
        assert math.isclose(probability, float(exact), rel_tol=1e-14)


def test_birth_and_death_down_to_tiny_probabilities() -> None:
    """n machines, failure and repair independent: binomial, down to a probability of 1e-40."""
    machines, ratio = 5, 1e-8

    def flows(down: int) -> Iterator[Flow[int]]:
        if down < machines:
            yield Flow((machines - down) * ratio, down + 1, ("failure",))
        if down:
            yield Flow(float(down), down - 1)

    chain = explore(0, flows)
    probabilities = chain.stationary()
    for down in range(machines + 1):
        expected = math.comb(machines, down) * ratio**down / (1 + ratio) ** machines
        assert math.isclose(probabilities[down], expected, rel_tol=1e-13)
    assert math.isclose(chain.event_rate("failure", probabilities), machines * ratio / (1 + ratio), rel_tol=1e-13)
    assert math.isclose(chain.mean_time_to("failure"), 1 / (machines * ratio), rel_tol=1e-13)
    assert chain.mean_time_to("no such event") == math.inf


def test_states_that_are_left_for_good_have_probability_zero() -> None:
    flows = {0: [Flow(1.0, 1)], 1: [Flow(2.0, 2)], 2: [Flow(1.0, 1)]}
    chain = explore(0, lambda state: flows[state])
    assert list(chain.stationary()) == pytest.approx([0.0, 1 / 3, 2 / 3])


def test_a_chain_with_two_ends_has_no_stationary_distribution() -> None:
    flows: dict[int, list[Flow[int]]] = {0: [Flow(1.0, 1), Flow(1.0, 2)], 1: [], 2: []}
    with pytest.raises(ValueError, match="2 closed classes"):
        explore(0, lambda state: flows[state]).stationary()


def test_an_endless_chain_is_given_up() -> None:
    with pytest.raises(ValueError, match="more than 100 states"):
        explore(0, lambda state: [Flow(1.0, state + 1)], at_most=100)


def test_both_eliminations_agree_in_every_component() -> None:
    """A chain of some hundred states, with probabilities down to 1e-36."""
    model = Model(Rules("kip-966", "balanced", min_isr=1), replicas=5, fail=1e-4, repair=1.0, lossy=0.1)
    chain = model.chain()
    moves = chain.sources != chain.targets
    flows = chain.sources[moves], chain.targets[moves], chain.rates[moves]
    dense = np.zeros((len(chain.states),) * 2)
    np.add.at(dense, flows[:2], flows[2])
    subtraction_free, sparse = gth(dense), eliminate_sparse(*flows, len(chain.states))
    assert subtraction_free.min() < 1e-35
    assert np.allclose(sparse / subtraction_free, 1.0, rtol=1e-12, atol=0.0)
