"""Attributes each loss and each outage of a trial to the failures that made it and the rule that decided it.

:func:`attributed` reads the rows of one trial in order and follows, per partition, the controller's state, which
replicas are down or impaired, which have lost the tail of their logs since they were in sync, and the last leader.
The decisions are pure functions of such a :class:`Situation`: :func:`why_silent` (nothing answers),
:func:`why_refused` (the ISR is too small) and :func:`why_lost`. They name a
:class:`~experiments.studies.trace.reasons.Reason`.

*Causes* are the last failures of the replicas that were not yet in sync again. A replica is in sync again when it joins
the ISR of another leader, or when a write is acknowledged that was sent since its start and while it was in the ISR.

Time. An interval of constant state is split where a broker fails or comes back, and each piece counts for its reason,
with the weight of the row that ends the interval: the pieces of a metric add up to its value. An episode counts as one
event, for the reason with which it begins. Once writes have expired for a reason that has passed, they are not writable
for that reason until one is acknowledged.

What is left out: slow episodes (`slow`) have no rows; they are recognised by what else is excluded. The logs themselves
are not read: a replica counts as having lost its tail if its machine or disk failed while it had the records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import simulated_partitions
from experiments.studies.trace.kinds import (
    ACKED,
    Acknowledged,
    AcknowledgedLoss,
    Acks1Loss,
    Attributed,
    Crash,
    End,
    Impaired,
    Loss,
    Observation,
    Produced,
    Recovery,
    Restored,
    Stamped,
    Start,
    State,
    TrialResult,
)
from experiments.studies.trace.metrics import HOLDS, METRICS, UNWRITABLE
from experiments.studies.trace.reasons import Reason
from experiments.studies.trace.schema import NONE
from protocol.features import Features, Generation

LOSING = ("lossy", "disk")
"""Failures that take what is not flushed."""
OFFLINE, REFUSES, STALLED = "offline_fraction", "reject_fraction", "stall_fraction"
TIMES = {metric.name: metric.column for metric in METRICS if metric.name in (OFFLINE, REFUSES, STALLED, UNWRITABLE)}
"""The metrics of time that are attributed, with the columns of their states."""
LOSSES: dict[type[Observation], str] = {
    metric.counts: metric.name
    for metric in METRICS
    if metric.counts in (Loss, Acks1Loss, AcknowledgedLoss) and not metric.sums_values
}
"""The metrics of losses that are attributed, by the kinds that they count."""


@dataclass(slots=True)
class Situation:
    """A partition at a moment. `down`, `impaired`: brokers of the cluster; `failed`: the failure of each replica that
    is not yet in sync again, in words; `damaged`: those that had the records and lost their tails; `last_leader`: the
    last broker that led; `holders`: the ISR when a write was last acknowledged; `before`: the state from which
    `state.leader` was elected; `answered`: its election was decided by the logs of the replicas."""

    replicas: set[int]
    down: set[int]
    impaired: dict[int, int]
    state: State | None = None
    before: State | None = None
    failed: dict[int, str] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    last_leader: int = NONE
    holders: set[int] = field(default_factory=set)
    answered: bool = False

    def causes(self) -> str:
        """The failures of the replicas in words, those that are equal counted."""
        each = Counter({**self.failed, **self.damaged}.values())
        return ", ".join(f"{count} x {words}" if count > 1 else words for words, count in sorted(each.items()))


def members(text: str) -> set[int]:
    """The broker ids in a text of ids joined by commas."""
    return {int(member) for member in text.split(",") if member}


def why_silent(state: State, now: Situation, features: Features) -> Reason | None:
    """Why nothing answers writes: no leader, one that does not answer, or a member of the ISR; None if all do, or if
    what is left to wait for is a larger ISR."""
    if state.leader < 0:
        return _why_leaderless(state, now, features)
    if not state.leader_serves:
        if state.leader in now.down:
            return Reason.LEADER_SILENT
        if state.leader in now.impaired:
            return Reason.LEADER_CUT_OFF
        if state.recovering:
            return Reason.LEADER_RECOVERS
        return Reason.LEADER_RESTARTED if state.leader in now.failed else Reason.TAKEOVER
    if not state.stalls:
        return None
    in_sync = members(state.isr)
    if state.leader in now.impaired:
        return Reason.LEADER_CUT_OFF
    if in_sync & now.down:
        return Reason.MEMBER_SILENT
    if in_sync & now.impaired.keys():
        return Reason.MEMBER_CUT_OFF
    if state.isr_size < state.min_isr:
        return None
    return Reason.MEMBER_RETURNED if in_sync & now.failed.keys() else Reason.SLOW


def _why_leaderless(state: State, now: Situation, features: Features) -> Reason:
    eligible = members(state.isr) | members(state.elr)
    alive = eligible - now.down
    if eligible:
        if not alive:
            return Reason.ELIGIBLE_DOWN
        return Reason.ELECTION if alive - now.impaired.keys() else Reason.ELIGIBLE_CUT_OFF
    if features.unclean_recovery:
        return Reason.RECOVERY_WAITS if now.replicas & now.down else Reason.RECOVERY_RUNS
    return Reason.LAST_KNOWN_LEADER_DOWN if now.last_leader in now.down else Reason.ELECTION


def why_refused(state: State, now: Situation) -> Reason | None:
    """Why acks=all is refused by a leader whose ISR is below min ISR; None if it is not."""
    if state.leader < 0 or state.isr_size >= state.min_isr:
        return None
    alive = now.replicas - now.down
    if len(alive) < state.min_isr:
        return Reason.TOO_FEW_ALIVE
    cut_off = alive - members(state.isr) & now.impaired.keys()
    return Reason.REPLICAS_CUT_OFF if cut_off else Reason.CATCHING_UP


def why_lost(loss: Observation, now: Situation, features: Features) -> Reason:
    """Why the new leader's log lacks acknowledged records."""
    if isinstance(loss, AcknowledgedLoss) and not loss.records:
        return Reason.ACKS_1_NOT_REPLICATED
    state, before = now.state, now.before
    if state is None or before is None:
        return Reason.UNATTRIBUTED
    leader, in_sync, eligible = state.leader, members(before.isr), members(before.elr)
    lost_tail = leader in now.damaged
    if lost_tail and now.holders <= now.damaged.keys():
        return Reason.ALL_COPIES_LOST
    if leader in in_sync or leader in eligible:
        if lost_tail:
            return Reason.ISR_MEMBER_LOST_TAIL if leader in in_sync else Reason.ELR_MEMBER_LOST_TAIL
        if isinstance(loss, Acks1Loss | AcknowledgedLoss):
            return Reason.ACKS_1_NOT_REPLICATED
        return Reason.TRUNCATED if features.truncates_to_high_watermark else Reason.UNATTRIBUTED
    if now.answered:
        has_holder = (now.replicas & now.down) - now.damaged.keys()
        return Reason.RECOVERY_WITHOUT_HOLDER if has_holder else Reason.RECOVERY_SHORT_LOGS
    if leader == now.last_leader and lost_tail:
        return Reason.LAST_KNOWN_LEADER_LOST_TAIL
    return Reason.UNCLEAN_REPLICA_LOST_TAIL if lost_tail else Reason.UNCLEAN_REPLICA_BEHIND


