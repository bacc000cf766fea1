"""What survives: recoveries, power losses, acks=0 and 1 (L12, L17, L18, L19)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from experiments.engines.port import Loss
from experiments.numbers.conditions import Conditions, Row, compared, same
from experiments.numbers.failover import seconds
from experiments.numbers.measured_cluster import KEEP, T0, MeasuredCluster
from experiments.scenarios.loader import load_scenario
from experiments.support.shipped import SCENARIOS
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.events.controller import RecoveryBegan, RecoveryDecided
from protocol.features import Generation
from protocol.ids import NO_LEADER, RECOVERY_MANAGER, TimeMs

RECORDS = 5
LOST_POWER = Loss("unflushed")
CURRENT, PROPOSED = Generation.KIP_497, Generation.KIP_966


def proactive_wait(conditions: Conditions) -> TimeMs:
    """A proactive recovery queries two replicas, of which one does not answer: from its begin to the election."""
    cluster = MeasuredCluster(conditions, Generation.KIP_966, config={"unclean.recovery.strategy": "proactive"})
    cluster.create([(0, 1, 2)], {MIN_INSYNC_REPLICAS: 2})
    for broker in (0, 1, 2):
        cluster.engine.crash(broker, KEEP)
        cluster.settle()
    cluster.await_("no leader", lambda: cluster.state().leader == NO_LEADER)
    for broker in (0, 1):
        cluster.cut(RECOVERY_MANAGER, broker)
        cluster.engine.start(broker)
    cluster.engine.run_for(1_000)
    cluster.cut(RECOVERY_MANAGER, 0, up=True)
    decided_ms = cluster.await_("a leader", lambda: cluster.counts[RecoveryDecided] == 1)
    return decided_ms - next(time for time, _, _ in cluster.events(RecoveryBegan))


def waits(conditions: Conditions) -> list[Row]:
    """L12."""
    what = "from the begin of a proactive recovery to the election"
    return [compared(what, 5.0, seconds(proactive_wait(conditions)), "s")]


def reference_configs(conditions: Conditions) -> list[Row]:
    """L17: the shipped scenarios with an ELR whose name says that they are about it."""
    topics = [topic for path in sorted(SCENARIOS.glob("elr-*.yaml")) for topic in load_scenario(path).topics]
    used = sum(
        topic.config.get(MIN_INSYNC_REPLICAS) == 2 and all(len(replicas) == 3 for replicas in topic.assignments)
        for topic in topics
    )
    return [same("shipped scenarios of the ELR with min ISR 2 and 3 replicas, of all", len(topics), used)]


def lost_after_power_losses(conditions: Conditions, min_isr: int, brokers: Sequence[int]) -> int:
    """The ISR has shrunk to min ISR when records are acknowledged; then brokers of it lose power at once, with all that
    is not flushed. All brokers start again: how many acknowledged records are not read.
    """
    cluster = MeasuredCluster(conditions, Generation.KIP_966)
    cluster.create([(0, 1, 2)], {MIN_INSYNC_REPLICAS: min_isr})
    away = range(min_isr, 3)
    for broker in away:
        cluster.engine.crash(broker, KEEP)
    cluster.await_("an ISR of min ISR", lambda: len(cluster.state().isr) == min_isr)
    numbers = [cluster.produce() for _ in range(RECORDS)]
    cluster.await_acknowledgements(numbers)
    for broker in brokers:
        cluster.engine.crash(broker, LOST_POWER)
    cluster.settle()
    for broker in (*brokers, *away):
        cluster.engine.start(broker)
    cluster.await_("a leader", lambda: cluster.state().leader != NO_LEADER)
    cluster.settle()
    return len(set(numbers) - cluster.visible())


def tolerated(conditions: Conditions) -> list[Row]:
    """L18."""
    rows = []
    for min_isr in (1, 2, 3):
        for crashed in (min_isr - 1, min_isr):
            cases = combinations(range(min_isr), crashed)
            worst = max(lost_after_power_losses(conditions, min_isr, brokers) for brokers in cases)
            what = f"min ISR {min_isr}: of {RECORDS} acknowledged records lost by {crashed} power losses, at worst"
            rows.append(same(what, 0, worst) if crashed < min_isr else Row(what, None, worst))
    return rows


def below_min_isr(conditions: Conditions, generation: Generation, acks: int) -> tuple[str, str, str]:
    """Two of three replicas are down, with min ISR 2: whether a record is acknowledged, whether a consumer reads it,
    and whether the high watermark moves.
    """
    cluster = MeasuredCluster(conditions, generation)
    cluster.create([(0, 1, 2)], {MIN_INSYNC_REPLICAS: 2})
    for broker in (1, 2):
        cluster.engine.crash(broker, KEEP)
    cluster.await_("one replica is left", lambda: cluster.state().isr == (0,))
    number = cluster.produce(acks=acks)
    cluster.settle()
    replica = cluster.engine.replica(0, T0)
    assert replica is not None
    acknowledged = "acknowledged" if cluster.is_acknowledged(number) else "refused"
    visible = "read" if number in cluster.visible() else "not read"
    return acknowledged, visible, "moves" if replica.high_watermark > 0 else "stays"


def all_fenced(conditions: Conditions, generation: Generation) -> tuple[str, int, int]:
    """The ISR shrinks to one replica, as two brokers stop; that one gets records with acks=1 and loses power, with all
    that is not flushed. One of the two comes back, then the others: what happens before the last one is back, and how
    many records with acks=all and with acks=1 are lost in the end.
    """
    cluster = MeasuredCluster(conditions, generation)
    cluster.create([(0, 1, 2)], {MIN_INSYNC_REPLICAS: 2})
    with_all = [cluster.produce() for _ in range(RECORDS)]
    cluster.await_acknowledgements(with_all)
    for broker in (1, 2):
        cluster.stop(broker)
    with_one = [cluster.produce(acks=1) for _ in range(RECORDS)]
    cluster.await_acknowledgements(with_one)
    cluster.engine.crash(0, LOST_POWER)
    cluster.settle()
    cluster.engine.start(2)
    cluster.settle()
    before = "waits" if cluster.state().leader == NO_LEADER else "elects the other"
    for broker in (0, 1):
        cluster.engine.start(broker)
    cluster.await_("a leader", lambda: cluster.state().leader != NO_LEADER)
    cluster.settle()
    visible = cluster.visible()
    return before, len(set(with_all) - visible), len(set(with_one) - visible)


def comparison(conditions: Conditions) -> list[Row]:
    """L19."""
    said = {CURRENT: ("read", "moves", "waits", RECORDS), PROPOSED: ("not read", "stays", "elects the other", 0)}
    rows = []
    for generation, (consumer, high_watermark, election, lost) in said.items():
        name = generation.value
        for acks in (0, 1):
            produced, read, moves = below_min_isr(conditions, generation, acks)
            below = f"{name}, acks={acks}, ISR below min ISR"
            rows.append(same(f"{below}: produce", "acknowledged", produced))
            rows.append(same(f"{below}: a consumer", consumer, read))
            rows.append(same(f"{below}: the high watermark", high_watermark, moves))
        before, with_all, with_one = all_fenced(conditions, generation)
        rows.append(same(f"{name}, the last member of the ISR is down, another is back: election", election, before))
        rows.append(same(f"{name}, then: lost of {RECORDS} records with acks=all", lost, with_all))
        rows.append(Row(f"{name}, then: lost of {RECORDS} records with acks=1", None, with_one))
    return rows
