"""The claims of section L of the requirements (`claims.yaml`), each with its measurement: the nodes of the protocol run
on the simulator; `limits.py` also reads values from the declarations that the nodes use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from experiments.numbers import durability, failover, isr_changes, limits, reassignments, store_queue
from experiments.numbers.conditions import Conditions, Row
from experiments.support.declared import declared
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, StrictModel

MEASURES: Mapping[str, Callable[[Conditions], list[Row]]] = {
    "L1": failover.serial,
    "L2": failover.spread,
    "L3": store_queue.rows,
    "L4": failover.steps,
    "L5": failover.costs,
    "L6": reassignments.agent_period,
    "L7": limits.replicas_per_broker,
    "L8": isr_changes.propagations,
    "L9": isr_changes.shutdowns,
    "L10": reassignments.delays,
    "L11": isr_changes.returns,
    "L12": durability.waits,
    "L13": limits.request_limits,
    "L14": limits.election_timeout,
    "L15": limits.versions,
    "L16": reassignments.completions,
    "L17": durability.reference_configs,
    "L18": durability.tolerated,
    "L19": durability.comparison,
    "L20": limits.sentinel,
    "L21": failover.benefits,
}


class Claim(StrictModel):
    """`text` is the claim, `source` where it is made, `ran` what was run to measure it, and `remark` what a reader of
    the rows should know. `grows`: whether its cost grows with the number of partitions.
    """

    item: str
    text: str
    source: str
    ran: str
    remark: str = ""
    grows: bool = False

    def measure(self, conditions: Conditions) -> list[Row]:
        return MEASURES[self.item](conditions)


class _ClaimsFile(StrictModel):
    claims: Annotated[tuple[Claim, ...], AsTuple]


CLAIMS = declared(_ClaimsFile, __file__, "claims.yaml").claims


def claims_of(items: Iterable[str]) -> tuple[Claim, ...]:
    """The claims of these items, all of them if none is named. InputError for an unknown one."""
    wanted = list(items) or list(MEASURES)
    for item in wanted:
        if item not in MEASURES:
            raise InputError("--only", "", repr(item), f"one of {', '.join(MEASURES)}")
    return tuple(claim for claim in CLAIMS if claim.item in wanted)
