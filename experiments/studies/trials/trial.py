"""One trial of a study: a simulated cluster that goes through a timeline of failures for a period of virtual time.

`design/model.py` describes the model, `failures/timeline.py` the failures, `observer.py` the workload and the
observations. The result is a trace (`trace/kinds.py`).

Writes are continuous in the model: an acknowledged record is always on its way to the disk. A trial needs the last one
before each failure only, so it writes just before. Under continuous writes a flush comes every `flush_interval`, and a
failure finds it at any moment of that interval; so one more write, at a time before the failure that is uniform over
the interval, begins the interval.

With a stationary start the timeline begins before time 0, and so does the simulated cluster: brokers that are down then
crash as soon as the topic exists, and the rows of the warm-up are not recorded. At time 0 a `state` row describes each
partition.

With time compression by a factor F the times of the timeline and the length of the trial are divided by F; timeouts of
the protocol and the network are not. The trace's times are multiplied by F afterwards, so that rates and fractions
refer to the study's time. So a trial with F is one without compression in which the timeouts last F times as long.
Measured values are in real time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.memory import rare_collections
from experiments.engines.sim.network import NetworkModel
from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import IMPAIRMENTS
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.timeline import DrawnTimeline, Event, Timeline, warm_up_ms
from experiments.studies.trace.kinds import (
    Crash,
    End,
    Impaired,
    Observation,
    Restored,
    Stamped,
    Start,
    TrialResult,
)
from experiments.studies.trials.degraded import CatchUps, SlowBrokers, episodes
from experiments.studies.trials.impairments import Impairments
from experiments.studies.trials.observer import Observer
from experiments.studies.trials.reassignments import Move, Reassigner, drawn_moves
from experiments.studies.trials.setting import (
    RETRY_START_MS,
    SET_UP_MS,
    STARTED_MS,
    SetUpError,
    cluster_spec,
    loss_of,
    topic_requests,
)
from experiments.studies.trials.writer import LEARNING_MS
from protocol.events.base import Trace
from protocol.events.store import ControllerElected
from protocol.ids import FIRST_CLIENT, NodeId, TimeMs, is_client
from protocol.messages.commands import ShutdownCommand

JITTER_MS = 2
"""Of the network, on top of its latency."""


class _Elected:
    """Whether the brokers of a `v3` cluster have elected a controller, which takes 28 messages, one after the other:
    until then they refuse requests."""

    def __init__(self) -> None:
        self.found = False

    def observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        self.found = self.found or isinstance(trace, ControllerElected)


class Trial:
    """State and callbacks of one trial on `timeline`. `moves`: reassignments, instead of those that are drawn."""

    def __init__(
        self, params: CellParameters, seed: int, timeline: Timeline, moves: Iterator[Move] | None = None
    ) -> None:
        self.params = params
        self.cluster = SimCluster(
            cluster_spec(params, seed),
            NetworkModel(base_ms=params.network_latency_ms),
            keep_traces=False,
            instant_detection=params.detection_ms is None,
            build=lambda node: self.observer.writer if is_client(node) else None,
        )
        self.rows: list[Stamped] = []
        self.unseen: list[tuple[int, Observation]] = []
        self.observer = Observer(params, self.cluster, self._add, self._handle_settled)
        self._timeline = timeline
        self._moves = drawn_moves(params, seed, -warm_up_ms(params)) if moves is None else moves
        self._zero_ms: TimeMs = 0
        self._measuring = False
        self._awaited: Event | None = None
        self._starting: dict[NodeId, Event] = {}
        catch_up = params.catch_up
        self.catch_ups = None if catch_up is None else CatchUps(catch_up, self.cluster, self.observer.states)
        self._seed = seed
        self._flush_phases = Random(f"{seed}/flush-phases")
        self._impairments = Impairments(self.cluster, self.observer, self.catch_ups, self._add)

    def run(self) -> TrialResult:
        """Runs the trial to its end."""
        cluster, params = self.cluster, self.params
        self.set_up()
        self._zero_ms = cluster.now_ms + warm_up_ms(params)
        self.observer.begin_writing()
        self._await_event()
        if params.slow is not None:
            found = episodes(params.slow, params, self._seed, -warm_up_ms(params))
            SlowBrokers(cluster, self.observer, found, params.slow.delay_ms, self._zero_ms).await_next()
        states, factor = self.observer.states, params.replication_factor
        Reassigner(cluster, states, factor, self._moves, self.catch_ups, self._zero_ms).await_next()
        self._run_until(self._zero_ms)
        self._measuring = True
        self.observer.begin_measuring()
        self._run_until(self._zero_ms + params.duration_ms)
        self._add(End())
        return TrialResult(self.rows, cluster.trace_hash(), cluster.event_count, unseen=self.unseen)

    def _run_until(self, at_ms: TimeMs) -> None:
        self.cluster.run_until(at_ms)

    def set_up(self) -> None:
        """Starts the cluster and creates the topic. Raises SetUpError if a partition gets no leader."""
        cluster, params = self.cluster, self.params
        elected = _Elected()
        cluster.trace_observers.append(elected.observe)
        for node in cluster.spec.node_ids:
            cluster.start(node)
        cluster.run_until(STARTED_MS)
        while cluster.spec.store_ids and not elected.found and cluster.step(SET_UP_MS):
            continue
        cluster.trace_observers.remove(elected.observe)
        for node in cluster.spec.controller_ids or cluster.spec.broker_ids:
            for request in topic_requests(params):
                cluster.send(FIRST_CLIENT, node, request)
        while not all(partition.serves for partition in self.observer.states.partitions.values()):
            if not cluster.step(SET_UP_MS):
                raise SetUpError(f"no leaders after {SET_UP_MS} ms")

    def _await_event(self) -> None:
        event = self._awaited = self._timeline.next_event()
        if event is not None:
            at_ms = self._zero_ms + event.time_ms
            self.cluster.call_at(at_ms, lambda: self._handle_event(event))
            if event.kind not in ("start", "mark") and not event.ends:
                self._write_before(at_ms, self._timeline.struck())

    def _write_before(self, at_ms: TimeMs, brokers: Sequence[NodeId]) -> None:
        """Has records acknowledged just before the brokers fail at that time, if all is well: the client learns where
        to write, and the record goes to the leader, to the followers, their next fetches to the leader, and the answer
        to the client. A shared event strikes all of its brokers at once: when the first has failed it is too late for
        the partitions of the others."""
        flush_ms = self.params.flush_interval_ms
        before_ms = [LEARNING_MS + 5 * (self.params.network_latency_ms + JITTER_MS)]
        if flush_ms is not None:
            before_ms.append(before_ms[0] + round(self._flush_phases.random() * flush_ms))
        for write_ms in before_ms:
            if at_ms - write_ms > self.cluster.now_ms:
                self.cluster.call_at(at_ms - write_ms, lambda: self.observer.write_to(*brokers))

    def _handle_event(self, event: Event) -> None:
        """Injects the event, unless the timeline has drawn another one since."""
        if event is not self._awaited:
            return
        if event.kind == "start":
            self._starting[event.broker] = event
            self._start(event)
        elif event.kind in IMPAIRMENTS:
            self._impairments.handle(event)
        else:
            self._starting.pop(event.broker, None)
            self._fail(event)
        self._await_event()

    def _fail(self, event: Event) -> None:
        """Ends the broker's process. If none runs, the failure acts on its disk only."""
        broker = event.broker
        if self.catch_ups is not None:
            self.catch_ups.fail(broker, event.kind == "disk")
        if broker not in self.cluster.nodes:
            if event.kind != "clean":
                self.cluster.disks[broker].apply_loss(loss_of(event.kind, self.params.writeback_ms))
                self.unseen.append((len(self.rows), Crash(broker, event.kind, event.cause)))
            return
        self._add(Crash(broker, event.kind, event.cause))
        if event.kind == "clean":
            self._shut_down(broker, self.cluster.incarnation_of(broker))
        else:
            self.cluster.crash(broker, loss_of(event.kind, self.params.writeback_ms))
            self._impairments.handle_crash(broker)
            self.observer.handle_crash(broker)

    def _shut_down(self, broker: NodeId, incarnation: int) -> None:
        """Begins a controlled shutdown of that process, if it still runs, as soon as it is not paused."""
        if self.cluster.incarnation_of(broker) == incarnation:
            if self.cluster.is_paused(broker):
                later_ms = self.cluster.now_ms + RETRY_START_MS
                self.cluster.call_at(later_ms, lambda: self._shut_down(broker, incarnation))
            else:
                self.cluster.command(broker, ShutdownCommand())

    def _start(self, event: Event) -> None:
        """Starts the broker, as soon as its controlled shutdown has ended and unless it has failed again."""
        broker = event.broker
        if self._starting.get(broker) is not event:
            return
        if broker in self.cluster.nodes:
            self.cluster.call_at(self.cluster.now_ms + RETRY_START_MS, lambda: self._start(event))
            return
        self._add(Start(broker))
        if self.params.restart_time_ms:
            self.cluster.call_at(self.cluster.now_ms + self.params.restart_time_ms, lambda: self._boot(event))
        else:
            self._boot(event)

    def _boot(self, event: Event) -> None:
        """The broker's process takes part from now on, unless it has failed again."""
        if self._starting.get(event.broker) is not event:
            return
        del self._starting[event.broker]
        if self.catch_ups is not None:
            self.catch_ups.start(event.broker)
        self.cluster.start(event.broker)

    def _handle_settled(self) -> None:
        """A write has ended that no other follows."""

    @property
    def time_ms(self) -> TimeMs:
        """Virtual time since the measurement began; negative in the warm-up."""
        return self.cluster.now_ms - self._zero_ms

    def _add(self, what: Observation) -> None:
        if self._measuring:
            self.rows.append(Stamped(self.time_ms, what, self._log_weight()))
        elif isinstance(what, Crash | Start | Impaired | Restored):
            self.unseen.append((0, what))

    def _log_weight(self) -> float:
        return self._timeline.log_weight(self.time_ms)


