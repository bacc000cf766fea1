"""A reassignment in JSON as `kafka-reassign-partitions.sh` takes and prints it: the replicas of partitions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from experiments.support.errors import InputError
from experiments.support.fields import JsonShape
from protocol.config import INT_MAX
from protocol.ids import TopicPartition

ANY_LOG_DIR = "any"
Int32 = Annotated[int, Field(ge=0, le=INT_MAX)]
Assignment = dict[TopicPartition, tuple[int, ...]]


class MovedPartition(JsonShape):
    """One partition with its replicas, the preferred leader first."""

    topic: Annotated[str, Field(min_length=1)]
    partition: Int32
    replicas: Annotated[list[Int32], Field(min_length=1)]
    log_dirs: list[str] | None = None


class Reassignment(JsonShape):
    """The whole file."""

    version: Literal[1] = 1
    partitions: Annotated[list[MovedPartition], Field(min_length=1)]


def assignment_of(reassignment: Reassignment, source: str) -> Assignment:
    """The replicas of each partition. InputError, with `source` and the place in it, for a partition that is named
    twice, a broker that holds it twice, and another number of log directories than replicas."""
    found: Assignment = {}
    for number, item in enumerate(reassignment.partitions):
        place, key = f"partitions[{number}]", TopicPartition(item.topic, item.partition)
        if len(set(item.replicas)) != len(item.replicas):
            raise InputError(source, f"{place}.replicas", item.replicas, "each broker once")
        if item.log_dirs is not None and len(item.log_dirs) != len(item.replicas):
            raise InputError(source, f"{place}.log_dirs", item.log_dirs, f'"{ANY_LOG_DIR}" for each replica')
        if key in found:
            raise InputError(source, place, key, "each partition once")
        found[key] = tuple(item.replicas)
    return found
