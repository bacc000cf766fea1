"""The control of a trial: the controller's decisions alone, driven by the same failures, without messages and timers.

It runs through the timeline that a trial of the same parameters and seed has (`failures/`), in virtual time, with the
decisions of the protocol (`decisions.py`), and measures what a trial measures. A trial is a simulated cluster, some
hundred events per failure; the control does three or four look-ups. What is left out, so that some trials differ from
their controls: the time that messages and fetches take, so also the order of sessions that expire within as much; the
time-outs of recoveries, and impaired and slow brokers.

*Sessions.* A broker's heartbeats follow its registration at a fixed interval, and a session expires
`broker.session.timeout.ms` after the last one. After a loss of power that decides which broker is fenced last, and so
which one is waited for. A broker that is back while the session of its former incarnation is open is refused; it tries
to register again four times per interval, and takes part once it has registered. A leader removes a follower from its
ISR that has been silent for `replica.lag.time.max.ms`.

A control is not used for an answer by itself. It is the *control variate* of its trial (`estimation/controlled.py`),
and that estimate is unbiased whatever the control leaves out: a control of a trial's seed and the controls of other
seeds have the same distribution, since `ControlModel.run` is a function of parameters and seed and never sees the
trial.

The logs. What is acknowledged is a number that rises with each acknowledged write: after each change, and before each
failure; with acks=1 the leader alone has the last one, so that the next leader after a crash lacks it, which is what
`acknowledged_loss_rate` counts. A replica's log is the number up to which it has all. A lossy failure takes what is
neither flushed nor as old as `exposed_ms`. A leader whose log ends below what was acknowledged is a loss
(`observer.py`), and all logs are cut to the leader's: what they had beyond it is not acknowledged any more.

In importance sampling the control has the cycles of the trial (`importance.py`): it is restored as soon as all
replicas are in sync, the trial some messages later. Each cycle of the timeline has random streams of its own, so cycle
k is the same in both.
"""

from __future__ import annotations

import math
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from experiments.studies.design.estimator import LEAST_CYCLES
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import Simulated, assignments, simulated_partitions
from experiments.studies.failures.absences import Absences
from experiments.studies.failures.biased import BiasedTimeline
from experiments.studies.failures.timeline import DrawnTimeline, Event, Timeline, warm_up_ms
from experiments.studies.failures.transitions import Transitions
from experiments.studies.trace.schema import INCIDENT_MS
from experiments.studies.trials.control_partition import ControlPartition
from experiments.studies.trials.decisions import (
    FENCE,
    REGISTER_CLEAN,
    REGISTER_UNCLEAN,
    SHUT_DOWN,
    UNFENCE,
    Decisions,
    View,
)
from experiments.studies.trials.reassignments import drawn_moves, target_of
from experiments.studies.trials.setting import STARTED_MS, cluster_spec
from protocol.config import REPLICA_LAG_TIME_MAX_MS
from protocol.ids import NO_LEADER, NodeId, TimeMs

_LOSS, _ANY_LOSS, _UNCLEAN, _INCIDENTS, _OFFLINE, _REFUSES, _UNWRITABLE, _STALLED, _SOME_UNWRITABLE = range(9)
_SOURCES = (_LOSS, _LOSS, _ANY_LOSS, _OFFLINE, _REFUSES, _UNWRITABLE, _UNCLEAN, _STALLED, _INCIDENTS, _SOME_UNWRITABLE)
"""By `CONTROLLED`."""
_EXPIRE, _BOOT, _CAUGHT_UP, _SILENT, _JOIN, _MOVE = range(6)
_BEFORE_UNFENCE = (REGISTER_CLEAN, REGISTER_UNCLEAN)
"""Events that are followed by another one of the broker at once: where they change nothing, nothing is settled yet."""
_MOST_APPENDED = 8
"""Acknowledged numbers that are remembered before those that are on the disk by now are left out."""


class ControlMeasures(NamedTuple):
    """One control. `exposure`: partition-years, weighted. `values`: by `CONTROLLED`, as in `trials/`. `steps`: events
    and changes, what it costs."""

    exposure: float
    values: tuple[float, ...]
    steps: int


