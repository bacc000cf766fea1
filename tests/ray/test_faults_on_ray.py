"""Disk failures of a broker on ray: the error it reports, the election that follows, and how the broker recovers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.storage import DamageKind
from experiments.engines.port import Loss, LossKind
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from tests.ray.cluster_helpers import ProcessPool, RunningCluster, running_cluster
from tests.sim.seed_helpers import some

BROKERS = (0, 1, 2)
LARGE = b"L" * 10_000
KINDS = some([("unflushed", "all", "records"), ("all",), ("all", "none")], first=1)


@pytest.fixture(scope="module")
def cluster(pool: ProcessPool) -> Iterator[RunningCluster]:
    """Three brokers, topic `t` on all of them with min ISR 2."""
    with running_cluster(within_ms=90_000, pool=pool) as cluster:
        cluster.create_topic(BROKERS, min_isr=2)
        yield cluster


def check_logs(cluster: RunningCluster, expected: list[bytes]) -> None:
    """Waits until all replicas are in sync with as many batches as expected; their payloads must be these."""
    cluster.await_whole()
    cluster.until(
        lambda: all(len(cluster.payloads(b)) == len(expected) for b in BROKERS), "all replicas have all records"
    )
    assert [cluster.payloads(broker) for broker in BROKERS] == [expected] * len(BROKERS)


def test_leader_with_a_full_disk_reports_it_and_the_next_leader_takes_the_records(cluster: RunningCluster) -> None:
    leader = cluster.await_whole()
    before = cluster.payloads(leader)
    assert cluster.produce(b"small") == [ErrorCode.NONE]
    cluster.engine.set_room(leader, 100)
    assert cluster.produce(LARGE) == [ErrorCode.NONE]
    cluster.until(lambda: bool(cluster.reasons("storage_error", leader)), "the broker reports it")
    assert any("No space left on device" in reason for reason in cluster.reasons("storage_error", leader))
    cluster.until(lambda: not cluster.engine.is_running(leader), "a broker whose disk fails ends")
    state = cluster.state()
    assert state is not None
    assert state.leader not in (leader, NO_LEADER)
    assert cluster.produce(b"after") == [ErrorCode.NONE]
    cluster.engine.start(leader)
    check_logs(cluster, [*before, b"small", LARGE, b"after"])


@pytest.mark.parametrize("kind", some(["torn", "flipped", "zeroed"], first=1))
def test_damaged_tail_is_dropped_and_reported_and_refetched_from_the_leader(
    cluster: RunningCluster, kind: DamageKind
) -> None:
    leader = cluster.await_whole()
    before = cluster.payloads(leader)
    records = [b"%s %d" % (kind.encode(), number) for number in range(20)]
    assert cluster.produce(*records) == [ErrorCode.NONE] * len(records)
    drops = len(cluster.reasons("records_dropped", leader))
    cluster.engine.crash(leader, Loss())
    assert cluster.engine.damage_tails(leader, kind, kind) > 0
    cluster.engine.start(leader)
    cluster.until(lambda: len(cluster.reasons("records_dropped", leader)) > drops, "the broker reports the drop")
    check_logs(cluster, [*before, *records])


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_broker_that_has_ended_loses_its_disk_too(cluster: RunningCluster, kinds: tuple[LossKind, ...]) -> None:
    """Its process is killed, then its machine fails once or more; the most that was lost counts at the next start."""
    leader = cluster.await_whole()
    before = cluster.payloads(leader)
    ended = next(broker for broker in BROKERS if broker != leader)
    cluster.engine.crash(ended, Loss())
    for kind in kinds:
        cluster.engine.crash(ended, Loss(kind, 1 if kind == "records" else 0))
    assert not cluster.engine.is_running(ended)
    for other in BROKERS:
        if other != ended:
            cluster.cut(ended, other)
    cluster.engine.start(ended)
    cluster.await_unfenced(ended)
    assert cluster.payloads(ended) == [], "it cannot fetch yet, and its disk is empty"
    cluster.engine.heal_links()
    check_logs(cluster, before)
