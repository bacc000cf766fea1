"""The time from the death of the active controller to the next active one, in a quorum of three, in the simulator; and
the bound and statistics of election times.

Every seed is a cluster of its own, which draws leader, time of death, election timeouts and latencies. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, Engine, Loss
from protocol.config import (
    CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS,
    CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
    ClusterConfig,
    Generation,
)
from protocol.events.controller import ControllerStarted
from protocol.ids import NodeId, TimeMs

CONTROLLERS = 3
WITHIN_MS = 120_000
SPREAD_MS = 2_000
"""The time of the active controller's death is drawn from a range of this length."""
GRACE_MS = 2_000
SETTLED = frozenset({"leader", "follower"})


def config() -> ClusterConfig:
    return ClusterConfig.of(Generation.KIP_966)


def bound_ms(values: ClusterConfig) -> int:
    """The bound of an election time: the fetch timeout, after which followers notice the leader's death, twice the
    election timeout, the most that a candidate draws, and `GRACE_MS` for the votes and the first commit.
    """
    fetch_ms = values.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS)
    return fetch_ms + 2 * values.int_value(CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS) + GRACE_MS


def is_settled(engine: Engine) -> bool:
    """Whether a controller is active and all others lead or follow in the quorum."""
    roles = [part.role for part in engine.quorum().values()]
    return engine.active_controller() is not None and len(roles) == CONTROLLERS and set(roles) <= SETTLED


def became_active(engine: Engine, after_ms: TimeMs, but: NodeId) -> TimeMs | None:
    """The time of the first `controller_started` after `after_ms` of a controller other than `but`; None until then."""
    started = (event for event in engine.traces() if isinstance(event.trace, ControllerStarted))
    return next((event.time_ms for event in started if event.time_ms > after_ms and event.node != but), None)


def simulated_ms(seed: int) -> int:
    """The election time with this seed. AssertionError where no controller becomes active."""
    engine = CheckedEngine(ClusterSpec(1, CONTROLLERS, config(), seed))
    for node in engine.spec.node_ids:
        engine.start(node)
    assert engine.run_until(lambda: is_settled(engine), WITHIN_MS), "the quorum has no leader"
    engine.run_for(Random(f"bench/{seed}").randrange(SPREAD_MS))
    active = engine.active_controller()
    assert active is not None
    killed_ms = engine.now_ms()
    engine.crash(active, Loss())
    assert engine.run_until(lambda: became_active(engine, killed_ms, active) is not None, WITHIN_MS), "no successor"
    found_ms = became_active(engine, killed_ms, active)
    assert found_ms is not None
    return found_ms - killed_ms


def rank(values: Sequence[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed; `values` must not be empty."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def distribution(times_ms: Sequence[int]) -> dict[str, int]:
    """Count, p50, p90 and maximum of election times, and the number of those above the bound."""
    bound = bound_ms(config())
    return {
        "kills": len(times_ms),
        "p50_ms": rank(times_ms, 0.5),
        "p90_ms": rank(times_ms, 0.9),
        "max_ms": max(times_ms),
        "above_bound": sum(time_ms > bound for time_ms in times_ms),
    }