Why = tuple[Reason | None, Reason | None, str]
"""Why nothing answers, why writes are refused, and the causes of both."""
NOTHING: Why = (None, None, "")


@dataclass(slots=True)
class _Partition:
    """`now`; since when its state holds; the pieces of that interval, from when on they hold; `episodes`: the metrics
    that held before."""

    index: int
    now: Situation
    since_ms: int = 0
    pieces: list[tuple[int, Why]] = field(default_factory=list)
    episodes: frozenset[str] = frozenset()

    def decide(self, at_ms: int, features: Features) -> None:
        """Begins a piece if the reasons are others from now on."""
        state = self.now.state
        if state is None or not any(HOLDS[column](state) for column in TIMES.values()):
            self.pieces = []
            return
        found: Why = (why_silent(state, self.now, features), why_refused(state, self.now), self.now.causes())
        last = self.pieces[-1][1] if self.pieces else NOTHING
        if found[:2] == (None, None):
            found = last if last != NOTHING else (Reason.UNATTRIBUTED, None, found[2])
        if not self.pieces or found != last:
            self.pieces.append((at_ms, found))

    def end(self, at_ms: int, log_weight: float) -> Iterator[Stamped]:
        """The attributions of the interval that ends."""
        state, last = self.now.state, self.pieces[-1:]
        if state is not None and at_ms > self.since_ms:
            holding = [name for name, column in TIMES.items() if HOLDS[column](state)]
            edges = [*(begins_ms for begins_ms, _ in self.pieces[1:]), at_ms]
            for name in holding:
                lengths: dict[tuple[str, str], int] = {}
                begins_ms = self.since_ms
                for ends_ms, (_, why) in zip(edges, self.pieces, strict=True):
                    key = _reason_of(name, state, why).key, why[2]
                    lengths[key] = lengths.get(key, 0) + ends_ms - begins_ms
                    begins_ms = ends_ms
                events = int(name not in self.episodes)
                for (reason, causes), length_ms in lengths.items():
                    if length_ms:
                        what = Attributed(self.index, name, reason, causes, events, length_ms)
                        yield Stamped(at_ms, what, log_weight)
                        events = 0
            self.episodes = frozenset(holding)
        self.since_ms, self.pieces = at_ms, [(at_ms, last[0][1])] if last else []


