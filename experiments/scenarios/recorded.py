"""Runs a scenario and writes a recording of it (`experiments/check/recording.py`)."""

from __future__ import annotations

from pathlib import Path

from experiments.check.final_logs import final_logs
from experiments.check.recording import RecordingWriter
from experiments.scenarios.clients import ranges_of
from experiments.scenarios.runner import Runner, ScenarioResult


def run_recorded(runner: Runner, folder: Path) -> ScenarioResult:
    """Runs a scenario and writes a recording to a new or empty folder. InputError for any other folder."""
    engine = runner.engine
    writer = RecordingWriter(folder)
    try:
        writer.record(engine)
        result = runner.run()
        finals = final_logs(engine, ranges_of)
        for operation in runner.clients.operations:
            writer.operation(operation)
        writer.finish(runner.scenario.name, engine.name, engine.spec, engine.metadata_log(), finals)
    finally:
        writer.close()
    return result
