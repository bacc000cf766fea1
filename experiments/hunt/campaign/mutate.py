"""Mutations of a plan: a plan that reached something new is changed a little, since what lies beyond is often near.

A mutation changes faults and their times, the load, or one config; the cluster and its topics stay. The result is a
plan like any other: faults that lose data stay within the tolerance, which is decided while it runs (`Controls`). Which
mutations are made depends on the random source alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from experiments.faults.kinds import AnyFault
from experiments.hunt.fuzz.plan import Plan, dangling_references
from experiments.hunt.fuzz.run import BEGIN_MS
from experiments.hunt.fuzz.swarm import draw
from protocol.config import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    CONTROLLER_QUORUM_VOTERS,
    SUPER_USERS,
)
from protocol.features import Generation

MOST_MUTATIONS = 4
MOST_FAULTS = 400
_RUN = 6
"""The largest number of successive faults that are moved, repeated or taken over at once."""
_SHIFTS_MS = (3, 30, 300, 1_000, 3_000)
_DURATIONS = (0.1, 0.5, 2.0, 4.0)
_JITTER = 0.25
"""How often a mutation of configs changes the network's jitter instead."""
_DEPENDENT = frozenset(
    {BROKER_SESSION_TIMEOUT_MS, BROKER_HEARTBEAT_INTERVAL_MS, CONTROLLER_QUORUM_VOTERS}
    | {AUTHORIZER_CLASS_NAME, ALLOW_EVERYONE_IF_NO_ACL_FOUND, SUPER_USERS}
)
"""Configs that make sense only together with others, or with the controllers there are."""

Faults = tuple[AnyFault, ...]


@dataclass(frozen=True, slots=True)
class _Material:
    """What a mutation may use: `other` is another kept plan, or the plan itself; `fresh` one drawn from the seed."""

    rng: Random
    other: Plan
    fresh: Plan

    def run_of(self, faults: Faults) -> tuple[int, int]:
        """Where some successive faults begin and end."""
        if not faults:
            return 0, 0
        begin = self.rng.randrange(len(faults))
        return begin, min(len(faults), begin + self.rng.randint(1, _RUN))

    def elsewhere(self, faults: Faults, plan: Plan) -> Faults:
        """Some successive faults at another time of the plan, with the same times between them."""
        begin, end = self.run_of(faults)
        if not faults:
            return ()
        chosen = faults[begin:end]
        shift_ms = self.rng.randint(BEGIN_MS, max(BEGIN_MS, plan.end_ms)) - min(fault.at_ms for fault in chosen)
        return tuple(_at(fault, fault.at_ms + shift_ms) for fault in chosen)


def mutated_plan(seed: int, plan: Plan, other: Plan) -> Plan:
    """The plan of `seed` as a mutation of `plan`, with parts of `other`; both are kept plans."""
    rng = Random(f"{seed}/mutation")
    material = _Material(rng, other, draw(seed, Generation(plan.generation)))
    found = plan.model_copy(update={"seed": seed})
    for _ in range(rng.randint(1, MOST_MUTATIONS)):
        found = rng.choice(_MUTATIONS)(found, material)
    return found


def _leave_out(plan: Plan, material: _Material) -> Plan:
    begin, end = material.run_of(plan.faults)
    return _with_faults(plan, plan.faults[:begin] + plan.faults[end:])


def _move(plan: Plan, material: _Material) -> Plan:
    """Some faults come earlier or later, with the same times between them."""
    begin, end = material.run_of(plan.faults)
    shift_ms = material.rng.choice((-1, 1)) * round(material.rng.choice(_SHIFTS_MS) * (0.5 + material.rng.random()))
    moved = tuple(_at(fault, fault.at_ms + shift_ms) for fault in plan.faults[begin:end])
    return _with_faults(plan, plan.faults[:begin] + moved + plan.faults[end:])


def _repeat(plan: Plan, material: _Material) -> Plan:
    return _with_faults(plan, plan.faults + material.elsewhere(plan.faults, plan))


def _stretch(plan: Plan, material: _Material) -> Plan:
    if not plan.faults:
        return plan
    index, factor = material.rng.randrange(len(plan.faults)), material.rng.choice(_DURATIONS)
    fault = plan.faults[index]
    longer = fault.model_copy(update={"duration_ms": max(1, round(fault.duration_ms * factor))})
    return _with_faults(plan, (*plan.faults[:index], longer, *plan.faults[index + 1 :]))


def _take_over(plan: Plan, material: _Material) -> Plan:
    """Some faults of the other plan, where they fit, and both have controllers of their own or a store."""
    if (material.other.store is None) is not (plan.store is None):
        return plan
    return _if_complete(_with_faults(plan, plan.faults + material.elsewhere(material.other.faults, plan)), plan)


def _reload(plan: Plan, material: _Material) -> Plan:
    return _if_complete(plan.model_copy(update={"operations": material.fresh.operations}), plan)


def _configure(plan: Plan, material: _Material) -> Plan:
    """Another value of one config of the cluster, or another jitter of the network."""
    if material.rng.random() < _JITTER:
        return plan.model_copy(update={"jitter_ms": material.fresh.jitter_ms})
    drawn = material.fresh.config
    name = material.rng.choice([name for name in sorted(plan.config) if name in drawn and name not in _DEPENDENT])
    return plan.model_copy(update={"config": plan.config | {name: drawn[name]}})


_MUTATIONS: Sequence[Callable[[Plan, _Material], Plan]] = (
    *(_leave_out, _move, _move, _repeat, _stretch),
    *(_take_over, _take_over, _reload, _configure),
)


def _if_complete(changed: Plan, plan: Plan) -> Plan:
    """The changed plan if the cluster has all nodes and partitions that it names, else the plan."""
    return plan if any(dangling_references(changed)) else changed


def _at(fault: AnyFault, at_ms: int) -> AnyFault:
    return fault.model_copy(update={"at_ms": max(BEGIN_MS, at_ms)})


def _with_faults(plan: Plan, faults: Faults) -> Plan:
    return plan if len(faults) > MOST_FAULTS else plan.model_copy(update={"faults": faults})
