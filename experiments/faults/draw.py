"""Faults drawn from rates: which kind, when, for how long, and whom it strikes.

What is drawn depends on the dice alone, never on the state of a cluster, so that a timeline is a value. Whom a fault
may strike is in `Targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from experiments.faults.schema import (
    ClockSkew,
    Configure,
    Crash,
    Cut,
    Disturb,
    Fault,
    FullDisk,
    HeartbeatLoss,
    MessageKind,
    Pause,
    PowerLoss,
    Rates,
    Reassign,
    Restart,
    SlowDisk,
    VoterChange,
)
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import NodeId

_LOSSES: Sequence[Literal["nothing", "suffix", "torn", "corrupt", "unflushed", "all"]] = (
    "nothing",
    "suffix",
    "torn",
    "corrupt",
    "unflushed",
    "all",
)
_EFFECTS: Sequence[Literal["lose", "duplicate", "reorder", "delay"]] = ("lose", "duplicate", "reorder", "delay")
_DELAYS_MS = (5, 50, 500, 3_000)
_SHARES = (20, 200, 1_000)
_SKEWS_MS = (-1_500, -50, 50, 1_500, 20_000)
_WRITES_MS = (1, 10, 200)
_ONLY: Sequence[MessageKind | None] = (None, None, "heartbeats", "proposals", "metadata", "fetches", "produce")


@dataclass(frozen=True, slots=True)
class Targets:
    """Whom faults may strike: brokers, controllers, clients, recovery managers, and topics with the number of their
    partitions. Of partitions that are reassigned as many replicas are drawn as `replication_factor`.
    """

    brokers: Sequence[NodeId]
    controllers: Sequence[NodeId]
    clients: Sequence[NodeId]
    topics: Mapping[str, int]
    replication_factor: int
    managers: Sequence[NodeId] = ()


def timeline(rates: Rates, targets: Targets, rng: Random, begin_ms: int, end_ms: int) -> tuple[Fault, ...]:
    """Faults that begin and end between these times, in the order of their beginnings."""
    faults: list[Fault] = []
    kinds = [kind for kind, weight in sorted(rates.weights.items()) if weight]
    at_ms = begin_ms
    while kinds:
        at_ms += 1 + round(rng.expovariate(1 / rates.mean_between_ms))
        kind = rng.choices(kinds, [rates.weights[name] for name in kinds])[0]
        duration_ms = min(rng.choice(rates.durations_ms), end_ms - at_ms)
        if duration_ms < 1:
            break
        faults.append(_DRAWS[kind](at_ms, duration_ms, targets, rng))
    return tuple(faults)


# -- one kind each -----------------------------------------------------------------------------------------------------


def _broker(targets: Targets, rng: Random) -> NodeId:
    return rng.choice(targets.brokers)


def _server(targets: Targets, rng: Random) -> NodeId:
    """Mostly a broker."""
    return rng.choice((*targets.brokers, *targets.controllers, *targets.managers))


def _sides(targets: Targets, rng: Random) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Two disjoint groups of nodes: one broker and one other, or one and all the rest, the controllers and several
    brokers, or any two parts.
    """
    everyone = (*targets.brokers, *targets.controllers, *targets.clients, *targets.managers)
    one = rng.choice(targets.brokers)
    others = tuple(node for node in everyone if node != one)
    form = rng.randrange(5)
    if form == 0:
        return (one,), others
    if form == 1:
        several = rng.sample(list(targets.brokers), rng.randint(1, len(targets.brokers)))
        return tuple(targets.controllers), tuple(sorted(several))
    if form == 2:
        side = tuple(node for node in others if rng.random() < 0.5)
        rest = tuple(node for node in others if node not in side)
        return ((one, *side), rest) if rest else ((one,), others)
    return (one,), (rng.choice(others),)


