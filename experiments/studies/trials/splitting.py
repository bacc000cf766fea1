"""A trial by fixed-effort multilevel splitting, for failures that importance sampling cannot bias.

The *distance* that a partition has covered towards a loss is the number of its replicas that are down or out of the
ISR, plus the number of those that have lost their tail and have not been in the ISR since; that of the cluster is the
largest of its partitions'. Levels l_1 < l_2 < ... divide the way. Stage k continues each of `EFFORT` paths from a state
in which level l_k was reached first, until it reaches l_{k+1} or the trial's time is over; stage 0 begins at the start.
The states at which a stage reaches its level, each used equally often, begin the next stage (Garvels, The Splitting
Method in Rare Event Simulation, 2000, chapter 2; Amrein and Kuensch, A variant of importance splitting, 2011).

With p_j the share of the paths of stage j that reached their level, a path of stage k stands for

    w_k = p_0 p_1 ... p_{k-1} / EFFORT

trials. A loss, an unclean recovery or a regression of the high watermark that a path of stage k sees between the
beginning of its stage and its next level is a row with weight w_k. The sum of these weights is an unbiased estimate of
the expected *number* of such events in `duration`, whatever the levels are, since every event of a trial lies in
exactly one stage. The stages of one trial depend on each other; trials do not, and intervals are taken over trials.

Everything else in the trace (states, crashes, failovers), and the exposure, is that of one plain trial with weight 1:
the first path of stage 0, continued to the end. So shares of time are estimated as in plain sampling.

A simulated cluster cannot be copied. A path is repeated from its beginning, with the same random numbers up to the time
at which it reached the level, and with its own from there on (`failures/timeline.py`).

Levels are chosen by a pilot on `PILOT` timelines without a cluster: the first level that fewer than half of them reach,
each next one that at most half of those reach, and where the pilot sees none, every one up to what a loss takes. Where
single steps are very improbable (a failure during a repair of 15 minutes) few paths reach a level, and splitting gains
little: it needs many trials there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

from experiments.engines.sim.memory import rare_collections
from experiments.studies.design.estimator import lost_tails
from experiments.studies.design.impairments import IMPAIRMENTS
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import TOPIC, assignments
from experiments.studies.failures.sources import Branch
from experiments.studies.failures.timeline import BranchingTimeline, DrawnTimeline, Event, events_until, warm_up_ms
from experiments.studies.trace.kinds import (
    FOLLOWED,
    AcknowledgedLoss,
    Attributed,
    HwRegression,
    Loss,
    Observation,
    Stamped,
    TrialResult,
    UncleanRecovery,
)
from experiments.studies.trials.reasons import LOSSES, attributed, attributions
from experiments.studies.trials.trial import Trial
from protocol.events.base import Trace
from protocol.events.controller import PartitionChanged
from protocol.ids import NodeId, TimeMs

EFFORT = 40
PILOT = 400
LOSING = ("lossy", "disk")
COUNTED = (Loss, AcknowledgedLoss, UncleanRecovery, HwRegression)
LEFT_OUT = (*FOLLOWED, *COUNTED)
"""Of the plain trial: its losses do not count, so its records are not followed."""


class Entrance(NamedTuple):
    """A path at the moment at which it reached a level: the seed of its cluster, its branches, the rows before it."""

    seed: int
    branches: tuple[Branch, ...]
    rows: int


class Path(Trial):
    """One path: a trial that ends early if it reaches a level. `level`: None for a path that runs to the end."""

    def __init__(self, params: CellParameters, seed: int, branches: tuple[Branch, ...], level: int | None) -> None:
        super().__init__(params, seed, BranchingTimeline(params, seed, branches, -warm_up_ms(params)))
        self.replicas = list(assignments(params))
        self.reached_ms: TimeMs | None = None
        self.reached_rows = 0
        self._level = level
        self._in_sync = [set(replicas) for replicas in self.replicas]
        self._down: set[NodeId] = set()
        self._lost: list[set[NodeId]] = [set() for _ in self.replicas]
        self.cluster.trace_observers.append(self._observe_isr)

    def _run_until(self, at_ms: TimeMs) -> None:
        while self.reached_ms is None and self.cluster.step(at_ms):
            pass

    def _fail(self, event: Event) -> None:
        self._down.add(event.broker)
        if event.kind in LOSING:
            for replicas, lost in zip(self.replicas, self._lost, strict=True):
                lost |= {event.broker}.intersection(replicas)
        super()._fail(event)
        self._check_level()

    def _start(self, event: Event) -> None:
        self._down.discard(event.broker)
        super()._start(event)

    def _observe_isr(self, _now_ms: TimeMs, _node: NodeId, trace: Trace) -> None:
        if isinstance(trace, PartitionChanged) and trace.partition.topic == TOPIC:
            index = trace.partition.partition
            self.replicas[index] = trace.replicas
            self._in_sync[index] = set(trace.isr)
            self._lost[index] -= self._in_sync[index] - self._down
            self._lost[index] &= set(trace.replicas)
            self._check_level()

    def distance(self) -> int:
        """The largest distance of a partition."""
        return max(
            sum(broker in self._down or broker not in in_sync for broker in replicas) + len(lost)
            for replicas, in_sync, lost in zip(self.replicas, self._in_sync, self._lost, strict=True)
        )

    def _check_level(self) -> None:
        if self._level is not None and self.reached_ms is None and self.distance() >= self._level:
            self.reached_ms, self.reached_rows = self.time_ms, len(self.rows)


def run_splitting_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial by splitting: `EFFORT` paths for each level that is reached, and a plain one."""
    with rare_collections():
        found = Path(params, seed, (), None).run()
        own = attributed(params, found)
        rows = [row for row in own[:-1] if not (isinstance(row.what, LEFT_OUT) or _is_of_loss(row.what))]
        events = found.events
        for step in _paths(params, seed):
            rows += step.rows
            events += step.events
    rows.sort(key=lambda row: row.time_ms)
    return TrialResult([*rows, found.rows[-1]], found.trace_hash, events)


