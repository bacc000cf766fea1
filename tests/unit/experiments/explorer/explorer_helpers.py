"""Small runs made by hand for the tests of the explorer."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

from experiments.explorer.run import Run, RunEvent, StoryRow
from protocol.events.controller import PartitionChanged


def state(time_ms: int, leader: int, isr: list[int], partition: str = "t-0", epoch: int = 0) -> RunEvent:
    """The controller commits a state of a partition."""
    fields = {
        "leader": leader,
        "leader_epoch": epoch,
        "partition_epoch": time_ms,
        "replicas": [0, 1, 2],
        "isr": isr,
        "elr": [],
        "last_known_elr": [],
        "last_known_leader": -1,
        "recovering": False,
        "min_isr": 1,
    }
    return RunEvent(time_ms, 1000, "trace", PartitionChanged.kind, (partition,), fields, text=f"leader {leader}")


def run_of(*events: RunEvent, title: str = "a run") -> Run:
    """A run of these events on the nodes that they name."""
    nodes = sorted({event.node for event in events})
    story = [StoryRow(index, event.time_ms, event.node, event.text) for index, event in enumerate(events) if event.text]
    return Run(title, [("seed", "0")], nodes, events, story=story)


def data_of(page: str) -> Any:
    """The document that a page carries."""
    found = re.search(r'<script type="application/octet-stream" id="run-data">([^<]*)</script>', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
