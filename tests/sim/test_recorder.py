"""What a recorder of the simulator receives, and that the cluster does not notice it."""

from __future__ import annotations

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, Loss, TraceEvent
from experiments.explorer.recorder import Changed, Entry, Received, Sent, SimRecorder
from experiments.scenarios.runner import Runner
from protocol.config import ClusterConfig
from protocol.features import Generation
from tests.sim.scenario_helpers import run_file, shipped


def recorded(name: str, limit: int | None = None) -> tuple[tuple[Entry, ...], int, str]:
    """The entries of a shipped scenario, the number of the first, and the run's trace hash."""
    scenario = shipped(name)
    engine = CheckedEngine(scenario.cluster.spec(0))
    runner = Runner(scenario, engine)
    recorder = SimRecorder(engine.cluster, runner.headings, engine.suite.violations, limit)
    result = runner.run()
    journal = recorder.journal()
    return tuple(journal.entries), journal.first, result.trace_hash


@pytest.mark.parametrize("name", ["last-replica-standing", "silent-follower", "recovery-network-error"])
def test_a_recorded_run_has_the_same_trace(name: str) -> None:
    assert recorded(name)[2] == run_file(name).trace_hash


def test_each_receipt_refers_to_the_sending_of_its_message() -> None:
    entries, _, _ = recorded("last-replica-standing")
    receipts = [entry for entry in entries if isinstance(entry.what, Received)]
    assert len(receipts) > 100
    for entry in receipts:
        assert isinstance(entry.what, Received)
        sending = entries[entry.what.cause]
        assert isinstance(sending.what, Sent)
        assert (sending.what.message, sending.what.target) == (entry.what.message, entry.node)
        assert sending.node == entry.what.source
        assert entry.time_ms in sending.what.arrivals


def test_messages_into_a_cut_never_arrive() -> None:
    entries, _, _ = recorded("last-replica-standing")
    cut = next(place for place, entry in enumerate(entries) if entry.what == Changed("cut", 0, ""))
    healed = next(place for place, entry in enumerate(entries) if entry.what == Changed("healed", 0, ""))
    others = {1, 2, 1000, 2000}
    across = [
        entry.what
        for entry in entries[cut:healed]
        if isinstance(entry.what, Sent) and {entry.node, entry.what.target} - others == {0}
    ]
    assert len(across) > 10
    assert {what.arrivals for what in across} == {()}


def test_crashes_starts_and_steps_are_recorded_in_their_order() -> None:
    entries, _, _ = recorded("last-replica-standing")
    changes = [
        (entry.what.change, entry.node)
        for entry in entries
        if isinstance(entry.what, Changed) and entry.what.change not in ("cut", "healed")
    ]
    assert changes[6:] == [("exited", 1), ("crashed", 2), ("started", 2), ("started", 1)]


def test_a_limit_keeps_the_newest_entries() -> None:
    whole, _, _ = recorded("last-replica-standing")
    kept, first, _ = recorded("last-replica-standing", 100)
    assert (len(kept), first) == (100, len(whole) - 100)
    assert [(entry.time_ms, entry.node) for entry in kept] == [(entry.time_ms, entry.node) for entry in whole[-100:]]


def test_a_sink_receives_nothing_after_its_end() -> None:
    engine = CheckedEngine(ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966)))
    received: list[TraceEvent] = []
    end = engine.record_to(received.append)
    for node in engine.spec.node_ids:
        engine.start(node)
    engine.run_for(2_000)
    before, traced = len(received), len(engine.traces())
    assert before == traced + len(engine.spec.node_ids)
    end()
    engine.crash(0, Loss())
    engine.run_for(20_000)
    assert len(received) == before
    assert len(engine.traces()) > traced
