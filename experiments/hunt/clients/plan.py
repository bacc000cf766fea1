"""A plan: the workload of aiokafka and the faults of one run, drawn from its seed; and the file of a finding.

Each seed draws which producer (idempotent or not), which readers (one that has all partitions assigned, or a group) and
which kinds of faults it has: what one of them hides shows where it is missing. Faults hit the links of the
application's host, too. All of them are within the tolerance of the partitions, so that nothing that a leader has
acknowledged is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import yaml
from pydantic import Field

from experiments.faults.draw import Rates, timeline
from experiments.faults.kinds import AnyFault
from experiments.faults.targets import Targets
from experiments.support.fields import AsTuple, Index, Milliseconds, StrictModel
from experiments.support.yaml_input import read_yaml_mapping, validated
from protocol.ids import FIRST_APPLICATION, FIRST_CONTROLLER

TOPIC = "t"
BROKERS = 3
BEGIN_MS, END_MS = 1_000, 16_000
SENDING_MS = 12_000
WEIGHTS = {"crash": 3, "restart": 1, "pause": 2, "cut": 4, "disturb": 2, "slow_disk": 1, "flapping_link": 1}
Count = Annotated[int, Field(ge=1)]


class ClientPlan(StrictModel):
    """What a run depends on. A producer sends `records` to each of the `partitions`, one every `every_ms`; they are
    read by one consumer with all partitions (`members` 0), or by a group of `members`, which commit each record, or
    periodically (`auto_commit`); the last member is replaced at `restart_ms` unless that is 0. The other fields are
    aiokafka's options.
    """

    seed: Index
    controllers: Literal[1, 3] = 1
    partitions: Count = 1
    records: Count = 1
    every_ms: Milliseconds = 250
    idempotent: bool = True
    linger_ms: Index = 0
    request_timeout_ms: Milliseconds = 3_000
    members: Index = 0
    auto_commit: bool = False
    restart_ms: Index = 0
    faults: Annotated[tuple[AnyFault, ...], AsTuple] = ()

    @property
    def end_ms(self) -> int:
        """When the last record has been sent for the first time and the last fault is over, since the start."""
        return max(self.records * self.every_ms, *(fault.end_ms for fault in self.faults), 0)


class ClientFinding(StrictModel):
    """What a run has shown: the `kind` (`findings.py`), what makes two findings of a kind different (an exception's
    type; often empty), and the `detail`, one line.
    """

    kind: str
    what: str = ""
    detail: str = ""

    @property
    def name(self) -> str:
        """The class of the finding."""
        return f"{self.kind}: {self.what}" if self.what else self.kind


class FindingFile(StrictModel):
    """A finding with the smallest plan that has it, and the trace hash of its run. `seeds`: how many seeds had it."""

    format: Literal["isray-client-finding"] = "isray-client-finding"
    finding: ClientFinding
    seeds: Index = 1
    trace_hash: str
    plan: ClientPlan


def draw(seed: int) -> ClientPlan:
    """The plan of a seed."""
    rng = Random(f"{seed}/clients")
    controllers: Literal[1, 3] = rng.choice((1, 1, 3))
    partitions = rng.choice((1, 1, 2))
    kinds = [kind for kind in sorted(WEIGHTS) if rng.random() < 0.6] or ["crash"]
    rates = Rates(
        mean_between_ms=rng.choice((2_000, 4_000, 8_000)),
        durations_ms=(300, 2_000, 8_000),
        weights={kind: WEIGHTS[kind] for kind in kinds},
    )
    nodes = range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers)
    targets = Targets(range(BROKERS), nodes, (FIRST_APPLICATION,), {TOPIC: partitions}, BROKERS)
    every_ms = rng.choice((200, 500))
    return ClientPlan(
        seed=seed,
        controllers=controllers,
        partitions=partitions,
        records=SENDING_MS // every_ms,
        every_ms=every_ms,
        idempotent=rng.random() < 0.6,
        linger_ms=rng.choice((0, 0, 20, 200)),
        request_timeout_ms=rng.choice((1_000, 3_000, 10_000)),
        members=rng.choice((0, 0, 1, 2, 3)),
        auto_commit=rng.random() < 0.5,
        restart_ms=rng.choice((0, 0, 5_000, 9_000)),
        faults=timeline(rates, targets, rng, BEGIN_MS, END_MS),
    )


def save(file: FindingFile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = file.model_dump(mode="json")
    path.write_text(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=118), encoding="utf-8")


def load(path: Path) -> FindingFile:
    """Reads a file of `isray clients`; InputError for another one."""
    return validated(FindingFile, read_yaml_mapping(path, "a finding of isray clients"), str(path))


def smaller(plan: ClientPlan) -> Sequence[ClientPlan]:
    """Plans that differ from this one in one thing and are simpler, beside those with fewer faults."""
    changes: list[dict[str, object]] = [
        {"records": plan.records // 2},
        {"records": plan.records - 1},
        {"partitions": 1},
        {"members": 0},
        {"members": 1},
        {"controllers": 1},
        {"linger_ms": 0},
        {"auto_commit": False},
        {"restart_ms": 0},
    ]
    simple = [plan.model_copy(update=change) for change in changes]
    return [it for it in simple if it != plan and it.records > 0 and it.members <= plan.members]
