"""Controller traces: the recorded ones pass on the node that the engines run, and another answer never does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.conformance.traces import ControllerTraceRow, differences
from protocol.kafka_release import KafkaRelease

TRACES = Path(__file__).parents[3] / "data" / "controller_traces.jsonl.gz"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(TRACES.read_bytes()).splitlines()[1:]]


def _differences(row: dict[str, Any]) -> list[str]:
    trace = ControllerTraceRow.model_validate_json(json.dumps(row))
    return [difference.field for difference in differences(trace, KafkaRelease.V4_0)]


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return value[1:] if value else [0]
    if isinstance(value, dict):
        return value | {"fenced": not value["fenced"]}
    return {"RECOVERED": "RECOVERING", "RECOVERING": "RECOVERED"}.get(value, f"{value}_")


@pytest.mark.parametrize("seed", range(40))
def test_another_answer_in_one_step_fails_the_trace(seed: int) -> None:
    random = Random(seed)
    row = json.loads(json.dumps(random.choice(ROWS)))
    index = random.choice([i for i, step in enumerate(row["steps"]) if step["partition"] is not None])
    step = row["steps"][index]
    name = random.choice(["result", *step["partition"]])
    if name == "result":
        step["result"] = _other(step["result"])
    else:
        step["partition"][name] = _other(step["partition"][name]) or [4]
    assert _differences(row)[0].startswith(f"steps[{index}].")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("register_broker", {"broker_epoch": 999}),
        ("alter_partition", {"broker_epoch": 999}),
        ("alter_partition", {"partition_epoch": 999}),
        ("create_topic", {"min_insync_replicas": 9, "replicas": [3]}),
    ],
)
def test_another_event_is_answered_otherwise(kind: str, change: dict[str, Any]) -> None:
    """At least one trace notices, whichever step is changed."""
    noticed = 0
    for original in ROWS[:40]:
        row = json.loads(json.dumps(original))
        step = next((s for s in row["steps"] if s["event"]["type"] == kind and s["result"] == "NONE"), None)
        if step is not None:
            step["event"] |= change
            noticed += bool(_differences(row))
    assert noticed > 10


def test_a_wrong_effective_min_isr_is_a_difference() -> None:
    row = ROWS[0] | {"effective_min_insync_replicas": ROWS[0]["effective_min_insync_replicas"] + 1}
    assert _differences(row) == ["effective_min_insync_replicas"]


def test_events_about_brokers_that_never_registered_are_answered() -> None:
    """Damaged traces give differences, never an exception."""
    for kind in ("unfence", "fence", "controlled_shutdown", "want_fence"):
        row = json.loads(json.dumps(ROWS[0]))
        row["steps"] = [{"event": {"type": kind, "broker_id": 77}, "result": "NONE", "partition": None}]
        assert _differences(row) == ["steps[0].result"]
