"""A broker whose disk fails ends, and the cluster goes on without it until it is back on a disk that works."""

from __future__ import annotations

import pytest

from experiments.engine import Loss
from experiments.sim.disk import SimLog
from protocol.broker.context import log_name
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE
from protocol.config import BROKER_SESSION_TIMEOUT_MS
from protocol.errors import StorageError, StorageFullError
from protocol.messages.batch import RecordBatch
from tests.sim.one_partition import Bench


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
    assert (failed.node, failed.trace.detail["halted"]) == (leader, True)
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


def test_a_follower_whose_disk_fails_leaves_the_isr_and_holds_nothing_up() -> None:
    bench = Bench()
    follower = next(broker for broker in bench.state.isr if broker != bench.state.leader)
    log_of(bench, follower).__class__ = FullLog
    command = bench.produce()
    bench.run_until(60_000)
    assert bench.acked(command)
    assert follower not in bench.cluster.nodes
    assert follower not in bench.state.isr


def test_a_broker_that_exited_can_be_crashed_and_started_like_any_other() -> None:
    bench = Bench()
    leader = bench.state.leader
    log_of(bench, leader).__class__ = BrokenLog
    bench.produce()
    bench.run_until(30_000)
    bench.cluster.disks[leader].apply_loss(Loss("all"))
    bench.cluster.start(leader)
    bench.run_until(90_000)
    assert leader in bench.state.isr
