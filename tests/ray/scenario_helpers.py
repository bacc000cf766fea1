"""A scenario on ray: its own expectations, the checks of its recording, and the same end state as on sim.

Most scenarios wait for sessions to expire, for a fixed time, for a data-loss hook, or until a recovery or a check for
imbalance is due. Here both engines run the scenario with shorter times: no step depends on their length, except where a
file sets sessions longer than Kafka's default, or a time so long that it does not pass.
"""

from __future__ import annotations

from pathlib import Path

from experiments.check.check_recording import check
from experiments.check.recording import Recording
from experiments.scenarios.model import Scenario, Step, TopicModel, V3Model, WaitStep
from experiments.scenarios.runner import Runner, run_recorded
from tests.ray.cluster_helpers import ProcessPool
from tests.sim.scenario_helpers import run_scenario, spec_of

SAME = ("leader", "leader_epoch", "replicas", "elr", "last_known_elr", "leader_recovery_state", "high_watermark")

SESSION = "broker.session.timeout.ms"
DEFAULT_SESSION_MS = 9_000
SHORT_SESSIONS = {SESSION: 2_000, "broker.heartbeat.interval.ms": 300}
HOOK = "unclean.leader.hook"
SHORT_HOOK = "experiments.scenarios.hooks:wait_10s"
LONGEST_WAIT_MS = 3_000
SHORTER = {
    "leader.imbalance.check.interval.seconds": {20: 8},
    "unclean.recovery.timeout.ms": {30_000: 20_000},
}
"""Values of configs for which smaller ones stand in."""
V3_SESSION_MS = 3_000
"""Of a broker with the store, instead of the default."""


def with_short_times(scenario: Scenario) -> Scenario:
    """The scenario with `SHORT_SESSIONS`, unless its file sets longer ones than the default, with `SHORT_HOOK` where it
    has a hook, with the values of `SHORTER`, and with waits of `LONGEST_WAIT_MS` at most."""
    cluster = scenario.cluster
    config = {name: SHORTER.get(name, {}).get(value, value) for name, value in cluster.config.items()}
    if int(str(config.get(SESSION, DEFAULT_SESSION_MS))) <= DEFAULT_SESSION_MS:
        config |= SHORT_SESSIONS
    if HOOK in config:
        config[HOOK] = SHORT_HOOK
    store = cluster.store
    if cluster.has_store and store is None:
        store = V3Model(session_timeout=V3_SESSION_MS)
    steps = [_shorter(step) for step in scenario.steps]
    return scenario.model_copy(
        update={"cluster": cluster.model_copy(update={"config": config, "store": store}), "steps": steps}
    )


def _shorter(step: Step) -> Step:
    if not isinstance(step.fields, WaitStep) or step.fields.duration_ms <= LONGEST_WAIT_MS:
        return step
    return step.model_copy(update={"fields": step.fields.model_copy(update={"duration_ms": LONGEST_WAIT_MS})})


def topics_of(scenario: Scenario) -> list[TopicModel]:
    """The topics that a scenario creates, at first and by its steps."""
    return [*scenario.topics, *(step.fields for step in scenario.steps if isinstance(step.fields, TopicModel))]


def check_on_ray_as_on_sim(scenario: Scenario, recording: Path, pool: ProcessPool) -> None:
    """Runs the scenario, with short times, on a cluster of its own, in processes of `pool`."""
    scenario = with_short_times(scenario)
    engine = pool.engine(spec_of(scenario, 0))
    try:
        result = run_recorded(Runner(scenario, engine), recording)
    finally:
        engine.close()
    assert result.passed, result.steps[-1]
    checked = check(Recording(recording))
    assert (checked.violations, checked.unjudged) == ([], [])
    assert checked.operations
    simulated = run_scenario(scenario)
    assert result.losses == simulated.losses
    placed = {topic.name for topic in topics_of(scenario) if not topic.assignments}
    for real, virtual in zip(result.partitions, simulated.partitions, strict=True):
        if real["topic"] in placed:  # at random
            continue
        assert real["log_end_offsets"] == virtual["log_end_offsets"]
        assert sorted(real["isr"]) == sorted(virtual["isr"])
        assert {name: real[name] for name in SAME} == {name: virtual[name] for name in SAME}