def _is_of_loss(what: Observation) -> bool:
    """Whether it says what a loss is attributed to."""
    return isinstance(what, Attributed) and what.metric in LOSSES.values()


def losing_path(params: CellParameters, seed: int) -> Path | None:
    """The first path of the trial that counts a loss, to be run again; None if there is none."""
    for step in _paths(params, seed):
        if any(isinstance(row.what, Loss) for row in step.rows):
            return Path(params, step.entrance.seed, step.entrance.branches, step.level)
    return None


class _Step(NamedTuple):
    """A path that was run from `entrance` to `level`: its rows that count, with their weights."""

    entrance: Entrance
    level: int | None
    rows: list[Stamped]
    events: int


def _paths(params: CellParameters, seed: int) -> Iterator[_Step]:
    random = Random(f"{seed}/splitting")
    entrances = [Entrance(seed if not index else random.getrandbits(63), (), 0) for index in range(EFFORT)]
    share = 1.0
    for level in [*levels_of(params), None]:
        reached = []
        for entrance in entrances:
            path = Path(params, entrance.seed, entrance.branches, level)
            result = path.run()
            stop = len(result.rows) if path.reached_ms is None else path.reached_rows
            counted = [row for row in result.rows[entrance.rows : stop] if isinstance(row.what, COUNTED)]
            for index, row in attributions(params, result.rows, result.unseen):
                if entrance.rows <= index < stop and _is_of_loss(row.what):
                    counted.append(row)
            weight = math.log(share / EFFORT)
            counted = [row._replace(log_weight=weight) for row in counted]
            yield _Step(entrance, level, counted, result.events)
            if path.reached_ms is not None:
                reached.append((entrance, path.reached_ms, path.reached_rows))
        if not reached:
            break
        share *= len(reached) / EFFORT
        random.shuffle(reached)
        entrances = [
            Entrance(before.seed, (*before.branches, Branch(at_ms, random.getrandbits(63))), rows)
            for before, at_ms, rows in islice(cycle(reached), EFFORT)
        ]


@lru_cache(maxsize=64)
def levels_of(params: CellParameters) -> tuple[int, ...]:
    """The levels for a cell."""
    distances = [_distance_without_cluster(params, seed) for seed in range(PILOT)]
    levels: list[int] = []
    among = PILOT
    for level in range(1, params.replication_factor + lost_tails(params) + 1):
        reached = sum(distance >= level for distance in distances)
        if 2 * reached <= among or reached == 0:
            levels.append(level)
            among = reached
    return tuple(levels)


def _distance_without_cluster(params: CellParameters, seed: int) -> int:
    """The largest distance on a timeline, as if a replica were in the ISR as soon as it is started, whatever impairs
    its broker."""
    lost: dict[NodeId, bool] = {}
    largest = 0
    for event in events_until(DrawnTimeline(params, seed, -warm_up_ms(params)), params.duration_ms):
        if event.kind == "start":
            lost.pop(event.broker, None)
        if event.kind == "start" or event.kind in IMPAIRMENTS:
            continue
        lost[event.broker] = lost.get(event.broker, False) or event.kind in LOSING
        for replicas in set(assignments(params)):
            largest = max(largest, sum(1 + lost[broker] for broker in replicas if broker in lost))
    return largest