def _reason_of(metric: str, state: State, why: Why) -> Reason:
    """The reason that counts for a metric of time."""
    silent, refused, _ = why
    first = refused if metric == REFUSES else silent
    if metric == UNWRITABLE and state.leader >= 0 and state.leader_serves and not state.stalls:
        first = refused
    return first or silent or refused or Reason.UNATTRIBUTED


def attributions(
    params: CellParameters, rows: Sequence[Stamped], unseen: Iterable[tuple[int, Observation]] = ()
) -> Iterator[tuple[int, Stamped]]:
    """What each loss and interval is attributed to, with the index of the row that ends it. `unseen`: failures without
    rows, with the number of rows before them."""
    walk = _Walk(params)
    hidden = sorted(unseen, key=lambda each: each[0])
    position = 0
    for index, row in enumerate(rows):
        while position < len(hidden) and hidden[position][0] <= index:
            walk.fail(row.time_ms, hidden[position][1])
            position += 1
        for found in walk.handle(row):
            yield index, found


def attributed(params: CellParameters, result: TrialResult) -> list[Stamped]:
    """The rows of a trial with its attributions, each before the row that ends its interval."""
    rows: list[Stamped] = []
    begin = 0
    for index, found in attributions(params, result.rows, result.unseen):
        rows += result.rows[begin:index]
        rows.append(found)
        begin = index
    return [*rows, *result.rows[begin:]]


