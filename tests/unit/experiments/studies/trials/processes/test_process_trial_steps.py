"""A trial carries out its timeline on a cluster, and is run again if the cluster fails by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from experiments.engines.port import ClusterSpec, Loss
from experiments.studies.design.impairments import ImpairmentKind
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.timeline import Event
from experiments.studies.trace.kinds import End, Stamped, TrialResult
from experiments.studies.trials.processes import trial as module
from experiments.studies.trials.processes.cluster import ProcessCluster
from experiments.studies.trials.processes.rows import TrialEvents
from experiments.studies.trials.processes.trial import ATTEMPTS, ProcessTrial, run_process_trial
from experiments.studies.trials.setting import SetUpError, cluster_spec
from protocol.ids import NodeId, TimeMs

PARAMETERS = CellParameters(engine="ray", start="fresh", detection_ms=2_000, duration_ms=10_000)
BEGINS_MS = 500


class Script:
    """A timeline of given events, in plain sampling."""

    def __init__(self, *events: Event) -> None:
        self._events: Iterator[Event] = iter(events)

    def next_event(self) -> Event | None:
        return next(self._events, None)

    def log_weight(self, at_ms: int) -> float:
        return 0.0

    def regenerate(self, at_ms: int) -> bool:
        return False


class FakeEngine:
    """Notes what is done to its nodes; a controlled shutdown takes 1.5 s; `ends` names a node that ends by itself."""

    def __init__(self, spec: ClusterSpec, ends: NodeId | None = None) -> None:
        self.spec = spec
        self.at_ms = BEGINS_MS
        self.calls: list[tuple[TimeMs, str, NodeId]] = []
        self._down: dict[NodeId, TimeMs] = {} if ends is None else {ends: 0}

    def now_ms(self) -> TimeMs:
        return self.at_ms

    def is_running(self, node: NodeId) -> bool:
        return self.at_ms < self._down.get(node, self.at_ms + 1)

    def _note(self, what: str, node: NodeId) -> None:
        self.calls.append((self.at_ms - BEGINS_MS, what, node))

    def crash(self, node: NodeId, loss: Loss) -> None:
        self._note(f"crash {loss.kind}", node)
        self._down[node] = self.at_ms

    def terminate(self, node: NodeId) -> None:
        self._note("terminate", node)
        self._down[node] = self.at_ms + 1_500

    def lose(self, node: NodeId, loss: Loss) -> None:
        self._note(f"lose {loss.kind}", node)

    def start(self, node: NodeId) -> None:
        self._note("start", node)
        del self._down[node]

    def pause(self, node: NodeId) -> None:
        self._note("pause", node)

    def resume(self, node: NodeId) -> None:
        self._note("resume", node)

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        self._note(f"{'heal' if up else 'cut'} {source} to", target)

    def trace_hash(self) -> str:
        return ""


class FakeCluster:
    def __init__(self, ends: NodeId | None = None) -> None:
        self.engine = FakeEngine(cluster_spec(PARAMETERS, 0), ends)
        self.recording = TrialEvents()
        self.paused: set[NodeId] = set()

    def begin_writing(self) -> None:
        pass

    def run_until(self, at_ms: TimeMs) -> None:
        self.engine.at_ms = max(self.engine.at_ms, at_ms)


def calls(*events: Event, ends: NodeId | None = None) -> list[tuple[TimeMs, str, NodeId]]:
    """What a trial with these events does to its cluster."""
    cluster = FakeCluster(ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trace_rows", lambda recording, params: [])
        ProcessTrial(PARAMETERS, Script(*events), cast(ProcessCluster, cluster)).run()
    return cluster.engine.calls


def test_failures_and_starts_happen_at_their_times_and_none_after_the_end() -> None:
    events = (Event(1_000, 0, "lossy"), Event(3_000, 0, "start"), Event(3_000, 1, "disk"), Event(10_000, 2, "unclean"))
    assert calls(*events) == [(1_000, "crash unflushed", 0), (3_000, "start", 0), (3_000, "crash all", 1)]


def test_a_failure_of_a_broker_that_is_down_acts_on_its_disk() -> None:
    events = (Event(1_000, 0, "unclean"), Event(2_000, 0, "lossy"), Event(2_500, 0, "clean"), Event(4_000, 0, "start"))
    assert calls(*events) == [(1_000, "crash none", 0), (2_000, "lose unflushed", 0), (4_000, "start", 0)]


def test_a_start_waits_for_the_end_of_the_controlled_shutdown() -> None:
    assert calls(Event(1_000, 0, "clean"), Event(2_000, 0, "start")) == [(1_000, "terminate", 0), (3_000, "start", 0)]


def _lasts(kind: ImpairmentKind, broker: NodeId, begins_ms: int, ends_ms: int) -> tuple[Event, Event]:
    """The beginning and the end of an impairment."""
    event = Event(begins_ms, broker, kind, "test", span=(begins_ms, ends_ms))
    return event, event._replace(time_ms=ends_ms, ends=True)


def test_overlapping_pauses_are_one_and_end_with_the_process() -> None:
    first, ends = _lasts("paused", 0, 1_000, 4_000)
    second, later = _lasts("paused", 0, 2_000, 6_000)
    assert calls(first, second, ends, later) == [(1_000, "pause", 0), (6_000, "resume", 0)]
    crash, start = Event(3_000, 0, "unclean"), Event(5_000, 0, "start")
    assert calls(first, crash, ends, start) == [(1_000, "pause", 0), (3_000, "crash none", 0), (5_000, "start", 0)]


def test_a_link_is_healed_when_the_last_isolation_that_covers_it_ends() -> None:
    """Broker 0 is cut off from the controller, meanwhile also by another cause in one direction."""
    first, ends = _lasts("isolated-controllers", 0, 1_000, 3_000)
    second, later = _lasts("isolated-controllers-out", 0, 2_000, 4_000)
    done = [(at_ms, what, node) for at_ms, what, node in calls(first, second, ends, later) if node in (0, 1000)]
    cuts = [(1_000, "cut 0 to", 1000), (1_000, "cut 1000 to", 0)]
    assert done == [*cuts, (3_000, "heal 1000 to", 0), (4_000, "heal 0 to", 1000)]


def test_a_node_that_ends_by_itself_ends_the_trial() -> None:
    with pytest.raises(SetUpError, match=r"controller-1000 ended by itself"):
        calls(Event(1_000, 0, "unclean"), ends=1000)


def test_a_trial_whose_cluster_fails_is_run_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    result, failures = TrialResult([Stamped(0, End())], "", 0), ["no room", "no room", "a disk is full"]

    def attempt(*arguments: Any) -> TrialResult:
        if failures:
            raise SetUpError(failures.pop(0))
        return result

    monkeypatch.setattr(module, "_attempt", attempt)
    with pytest.raises(SetUpError, match=rf"^the cluster failed in {ATTEMPTS} attempts: no room; a disk is full$"):
        run_process_trial(PARAMETERS, 0, Script)
    failures.append("no room")
    assert run_process_trial(PARAMETERS, 0, Script) is result
