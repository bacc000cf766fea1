"""The Markov answer for a cell of a study, under the names of the study's metrics.

A cell is covered if every parameter that the model knows has a value that it can represent, and every other parameter
its default. Two times of other distributions become exponential times or sums of them, with the same mean
(docs/theory.md). *Detection*: fractions depend on its mean alone, to the first order in D / MTTF. *Exposure*: an
acknowledged record is written back after `writeback` W, and flushed at a time that is uniform over `flush_interval`;
the rates of losses depend on the mean alone, to the first order in W / MTTF. With three replicas or more that have to
be exposed together they depend on the second moment as well, which is that of the exponential for W and not for F.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from experiments.studies.design.impairments import Impairment
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.theory.model import ISR, LOSS, RUNNING, SILENT, UNCLEAN_RECOVERY, ChainState, Model, Rules

PHASES = 2
DETECTED_AFTER = 7 / 8
"""Mean time until the controller notices a crash, in session timeouts."""
MAX_REPLICAS, MAX_REPLICAS_WITH_DETECTION, MAX_REPLICAS_IMPAIRED = 5, 3, 2
SILENCING = {("others", "both"), ("others", "out")}
"""From whom and in which direction a broker is isolated that the controller fences, and that clients reach."""
EXACT_REPLICAS = 3
"""Larger chains of instant detection, and all with detection, leave out what a partly flushed log keeps."""
COVERED = frozenset(
    {"generation", "brokers", "partitions", "replication_factor", "min_insync_replicas", "unclean_recovery_strategy"}
    | {"broker_mttf", "broker_mttr", "unclean_probability", "tail_loss_probability", "detection_ms"}
    | {"writeback_ms", "flush_interval_ms", "delivery_timeout_ms", "isolated", "paused"}
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
    )


def _are_covered(params: CellParameters) -> bool:
    """Whether the model has the impairments of a cell, if it has any: one cause, of single brokers, which silences them
    towards the controller and the other brokers for an exponential time."""
    causes = (*params.isolated, *params.paused)
    return not causes or (
        len(causes) == 1
        and all(cause.of == "broker" and cause.duration.dist == "exponential" for cause in causes)
        and all((cause.peers, cause.direction) in SILENCING for cause in params.isolated)
        and params.detection_ms is not None
        and params.unclean_probability == 1.0
        and params.unclean_recovery_strategy == "balanced"
        and params.replication_factor <= MAX_REPLICAS_IMPAIRED
    )


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
    """A leader that is isolated and alone in the ISR still answers clients: it acknowledges, or refuses at once."""
    leader = state.leader
    if leader is None or (leader.process == SILENT and not leader.pauses and state.in_sync == 1):
        return False
    silent = any(replica.member == ISR and replica.process != RUNNING for replica in state.replicas)
    return silent or leader.process != RUNNING
