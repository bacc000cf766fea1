"""How long a quorum of three is without an active controller, from the death of one to the next, in the simulator.

Every seed is a cluster of its own: which controller leads, when it dies between two fetches of the others, what
timeouts are drawn, and how long messages take, are its dice's. Time is virtual: what is counted is waiting and
messages, never the processor.
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
from protocol.ids import NodeId, TimeMs

CONTROLLERS = 3
WITHIN_MS = 120_000
SPREAD_MS = 2_000
"""When in this time the active controller dies is drawn."""
GRACE_MS = 2_000
SETTLED = frozenset({"leader", "follower"})


def config() -> ClusterConfig:
    return ClusterConfig.of(Generation.KIP_966)


def bound_ms(values: ClusterConfig) -> int:
    """What an election may take: the followers miss their leader after the fetch timeout, a candidate draws at most
    twice the election timeout, and `GRACE_MS` are for the votes and the first commit.
    """
    fetch_ms = values.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS)
    return fetch_ms + 2 * values.int_value(CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS) + GRACE_MS


def is_settled(engine: Engine) -> bool:
    """Whether one controller is active and all others follow it."""
    roles = [part.role for part in engine.quorum().values()]
    return engine.active_controller() is not None and len(roles) == CONTROLLERS and set(roles) <= SETTLED


def became_active(engine: Engine, after_ms: TimeMs, but: NodeId) -> TimeMs | None:
    """When the first controller other than `but` has said that it is active, later than that; None until then."""
    started = (event for event in engine.traces() if event.trace.kind == "controller_started")
    return next((event.time_ms for event in started if event.time_ms > after_ms and event.node != but), None)


def simulated_ms(seed: int) -> int:
    """How long it took with this seed. AssertionError where nobody became active."""
    engine = CheckedEngine(ClusterSpec(1, CONTROLLERS, config(), seed))
    for node in engine.spec.node_ids:
        engine.start(node)
    assert engine.run_until(lambda: is_settled(engine), WITHIN_MS), "nobody leads the quorum"
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
    """The smallest of the values, at least one, that so great a share of them does not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def distribution(times_ms: Sequence[int]) -> dict[str, object]:
    """Count, p50, p90 and max of times, and how many are above the bound."""
    bound = bound_ms(config())
    return {
        "kills": len(times_ms),
        "p50_ms": rank(times_ms, 0.5),
        "p90_ms": rank(times_ms, 0.9),
        "max_ms": max(times_ms),
        "above_bound": sum(time_ms > bound for time_ms in times_ms),
    }