class ControlModel:
    """What all controls of a cell share: placement, and decisions and probabilities as far as they are known."""

    __slots__ = ("_decisions", "lag_ms", "params", "partitions", "placement", "transitions")

    def __init__(self, params: CellParameters) -> None:
        self.params, self.placement = params, assignments(params)
        self.lag_ms = cluster_spec(params, 0).config.int_value(REPLICA_LAG_TIME_MAX_MS)
        self.transitions = Transitions(params, self.placement)
        self._decisions: dict[tuple[int, int], Decisions] = {}
        copies = zip(simulated_partitions(params), params.counts, strict=True)
        self.partitions = [(each, self._deciding(each), count) for each, count in copies]

    def _deciding(self, partition: Simulated) -> Decisions:
        """The decisions of all partitions with as many replicas and that min ISR."""
        kind = len(partition.replicas), partition.min_insync_replicas
        if kind not in self._decisions:
            self._decisions[kind] = Decisions(_modelled(self.params), *kind, self.params.reassignments is not None)
        return self._decisions[kind]

    def run(self, seed: int, in_cycles: bool) -> ControlMeasures:
        """Runs the control of the trial of that seed, in importance sampling (`in_cycles`) or plain; a pure function of
        the cell's parameters and the arguments."""
        control = _Control(self, seed, in_cycles)
        control.run()
        return control.measures()


def _modelled(params: CellParameters) -> CellParameters:
    """The generation whose decisions the control makes: for v3, whose controller elects any live replica,
    the next one with unclean elections."""
    if params.generation != "v3":
        return params
    return params.model_copy(update={"generation": "kip-497", "unclean_recovery_strategy": "proactive"})


@lru_cache(maxsize=64)
def control_model(params: CellParameters) -> ControlModel:
    """The model of the cell, shared by all its controls in this process."""
    return ControlModel(params)


