"""Cluster traces: another answer, or another state of any partition, never passes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.conformance.cluster_traces import ClusterTraceRow, differences
from protocol.kafka_release import NEWEST

TRACES = Path(__file__).parents[3] / "data" / "cluster_traces_kafka_4.4.0.jsonl.gz"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(TRACES.read_bytes()).splitlines()[1:]]


def _differences(row: dict[str, Any]) -> list[str]:
    trace = ClusterTraceRow.model_validate_json(json.dumps(row))
    return [difference.field for difference in differences(trace, NEWEST)]


PASSING = [row for row in ROWS if not _differences(row)]


def test_rows_have_every_kind_of_event() -> None:
    kinds = {step["event"]["type"] for row in ROWS for step in row["steps"]}
    assert kinds == {
        *("register_broker", "unfence", "want_fence", "controlled_shutdown", "fence", "unregister_broker"),
        *("create_topic", "delete_topic", "create_partitions", "alter_config", "update_feature"),
        *("alter_partition", "alter_partition_reassignments", "elect_leaders"),
    }


@pytest.mark.parametrize("seed", range(20))
def test_another_result_or_state_in_one_step_fails_the_trace(seed: int) -> None:
    random = Random(seed)
    row = json.loads(json.dumps(random.choice(PASSING)))
    index = random.choice([i for i, step in enumerate(row["steps"]) if any(step["partitions"].values())])
    step = row["steps"][index]
    name = random.choice([name for name, state in step["partitions"].items() if state])
    if random.random() < 0.3:
        step["result"] = "REQUEST_TIMED_OUT"
        assert _differences(row) == [f"steps[{index}].result"]
    else:
        step["partitions"][name]["partition_epoch"] += 1
        assert _differences(row) == [f"steps[{index}].partitions.{name}.partition_epoch"]


def test_a_partition_that_is_not_there_or_that_no_step_names_is_a_difference() -> None:
    row = json.loads(json.dumps(PASSING[0]))
    index = next(i for i, step in enumerate(row["steps"]) if step["partitions"])
    named = row["steps"][index]["partitions"]
    (name, state), *_ = named.items()
    named["z-0"] = state
    assert _differences(row) == [f"steps[{index}].partitions.z-0"]
    del named["z-0"], named[name]
    assert _differences(row) == [f"steps[{index}].partitions.{name}"]
