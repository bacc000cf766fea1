"""Which estimator the trials of a cell use (docs/rare-events.md), by the cell's parameters: trials can be added later.

Importance sampling (`failures/biased.py`) needs failures at constant rates, and a cluster that comes back to a state
with all brokers up and in sync, often; splitting (`trials/splitting.py`) needs neither, but gains little where its
steps are too improbable (`LEAST_STEP`). The number of losses that `auto` expects of plain trials is rough: it counts
the ways in which all replicas of a partition are absent at once, with as many lost tails as a loss takes. So does the
number that it expects of importance sampling, by the probabilities of the bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import assignments, burst_domains, rack_sizes
from experiments.studies.design.study import StudyPlan

Estimator = Literal["plain", "importance", "splitting", "multifidelity"]
NAMES = {
    "plain": "plain sampling",
    "importance": "importance sampling",
    "splitting": "splitting",
    "multifidelity": "multi-fidelity estimation",
}
ENOUGH_TRIALS = 1_000
ENOUGH_LOSSES = 10
LEAST_STEP = 0.003
"""The least probability of a failure during a repair for splitting: some of its 40 paths have to see one."""
LEAST_FAILURES = 20
"""Failures of brokers in a trial from which on `auto` takes plain trials and importance sampling with controls, if the
pilot of eight trials finds that they pay (`trials/multifidelity.py`): with importance sampling it then has some 30
losses to measure a correlation by, with plain trials 160 failures and as many times without writes as these bring
about. With fewer the pilot would say nothing, and cost more than short trials are worth."""
FORCED, SHORT, DAMAGED, LOSING_NEXT = 0.8, 0.1, 10.0, 0.6
"""The bias of importance sampling (`failures/biased.py`)."""
LEAST_CYCLES = 25
"""Cycles of a trial of importance sampling at least, about 0.1 s of processor time."""
LEAST_BIASED_LOSSES = 0.1
"""What a trial of importance sampling is expected to see for `auto` to take it: 10 losses in 100 trials. With fewer a
study sees one or none, in either kind of trials, and plain ones with controls give the times in less time."""
OFTEN = 0.1
"""Times without writes that a plain trial is expected to see for `auto` to take it where a study asks for times: with
controls it takes less time then than importance sampling, and by far where clients do not wait for the detection of a
crash (docs/rare-events.md)."""
MOST_ABSENT = 0.5
"""The largest mean number of brokers that are absent for importance sampling: above it the cluster is rarely whole."""


class Choice(NamedTuple):
    """The estimator of a cell, and why. `falls_back`: it is not the one that the study asks for. `in_cycles`: the
    trials are those of importance sampling, in multi-fidelity estimation too."""

    estimator: Estimator
    reason: str
    falls_back: bool = False
    in_cycles: bool = False

    @property
    def is_weighted(self) -> bool:
        """Whether events count with weights."""
        return self.in_cycles or self.estimator in ("splitting", "multifidelity")


def choose(params: CellParameters, scripted: bool = False) -> Choice:
    """The estimator of the cell's trials. `scripted`: functions of a script replace failures or measure trials."""
    is_compressed = params.engine != "sim" or params.time_compression != 1.0
    needs_plain = {
        "functions of a script need plain trials": scripted,
        "recorded failures cannot be drawn again": params.failures is not None,
        "other estimators need the simulator, in uncompressed time": is_compressed,
    }
    for reason, is_needed in needs_plain.items():
        if is_needed:
            return Choice("plain", reason, falls_back=params.estimator not in ("auto", "plain"))
    if params.cluster is not None and params.estimator != "plain":
        is_long = params.estimator == "multifidelity" or failures_per_trial(params) >= LEAST_FAILURES
        return Choice("multifidelity" if is_long else "plain", "a whole cluster has plain trials")
    obstacle = obstacle_to_importance(params)
    if params.estimator == "importance" and obstacle:
        return Choice("splitting", f"importance sampling is impossible, as {obstacle}", falls_back=True)
    if params.estimator != "auto" and params.estimator != "multifidelity":
        return Choice(params.estimator, "as the study asks", in_cycles=params.estimator == "importance")
    found = _by_expectation(params, obstacle)
    is_long = found.estimator != "splitting" and failures_per_trial(params) >= LEAST_FAILURES
    if found.falls_back and is_long and params.estimator == "auto":
        return found._replace(estimator="multifidelity")
    if params.estimator == "multifidelity" or is_long:
        trials = f"with {NAMES['importance' if found.in_cycles else 'plain']} of the trials, as {found.reason}"
        return Choice("multifidelity", trials, in_cycles=found.in_cycles)
    return found


