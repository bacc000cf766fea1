"""Distributions draw with their mean, and parameters that conflict are refused."""

from __future__ import annotations

import statistics
from random import Random

import pytest
from pydantic import ValidationError

from experiments.engines.sim.network import NetworkModel
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import CellParameters

DRAWS = 20_000


@pytest.mark.parametrize(
    ("dist", "shape", "relative_spread"),
    [
        ("exponential", None, 1.0),
        ("weibull", 0.7, 1.462),
        ("weibull", 2.0, 0.523),
        ("lognormal", 0.5, 0.533),
        ("constant", None, 0),
    ],
)
def test_mean_and_deviation_of_draws_are_those_of_the_distribution(
    dist: str, shape: float | None, relative_spread: float
) -> None:
    random = Random(1)
    distribution = Distribution(dist=dist, mean_ms=1_000_000, shape=shape)
    draws = [distribution.sample_ms(random) for _ in range(DRAWS)]
    assert statistics.fmean(draws) == pytest.approx(1_000_000, rel=0.04)
    assert statistics.pstdev(draws) == pytest.approx(relative_spread * 1_000_000, rel=0.06)


def test_draws_are_positive_integers_that_the_seed_determines() -> None:
    distribution = Distribution(mean_ms=1)
    draws = [[distribution.sample_ms(random) for _ in range(50)] for random in (Random(3), Random(3), Random(4))]
    assert all(isinstance(draw, int) and draw >= 1 for draw in draws[0])
    assert draws[0] == draws[1] != draws[2]


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"replication_factor 3: allowed is at most the number of brokers \(2\)"):
        CellParameters(brokers=2)


def test_a_burst_of_more_brokers_than_the_cluster_has_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"size 4.*: allowed is size of at most the number of brokers \(3\)"):
        CellParameters(burst=(Burst(per_year=4.0, size=4),))
    assert CellParameters(brokers=4, burst=(Burst(per_year=4.0, size=4),)).burst is not None


def test_default_latency_is_that_of_the_simulator() -> None:
    assert CellParameters().network_latency_ms == NetworkModel().base_ms
