"""Clocks of simulated nodes: what they show, and when they show it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines.port import ClusterSpec
from experiments.engines.sim.cluster import Clock, SimCluster
from protocol.config import ClusterConfig
from protocol.errors import ProtocolInvariantError
from protocol.features import Generation

TIMES = st.integers(0, 10**7)
CLOCKS = st.builds(Clock, st.integers(-60_000, 60_000), TIMES, st.integers(-999, 2_000))


@given(CLOCKS, TIMES, TIMES)
def test_a_clock_reaches_a_time_when_it_first_shows_it(clock: Clock, since_ms: int, shown_ms: int) -> None:
    at_ms = clock.reaches(shown_ms)
    assert clock.shows(at_ms) >= shown_ms > clock.shows(at_ms - 1)


@given(CLOCKS, TIMES, st.integers(0, 5_000), st.integers(-999, 2_000), st.integers(0, 10_000))
def test_an_adjusted_clock_never_goes_back(clock: Clock, now_ms: int, jump_ms: int, drift: int, later: int) -> None:
    adjusted = clock.adjusted(now_ms, jump_ms, drift)
    assert adjusted.shows(now_ms) == clock.shows(now_ms) + jump_ms
    assert adjusted.shows(now_ms + later) >= adjusted.shows(now_ms)


def test_a_clock_gains_its_drift() -> None:
    assert [Clock(100, 1_000, drift).shows(3_000) for drift in (0, 20, -300)] == [3_100, 3_140, 2_500]


def test_the_clock_of_a_running_node_does_not_go_back() -> None:
    cluster = SimCluster(ClusterSpec(1, 1, ClusterConfig.of(Generation.KIP_966)))
    for jump_ms, drift in ((-1, 0), (0, -1_000)):
        with pytest.raises(ProtocolInvariantError, match="must not stand or go back"):
            cluster.adjust_clock(0, jump_ms, drift)
