"""A scenario on ray: its own expectations, the checks of its recording, and the same end state as on sim.

Most scenarios wait for sessions to expire. Where a file leaves the session timeout to Kafka's default of 9 s, both
engines run it with a shorter one here, since no step depends on its length; and no step `wait` takes longer than
`LONGEST_WAIT_MS`.
"""

from __future__ import annotations

from pathlib import Path

from experiments.check.check_recording import check
from experiments.check.recording import Recording
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.model import Scenario, Step, WaitStep
from experiments.scenarios.runner import Runner, run_recorded
from tests.ray.cluster_helpers import ProcessPool
from tests.sim.scenario_helpers import run_scenario, spec_of

SAME = ("leader", "leader_epoch", "replicas", "elr", "last_known_elr", "leader_recovery_state", "high_watermark")


SHORT_SESSIONS = {"broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 300}
LONGEST_WAIT_MS = 8_000


def with_short_times(scenario: Scenario) -> Scenario:
    """The scenario with `SHORT_SESSIONS`, unless its file sets the session timeout, and with shorter waits."""
    config = scenario.cluster.config
    if "broker.session.timeout.ms" not in config:
        config = {**config, **SHORT_SESSIONS}
    steps = [_shorter(step) for step in scenario.steps]
    return scenario.model_copy(
        update={"cluster": scenario.cluster.model_copy(update={"config": config}), "steps": steps}
    )


def _shorter(step: Step) -> Step:
    if not isinstance(step.fields, WaitStep) or step.fields.duration_ms <= LONGEST_WAIT_MS:
        return step
    return step.model_copy(update={"fields": step.fields.model_copy(update={"duration_ms": LONGEST_WAIT_MS})})


def check_on_ray_as_on_sim(path: Path, recording: Path, pool: ProcessPool) -> None:
    """Runs the scenario on a cluster of its own, in processes of `pool`."""
    scenario = with_short_times(load_scenario(path))
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
    for real, virtual in zip(result.partitions, simulated.partitions, strict=True):
        assert real["log_end_offsets"] == virtual["log_end_offsets"]
        assert sorted(real["isr"]) == sorted(virtual["isr"])
        assert {name: real[name] for name in SAME} == {name: virtual[name] for name in SAME}
