"""Runs a scenario and keeps the run for the explorer (`experiments/explorer`)."""

from __future__ import annotations

from collections.abc import Callable

from experiments.check.engine import CheckedEngine
from experiments.engines.port import Violation
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.recorder import AcknowledgedLosses, SimRecorder, TraceCollector
from experiments.explorer.run import Run
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner, ScenarioResult
from protocol.errors import ProtocolInvariantError


def run_explored(runner: Runner, run: Callable[[], ScenarioResult], title: str) -> tuple[ScenarioResult, Run]:
    """Runs a scenario with `run`, which calls `runner.run`; returns its result, and the run under this title. On
    processes the run has trace events and no messages.
    """
    engine = runner.engine
    recorder: SimRecorder | TraceCollector
    if isinstance(engine, CheckedEngine):
        recorder = SimRecorder(engine.cluster, runner.headings, engine.suite.violations, losses=AcknowledgedLosses())
    else:
        recorder = TraceCollector(runner.headings, AcknowledgedLosses())
        engine.record_to(recorder.add)
    result = run()
    return result, run_of_journal(recorder.journal(), title, _facts(runner, result), engine.spec, engine.metadata_log())


def run_variant(runner: Runner, title: str) -> Run:
    """Runs a scenario on the simulator, to the last step; if a mutant breaks a node, that is the run's violation."""
    engine = runner.engine
    assert isinstance(engine, CheckedEngine)
    recorder = SimRecorder(engine.cluster, runner.headings, engine.suite.violations, losses=AcknowledgedLosses())
    try:
        facts = _facts(runner, runner.run())
    except ProtocolInvariantError as error:
        engine.suite.violations.append(Violation(type(error).__name__, engine.now_ms(), str(error)))
        facts = [("generation", runner.scenario.cluster.generation), ("verdict", "a node broke")]
    return run_of_journal(recorder.journal(), title, facts, engine.spec, engine.metadata_log())


def _facts(runner: Runner, result: ScenarioResult) -> list[tuple[str, str]]:
    return [
        ("generation", runner.scenario.cluster.generation),
        ("engine", result.engine),
        ("seed", str(result.seed)),
        ("verdict", "passed" if result.passed else "failed"),
        ("acknowledged records lost", result.losses.words()),
        ("trace", result.trace_hash),
    ]


def with_cluster(scenario: Scenario, **changes: object) -> Scenario:
    """The same steps on a cluster with these fields changed, to values that are known to be allowed."""
    cluster = scenario.cluster.model_copy(update=changes)
    return scenario.model_copy(update={"cluster": cluster})
