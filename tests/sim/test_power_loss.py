"""The whole cluster loses power, and exactly one member of the last known ELR keeps its log (M17, F27).

Every record was acknowledged by all three replicas. The brokers restart one after the other, in an order and at times
drawn from the seed; all shutdowns were unclean, and all brokers but one have lost everything.
"""

from __future__ import annotations

from random import Random

import pytest

from experiments.engines import admin_requests
from experiments.engines.port import Loss
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.commands import AdminOutcome
from protocol.messages.partitions import ElectionType
from tests.sim.partition_helpers import Bench

pytestmark = pytest.mark.slow

SEEDS = range(200)
RECORDS = 5


class PowerLoss(Bench):
    """A leaderless partition, all brokers down; only `keeper` has the acknowledged records."""

    def __init__(self, seed: int, strategy: str) -> None:
        super().__init__(seed=seed, config={"unclean.recovery.strategy": strategy})
        self.rng = Random(f"power loss {seed}")
        self.acknowledged = [self.produce() for _ in range(RECORDS)]
        self.run_until(4_000)
        assert all(map(self.acked, self.acknowledged))
        for broker in range(3):
            self.cluster.crash(broker, Loss("none"))
        self.run_until(20_000)
        assert (self.state.leader, self.state.isr, len(self.state.elr)) == (NO_LEADER, (), 2)
        self.keeper = self.rng.choice(self.state.elr)
        for broker in {0, 1, 2} - {self.keeper}:
            self.cluster.disks[broker].apply_loss(Loss("all"))

    def come_back(self) -> None:
        """Restarts all brokers, one by one."""
        at_ms = self.cluster.now_ms
        for broker in self.rng.sample(range(3), 3):
            at_ms += self.rng.randrange(1, 4_000)
            self.run_until(at_ms)
            self.cluster.start(broker)
        self.run_until(at_ms + 2_000)

    def elect(self, kind: ElectionType, desired: int | None = None) -> ErrorCode:
        command = self.administer(admin_requests.elect_leader("t", 0, kind, desired))
        self.run_until(self.cluster.now_ms + 2_000)
        outcome = self.cluster.outcomes[command]
        assert isinstance(outcome, AdminOutcome)
        return outcome.error

    @property
    def lost(self) -> int:
        """The number of acknowledged records that the leader does not have."""
        leader = self.state.leader
        return sum(not self.holds(leader, record) for record in self.acknowledged)

    def metric(self, name: str) -> int:
        return self.controller.metrics()[f"kafka.controller.{name}"]


@pytest.mark.covers("M17", "M59", "F4", "F11", "F26", "F27")
@pytest.mark.slow
def test_a_balanced_recovery_never_loses_an_acknowledged_record() -> None:
    for seed in SEEDS:
        cluster = PowerLoss(seed, "balanced")
        cluster.come_back()
        assert (cluster.state.leader, cluster.lost) == (cluster.keeper, 0), f"seed {seed}"


@pytest.mark.covers("M62", "F4", "F12")
@pytest.mark.slow
def test_a_proactive_recovery_loses_records_if_the_last_replica_with_them_is_late() -> None:
    lost = 0
    for seed in SEEDS:
        cluster = PowerLoss(seed, "proactive")
        cluster.come_back()
        assert cluster.state.leader != NO_LEADER, f"seed {seed}"
        assert cluster.lost in (0, RECORDS), f"seed {seed}"
        lost += cluster.lost > 0
    assert 0 < lost < len(SEEDS)


@pytest.mark.covers("M63", "F4", "F22", "I4")
@pytest.mark.parametrize("kind", [ElectionType.DESIGNATION, ElectionType.LONGEST_LOG_BALANCED])
def test_a_manual_recovery_waits_for_the_operator(kind: ElectionType) -> None:
    for seed in SEEDS[::10]:
        cluster = PowerLoss(seed, "manual")
        cluster.come_back()
        assert cluster.state.leader == NO_LEADER, f"seed {seed}"
        assert cluster.metric("manual_leader_election_required_partition_count") == 1
        desired = cluster.keeper if kind is ElectionType.DESIGNATION else None
        assert cluster.elect(kind, desired) is ErrorCode.NONE
        assert (cluster.state.leader, cluster.lost) == (cluster.keeper, 0), f"seed {seed}"
        assert cluster.metric("manual_leader_election_required_partition_count") == 0
