"""The settings of a store: their limits, and the distributions of latencies."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from pydantic import ValidationError

from protocol.v3.store.settings import Latency, StoreSettings


def test_the_defaults_are_those_of_the_design() -> None:
    settings = StoreSettings()
    assert (settings.write_latency.draw_ms(Random(1)), settings.read_latency.draw_ms(Random(1))) == (4, 1)
    assert (settings.session_timeout_ms, settings.multi, settings.sessions) == (6_000, 1, 1)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"session_timeout_ms": 0}, "greater than or equal to 100"),
        ({"session_timeout_ms": 3_600_001}, "less than or equal to 3600000"),
        ({"multi": 0}, "greater than or equal to 1"),
        ({"multi": 100_001}, "less than or equal to 100000"),
        ({"sessions": 0}, "greater than or equal to 1"),
        ({"sessions": 101}, "less than or equal to 100"),
        ({"write_latency": {"mean_ms": -1}}, "greater than or equal to 0"),
        ({"write_latency": {"mean_ms": 60_001}}, "less than or equal to 60000"),
        ({"write_latency": {"mean_ms": 4, "dist": "uniform"}}, "'constant', 'exponential' or 'lognormal'"),
        ({"read_latency": {"mean_ms": 4, "shape": 1.0}}, "allowed: shape with lognormal, and only there"),
        ({"read_latency": {"mean_ms": 4, "dist": "lognormal"}}, "allowed: shape with lognormal, and only there"),
        ({"timeout": 1}, "Extra inputs are not permitted"),
    ],
)
def test_what_is_outside_the_limits_is_refused(fields: dict[str, object], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        StoreSettings.model_validate(fields)


@pytest.mark.parametrize(("dist", "shape"), [("constant", None), ("exponential", None), ("lognormal", 0.5)])
def test_a_latency_has_its_mean(dist: str, shape: float | None) -> None:
    latency = Latency.model_validate({"dist": dist, "mean_ms": 40, "shape": shape})
    drawn = [latency.draw_ms(rng) for rng in [Random(7)] for _ in range(4_000)]
    assert fmean(drawn) == pytest.approx(40, rel=0.05)
    assert min(drawn) >= 0
    assert drawn == [latency.draw_ms(rng) for rng in [Random(7)] for _ in range(4_000)]


def test_a_store_without_latency_draws_nothing() -> None:
    rng = Random(1)
    state = rng.getstate()
    assert Latency(dist="exponential", mean_ms=0).draw_ms(rng) == 0
    assert rng.getstate() == state