def _crash(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    node = _server(targets, rng)
    may_lose = node in targets.brokers or (node in targets.controllers and len(targets.controllers) > 1)
    loses = rng.choice(_LOSSES if may_lose else _LOSSES[:1])
    return Crash(at_ms=at_ms, duration_ms=duration_ms, node=node, loses=loses, seed=rng.randrange(1_000))


def _power_loss(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    everyone = (*targets.controllers, *targets.brokers, *targets.managers)
    rack = tuple(sorted(rng.sample(everyone, rng.randint(1, len(everyone)))))
    return PowerLoss(at_ms=at_ms, duration_ms=duration_ms, rack=everyone if rng.random() < 0.15 else rack)


def _cut(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    source, target = _sides(targets, rng)
    if rng.random() < 0.5:
        source, target = target, source
    return Cut(at_ms=at_ms, duration_ms=duration_ms, source=source, target=target, one_way=rng.random() < 0.5)


def _ends(only: MessageKind | None, targets: Targets, rng: Random) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Two groups between which messages of the kind pass."""
    one = (_broker(targets, rng),)
    brokers = tuple(targets.brokers) if rng.random() < 0.3 else one
    if only is None:
        return _sides(targets, rng)
    if only == "fetches":
        return one, tuple(broker for broker in targets.brokers if broker not in one)
    if only == "recoveries":
        return tuple(targets.managers), (*targets.controllers, *brokers)
    return brokers, tuple(targets.clients if only == "produce" else targets.controllers)


def _disturb(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    only = rng.choice((*_ONLY, "recoveries") if targets.managers else _ONLY)
    source, target = _ends(only, targets, rng)
    if rng.random() < 0.5:
        source, target = target, source
    effect, share, delay_ms = rng.choice(_EFFECTS), rng.choice(_SHARES), rng.choice(_DELAYS_MS)
    return Disturb(
        at_ms=at_ms,
        duration_ms=duration_ms,
        source=source,
        target=target,
        effect=effect,
        per_mille=share,
        delay_ms=0 if effect == "lose" else delay_ms,
        only=only,
    )


def _slow_disk(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    node, write_ms = _broker(targets, rng), rng.choice(_WRITES_MS)
    return SlowDisk(at_ms=at_ms, duration_ms=duration_ms, node=node, write_ms=write_ms)


def _clock_skew(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    node, skew_ms = _server(targets, rng), rng.choice(_SKEWS_MS)
    return ClockSkew(at_ms=at_ms, duration_ms=duration_ms, node=node, skew_ms=skew_ms)


def _place(targets: Targets, rng: Random) -> tuple[str, int]:
    topic = rng.choice(sorted(targets.topics))
    return topic, rng.randrange(targets.topics[topic])


def _reassign(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    topic, partition = _place(targets, rng)
    replicas = tuple(rng.sample(list(targets.brokers), targets.replication_factor))
    return Reassign(at_ms=at_ms, duration_ms=duration_ms, topic=topic, partition=partition, replicas=replicas)


def _configure(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    topic, _ = _place(targets, rng)
    config: dict[str, int | bool | str] = {MIN_INSYNC_REPLICAS: rng.randint(1, targets.replication_factor)}
    return Configure(at_ms=at_ms, duration_ms=duration_ms, topic=topic, config=config)


def _voter_change(at_ms: int, duration_ms: int, targets: Targets, rng: Random) -> Fault:
    return VoterChange(at_ms=at_ms, duration_ms=duration_ms, node=rng.choice(targets.controllers))


def _of_broker(model: type[Restart | HeartbeatLoss | FullDisk]) -> _Draw:
    return lambda at_ms, duration_ms, targets, rng: model(
        at_ms=at_ms, duration_ms=duration_ms, node=_broker(targets, rng)
    )


_Draw = Callable[[int, int, Targets, Random], Fault]
_DRAWS: dict[str, _Draw] = {
    "crash": _crash,
    "power_loss": _power_loss,
    "pause": lambda at_ms, duration_ms, targets, rng: Pause(
        at_ms=at_ms, duration_ms=duration_ms, node=_server(targets, rng)
    ),
    "restart": _of_broker(Restart),
    "cut": _cut,
    "disturb": _disturb,
    "heartbeat_loss": _of_broker(HeartbeatLoss),
    "slow_disk": _slow_disk,
    "full_disk": _of_broker(FullDisk),
    "clock_skew": _clock_skew,
    "reassign": _reassign,
    "configure": _configure,
    "voter_change": _voter_change,
}
