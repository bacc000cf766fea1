"""Procedures: the controller's work as generators that read as the pseudo-code of the V3 design.

A procedure yields a step, and is sent its result when the step has been carried out. `runner.py` runs procedures one at
a time, which is S1's controller lock. A procedure that ends early, because its broker crashes or is deposed, leaves the
store as its last write did: every procedure is written so that the failover of the next controller completes what it
had begun.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from protocol.ids import BrokerId
from protocol.messages.store import ANY_VERSION, Check, OperationResult, ReadOperation, StoreError, WriteOperation
from protocol.messages.v3 import LeaderAndIsrPartition, StopReplicaPartition
from protocol.v3.store import paths
from protocol.values import direct

T = TypeVar("T")


@direct
class Event(StrEnum):
    """The procedures that watches and timers start, by name."""

    FAILOVER = "failover"
    BROKER_CHANGE = "broker-change"
    TOPIC_CHANGE = "topic-change"
    REASSIGNED = "partitions-reassigned"
    WAKE_UP = "reassignment-agent"
    ADDED = "partitions-add"
    REMOVED = "partitions-remove"
    ISR_CHANGE = "isr-change"
    REBALANCE = "leader-rebalance"


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads, independent of each other; the result has one OperationResult per operation."""

    operations: tuple[ReadOperation, ...]


Unit = tuple[WriteOperation, ...]


@dataclass(frozen=True, slots=True)
class Writes:
    """Units that may be carried out in any order, and several in one transaction; the operations of one take effect
    together or not at all. `is_fenced`: none takes effect once there is another controller. The result has per unit the
    results of its operations, which end with an error if the unit has failed.
    """

    units: tuple[Unit, ...]
    is_fenced: bool = True


@dataclass(frozen=True, slots=True)
class BrokerCommand:
    """What one broker is to do. Either part may be empty; `is_init` belongs to the first part."""

    broker: BrokerId
    leader_and_isr: tuple[LeaderAndIsrPartition, ...] = ()
    stop_replica: tuple[StopReplicaPartition, ...] = ()
    is_init: bool = False


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to live brokers: at most one request of each kind per broker (A17). Responses are not awaited."""

    commands: tuple[BrokerCommand, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait under the controller's lock."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Later:
    """The procedure of an event after a while."""

    event: Event
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Alert:
    """One line for an operator."""

    text: str


Step = Reads | Writes | Commands | Pause | Later | Alert
Procedure = Generator[Step, Any, T]


def read(operations: Iterable[ReadOperation]) -> Procedure[tuple[OperationResult, ...]]:
    """Carries out reads; no step if there are none."""
    wanted = tuple(operations)
    return (yield Reads(wanted)) if wanted else ()


def write(units: Iterable[Unit], *, is_fenced: bool = True) -> Procedure[list[tuple[OperationResult, ...]]]:
    """Carries out units; no step if there are none."""
    wanted = tuple(units)
    return (yield Writes(wanted, is_fenced)) if wanted else []


def same_topic(name: str, topic_id: str) -> Check:
    """Fails with NO_NODE if the topic has been deleted, also if there is a later one of its name."""
    return Check(path=paths.incarnation(name, topic_id), version=ANY_VERSION)


def is_topic_gone(results: tuple[OperationResult, ...]) -> bool:
    """Whether a unit that begins with `same_topic` has failed there."""
    return len(results) == 1 and error_of(results) is StoreError.NO_NODE


def error_of(results: tuple[OperationResult, ...]) -> StoreError:
    """Why a unit has failed, or NONE."""
    return results[-1].error
