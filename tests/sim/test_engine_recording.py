"""The recording of a cluster by its engine: what is judged of it, while it grows and when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from experiments.check.check_recording import CheckResult, check
from experiments.check.engine import CheckedEngine
from experiments.check.engine_recorder import EngineRecording
from experiments.check.recording import Recording
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner
from protocol.ids import TopicPartition
from protocol.messages.base import changed
from protocol.messages.batch import RecordBatch

SCENARIO = scenario_from(
    {
        "name": "day",
        "cluster": {"brokers": 3, "controllers": 1, "generation": "kip-966-elr"},
        "topics": [{"name": "t", "assignments": [[0, 1, 2]]}],
        "steps": [
            {"produce": {"topic": "t", "records": 3}},
            {"crash": {"broker": 0}},
            {"await": {"topic": "t", "leader": 1, "isr": [1, 2], "within": "30s"}},
        ],
    },
    "day",
)


class Altered(CheckedEngine):
    """Broker 2 has another record in the place of the second."""

    def log(self, broker: int, partition: TopicPartition) -> Sequence[RecordBatch]:
        found = list(super().log(broker, partition))
        if broker == 2:
            found[1] = changed(found[1], payload=b"another")
        return found


@pytest.fixture(params=[CheckedEngine, Altered])
def engine(request: pytest.FixtureRequest) -> Iterator[CheckedEngine]:
    made = request.param(SCENARIO.cluster.spec())
    yield made
    made.close()


def recorded(engine: CheckedEngine, folder: Path) -> tuple[CheckResult, CheckResult]:
    """What is found before the recording is complete, and then."""
    recording = EngineRecording(folder, "day", engine)
    assert Runner(SCENARIO, engine).run().passed
    recording.mark()
    growing = check(Recording(folder))
    recording.finish()
    recording.close()
    return growing, check(Recording(folder))


def test_the_controllers_are_judged_at_any_time_and_the_replicas_at_the_end(
    engine: CheckedEngine, tmp_path: Path
) -> None:
    """Of in-sync replicas one differs where the engine says so. What clients were told is not known, so no number of
    lost records is, either.
    """
    growing, whole = recorded(engine, tmp_path / "day")
    assert (growing.is_complete, growing.violations, growing.metadata_records) == (False, [], whole.metadata_records)
    assert whole.is_complete
    assert (whole.operations, whole.document()["lost_acked"]) == (0, None)
    assert whole.looked_at["ValidControllerState"] > 0
    found = [it.invariant for it in whole.violations]
    assert found == (["History.ReplicasDiffer"] if isinstance(engine, Altered) else [])
    assert whole.began_unix_ms is not None
