"""The reassignment agent, and when a reassignment is complete (L6, L10, L16)."""

from __future__ import annotations

from itertools import pairwise

from experiments.engines.admin_requests import reassign
from experiments.numbers.conditions import Conditions, Row, compared, same
from experiments.numbers.failover import seconds
from experiments.numbers.isr_changes import LAG_MS
from experiments.numbers.measured_cluster import CONTROLLER, KEEP, LEADER, T0, TOPIC, MeasuredCluster
from protocol.config import ISR_UPDATES, MIN_INSYNC_REPLICAS
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import NodeId, TimeMs
from protocol.messages.store import GetData, StoreRead
from protocol.metadata.partition import PartitionState
from protocol.v3.store import paths

AGENT_S = 30.0
WAKE_UPS = 4
MIN_ISR = 2
WAIT_MS = 60_000


def _is_moved(state: PartitionState, replicas: set[NodeId]) -> bool:
    return set(state.replicas) == replicas and not state.adding_replicas and not state.removing_replicas


def agent_period(conditions: Conditions) -> list[Row]:
    """L6: a reassignment that cannot go on, since the new replica does not reach the leader."""
    cluster = MeasuredCluster(conditions, brokers=4)
    leader, follower, new = cluster.others(cluster.controller)
    cluster.create([(leader, follower)])
    cluster.cut(leader, new)
    began_ms = cluster.now_ms
    cluster.administer(reassign(TOPIC, 0, (leader, new)))
    cluster.engine.run_for(WAKE_UPS * round(AGENT_S * 1_000) + WAIT_MS)
    path = paths.leader_and_isr(T0)
    looked = [
        sent.sent_ms
        for sent, read in cluster.messages(StoreRead, began_ms, cluster.controller)
        if isinstance(read.operation, GetData) and read.operation.path == path
    ]
    waits = [after - before for before, after in pairwise(looked)][-WAKE_UPS:]
    return [compared(f"the last {WAKE_UPS} pauses of the agent, the longest", AGENT_S, seconds(max(waits)), "s")]


def waits_after_joining(conditions: Conditions, generation: Generation, mode: str = "") -> TimeMs:
    """How long a reassignment takes from when its new replica is in the ISR. The same leader has changed another ISR
    before, so that its next notification has to wait.
    """
    config = {"replica.lag.time.max.ms": LAG_MS} | ({ISR_UPDATES: mode} if mode else {})
    cluster = MeasuredCluster(conditions, generation, brokers=4, config=config)
    leader, follower, new = cluster.others(cluster.controller)[:3]
    cluster.create([(leader, follower)])
    cluster.leave_isr(leader, follower)
    cluster.administer(reassign(TOPIC, 0, (leader, new)))
    joined_ms = cluster.await_("the new replica is in the ISR", lambda: new in cluster.state().isr)
    return cluster.await_("the reassignment is complete", lambda: _is_moved(cluster.state(), {leader, new})) - joined_ms


def delays(conditions: Conditions) -> list[Row]:
    """L10."""
    before = seconds(waits_after_joining(conditions, Generation.V3, LEADER))
    after = seconds(waits_after_joining(conditions, Generation.V3, CONTROLLER))
    rows = [
        Row("leaders write: from the new replica's joining to completion", None, before, "s"),
        Row("the controller writes: the same", "less", after, "s", after < before),
    ]
    later = {it.value: seconds(waits_after_joining(conditions, it)) for it in LOG_GENERATIONS}
    return [*rows, *(Row(f"{name}: the same", None, found, "s") for name, found in later.items())]


def isr_at_completion(
    conditions: Conditions, generation: Generation, min_isr: int = MIN_ISR, returns: bool = False
) -> str:
    """One of three replicas of a partition is to be replaced; before the new one has caught up, the two that stay are
    down, and with `returns` one of them comes back. What becomes of the reassignment.
    """
    cluster = MeasuredCluster(conditions, generation, brokers=5)
    keeper, first, second, new = cluster.others(cluster.controller)[:4]
    cluster.create([(keeper, first, second)], {MIN_INSYNC_REPLICAS: min_isr})
    cluster.cut(keeper, new)
    cluster.administer(reassign(TOPIC, 0, (new, first, second)))
    for broker in (first, second):
        cluster.engine.crash(broker, KEEP)
    cluster.await_("one replica is left", lambda: cluster.state().isr == (keeper,))
    cluster.cut(keeper, new, up=True)
    if returns:
        cluster.engine.start(first)
    cluster.engine.run_for(WAIT_MS)
    state = cluster.state()
    return f"complete, ISR of {len(state.isr)}" if _is_moved(state, {new, first, second}) else "waits"


def completions(conditions: Conditions) -> list[Row]:
    """L16."""
    newest = Generation.KIP_966
    rows = [same(f"{newest.value}, min ISR {MIN_ISR}", "waits", isr_at_completion(conditions, newest))]
    for it in (Generation.V3, Generation.KIP_497, Generation.KIP_966_ELR):
        rows.append(Row(f"{it.value}, min ISR {MIN_ISR}", None, isr_at_completion(conditions, it)))
    back = isr_at_completion(conditions, newest, returns=True)
    rows.append(same(f"{newest.value}, min ISR {MIN_ISR}, one of the two comes back", "complete, ISR of 2", back))
    rows.append(Row(f"{newest.value}, min ISR 1", None, isr_at_completion(conditions, newest, min_isr=1)))
    return rows
