"""Scripts: written plans of some seconds, for mutants that only a rare sequence of faults reveals.

A script gives a plan like any other (`experiments/hunt/fuzz/plan.py`), which could be saved as a timeline file. Most
scripts have one partition, `t-0`, on three brokers, with broker 0 as the leader, and short session and request
timeouts.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from experiments.faults.kinds import AnyFault
from experiments.hunt.fuzz.plan import Elect, Operation, Plan, Read, Send
from experiments.hunt.fuzz.run import BEGIN_MS
from experiments.scenarios.model import TopicModel
from experiments.support.fields import AsTuple, ClusterConfigs, ConfigSetting, Index, Milliseconds, StrictModel
from protocol.config import MIN_INSYNC_REPLICAS, Generation
from protocol.v3.store.settings import StoreSettings

TOPIC = "t"
END_MS = 16_000
"""When the operations end, and the faults that last until the end of a script."""
CONFIG: dict[str, ConfigSetting] = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 1_500,
    "request.timeout.ms": 1_500,
    "delivery.timeout.ms": 12_000,
}


class Script(StrictModel):
    """A plan with these faults, in which a producer sends ten records at a time to the partitions in turn and a reader
    follows. At each time in `elect_at_ms` a preferred leader election of partition 0 is requested, in
    `elect_uncleanly_at_ms` an unclean one. `config` replaces single settings of `CONFIG`. With a `store` the plan is of
    `v3`.
    """

    brokers: Annotated[int, Field(ge=1)] = 3
    replicas: Annotated[int, Field(ge=1)] = 3
    min_isr: Annotated[int, Field(ge=1)] = 2
    partitions: Annotated[int, Field(ge=1)] = 1
    send_every_ms: Milliseconds = 500
    elect_at_ms: Annotated[tuple[Index, ...], AsTuple] = ()
    elect_uncleanly_at_ms: Annotated[tuple[Index, ...], AsTuple] = ()
    config: ClusterConfigs = Field(default_factory=dict)
    store: StoreSettings | None = None
    faults: Annotated[tuple[AnyFault, ...], AsTuple]

    def plan(self, seed: int) -> Plan:
        """The plan, to which seeds give different latencies."""
        assignments = [
            [(first + turn) % self.brokers for turn in range(self.replicas)] for first in range(self.partitions)
        ]
        return Plan(
            seed=seed,
            brokers=self.brokers,
            generation=(Generation.KIP_966 if self.store is None else Generation.V3).value,
            store=self.store,
            config=CONFIG | self.config,
            topics=(TopicModel(name=TOPIC, assignments=assignments, config={MIN_INSYNC_REPLICAS: self.min_isr}),),
            operations=tuple(self._operations()),
            faults=self.faults,
        )

    def _operations(self) -> list[Operation]:
        found: list[Operation] = []
        for at_ms in range(BEGIN_MS - 500, END_MS, self.send_every_ms):
            number, partition = len(found) + 1, len(found) // 2 % self.partitions
            found.append(Send(at_ms=at_ms, id=number, topic=TOPIC, partition=partition, records=10, record_bytes=100))
            found.append(Read(at_ms=at_ms, id=number + 1, topic=TOPIC, partition=partition, reader=0, max_wait_ms=200))
        elections = [(at_ms, False) for at_ms in self.elect_at_ms]
        elections += [(at_ms, True) for at_ms in self.elect_uncleanly_at_ms]
        for at_ms, unclean in elections:
            found.append(Elect(id=len(found) + 1, at_ms=at_ms, topic=TOPIC, partition=0, unclean=unclean))
        return found