class _Control:
    """State and callbacks of one control."""

    def __init__(self, model: ControlModel, seed: int, in_cycles: bool) -> None:
        params = model.params
        self._duration_ms, self._delivery_ms = params.duration_ms, params.delivery_timeout_ms
        self._restart_ms, self._exposed_ms = params.restart_time_ms, params.exposed_ms
        self._is_written_back = math.isfinite(self._exposed_ms)
        self._cycles: BiasedTimeline | None = None
        begins_ms = 0 if in_cycles else -warm_up_ms(params)
        self._timeline: Timeline
        if in_cycles:
            self._timeline = self._cycles = BiasedTimeline(params, seed, model.placement, True, model.transitions)
        else:
            self._timeline = DrawnTimeline(params, seed, begins_ms)
        self._partitions = [ControlPartition(*each) for each in model.partitions]
        self._copies, self._incident_ms = sum(params.counts), -math.inf
        self._on = [[each for each in self._partitions if broker in each.places] for broker in range(params.brokers)]
        self._session_ms, self._heartbeat_ms = params.detection_ms or 0, params.heartbeat_interval_ms or 0
        self._lag_ms = model.lag_ms
        self._up, self._running = [True] * params.brokers, [True] * params.brokers
        """Whose process runs, and of these, who has registered."""
        self._stopped = 0
        """How many brokers do not run, or have not registered."""
        self._behind = [False] * params.brokers
        self._unclean = [False] * params.brokers
        self._sessions = [False] * params.brokers
        self._incarnations = [0] * params.brokers
        self._failed_ms, self._behind_until_ms = [begins_ms] * params.brokers, [begins_ms] * params.brokers
        self._registered_ms = [begins_ms - STARTED_MS] * params.brokers
        """When the brokers have registered, or have begun to try."""
        self._absences = Absences(params.catch_up)
        self._moves = drawn_moves(params, seed, begins_ms)
        self._next_move = next(self._moves, None)
        self._due: list[tuple[TimeMs, int, int, NodeId, int]] = []
        self._now_ms: TimeMs = begins_ms
        self._values = [0.0] * 9
        self._exposure, self._weight, self._steps = 0.0, 1.0, 0

    def measures(self) -> ControlMeasures:
        """What the control has measured."""
        values = [value if source <= _INCIDENTS else value / YEAR_MS for source, value in enumerate(self._values)]
        return ControlMeasures(self._exposure / YEAR_MS, tuple([values[source] for source in _SOURCES]), self._steps)

    def run(self) -> None:
        """Runs the control to its end."""
        if self._cycles is None:
            self._run_plain()
        else:
            self._run_cycles(self._cycles)

    def _run_plain(self) -> None:
        end_ms = self._duration_ms
        self._await_move()
        event = self._timeline.next_event()
        while event is not None and event.time_ms < end_ms:
            self._run_due(event.time_ms)
            self._pass_until(event.time_ms)
            self._handle(event)
            event = self._timeline.next_event()
        self._run_due(end_ms)
        self._pass_until(end_ms)

    def _run_cycles(self, timeline: BiasedTimeline) -> None:
        end_ms, completed = self._duration_ms, 0
        while True:
            event = timeline.next_event()
            if event is None or (event.time_ms >= end_ms and completed >= LEAST_CYCLES):
                self._weight = 1.0
                self._pass_until(max(end_ms, self._now_ms))
                return
            self._weight = 1.0
            self._pass_until(event.time_ms)
            while True:
                self._weight = math.exp(timeline.log_weight(event.time_ms))
                self._pass_until(event.time_ms)
                self._handle(event)
                timeline.carry_out()
                if self._is_restored(timeline):
                    break
                event = timeline.next_event()
                if self._runs_into_regeneration(timeline, event):
                    break
                assert event is not None
            completed += 1
            timeline.regenerate(self._now_ms)
            for partition in self._partitions:
                partition.forget()
            if self._now_ms >= end_ms and completed >= LEAST_CYCLES:
                return

    def _runs_into_regeneration(self, timeline: BiasedTimeline, event: Event | None) -> bool:
        """Does what is due before the next event; returns whether the cycle ends before it."""
        while True:
            if self._is_restored(timeline):
                return True
            if not self._due or (event is not None and self._due[0][0] >= event.time_ms):
                return False
            self._weight = math.exp(timeline.log_weight(self._due[0][0]))
            self._run_next()

    def _is_restored(self, timeline: BiasedTimeline) -> bool:
        """Whether the cycle ends here."""
        if self._due or self._stopped or not timeline.all_up:
            return False
        return all(partition.view.is_whole for partition in self._partitions)

    def _run_due(self, until_ms: TimeMs) -> None:
        while self._due and self._due[0][0] < until_ms:
            self._run_next()

    def _run_next(self) -> None:
        at_ms, _, kind, broker, incarnation = heappop(self._due)
        self._pass_until(at_ms)
        self._steps += 1
        if kind == _EXPIRE:
            self._expire(broker)
        elif kind == _MOVE:
            self._move()
        elif kind == _CAUGHT_UP:
            if self._behind_until_ms[broker] == at_ms:
                self._set_behind(broker, False)
                self._settle_all(broker)
        elif kind == _SILENT:
            if not self._running[broker] and self._failed_ms[broker] + self._lag_ms == at_ms:
                self._leave(broker)
        elif incarnation == self._incarnations[broker]:
            if kind == _BOOT:
                self._boot(broker)
            else:
                self._join(broker)

    def _schedule(self, at_ms: TimeMs, kind: int, broker: NodeId) -> None:
        heappush(self._due, (at_ms, self._steps, kind, broker, self._incarnations[broker]))

    def _pass_until(self, at_ms: TimeMs) -> None:
        """Time passes, with the weight of its end, as far as it is measured."""
        since_ms = self._now_ms if self._now_ms > 0 else 0
        self._now_ms = at_ms
        if at_ms <= since_ms:
            return
        weight, values = self._weight, self._values
        length = weight * (at_ms - since_ms)
        self._exposure += length * self._copies
        longest_ms = 0
        for partition in self._partitions:
            view, copies = partition.view, partition.copies
            if view.refuses:
                values[_REFUSES] += length * copies
                if view.leader == NO_LEADER:
                    values[_OFFLINE] += length * copies
            if view.isr & ~partition.running and view.leader != NO_LEADER:
                values[_STALLED] += length * copies
            if partition.since_ms >= 0:
                expired_ms = at_ms - max(since_ms, partition.since_ms + self._delivery_ms)
                if expired_ms > 0:
                    values[_UNWRITABLE] += weight * expired_ms * copies
                    longest_ms = max(longest_ms, expired_ms)
        values[_SOME_UNWRITABLE] += weight * longest_ms * self._copies

    def _count(self, what: int, copies: int) -> None:
        if self._now_ms >= 0:
            self._values[what] += self._weight * copies

    def _count_loss(self, partition: ControlPartition) -> None:
        self._count(_ANY_LOSS, partition.copies)
        if partition.waits_for_isr and self._now_ms >= 0:
            self._count(_LOSS, partition.copies)
            if self._now_ms - self._incident_ms > INCIDENT_MS:
                self._count(_INCIDENTS, self._copies)
            self._incident_ms = float(self._now_ms)

    def _handle(self, event: Event) -> None:
        self._steps += 1
        broker, kind = event.broker, event.kind
        if kind == "start":
            self._incarnations[broker] += 1
            if self._restart_ms:
                self._schedule(self._now_ms + self._restart_ms, _BOOT, broker)
            else:
                self._boot(broker)
        elif kind in ("clean", "unclean", "lossy", "disk"):
            self._fail(broker, kind)

    def _fail(self, broker: NodeId, kind: str) -> None:
        self._incarnations[broker] += 1
        self._up[broker] = False
        self._absences.fail(broker, self._now_ms, kind == "disk")
        was_running, oldest_ms = self._running[broker], self._now_ms - self._exposed_ms
        for partition in self._on[broker]:
            if was_running:
                self._write(partition)
            partition.lose(partition.places[broker], kind, oldest_ms)
        if not was_running:
            self._unclean[broker] = self._unclean[broker] or kind == "disk"
            return
        self._set_running(broker, False)
        self._failed_ms[broker] = self._now_ms
        self._unclean[broker] = kind != "clean"
        if kind == "clean":
            self._tell_all(broker, SHUT_DOWN)
        elif self._session_ms:
            self._sessions[broker] = True
            since_heartbeat_ms = (self._now_ms - self._registered_ms[broker]) % self._heartbeat_ms
            self._schedule(self._now_ms - since_heartbeat_ms + self._session_ms, _EXPIRE, broker)
            if self._session_ms > self._lag_ms:
                self._schedule(self._now_ms + self._lag_ms, _SILENT, broker)
            self._settle_all(broker)
        else:
            self._tell_all(broker, FENCE)

    def _set_running(self, broker: NodeId, running: bool) -> None:
        self._stopped += self._running[broker] - running
        self._running[broker] = running
        for partition in self._on[broker]:
            bit = 1 << partition.places[broker]
            partition.running = partition.running | bit if running else partition.running & ~bit

    def _set_behind(self, broker: NodeId, behind: bool) -> None:
        if self._behind[broker] != behind:
            self._behind[broker] = behind
            for partition in self._on[broker]:
                partition.behind ^= 1 << partition.places[broker]

    def _expire(self, broker: NodeId) -> None:
        """The session of a former incarnation is over; if the broker is back its next try to register succeeds."""
        self._sessions[broker] = False
        self._tell_all(broker, FENCE)
        if self._up[broker]:
            until_retry_ms = (self._registered_ms[broker] - self._now_ms) % max(1, self._heartbeat_ms // 4)
            self._schedule(self._now_ms + until_retry_ms, _JOIN, broker)

    def _leave(self, broker: NodeId) -> None:
        """Leaders that run remove the broker, which is down, from their ISRs."""
        for partition in self._on[broker]:
            view, place = partition.view, partition.places[broker]
            leads = view.leader not in (NO_LEADER, place) and partition.running >> view.leader & 1
            if leads and view.isr >> place & 1:
                self._change(partition, partition.decisions.with_isr(view, view.isr & ~(1 << place)))
                self._settle(partition)

    def _boot(self, broker: NodeId) -> None:
        self._up[broker] = True
        self._registered_ms[broker] = self._now_ms
        self._catch_up(broker)
        if not self._sessions[broker]:
            self._join(broker)

    def _move(self) -> None:
        """A replica moves, as `reassignments.py` has it."""
        move, self._next_move = self._next_move, next(self._moves, None)
        assert move is not None
        self._await_move()
        partition = self._partitions[move.partition]
        replicas, running = partition.replicas, [broker for broker, is_up in enumerate(self._up) if is_up]
        target = target_of(replicas, partition.factor, running, move)
        if target is None:
            return
        (joining,) = set(target).difference(replicas)
        self._absences.fail(joining, self._now_ms, True)
        self._catch_up(joining)
        partition.begin_move(joining, self._running[joining], self._behind[joining])
        self._on[joining] = [*self._on[joining], partition]
        places = tuple([partition.places[broker] for broker in target])
        is_active = self._running[joining] or self._sessions[joining]
        self._change(partition, partition.decisions.moved(partition.view, places, is_active))
        self._end_moves(partition)
        self._settle(partition)

    def _end_moves(self, partition: ControlPartition) -> None:
        """Forgets the brokers that have left the assignment, or were refused."""
        for broker in partition.end_moves():
            self._on[broker] = [each for each in self._on[broker] if each is not partition]

    def _await_move(self) -> None:
        if self._next_move is not None:
            self._schedule(self._next_move.at_ms, _MOVE, 0)

    def _catch_up(self, broker: NodeId) -> None:
        """The broker fetches what it lacks from now on."""
        until_ms = self._behind_until_ms[broker] = self._absences.start(broker, self._now_ms)
        self._set_behind(broker, until_ms > self._now_ms)
        if self._behind[broker]:
            self._schedule(until_ms, _CAUGHT_UP, broker)

    def _join(self, broker: NodeId) -> None:
        """The broker registers and is unfenced."""
        self._set_running(broker, True)
        self._registered_ms[broker] = self._now_ms
        self._tell_all(broker, REGISTER_UNCLEAN if self._unclean[broker] else REGISTER_CLEAN)
        self._tell_all(broker, UNFENCE)

    def _tell_all(self, broker: NodeId, event: int) -> None:
        for partition in self._on[broker]:
            view = partition.decisions.after(partition.view, event, partition.places[broker])
            if view is partition.view and event in _BEFORE_UNFENCE:
                continue
            self._change(partition, view)
            self._settle(partition)

    def _settle_all(self, broker: NodeId) -> None:
        for partition in self._on[broker]:
            self._settle(partition)

    def _change(self, partition: ControlPartition, view: View) -> None:
        """The controller has another view: a new leader shows what is lost."""
        before, partition.view = partition.view, view
        if view.state.replicas != before.state.replicas:
            self._end_moves(partition)
        if view.recovering and not before.recovering:
            self._count(_UNCLEAN, partition.copies)
        leader = view.leader
        if leader != NO_LEADER and leader != before.leader and partition.running >> leader & 1:
            log = partition.logs[leader]
            if log < partition.acked:
                self._count_loss(partition)
                if self._cycles is not None:
                    self._cycles.end_bias()
                partition.cut(log)

    def _settle(self, partition: ControlPartition) -> None:
        """Recovers what can be recovered, lets replicas that have caught up join the ISR, and writes."""
        view, running = partition.view, partition.running
        if view.asked and not view.asked & ~running:
            self._change(partition, partition.decisions.recovered(view, partition.logs))
            view = partition.view
        leader = view.leader
        if leader != NO_LEADER and running >> leader & 1:
            joins = view.isr | (view.active & running & ~partition.behind)
            if joins != view.isr or view.recovering:
                for place in range(len(partition.logs)):
                    if joins >> place & 1:
                        partition.logs[place] = partition.logs[leader]
                self._change(partition, partition.decisions.with_isr(view, joins))
        self._write(partition)
        if leader != NO_LEADER and partition.behind >> leader & 1:
            self._end_catch_up(partition, leader)

    def _end_catch_up(self, partition: ControlPartition, leader: int) -> None:
        """A broker that leads all its partitions has no leader to catch up with (`degraded.py`)."""
        (broker,) = [broker for broker, place in partition.places.items() if place == leader]
        if all(each.view.leader == each.places[broker] for each in self._on[broker]):
            self._set_behind(broker, False)
            self._absences.end(broker, self._now_ms)

    def _write(self, partition: ControlPartition) -> None:
        """Has a record acknowledged, if the partition can be written: with acks=1 by the leader alone, to which the
        members of the ISR have meanwhile caught up."""
        view, leader = partition.view, partition.view.leader
        can_write = not (view.refuses or view.isr & ~partition.running)
        if not partition.waits_for_isr:
            can_write = leader != NO_LEADER and partition.running >> leader & 1 == 1
        if not can_write:
            if partition.since_ms < 0:
                partition.since_ms = max(0, self._now_ms)
            return
        partition.since_ms = -1
        partition.acked += 1
        acked, logs = partition.acked, partition.logs
        others = acked if partition.waits_for_isr else logs[leader]
        for place in range(len(logs)):
            if view.isr >> place & 1:
                logs[place] = acked if place == leader else others
        if self._is_written_back:
            if len(partition.appended) >= _MOST_APPENDED:
                oldest_ms = self._now_ms - self._exposed_ms
                durable = max((each for each in partition.appended if each[0] <= oldest_ms), default=(0, 0))
                partition.appended = [durable, *[each for each in partition.appended if each[0] > oldest_ms]]
            partition.appended.append((self._now_ms, acked))
