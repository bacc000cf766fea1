"""The Markov model: values known from elsewhere, and the rules of each generation in small cases."""

from __future__ import annotations

import math

import pytest

from experiments.studies.theory.answers import solved
from experiments.studies.theory.model import Model
from experiments.studies.theory.partition import LOSS
from experiments.studies.theory.state import Generation, Rules, Strategy


def _model(
    generation: Generation,
    strategy: Strategy = "balanced",
    replicas: int = 3,
    min_isr: int = 2,
    unclean: float = 1.0,
    lossy: float = 0.5,
    flushes: bool = True,
) -> Model:
    rules = Rules(generation, strategy, min_isr, loses=unclean * lossy > 0, flushes=flushes)
    return Model(rules, replicas, fail=0.1, repair=1.0, unclean=unclean, lossy=lossy)


@pytest.mark.parametrize(
    ("generation", "refused", "offline"),
    [("kip-497", 0.02394, 0.002176), ("kip-966-elr", 0.02329, 0.001109), ("kip-966", 0.02329, 0.001109)],
)
def test_known_fractions_where_every_shutdown_is_clean(generation: Generation, refused: float, offline: float) -> None:
    found = solved(_model(generation, unclean=0.0))
    assert found["reject_fraction"].value == pytest.approx(refused, rel=2.5e-4)
    assert found["offline_fraction"].value == pytest.approx(offline, rel=2.5e-4)


def test_known_mean_time_to_the_first_loss_without_elr() -> None:
    """Counted when the last copy is lost: the chain counts the loss one mean repair later, when that replica leads."""
    model = _model("kip-497", unclean=0.1, lossy=1.0, flushes=False)
    assert model.chain().mean_time_to(LOSS) - 1.0 == pytest.approx(4.604e3, rel=1e-4)


@pytest.mark.parametrize("generation", ["kip-966-elr", "kip-966"])
def test_known_mean_time_to_the_first_loss_with_elr(generation: Generation) -> None:
    model = _model(generation, unclean=0.1, lossy=1.0, flushes=False)
    assert model.chain().mean_time_to(LOSS) == pytest.approx(4.523e4, rel=1.2e-4)


def test_refused_is_binomial_where_every_running_replica_is_in_sync() -> None:
    found = solved(_model("kip-966", "proactive", replicas=5, min_isr=3))
    up = 1 / 1.1
    expected = sum(math.comb(5, count) * up**count * (1 - up) ** (5 - count) for count in range(3))
    assert found["reject_fraction"].value == pytest.approx(expected, rel=1e-12)
    assert found["offline_fraction"].value == pytest.approx((1 - up) ** 5, rel=1e-12)