def _by_expectation(params: CellParameters, obstacle: str) -> Choice:
    """The estimator by how many losses plain trials are expected to see, or times without writes."""
    if params.estimate == "times" and (times := rough_times(params)) >= OFTEN:
        return Choice("plain", f"about {times:.1g} times without writes are expected in a trial")
    rate = rough_loss_rate(params)
    expected = rate * params.partition_years * ENOUGH_TRIALS
    if params.acks != "all" or rate == 0.0:
        return Choice("plain", "no loss of an acks=all record is possible")
    if expected >= ENOUGH_LOSSES:
        return Choice("plain", f"about {expected:.1g} loss events are expected in {ENOUGH_TRIALS} trials")
    rare = f"only about {expected:.1g} loss events are expected in {ENOUGH_TRIALS} trials"
    if not obstacle:
        seen = biased_losses(params)
        if seen >= LEAST_BIASED_LOSSES:
            return Choice("importance", rare, in_cycles=True)
        rare += f"; losses are too rare for importance sampling as well: about {100 * seen:.1g} expected in 100 trials"
        return Choice("plain", f"{rare}, so their rate is bounded by the exposure", falls_back=True)
    rare += f", and importance sampling is impossible, as {obstacle}"
    step = params.replication_factor * _share_absent(params)
    if step < LEAST_STEP:
        little = f"splitting gains little where a failure during a repair has a probability of {step:.1g}"
        return Choice("plain", f"{rare}; {little}", falls_back=True)
    return Choice("splitting", rare)


def sentence(params: CellParameters, scripted: bool = False) -> str:
    """What to say about the estimator of a cell; empty for plain trials unless the study asks for another estimator."""
    choice = choose(params, scripted)
    estimator, reason, falls_back, _ = choice
    if falls_back and params.estimator == "auto":
        return f"Losses are too rare for plain trials, which are used nevertheless: {reason}."
    if falls_back:
        return f"The study asks for {NAMES[params.estimator]}; {NAMES[estimator]} is used: {reason}."
    if estimator == "plain" or (params.estimator == "auto" and estimator == "multifidelity" and not choice.in_cycles):
        return ""
    return f"The estimator is {NAMES[estimator]} (docs/rare-events.md): {reason}."


def fallbacks(plan: StudyPlan) -> list[str]:
    """A line for each cell that does not use the estimator that the study asks for."""
    scripted = plan.functions is not None
    return [
        f"cell {cell.index}: {sentence(cell.parameters, scripted)}"
        for cell in plan.cells
        if choose(cell.parameters, scripted).falls_back
    ]


def obstacle_to_importance(params: CellParameters) -> str:
    """Why importance sampling cannot be used for the cell; empty if it can."""
    if params.generation == "v3":
        return "in v3 the broker that is the controller fails, too"
    if params.broker_mttf is not None and params.broker_mttf.dist != "exponential":
        return f"times to failure are {params.broker_mttf.dist}, not exponential"
    if params.impairments:
        return f"an impairment ({params.impairments[0].kind}) does not end in a state that the timeline knows"
    for name in ("rolling_restart", "slow"):
        if getattr(params, name) is not None:
            return f"{name} is no process without memory"
    if params.reassignments is not None:
        return "reassignments change the replica sets, so the cluster never comes back to the same state"
    if params.generation == "kip-966" and params.unclean_recovery_strategy == "manual":
        return "with manual recovery a partition may have no leader for the rest of the study"
    absent = params.brokers * _share_absent(params)
    down = f"{absent:.2g} brokers are down or catching up on average (allowed: {MOST_ABSENT})"
    return f"{down}, so the cluster is rarely whole" if absent > MOST_ABSENT else ""


def _own_failures_per_year(params: CellParameters) -> float:
    return 0.0 if params.broker_mttf is None else YEAR_MS / params.broker_mttf.mean_ms


def _failures_per_year(params: CellParameters) -> float:
    """Of one broker, by itself and with others."""
    shared = params.power_events_per_year + params.rack_power_events_per_year
    shared += sum(cause.per_year for cause in params.power)
    sizes = rack_sizes(params)
    shared += sum(burst.events_per_year(sizes) * (burst.struck_of(sizes) / params.brokers) for burst in params.burst)
    return _own_failures_per_year(params) + shared


