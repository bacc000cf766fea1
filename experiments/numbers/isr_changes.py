"""Who writes the ISR, before and after KIP-497: propagation, controlled shutdown, a rolling restart (L8, L9, L11).

Before, leaders write their ISRs to the store and leave notifications, at most one a minute; the controller reads
states again before it decides. After, leaders send AlterPartition (AlterIsr) to the controller, the only writer. Both
are modes of generation `v3`, so nothing else differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from experiments.numbers.conditions import Conditions, Row, about, compared, same
from experiments.numbers.failover import replicas_of, seconds
from experiments.numbers.measured_cluster import CONTROLLER, KEEP, LEADER, T0, MeasuredCluster
from protocol.config import ISR_UPDATES
from protocol.events.base import Trace
from protocol.events.broker import IsrCommitted, IsrProposed
from protocol.features import Generation
from protocol.ids import NodeId, TimeMs, TopicPartition
from protocol.messages.control import AlterPartitionRequest
from protocol.messages.store import SetData, StoreWrite
from protocol.messages.v3 import ControlledShutdownRequest, ControlledShutdownResponse

LAG_MS = 5_000
MISSED_MS = 20_000
"""After this time every generation has noticed that a broker is dead."""
PROPAGATION_S = 60.0
CUT_PERCENT = 40.0
TENTH = 0.1


def _modes(mode: str) -> dict[str, object]:
    return {ISR_UPDATES: mode, "replica.lag.time.max.ms": LAG_MS}


def propagation(conditions: Conditions, mode: str) -> TimeMs:
    """A follower leaves the ISR, which the controller hears of at once, and comes back as soon as that is written: how
    long the controller does not know that it is back.
    """
    cluster = MeasuredCluster(conditions, config=_modes(mode))
    leader, follower = cluster.others(cluster.controller)
    cluster.create([(leader, follower, cluster.controller)])
    back_ms = cluster.leave_isr(leader, follower)
    known = cluster.known_to_controller().states
    return cluster.await_("the controller knows", lambda: follower in known[T0].state.isr) - back_ms


def propagations(conditions: Conditions) -> list[Row]:
    """L8."""
    before, after = seconds(propagation(conditions, LEADER)), seconds(propagation(conditions, CONTROLLER))
    what, holds = "leaders write: until the controller knows an ISR", about(PROPAGATION_S, before, TENTH)
    return [
        Row(what, PROPAGATION_S, before, "s", holds),
        Row("the controller writes: the same", 0.0, after, "s", after <= seconds(_round_trip(conditions))),
    ]


def _round_trip(conditions: Conditions) -> int:
    return conditions.write_ms + 2 * conditions.network_ms


@cache
def shutdown(conditions: Conditions, mode: str) -> TimeMs:
    """How long the controller takes to shut down a broker that leads all partitions, from request to response."""
    cluster = MeasuredCluster(conditions, config=_modes(mode))
    leader, other = cluster.others(cluster.controller)
    cluster.create(replicas_of(conditions.partitions, leader, cluster.controller, other))
    began_ms = cluster.now_ms
    cluster.engine.terminate(leader)
    cluster.await_("leaders are moved", lambda: cluster.sent[ControlledShutdownResponse] > 0)
    request = cluster.messages(ControlledShutdownRequest, began_ms)[0][0]
    return cluster.messages(ControlledShutdownResponse, began_ms)[0][0].sent_ms - request.sent_ms


def shutdowns(conditions: Conditions) -> list[Row]:
    """L9: with the conditions' reads, with reads that take two thirds of a write, and with those that take as long."""
    rows = []
    for read_ms in sorted({conditions.read_ms, round(conditions.write_ms * 2 / 3), conditions.write_ms}):
        varied = replace(conditions, read_ms=read_ms)
        before, after = shutdown(varied, LEADER), shutdown(varied, CONTROLLER)
        read, write = read_ms + 2 * conditions.network_ms, _round_trip(conditions)
        what = f"time saved, read {read_ms} ms, write {conditions.write_ms} ms: {before} ms before, {after} ms after"
        measured, model = 100 * (before - after) / before, 100 * read / (read + write)
        rows.append(Row(what, CUT_PERCENT, measured, "%", measured <= CUT_PERCENT * (1 + TENTH), model))
    return rows


@dataclass(frozen=True, slots=True)
class Return:
    """A broker comes back and joins the ISRs of all partitions, which one broker leads: the AlterPartition requests of
    the leader that differ, how often one was repeated, the transactions and updates in the store, the time from the
    first proposal to the last new ISR, and how many followers left an ISR meanwhile.
    """

    requests: int
    repetitions: int
    transactions: int
    updates: int
    joining_ms: TimeMs
    left: int


@cache
def come_back(
    conditions: Conditions, generation: Generation = Generation.V3, mode: str = LEADER, multi: int = 1
) -> Return:
    """Restarts a follower of all partitions, after it has been missed."""
    is_v3 = generation is Generation.V3
    cluster = MeasuredCluster(conditions, generation, multi=multi, config={ISR_UPDATES: mode} if is_v3 else {})
    leader, follower = cluster.others(cluster.controller)[:2]
    [third] = cluster.others(leader, follower)
    cluster.create(replicas_of(conditions.partitions, leader, third, follower))
    cluster.engine.crash(follower, KEEP)
    cluster.engine.run_for(MISSED_MS + conditions.partitions * (conditions.read_ms + _round_trip(conditions)))
    cluster.settle()
    began_ms, joined = cluster.now_ms, set[TopicPartition]()

    def observe(now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, IsrCommitted) and follower in trace.isr:
            joined.add(trace.partition)

    cluster.engine.cluster.trace_observers.append(observe)
    cluster.engine.start(follower)
    cluster.await_("the ISRs are whole", lambda: len(joined) == conditions.partitions)
    proposals = list(cluster.events(IsrProposed, began_ms))
    writes = cluster.messages(StoreWrite, proposals[0][0])
    updates = [sum(isinstance(operation, SetData) for operation in write.operations) for _, write in writes]
    requests = [request.partitions for _, request in cluster.messages(AlterPartitionRequest, began_ms)]
    return Return(
        requests=len(set(requests)),
        repetitions=len(requests) - len(set(requests)),
        transactions=sum(map(bool, updates)),
        updates=sum(updates),
        joining_ms=cluster.now_ms - proposals[0][0],
        left=sum(len(trace.isr) < len(trace.committed) for _, _, trace in proposals),
    )


def returns(conditions: Conditions) -> list[Row]:
    """L11."""
    partitions, multi = conditions.partitions, max(conditions.multi)
    before, after = come_back(conditions), come_back(conditions, mode=CONTROLLER)
    batched = come_back(conditions, mode=CONTROLLER, multi=multi)
    later = come_back(conditions, Generation.KIP_497)
    return [
        compared("leaders write: store writes", partitions, before.transactions, ""),
        Row("leaders write: until the broker is in all ISRs", None, seconds(before.joining_ms), "s"),
        same("the controller writes: AlterPartition requests", 1, after.requests),
        Row("the controller writes: repetitions of it", None, after.repetitions),
        Row("the controller writes: store writes", None, after.transactions),
        Row("the controller writes: until the broker is in all ISRs", None, seconds(after.joining_ms), "s"),
        Row(f"the controller writes {multi} at once: store writes", None, batched.transactions),
        Row(f"the controller writes {multi} at once: until in all ISRs", None, seconds(batched.joining_ms), "s"),
        same("kip-497: AlterPartition requests", 1, later.requests),
        same("replicas that left an ISR meanwhile, all four", 0, sum(x.left for x in (before, after, batched, later))),
    ]
