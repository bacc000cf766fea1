"""How often the 95 % intervals of each estimator hold a loss rate that is known: by the Markov chain in a cell of
frequent failures, which all estimators can measure, and by hand for each failure model, where losses are too rare for
plain trials and for splitting. Multi-fidelity estimation has plain trials in the former, importance sampling in the
latter. `auto` has plain trials in the former, with as many controls as its pilot finds. The chain also gives the share
of time in which acks=all is refused; splitting is made for losses alone. In trials of a few days of the same cell
losses are rare, so that multi-fidelity estimation draws them by their controls (`trials/multifidelity.py`).

A *study* of a cell is `TRIALS` trials (more if they are drawn) with their interval; other seeds give other studies.
Intervals are right if 95 % of many studies hold the value, up to chance: of 200 studies 180 or more do in 999 of 1,000
cases. An estimator that misses a way to a loss has narrow intervals that hold it in few studies or in none.

Loss rates by hand are of the first order in the share of time for which a replica is absent, and cover what the Markov
chain (`model.py`) does not: shared causes, and the time for which a replica starts and
catches up. A partition has n replicas on brokers of their own, in as many racks, and min ISR 1; the leader is elected
from the ISR, so the last member of the ISR is waited for. Other brokers of the racks do not matter. Writes are
continuous, and crashes are noticed at once.

A *cause* strikes one broker at rate r. It takes the tail of the broker's log with probability q, and the broker is out
of the ISR for a time of mean T: down, starting, catching up. A replica is absent for the share u of time, which is the
sum of r T over all causes. The last member of the ISR loses acknowledged records at the rate

    n u^(n-1) (sum of r q)

An event that strikes all replicas at once, at rate R, loses with probability q: the replica that was fenced last is
waited for. One that strikes two of two replicas adds R T to the share u of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.estimator import choose
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import rack_sizes
from experiments.studies.estimation.controlled import Controls
from experiments.studies.estimation.intervals import assumed_sizes
from experiments.studies.estimation.moments import Estimate
from experiments.studies.estimation.stopping import LeadingTrials
from experiments.studies.failures.sources import kinds_of
from experiments.studies.theory.answers import answer
from experiments.studies.theory.validation import mapping
from experiments.studies.trace.kinds import CONTROLLED, TrialResult
from experiments.studies.trace.metrics import BY_NAME, measure
from experiments.studies.trials.batch import trial_seed
from experiments.studies.trials.estimators import TRIALS as TRIALS_BY_ESTIMATOR
from experiments.support.declared import declared

TRIALS = 8


@dataclass(frozen=True, slots=True)
class _Cells:
    """The content of `coverage.yaml`, which says what the parts are."""

    base: dict[str, object]
    catch_up: dict[str, object]
    models: dict[str, dict[str, object]]
    frequent: dict[str, object]
    frequent_duration: dict[str, str]
    drawn_duration: str
    drawn_trials: int


_CELLS = declared(_Cells, __file__, "coverage.yaml")
MODELS = _CELLS.models
ESTIMATORS = tuple(_CELLS.frequent_duration)
DRAWN = "frequent failures, drawn trials"
_FOR_RARE_LOSSES = ("importance", "multifidelity")


@dataclass(frozen=True, slots=True)
class Coverage:
    """A metric of a cell: the failure model in words, the value that is known, the means of the studies' estimates and
    of their half-widths, and how many of the `studies` hold the known value in their interval."""

    model: str
    catch_up: bool
    metric: str
    known: float
    mean: float
    half_width: float
    covered: int
    studies: int

    @property
    def agrees(self) -> bool:
        """Whether so few studies hold the value by chance in a thousandth of cases at least."""
        return float(bdtr(self.covered, self.studies, 0.95)) >= 0.001


def cells(estimator: str) -> Iterator[tuple[str, bool, CellParameters]]:
    """The cell of frequent failures, for controls also with trials that are drawn; for an estimator of rare losses also
    every failure model, without and with catch-up."""
    yield "frequent failures", False, _cell(_CELLS.frequent, estimator, _CELLS.frequent_duration[estimator])
    if estimator == "multifidelity":
        yield DRAWN, False, _cell(_CELLS.frequent, estimator, _CELLS.drawn_duration)
    for name, fields in MODELS.items() if estimator in _FOR_RARE_LOSSES else ():
        for catch_up in (False, True):
            added = fields | ({"catch_up": _CELLS.catch_up} if catch_up else {})
            yield name, catch_up, _cell(added, estimator, "1d")


def _cell(added: dict[str, object], estimator: str, duration: str) -> CellParameters:
    base = _CELLS.base | added | {"estimator": estimator}
    (cell,) = study_from({"name": "coverage", "trials": 1, "duration": duration, "base": base}, "coverage").cells
    return cell.parameters


def coverage(studies: int, jobs: int | None, estimator: str = "importance") -> Iterator[Coverage]:
    """The coverage of every cell in so many studies each, run in `jobs` processes (:func:`mapping`). `estimator`: one
    of `ESTIMATORS`."""
    with mapping(jobs) as run:
        for name, catch_up, params in cells(estimator):
            trials = _CELLS.drawn_trials if name == DRAWN else TRIALS
            found = list(run(_study, [params] * studies, range(studies), [trials] * studies))
            for metric, known in known_values(params).items():
                mine = [each[metric] for each in found]
                covered = sum(each.ci_low <= known <= each.ci_high for each in mine)
                mean = sum(each.estimate for each in mine) / studies
                half_width = sum(each.half_width for each in mine) / studies
                yield Coverage(name, catch_up, metric, known, mean, half_width, covered, studies)


def known_values(params: CellParameters) -> dict[str, float]:
    """The loss rate by the Markov chain, otherwise by hand, and the share of refused time by the chain."""
    markov = answer(params)
    if markov is not None and choose(params).estimator != "splitting":
        return {metric: markov[metric] for metric in ("loss_rate", "reject_fraction")}
    known = loss_rate(params) if markov is None else markov["loss_rate"]
    assert known is not None
    return {"loss_rate": known}


def _study(params: CellParameters, number: int, trials: int) -> dict[str, Estimate]:
    """The values that are known, as one study estimates them."""
    run = TRIALS_BY_ESTIMATOR[choose(params).estimator]
    found = [run(params, trial_seed(number, trial, params)) for trial in range(trials)]
    return {
        metric: leading_trials(params, found, metric).estimate(metric, trials)[0] for metric in known_values(params)
    }


def leading_trials(params: CellParameters, found: Sequence[TrialResult], metric: str) -> LeadingTrials:
    """A metric of trials of a cell, with their controls."""
    column, measures = BY_NAME[metric].column, [measure(each.rows) for each in found]
    return LeadingTrials(
        np.array([each.values[column] for each in measures]),
        np.array([each.exposure for each in measures]),
        np.array([each.events[column] for each in measures], float),
        assumed_sizes(params)[column],
        choose(params).is_weighted,
        _controls(found, column),
    )


def _controls(found: Sequence[TrialResult], column: str) -> Controls | None:
    """The controls of trials, if they have any."""
    place, rows = CONTROLLED.index(column), [each.controls for each in found if each.controls is not None]
    if not rows:
        return None
    columns = [(row.runs, row.exposure, row.exposure_mean, row.values[place], row.means[place]) for row in rows]
    return Controls(*np.array(columns, float).T)


class _Cause(NamedTuple):
    """`rate`: strikes of one broker a year. `absent_ms`: T. `losing`: q. `alone`: whether it strikes one replica."""

    rate: float
    absent_ms: float
    losing: float
    alone: bool = True


def loss_rate(params: CellParameters) -> float | None:
    """Loss events per partition-year; None for a cell that this module does not cover."""
    is_covered = (
        params.generation == "kip-497"
        and params.min_insync_replicas == 1
        and params.replication_factor == params.racks
        and (params.brokers == params.racks or params.placement == "spread")
        and all(each is None for each in (params.detection_ms, params.rolling_restart, params.slow, params.failures))
        and params.reassignments is None
        and not (params.impairments or params.power)
        and all(burst.size == params.brokers == 2 for burst in params.burst)
    )
    if not is_covered:
        return None
    causes = _causes(params)
    n = params.replication_factor
    absent = sum(cause.rate * cause.absent_ms / YEAR_MS for cause in causes)
    single = sum(cause.rate * cause.losing for cause in causes if cause.alone)
    together = sum(cause.rate * cause.losing for cause in causes if not cause.alone)
    return float(n * absent ** (n - 1) * single + together)


def _causes(params: CellParameters) -> list[_Cause]:
    kinds = kinds_of(params)
    lost_disk, losing, power = kinds["disk"], kinds["disk"] + kinds["lossy"], params.tail_lost_with_power
    mttr, mttf = params.broker_mttr, params.broker_mttf
    rows = [
        (0.0 if mttf is None else YEAR_MS / mttf.mean_ms, mttr, lost_disk, losing, True),
        (params.rack_power_events_per_year, params.rack_power_mttr or mttr, 0.0, power, True),
        (params.power_events_per_year, params.power_mttr or mttr, 0.0, power, False),
    ]
    for burst in params.burst:
        rows.append((burst.events_per_year(rack_sizes(params)), burst.down or mttr, lost_disk, losing, False))
    return [_Cause(rate, _absent_ms(params, down, disk), q, alone) for rate, down, disk, q, alone in rows if rate]


def _absent_ms(params: CellParameters, down: Distribution, lost_disk: float) -> float:
    """The mean time out of the ISR: `down`, the start of the process, and the catch-up."""
    away_ms, catch_up = down.mean_ms + params.restart_time_ms, params.catch_up
    if catch_up is None:
        return away_ms
    missing = away_ms * catch_up.write_rate + lost_disk * catch_up.backlog * 1_000.0
    return away_ms + missing / catch_up.rate
