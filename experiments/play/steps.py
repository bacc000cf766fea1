"""Steps of scenarios as a page carries them out and keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import yaml

from experiments.play.world import RawStep
from experiments.support.durations import format_duration
from protocol.errors import ErrorCode

EXPECTING = (
    *("produce", "elect", "reassign", "configure", "create_topic", "delete_topic", "unregister"),
    *("add_voter", "remove_voter"),
)
"""The kinds of steps that can expect an error."""


def step_text(raw: RawStep) -> str:
    """A step in one line, as a file has it."""
    [(kind, fields)] = raw.items()
    text = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=10_000)
    return f"{kind}: {text.removesuffix('...' + chr(10)).strip()}"


def with_error(step: RawStep, error: str) -> RawStep:
    """The step that expects an error; the step itself where there is none."""
    [(kind, fields)] = step.items()
    return {kind: {**cast("Mapping[str, object]", fields), "expect_error": error}} if error else step


def first_record(step: RawStep) -> RawStep:
    """A step that produces one record of those of the step."""
    [(kind, fields)] = step.items()
    return {kind: {**cast("Mapping[str, object]", fields), "records": 1}}


def partition_of(step: RawStep) -> tuple[str, int]:
    """The topic and the partition that a step names; an empty topic where it names none."""
    [fields] = step.values()
    named = fields if isinstance(fields, dict) else {}
    return str(named.get("topic", "")), int(named.get("partition", 0))


def reading(step: RawStep) -> RawStep:
    """A scenario's step on the partition that the action `consume` reads, by which its fields are checked."""
    [fields] = step.values()
    return {"expect": {**fields, "visible": 0} if isinstance(fields, dict) else fields}


def foreseen_error(step: RawStep, partition: Mapping[str, object] | None) -> str:
    """The error that a produce request meets at once in this state of its partition, which a client that does not
    expect it would retry for 30 s; empty where none is foreseen.
    """
    [(kind, fields)] = step.items()
    if kind != "produce" or not isinstance(fields, dict) or fields.get("acks", "all") != "all" or partition is None:
        return ""
    min_isr = partition["min_isr"]
    below = isinstance(min_isr, int) and len(cast("list[int]", partition["isr"])) < min_isr
    return ErrorCode.NOT_ENOUGH_REPLICAS.name if below else ""


def joined(done: Iterable[tuple[RawStep, int]]) -> Iterator[dict[str, object]]:
    """Steps, each with its length if it is a wait, else 0, as a file has them: waits that follow each other are one."""
    waited = 0
    for raw, wait_ms in done:
        if wait_ms:
            waited += wait_ms
            continue
        if waited:
            yield {"wait": format_duration(waited)}
        waited = 0
        yield dict(raw)
    if waited:
        yield {"wait": format_duration(waited)}