def compressed(params: CellParameters) -> CellParameters:
    """The parameters of the trial that runs: its length, and the down time that its warm-up follows from, are divided
    by the factor. Its failures are those of a timeline, so the parameters have no shared causes."""
    factor = params.time_compression
    repair_ms = max(1, round(params.longest_repair_ms / factor))
    return params.model_copy(
        update={
            "duration_ms": max(1, round(params.duration_ms / factor)),
            "broker_mttr": Distribution(dist="constant", mean_ms=repair_ms),
            "power_events_per_year": 0.0,
            "rack_power_events_per_year": 0.0,
            **{"isolated": (), "paused": (), "slow_disk": (), "power": (), "burst": ()},
        }
    )


class CompressedTimeline:
    """`timeline` with its times divided by `factor`."""

    def __init__(self, timeline: Timeline, factor: float) -> None:
        self._timeline = timeline
        self._factor = factor

    def next_event(self) -> Event | None:
        event = self._timeline.next_event()
        if event is None:
            return None
        begins_ms, ends_ms = event.span
        span = (round(begins_ms / self._factor), round(ends_ms / self._factor))
        return event._replace(time_ms=round(event.time_ms / self._factor), span=span)

    def struck(self) -> Sequence[NodeId]:
        return self._timeline.struck()

    def log_weight(self, at_ms: int) -> float:
        return self._timeline.log_weight(round(at_ms * self._factor))

    def regenerate(self, at_ms: int) -> bool:
        return self._timeline.regenerate(round(at_ms * self._factor))