class _Walk:
    def __init__(self, params: CellParameters) -> None:
        self._features = Generation(params.generation).features
        self._down: set[int] = set()
        self._started_ms: dict[int, int] = {}
        self._impaired: dict[int, int] = {}
        self._partitions = [
            _Partition(index, Situation(set(each.replicas), self._down, self._impaired))
            for index, each in enumerate(simulated_partitions(params))
        ]

    def handle(self, row: Stamped) -> Iterator[Stamped]:
        """Follows a row; the attributions that it ends."""
        what = row.what
        if isinstance(what, State):
            partition = self._partitions[what.partition]
            yield from partition.end(row.time_ms, row.log_weight)
            self._change(partition.now, what)
            self._settle(partition, row.time_ms)
        elif isinstance(what, End):
            for partition in self._partitions:
                yield from partition.end(row.time_ms, row.log_weight)
        elif isinstance(what, Crash | Start | Impaired | Restored):
            self.fail(row.time_ms, what)
        elif type(what) in LOSSES:
            assert isinstance(what, Loss | Acks1Loss | AcknowledgedLoss)
            now = self._partitions[what.partition].now
            reason = why_lost(what, now, self._features)
            found = Attributed(what.partition, LOSSES[type(what)], reason.key, now.causes(), 1, what.records)
            yield Stamped(row.time_ms, found, row.log_weight)
        elif isinstance(what, Recovery):
            self._partitions[what.partition].now.answered = True
        elif (isinstance(what, Produced) and what.outcome == ACKED) or isinstance(what, Acknowledged):
            self._acknowledge(self._partitions[what.partition].now, row.time_ms - what.took_ms)

    def fail(self, at_ms: int, what: Observation) -> None:
        """A broker fails or comes back."""
        assert isinstance(what, Crash | Start | Impaired | Restored)
        broker = what.broker
        if isinstance(what, Start):
            self._down.discard(broker)
            self._started_ms[broker] = at_ms
        elif isinstance(what, Restored):
            self._impaired[broker] = self._impaired.get(broker, 1) - 1
            if self._impaired[broker] <= 0:
                del self._impaired[broker]
            self._started_ms[broker] = at_ms
        elif isinstance(what, Impaired):
            self._impaired[broker] = self._impaired.get(broker, 0) + 1
        else:
            self._down.add(broker)
        for partition in self._partitions:
            if broker in partition.now.replicas:
                if isinstance(what, Crash | Impaired):
                    _note(partition.now, what)
                self._settle(partition, at_ms)

    def _settle(self, partition: _Partition, at_ms: int) -> None:
        partition.decide(at_ms, self._features)

    def _change(self, now: Situation, state: State) -> None:
        """The partition has another state."""
        before, now.state = now.state, state
        in_sync = members(state.isr)
        now.replicas |= in_sync
        now.holders = now.holders or in_sync
        if before is None:
            joined = in_sync - self._down - self._impaired.keys()
        else:
            joined = in_sync - members(before.isr) - {state.leader} - self._down
        _forget(now, joined)
        if before is not None and state.leader >= 0 and state.epoch != before.epoch:
            now.before = before
            now.answered = now.answered and state.recovering
        elif before is None:
            now.before = state
        if before is not None and before.leader >= 0:
            now.last_leader = before.leader
        if state.leader < 0 and state.isr_size and not state.recovering:
            now.answered = False

    def _acknowledge(self, now: Situation, sent_ms: int) -> None:
        """A write is acknowledged: all members of the ISR that were up since it was sent have all records."""
        if now.state is None:
            return
        now.holders = members(now.state.isr)
        if now.failed or now.damaged:
            away = self._down | self._impaired.keys()
            _forget(now, {it for it in now.holders - away if self._started_ms.get(it, sent_ms) <= sent_ms})


def _forget(now: Situation, brokers: set[int]) -> None:
    for broker in brokers:
        now.failed.pop(broker, None)
        now.damaged.pop(broker, None)


def _note(now: Situation, what: Crash | Impaired) -> None:
    """A replica fails: it loses its tail if its machine or disk does while it has the records."""
    kind = what.failure if isinstance(what, Crash) else what.impairment
    words = f"{re.sub(r' [0-9]+', '', what.cause) or 'broker'} ({kind})"
    now.failed[what.broker] = words
    state = now.state
    holders = set() if state is None else members(state.isr) | members(state.elr) | {state.leader, now.last_leader}
    if kind in LOSING and (state is None or what.broker in holders):
        now.damaged[what.broker] = words
