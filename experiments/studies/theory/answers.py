"""The Markov answer for a cell of a study, under the names of the study's metrics.

A cell is covered if every parameter that the model knows has a value that it can represent, and every other parameter
its default. Two times of other distributions become exponential times or sums of them, with the same mean
(docs/theory.md). *Detection*: fractions depend on its mean alone, to the first order in D / MTTF. *Exposure*: an
acknowledged record is written back after `writeback` W, and flushed at a time that is uniform over `flush_interval`;
the rates of losses depend on the mean alone, to the first order in W / MTTF. With three replicas or more that have to
be exposed together they depend on the second moment as well, which is that of the exponential for W and not for F.
*Lag*: the leader removes a follower that has not fetched for `replica.lag.time.max.ms`, 30 s, when it looks next, every
15 s: after 37.5 s on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

from experiments.studies.design.impairments import Impairment
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import rack_sizes
from experiments.studies.theory.model import Model, Shared
from experiments.studies.theory.partition import ISR, LOSS, RUNNING, SILENT, UNCLEAN_RECOVERY, ChainState, Rules

PHASES = 2
DETECTED_AFTER = 7 / 8
"""Mean time until the controller notices a crash, in session timeouts."""
LAGS_MS = 37_500.0
"""Mean time after which a follower that does not fetch leaves the ISR."""
MAX_REPLICAS, MAX_REPLICAS_WITH_DETECTION, MAX_REPLICAS_SHARED, MAX_REPLICAS_IMPAIRED = 5, 3, 3, 2
SILENCING = {("others", "both"), ("others", "out")}
"""From whom and in which direction a broker is isolated that the controller fences, and that clients reach."""
EXACT_REPLICAS = 3
"""Larger chains of instant detection, and all with detection, leave out what a partly flushed log keeps."""
COVERED = frozenset(
    {"generation", "brokers", "partitions", "replication_factor", "min_insync_replicas", "unclean_recovery_strategy"}
    | {"broker_mttf", "broker_mttr", "unclean_probability", "tail_loss_probability", "detection_ms"}
    | {"writeback_ms", "flush_interval_ms", "delivery_timeout_ms", "isolated", "paused", "slow_disk"}
    | {"power_events_per_year", "power_loss_probability", "power_mttr", "burst"}
    | {"duration_ms", "network_latency_ms", "start", "estimator"}
)
"""The fields of CellParameters that the model represents, or that do not change its answers."""


def model_of(params: CellParameters) -> Model | None:
    """The model of a cell, with rates per year; None for a cell that the model does not cover (docs/theory.md), also
    for generation `v3`, and for `proactive` before `kip-966`, which is unclean leader election."""
    untouched = {name: getattr(params, name) for name in COVERED}
    mttf, mttr, strategy = params.broker_mttf, params.broker_mttr, params.unclean_recovery_strategy
    if (
        mttf is None
        or not mttf.dist == mttr.dist == "exponential"
        or params.generation == "v3"
        or (params.generation != "kip-966" and strategy != "balanced")
        or (strategy == "manual" and params.unclean_probability > 0.0)
        or (params.flush_interval_ms is not None and params.min_insync_replicas > 2)
        or not _are_covered(params)
        or not _are_shared_covered(params)
        or params != CellParameters.model_validate(untouched)
    ):
        return None
    rules = Rules(
        generation=params.generation,
        strategy=strategy,
        min_isr=min(params.min_insync_replicas, params.replication_factor),
        phases=0 if params.detection_ms is None else PHASES,
        loses=params.unclean_probability * params.tail_loss_probability > 0.0,
        partly=params.detection_ms is None and params.replication_factor <= EXACT_REPLICAS,
    )
    if params.replication_factor > (MAX_REPLICAS_WITH_DETECTION if rules.phases else MAX_REPLICAS):
        return None
    isolations, reconnect = _impairment_rates(params.isolated)
    pauses, resume = _impairment_rates(params.paused)
    slow, speed_up = _impairment_rates(params.slow_disk)
    return Model(
        rules,
        replicas=params.replication_factor,
        fail=YEAR_MS / mttf.mean_ms,
        repair=YEAR_MS / mttr.mean_ms,
        unclean=params.unclean_probability,
        lossy=params.tail_loss_probability,
        notice=0.0 if params.detection_ms is None else PHASES * YEAR_MS / (DETECTED_AFTER * params.detection_ms),
        write_back=YEAR_MS / mean_exposure_ms(params),
        isolations=isolations,
        reconnect=reconnect,
        pauses=pauses,
        resume=resume,
        slow=slow,
        speed_up=speed_up,
        lag=PHASES * YEAR_MS / LAGS_MS,
        shared=tuple(_shared(params)),
    )


def _are_covered(params: CellParameters) -> bool:
    """Whether the model has the impairments of a cell, if it has any: one cause, of single brokers, for an exponential
    time, which silences them towards the controller and the other brokers, or stalls their disks."""
    causes = params.impairments
    return not causes or (
        len(causes) == 1
        and all(cause.of == "broker" and cause.duration.dist == "exponential" for cause in causes)
        and all((cause.peers, cause.direction) in SILENCING for cause in params.isolated)
        and params.detection_ms is not None
        and params.unclean_probability == 1.0
        and params.unclean_recovery_strategy == "balanced"
        and params.replication_factor <= MAX_REPLICAS_IMPAIRED
    )


def _are_shared_covered(params: CellParameters) -> bool:
    """Whether the model has the shared failures of a cell, if it has any: power events of the cluster, and bursts in
    one moment, whose brokers have repairs of their own, or are back with the power."""
    power = params.power_mttr
    return not (params.power_events_per_year or params.burst) or (
        params.unclean_probability == 1.0
        and params.replication_factor <= MAX_REPLICAS_SHARED
        and not params.impairments
        and (power is None or (power.dist == "exponential" and params.detection_ms is None))
        and all(not (each.window_ms or each.same_rack or each.down) for each in params.burst)
        and (not params.burst or power is None)
    )


def _shared(params: CellParameters) -> Iterator[Shared]:
    """The shared failures of a cell. A burst that strikes k of n brokers, drawn at random, strikes i of the r that have
    a replica with probability C(r, i) C(n - r, k - i) / C(n, k); one that strikes each with probability p, with that of
    the binomial distribution."""
    brokers, replicas = params.brokers, params.replication_factor
    if params.power_events_per_year:
        restore = 0.0 if params.power_mttr is None else YEAR_MS / params.power_mttr.mean_ms
        yield Shared(params.power_events_per_year, replicas, params.tail_lost_with_power, restore)
    for burst in params.burst:
        for struck in range(1, replicas + 1):
            if burst.size is None:
                each = float(burst.fraction or 0.0)
                chance = comb(replicas, struck) * each**struck * (1.0 - each) ** (replicas - struck)
            else:
                others = comb(brokers - replicas, burst.size - struck) if burst.size >= struck else 0
                chance = comb(replicas, struck) * others / comb(brokers, burst.size)
            rate = burst.events_per_year(rack_sizes(params)) * chance
            if rate > 0.0:
                yield Shared(rate, struck, params.tail_loss_probability)


def _impairment_rates(causes: Sequence[Impairment]) -> tuple[float, float]:
    """How often per year the only cause begins, and how soon each of its impairments ends; zeros without one."""
    return (causes[0].per_year, YEAR_MS / causes[0].duration.mean_ms) if causes else (0.0, 0.0)


def mean_exposure_ms(params: CellParameters) -> float:
    """The mean time until the last acknowledged record is flushed or written back, in ms; infinite if neither is."""
    written_ms = math.inf if params.writeback_ms is None else float(params.writeback_ms)
    flush_ms = params.flush_interval_ms
    if flush_ms is None:
        return written_ms
    within_ms = min(flush_ms, written_ms)
    return within_ms - within_ms * within_ms / (2.0 * flush_ms)


def answer(params: CellParameters) -> Mapping[str, float] | None:
    """The long-run value of each metric that the model has, by the metric's name; None for a cell not covered.

    Rates are per partition-year, fractions are shares of time, accurate to about 1e-13 of themselves. With instant
    detection there is no `stall_fraction`: it consists of what the model leaves out, the times that messages take.
    """
    model = model_of(params)
    return None if model is None else {name: found.value for name, found in solved(model).items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """The long-run `value` of a metric, and its `events` (of a share of time: beginnings) per unit of time."""

    value: float
    events: float


@lru_cache(maxsize=256)
def solved(model: Model) -> Mapping[str, Answer]:
    """The metrics by name, in the model's unit of time."""
    chain = model.chain()
    probabilities = chain.stationary()
    conditions: dict[str, Callable[[ChainState], bool]] = {
        "offline_fraction": lambda state: state.leader is None,
        "reject_fraction": lambda state: state.in_sync < model.rules.min_isr,
    }
    if model.rules.phases:
        conditions["stall_fraction"] = _is_stalled
    answers = {name: Answer(*chain.share(holds, probabilities)) for name, holds in conditions.items()}
    for name, event in (("loss_rate", LOSS), ("unclean_recoveries_per_year", UNCLEAN_RECOVERY)):
        rate = chain.event_rate(event, probabilities)
        answers[name] = Answer(rate, rate)
    return answers


def _is_stalled(state: ChainState) -> bool:
    """A leader that is isolated and alone in the ISR still answers clients: it acknowledges, or refuses at once. One
    with a slow disk does not."""
    leader = state.leader
    if leader is None or (leader.process == SILENT and not leader.pauses and state.in_sync == 1):
        return False
    awaited = [leader, *(replica for replica in state.replicas if replica.member == ISR)]
    return any(replica.process != RUNNING or replica.slow for replica in awaited)
