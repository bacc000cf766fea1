"""Disks that fail under a broker on ray: what it says, what becomes of the partition, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.damage import DamageKind
from experiments.engines.port import Loss
from experiments.hunt.soak.ray_nodes import ray_nodes
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from tests.ray.cluster_helpers import Lab, running_lab

BROKERS = (0, 1, 2)
LARGE = b"L" * 10_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Lab]:
    """Three brokers, topic `t` on all of them with min ISR 2."""
    with ray_nodes(0), running_lab(within_ms=90_000) as lab:
        lab.create_topic(BROKERS, min_isr=2)
        yield lab


def await_logs(lab: Lab, expected: list[bytes]) -> None:
    """Waits until the ISR is whole and all replicas have as many batches as expected: they are those."""
    lab.await_whole()
    lab.until(lambda: all(len(lab.payloads(b)) == len(expected) for b in BROKERS), "all replicas have all records")
    assert [lab.payloads(broker) for broker in BROKERS] == [expected] * len(BROKERS)


def test_a_leader_whose_disk_is_full_says_so_and_another_takes_what_it_could_not(cluster: Lab) -> None:
    leader = cluster.await_whole()
    before = cluster.payloads(leader)
    assert cluster.produce(b"small") == [ErrorCode.NONE]
    cluster.engine.set_room(leader, 100)
    assert cluster.produce(LARGE) == [ErrorCode.NONE]
    cluster.until(lambda: bool(cluster.told("storage_error", leader)), "the broker says so")
    assert any("No space left on device" in reason for reason in cluster.told("storage_error", leader))
    cluster.until(lambda: not cluster.engine.is_running(leader), "a broker whose disk fails ends")
    state = cluster.state()
    assert state is not None
    assert state.leader not in (leader, NO_LEADER)
    assert cluster.produce(b"after") == [ErrorCode.NONE]
    cluster.engine.start(leader)
    await_logs(cluster, [*before, b"small", LARGE, b"after"])


@pytest.mark.parametrize("kind", ["torn", "flipped", "zeroed"])
def test_a_damaged_tail_is_dropped_and_said_and_the_rest_comes_from_the_leader(cluster: Lab, kind: DamageKind) -> None:
    leader = cluster.await_whole()
    before = cluster.payloads(leader)
    records = [b"%s %d" % (kind.encode(), number) for number in range(20)]
    assert cluster.produce(*records) == [ErrorCode.NONE] * len(records)
    told = len(cluster.told("records_dropped", leader))
    cluster.engine.crash(leader, Loss())
    assert cluster.engine.damage_tails(leader, kind, kind) > 0
    cluster.engine.start(leader)
    cluster.until(lambda: len(cluster.told("records_dropped", leader)) > told, "the broker says what it dropped")
    await_logs(cluster, [*before, *records])
