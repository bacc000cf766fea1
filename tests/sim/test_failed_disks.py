"""A broker whose disk fails stops, and the cluster continues without it until it restarts with a working disk."""

from __future__ import annotations

from typing import Literal

import pytest

from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimLog
from protocol.broker.context import log_name
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE
from protocol.config import BROKER_SESSION_TIMEOUT_MS
from protocol.errors import StorageError, StorageFullError
from protocol.log.tail import DAMAGED, TORN
from protocol.messages.batch import RecordBatch
from tests.sim.partition_helpers import Bench


class BrokenLog(SimLog):
    __slots__ = ()

    def append(self, batch: RecordBatch) -> None:
        raise StorageError("broken")


class FullLog(SimLog):
    __slots__ = ()

    def append(self, batch: RecordBatch) -> None:
        raise StorageFullError("full")


def log_of(bench: Bench, broker: int) -> SimLog:
    return bench.cluster.disks[broker].open_log(log_name(bench.replica(broker).key))


@pytest.mark.parametrize("failure", [BrokenLog, FullLog])
def test_leadership_moves_from_a_broker_whose_disk_fails(failure: type[SimLog]) -> None:
    bench = Bench()
    leader = bench.state.leader
    bench.run_until(4_000)
    first = bench.produce()
    bench.run_until(5_000)
    assert bench.acked(first)
    log = log_of(bench, leader)
    log.__class__ = failure
    second = bench.produce()
    bench.run_until(5_500)
    assert leader not in bench.cluster.nodes
    [failed] = [event for event in bench.cluster.traces if event.trace.kind == "storage_error"]
    assert (failed.node, failed.trace.halted) == (leader, True)
    session_ms = bench.cluster.spec.config.int_value(BROKER_SESSION_TIMEOUT_MS)
    bench.run_until(5_500 + 2 * session_ms)
    assert bench.state.leader not in (leader, -1)
    assert leader not in bench.state.isr
    assert bench.acked(second), "the client has found the new leader"
    assert bench.cluster.disks[leader].read_file(CLEAN_SHUTDOWN_FILE) is None
    log.__class__ = SimLog
    bench.cluster.start(leader)
    bench.run_until(60_000 + 2 * session_ms)
    assert leader in bench.state.isr
    assert all(bench.holds(leader, command) for command in (first, second))


def test_a_follower_with_a_failed_disk_leaves_the_isr_and_delays_nothing() -> None:
    bench = Bench()
    follower = next(broker for broker in bench.state.isr if broker != bench.state.leader)
    log_of(bench, follower).__class__ = FullLog
    command = bench.produce()
    bench.run_until(60_000)
    assert bench.acked(command)
    assert follower not in bench.cluster.nodes
    assert follower not in bench.state.isr


def test_an_exited_broker_can_be_crashed_and_started_again() -> None:
    bench = Bench()
    leader = bench.state.leader
    log_of(bench, leader).__class__ = BrokenLog
    bench.produce()
    bench.run_until(30_000)
    bench.cluster.disks[leader].apply_loss(Loss("all"))
    bench.cluster.start(leader)
    bench.run_until(90_000)
    assert leader in bench.state.isr


@pytest.mark.parametrize(("kind", "why"), [("torn", TORN), ("corrupt", DAMAGED)])
def test_a_broker_with_a_damaged_log_tail_reports_what_it_drops_and_fetches_it_again(
    kind: Literal["torn", "corrupt"], why: str
) -> None:
    bench = Bench()
    commands = [bench.produce() for _ in range(3)]
    bench.run_until(4_000)
    log = log_of(bench, 2)
    end, flushed = log.end_offset, log.flushed_offset
    assert flushed < end
    lost = bench.cluster.crash(2, Loss(kind, 4))
    assert 0 < lost <= end - flushed
    bench.run_until(40_000)
    assert not [event for event in bench.cluster.traces if event.trace.kind == "records_dropped"]
    bench.cluster.start(2)
    [dropped] = [event for event in bench.cluster.traces if event.trace.kind == "records_dropped"]
    assert (dropped.node, dropped.trace.end_offset, dropped.trace.reason) == (2, end - lost, why)
    bench.run_until(80_000)
    assert sorted(bench.state.isr) == [0, 1, 2]
    assert all(bench.holds(2, command) for command in commands)


# -- faults on a node that is down -------------------------------------------------------------------------------------


def test_the_machine_of_a_broker_that_is_down_may_still_lose_what_was_not_flushed() -> None:
    bench = Bench()
    bench.run_until(4_000)
    bench.produce()
    bench.run_until(5_000)
    leader = bench.state.leader
    assert bench.cluster.crash(leader, Loss("none")) == 0
    assert bench.cluster.crash(leader, Loss("unflushed")) > 0
    assert bench.cluster.crash(leader, Loss("unflushed")) == 0