def stretched(found: TrialResult, params: CellParameters) -> TrialResult:
    """The result of a trial of `compressed(params)` in the study's time."""
    end_ms, factor, last = params.duration_ms, params.time_compression, found.rows[-1]
    assert isinstance(last.what, End)
    rows = [row._replace(time_ms=min(end_ms, round(row.time_ms * factor))) for row in found.rows[:-1]]
    return replace(found, rows=[*rows, last._replace(time_ms=params.duration_ms)])


def run_through(params: CellParameters, seed: int, timeline: Callable[[], Timeline]) -> TrialResult:
    """Runs one trial through a timeline, on the cell's engine; `timeline` creates it for each attempt of a trial
    on processes. On sim the trial is a pure function of its arguments."""
    if params.engine == "ray":
        from experiments.studies.trials.processes.trial import run_process_trial

        return run_process_trial(params, seed, timeline)
    with rare_collections():
        found = simulated(params, seed, timeline()).run()
    return found if params.time_compression == 1.0 else stretched(found, params)


def simulated(params: CellParameters, seed: int, timeline: Timeline) -> Trial:
    """The simulated trial, not yet run, of a cell in plain sampling; with time compression the compressed one."""
    if params.time_compression == 1.0:
        return Trial(params, seed, timeline)
    return Trial(compressed(params), seed, CompressedTimeline(timeline, params.time_compression))


def plain_timeline(params: CellParameters, seed: int) -> Timeline:
    """The failures that the cell's failure model draws."""
    return DrawnTimeline(params, seed, -warm_up_ms(params))


def run_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial in plain sampling, with the failures of the cell's failure model."""
    return run_through(params, seed, lambda: plain_timeline(params, seed))
