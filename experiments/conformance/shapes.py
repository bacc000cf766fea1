"""The common parts of both kinds of recorded vectors: a partition's state, and the comparison of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from experiments.support.fields import StrictModel
from protocol.metadata.partition import PartitionState

UNORDERED = frozenset({"elr", "last_known_elr"})

Broker = Annotated[int, Field(ge=0)]
Brokers = tuple[Broker, ...]
BrokersOrNone = tuple[Annotated[int, Field(ge=-1)], ...]
"""Kafka's first phase may record "no leader" (-1) as the last known leader."""
Replicas = Annotated[Brokers, Field(min_length=1)]
RecoveryName = Literal["RECOVERED", "RECOVERING"]


class PartitionShape(StrictModel):
    """The state of a partition in a vector."""

    replicas: Replicas
    isr: Brokers
    elr: Brokers
    last_known_elr: BrokersOrNone
    adding_replicas: Brokers
    removing_replicas: Brokers
    leader: Annotated[int, Field(ge=-1)]
    leader_recovery_state: RecoveryName
    leader_epoch: Annotated[int, Field(ge=0)]
    partition_epoch: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field (dotted path) in which the answer differs from the recorded one."""

    field: str
    expected: object
    found: object


def state_fields(state: PartitionState) -> dict[str, object]:
    fields = {name: getattr(state, name) for name in PartitionShape.model_fields}
    return fields | {"leader_recovery_state": state.leader_recovery_state.name}


def compare(what: str, recorded: StrictModel | None, found: Mapping[str, object] | None) -> list[Difference]:
    """All fields in which two answers differ; `what` is put before their names."""
    return compare_fields(what, None if recorded is None else recorded.model_dump(), found)


def compare_fields(
    what: str, expected: Mapping[str, object] | None, found: Mapping[str, object] | None
) -> list[Difference]:
    """As `compare`, of the fields themselves."""
    if expected is None or found is None:
        return [] if expected is found else [Difference(what, expected, found)]
    return [
        Difference(f"{what}.{name}", value, found[name])
        for name, value in expected.items()
        if _comparable(name, value) != _comparable(name, found[name])
    ]


def _comparable(name: str, value: object) -> object:
    return sorted(value) if name in UNORDERED and isinstance(value, list | tuple) else value
