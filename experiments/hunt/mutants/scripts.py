"""Scripts: written plans of some seconds, for mutants that only a rare sequence of faults reveals.

A script is a plan like any other (`experiments/hunt/fuzz/plan.py`) and could be saved as a timeline file. Most scripts
have one partition, `t-0`, on three brokers, with broker 0 as the leader, and short session and request timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.faults.schema import Fault
from experiments.hunt.fuzz.plan import Elect, Operation, Plan, Read, Send
from experiments.hunt.fuzz.run import BEGIN_MS
from experiments.hunt.mutants.mutant import PlanFocus
from experiments.scenarios.model import TopicModel
from experiments.support.fields import ConfigSetting
from protocol.config import MIN_INSYNC_REPLICAS, Generation
from protocol.v3.store.settings import StoreSettings

TOPIC = "t"
BROKERS = range(3)
END_MS = 16_000
"""When faults end that last until the end of a script."""
CONFIG: Mapping[str, ConfigSetting] = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 1_500,
    "request.timeout.ms": 1_500,
    "delivery.timeout.ms": 12_000,
}


def scripted(
    why: str,
    *faults: Fault,
    brokers: int = 3,
    replicas: int = 3,
    min_isr: int = 2,
    partitions: int = 1,
    send_every_ms: int = 500,
    elect_at_ms: Sequence[int] = (),
    elect_uncleanly_at_ms: Sequence[int] = (),
    config: Mapping[str, ConfigSetting] | None = None,
    store: StoreSettings | None = None,
) -> PlanFocus:
    """The focus on a plan with these faults, in which a producer sends ten records at a time to the partitions in turn
    and a reader follows. At each time in `elect_at_ms` a preferred leader election of partition 0 is requested, in
    `elect_uncleanly_at_ms` an unclean one. With the settings of a `store` the plan is of `v3`.
    """
    operations: list[Operation] = []
    for at_ms in range(BEGIN_MS - 500, END_MS, send_every_ms):
        number, partition = len(operations) + 1, len(operations) // 2 % partitions
        operations.append(Send(at_ms=at_ms, id=number, topic=TOPIC, partition=partition, records=10, record_bytes=100))
        operations.append(Read(at_ms=at_ms, id=number + 1, topic=TOPIC, partition=partition, reader=0, max_wait_ms=200))
    elections = [(at_ms, False) for at_ms in elect_at_ms] + [(at_ms, True) for at_ms in elect_uncleanly_at_ms]
    operations += [
        Elect(id=len(operations) + 1 + index, at_ms=at_ms, topic=TOPIC, partition=0, unclean=unclean)
        for index, (at_ms, unclean) in enumerate(elections)
    ]
    assignments = [[(first + turn) % brokers for turn in range(replicas)] for first in range(partitions)]
    plan = Plan(
        seed=0,
        brokers=brokers,
        generation=(Generation.KIP_966 if store is None else Generation.V3).value,
        store=store,
        config=dict(CONFIG) | dict(config or {}),
        topics=(TopicModel(name=TOPIC, assignments=assignments, config={MIN_INSYNC_REPLICAS: min_isr}),),
        operations=tuple(operations),
        faults=faults,
    )
    return PlanFocus(script=plan, why=why)