def failures_per_trial(params: CellParameters) -> float:
    """Failures and planned restarts of all brokers in a trial, and moves of replicas, on average."""
    rolling, moves = params.rolling_restart, params.reassignments
    planned = 0.0 if rolling is None else YEAR_MS / rolling.every_ms
    moved = 0.0 if moves is None else moves.per_year * params.partitions
    return (params.brokers * (_failures_per_year(params) + planned) + moved) * params.duration_ms / YEAR_MS


def _share_absent(params: CellParameters) -> float:
    """Failures of a broker while another is absent, about the share of time that it is absent if that is small; an
    impaired broker is absent too."""
    impaired = sum(cause.per_year * cause.duration.mean_ms for cause in params.impairments) / YEAR_MS
    return _failures_per_year(params) * params.longest_absence_ms / YEAR_MS + impaired


def lost_tails(params: CellParameters) -> int:
    """How many replicas that were in sync have to lose their tails for a loss: all that were in the smallest ISR that
    accepts writes, where a recovery looks at their logs; otherwise the one that leads next."""
    if params.generation != "kip-966" or params.unclean_recovery_strategy == "proactive":
        return 1
    return min(params.min_insync_replicas, params.replication_factor)


def _ways(params: CellParameters) -> tuple[float, int, int, int]:
    """The probability that a failure loses the tail, how many tails a loss needs, from how many absent replicas on what
    was acknowledged is exposed for `exposed_ms` only, and how many replicas are in a rack."""
    n = params.replication_factor
    lost = params.unclean_probability * max(params.tail_loss_probability, params.disk_loss_probability)
    elects_stale = params.generation == "v3" or params.unclean_recovery_strategy == "proactive"
    needed = 0 if elects_stale else lost_tails(params)
    refusing = n if needed == 0 else n - min(params.min_insync_replicas, n) + 1
    return lost, needed, refusing, -(-n // params.racks) if params.placement == "spread" else n


def rough_loss_rate(params: CellParameters) -> float:
    """Loss events per partition-year, to a factor of about ten.

    All n replicas have to be absent at once: they fail one after another, each at rate l and absent for a time T, at
    n l ((n-1) l T) ((n-2) l T / 2) ... per year; or a shared cause ends several of them. Below min ISR the next ones
    have to fail while what was acknowledged is exposed (`exposed_ms`). `lost_tails` of the replicas have to lose their
    tails. Where a replica that is behind may lead, it is enough that it returns first.
    """
    n, (lost, needed, refusing, per_rack) = params.replication_factor, _ways(params)
    power_lost = lost if params.power_loss_probability is None else params.power_loss_probability
    own = _own_failures_per_year(params)
    absent = min(1.0, _share_absent(params))
    exposed = min(absent, _failures_per_year(params) * params.exposed_ms / YEAR_MS)

    def further(down: int) -> float:
        """That the replicas that are in sync fail as well, once `down` of them are absent."""
        return math.prod(
            ((n - failed) * (exposed if failed >= refusing else absent / failed) for failed in range(max(1, down), n)),
            start=1.0,
        )

    rate = n * own * further(1) * lost**needed
    rate += params.power_events_per_year * power_lost**needed
    rate += params.rack_power_events_per_year * params.racks * further(per_rack) * power_lost**needed
    for cause in params.power:
        lost_then = power_lost if cause.loss is None else cause.loss
        each = 1.0 if cause.of == "cluster" else params.racks * further(per_rack)
        rate += cause.per_year * each * lost_then**needed
    for burst in params.burst:
        rate += sum(per_year * further(struck) * lost**needed for struck, per_year in _bursts(params, burst))
    return rate


def rough_times(params: CellParameters) -> float:
    """Times without writes in a trial, to a factor of about three: replicas that fail while so many others are absent
    that the rest is below min ISR; or each failure, if clients do not wait for its detection."""
    n, absent = params.replication_factor, min(1.0, _share_absent(params))
    others = 0 if (params.detection_ms or 0) > params.delivery_timeout_ms else n - min(params.min_insync_replicas, n)
    below = math.prod(((n - failed) * absent / failed for failed in range(1, others + 1)), start=1.0)
    return n * _failures_per_year(params) * below * params.partition_years


def biased_losses(params: CellParameters) -> float:
    """Losses in a trial of importance sampling, counted without their weights, to a factor of three.

    c_d: that all replicas of a partition come to be absent and a loss is possible, once d of them are absent; c_0 = 0.
    A further failure is forced before the next broker is back, with probability F = `FORCED` / (1 + `SHORT`). Below min
    ISR it has to come while what was acknowledged is exposed, for a time E out of the T / b until one of b absent
    brokers is back; the rest of it counts `DAMAGED` times less:

        q_d = `FORCED` E / (E + (1 / `DAMAGED` + `SHORT`) T / b), at most F;
        c_d = f_d (sum over causes of p_i c_(d + s_i)) + (1 - F) c_(d - 1), f_d = F, or q_d below min ISR.

    Cause i strikes s_i replicas; half of p_i is its share of the rate, half is the same for all causes. A cycle begins
    at the model's rates, and takes three T more than that. `LOSING_NEXT` of the failures that matter lose the tail.
    """
    n, (lost, needed, refusing, per_rack) = params.replication_factor, _ways(params)
    own, absent_ms = _own_failures_per_year(params), params.longest_absence_ms
    holding = len(set().union(*assignments(params)))
    rack, cluster = (per_rack, params.brokers / params.racks), (n, float(params.brokers))
    causes = [(holding * own, 1, 1.0), (params.power_events_per_year, *cluster)]
    causes.append((params.rack_power_events_per_year * params.racks, *rack))
    for cause in params.power:
        causes.append((cause.per_year, *cluster) if cause.of == "cluster" else (cause.per_year * params.racks, *rack))
    for burst in params.burst:
        found = list(_bursts(params, burst))
        most = max((struck for struck, _ in found), default=1)
        causes.append((sum(per_year for _, per_year in found), most, burst.struck_of(rack_sizes(params))))
    causes = [each for each in causes if each[0] > 0.0]
    rate, forced = sum(per_year for per_year, _, _ in causes), FORCED / (1.0 + SHORT)
    shares = [(per_year / rate + 1.0 / len(causes)) / 2.0 for per_year, _, _ in causes]
    per_replica = sum(share * brokers / struck for share, (_, struck, brokers) in zip(shares, causes, strict=True))
    chances = [0.0] * n + [1.0] * n
    for down in [*range(n - 1, 0, -1)] * 20:
        further = forced
        if down >= refusing:
            rest_ms = (1.0 / DAMAGED + SHORT) * absent_ms / (down * per_replica)
            further = min(forced, FORCED / (1.0 + rest_ms / params.exposed_ms))
        onwards = sum(share * chances[down + struck] for share, (_, struck, _) in zip(shares, causes, strict=True))
        chances[down] = further * onwards + (1.0 - forced) * chances[down - 1]
    first = sum(per_year * chances[struck] for per_year, struck, _ in causes) / rate
    events = rate + (params.brokers - holding) * own
    cycles = max(LEAST_CYCLES, params.duration_ms / (YEAR_MS / events + 3.0 * absent_ms))
    return cycles * rate / events * first * max(LOSING_NEXT, lost) ** needed


def _bursts(params: CellParameters, burst: Burst) -> Iterator[tuple[int, float]]:
    """How many bursts a year strike so many replicas of a partition (1 and more), the mean over the partitions. The
    replicas in a domain (the cluster or a rack) are struck as if drawn from its brokers."""
    placed = assignments(params)
    rate = burst.events_per_year(rack_sizes(params)) / len(placed)
    for chance, domain in burst_domains(params, burst):
        for replicas in placed:
            inside = len(set(replicas).intersection(domain))
            for struck in range(1, inside + 1):
                share = _share_struck(burst, len(domain), inside, struck)
                if chance * share > 0.0:
                    yield struck, rate * chance * share


def _share_struck(burst: Burst, brokers: int, replicas: int, struck: int) -> float:
    """The probability that a burst in a domain of so many brokers strikes `struck` of the `replicas` in it."""
    if burst.fraction is not None:
        return math.comb(replicas, struck) * (burst.fraction**struck * (1.0 - burst.fraction) ** (replicas - struck))
    size = min(burst.size or 0, brokers)
    if struck > size:
        return 0.0
    ways = math.comb(replicas, struck) * math.comb(brokers - replicas, size - struck)
    return ways / math.comb(brokers, size)
