"""One trial on processes: a cluster of actors that goes through a timeline of failures in real time.

The timeline is that of the simulated trial with the same parameters and seed: the same brokers fail and return at the
same times, in the same ways. A crash is SIGKILL; a lossy one also truncates every log of the broker to its last fsynced
position; a clean failure is a controlled shutdown. An event happens when its time has come and the trial has finished
with the one before it, usually within 50 ms. An isolation is a filter in the transports of all nodes that it is about;
a paused node's process is stopped by SIGSTOP. The trace depends on the operating system's scheduling, too: the seed
repeats the failures only. Beside the rows of a simulated trial it has measurements that only real time has (`rows.py`).

A cluster that does not come up, or of which a process ends without the trial's doing (out of memory, a full disk), is
no observation of the protocol. The trial is run again from its beginning, up to `ATTEMPTS` times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from experiments.engines.ray.engine import NODE_FAILURES
from experiments.studies.design.impairments import IMPAIRMENTS, PAUSED
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.impaired import ImpairedBrokers, Link
from experiments.studies.failures.timeline import Event, Timeline, warm_up_ms
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trials.processes.cluster import ProcessCluster
from experiments.studies.trials.processes.rows import Changed, Failed, Started, TrialEvents, trace_rows
from experiments.studies.trials.setting import RETRY_START_MS, SetUpError, loss_of
from experiments.studies.trials.trial import CompressedTimeline, compressed, stretched
from protocol.ids import NodeId, TimeMs, node_name

ATTEMPTS = 3
_LOG = logging.getLogger(__name__)


class ProcessTrial:
    """One trial on `cluster`, which is set up, through `timeline`."""

    def __init__(self, params: CellParameters, timeline: Timeline, cluster: ProcessCluster) -> None:
        self._params = params
        self._timeline = timeline
        self._cluster = cluster
        self._recording = cluster.recording
        self._down: set[NodeId] = set()
        self._starting: set[NodeId] = set()
        spec = cluster.engine.spec
        self._impaired = ImpairedBrokers(spec.broker_ids, (*spec.controller_ids, *spec.manager_ids), spec.client_ids)
        self._cuts: frozenset[Link] = frozenset()

    def run(self) -> TrialResult:
        """Runs the trial to its end."""
        recording, engine = self._recording, self._cluster.engine
        recording.begins_ms = engine.now_ms() + warm_up_ms(self._params)
        recording.ends_ms = recording.begins_ms + self._params.duration_ms
        self._cluster.begin_writing()
        while (event := self._timeline.next_event()) is not None:
            at_ms = recording.begins_ms + event.time_ms
            if at_ms >= recording.ends_ms:
                break
            self._run_until(at_ms)
            self._handle_event(event)
        self._run_until(recording.ends_ms)
        return TrialResult(trace_rows(recording, self._params), engine.trace_hash(), len(recording.events))

    def _run_until(self, at_ms: TimeMs) -> None:
        """Runs the cluster until `at_ms`, and starts brokers whose controlled shutdown ends late."""
        while self._starting and (now_ms := self._cluster.engine.now_ms()) < at_ms:
            self._cluster.run_until(min(at_ms, now_ms + RETRY_START_MS))
            for broker in sorted(self._starting):
                self._start(broker)
        self._cluster.run_until(at_ms)
        engine = self._cluster.engine
        ended = [node for node in engine.spec.node_ids if node not in self._down and not engine.is_running(node)]
        if ended:
            raise SetUpError(f"{', '.join(map(node_name, ended))} ended by itself")

    def _handle_event(self, event: Event) -> None:
        if event.kind == "start":
            self._start(event.broker)
            return
        if event.kind in IMPAIRMENTS:
            self._impair(event)
            return
        self._starting.discard(event.broker)
        engine = self._cluster.engine
        if not engine.is_running(event.broker):
            if event.kind != "clean":
                engine.lose(event.broker, loss_of(event.kind, self._params.writeback_ms))
            return
        self._down.add(event.broker)
        at_ms = engine.now_ms()
        if event.kind == "clean":
            engine.terminate(event.broker)
        else:
            engine.crash(event.broker, loss_of(event.kind, self._params.writeback_ms))
        self._recording.injected.append(Failed(at_ms, engine.now_ms(), event.broker, event.kind, event.cause))
        if event.kind != "clean":
            self._cluster.paused.discard(event.broker)
            for cause in self._impaired.end_pauses(event.broker):
                self._recording.injected.append(Changed(at_ms, event.broker, PAUSED, cause, ends=True))

    def _impair(self, event: Event) -> None:
        """Begins or ends an impairment. A pause that finds no process has no effect."""
        engine, broker = self._cluster.engine, event.broker
        if event.ends:
            if not self._impaired.end(event):
                return
        elif event.kind == PAUSED and not engine.is_running(broker):
            return
        else:
            self._impaired.begin(event)
        self._recording.injected.append(Changed(engine.now_ms(), broker, event.kind, event.cause, event.ends))
        if event.kind == PAUSED:
            self._pause(broker, self._impaired.is_paused(broker))
            return
        cuts = self._impaired.cuts()
        for source, target in sorted(self._cuts ^ cuts):
            engine.set_link(source, target, (source, target) not in cuts)
        self._cuts = cuts

    def _pause(self, broker: NodeId, is_paused: bool) -> None:
        engine, paused = self._cluster.engine, self._cluster.paused
        if is_paused and broker not in paused:
            engine.pause(broker)
            paused.add(broker)
        elif not is_paused and broker in paused:
            paused.remove(broker)
            engine.resume(broker)

    def _start(self, broker: NodeId) -> None:
        """Starts the broker, as soon as its controlled shutdown has ended."""
        engine = self._cluster.engine
        if engine.is_running(broker):
            self._starting.add(broker)
            return
        self._starting.discard(broker)
        self._down.discard(broker)
        self._recording.injected.append(Started(engine.now_ms(), broker))
        engine.start(broker)


def run_process_trial(params: CellParameters, seed: int, timeline: Callable[[], Timeline]) -> TrialResult:
    """Runs one trial on the Ray that this process is connected to; `timeline` creates the timeline of an attempt.
    Raises SetUpError if the cluster fails by itself `ATTEMPTS` times."""
    reasons: list[str] = []
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _attempt(params, seed, timeline())
        except (SetUpError, *NODE_FAILURES) as error:
            reasons.append((str(error).strip().splitlines() or [type(error).__name__])[-1])
            _LOG.warning("trial with seed %d, attempt %d of %d: %s", seed, attempt, ATTEMPTS, reasons[-1])
    raise SetUpError(f"the cluster failed in {ATTEMPTS} attempts: {'; '.join(dict.fromkeys(reasons))}")


def _attempt(params: CellParameters, seed: int, timeline: Timeline) -> TrialResult:
    real = compressed(params)
    cluster = ProcessCluster(real, seed, TrialEvents())
    with closing(cluster.engine):
        cluster.set_up()
        found = ProcessTrial(real, CompressedTimeline(timeline, params.time_compression), cluster).run()
    return stretched(found, params)
