"""A mutant: one guard of the protocol, and the code that replaces it while the guard is switched off.

The protocol knows nothing of mutants. A mutant changes the source of one or a few functions; while `switched_off`
lasts, these functions run the code that is compiled from the changed source, in the whole process. A mutant's focus
says which runs are to reveal it: plans of the fuzz (`PlanFocus`), or runs of the quorum's simulation (`QuorumFocus`).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pkgutil import resolve_name
from types import CodeType, FunctionType
from typing import Annotated

from pydantic import Field

from experiments.faults.kinds import AnyFault
from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.plan import Elect, Operation, Plan, Read, Send
from experiments.hunt.fuzz.run import BEGIN_MS, run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.mutation import WRITTEN, Mutation, changed_codes
from experiments.hunt.quorum import chaos
from experiments.scenarios.model import TopicModel
from experiments.support.build import is_compiled
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, ClusterConfigs, ConfigSetting, Index, Milliseconds, StrictModel
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.features import Generation
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
    """A written plan with these faults, for mutants that only a rare sequence of faults reveals. A producer sends ten
    records at a time to the partitions in turn and a reader follows. At each time in `elect_at_ms` a preferred leader
    election of partition 0 is requested, in `elect_uncleanly_at_ms` an unclean one. `config` replaces single settings
    of `CONFIG`. With a `store` the plan is of `v3`.
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
        for unclean, times_ms in ((False, self.elect_at_ms), (True, self.elect_uncleanly_at_ms)):
            for at_ms in times_ms:
                found.append(Elect(id=len(found) + 1, at_ms=at_ms, topic=TOPIC, partition=0, unclean=unclean))
        return found


class PlanFocus(StrictModel):
    """Plans drawn with a `bias`, or the plan of a `script`; `why` says in a sentence what happens in them."""

    bias: Bias = NO_BIAS
    script: Script | None = None
    why: str = ""

    def plan(self, seed: int) -> Plan:
        """The plan of a seed."""
        return draw(seed, bias=self.bias) if self.script is None else self.script.plan(seed)

    def first_violation(self, seed: int) -> str | None:
        """The name of the invariant that the seed's run violates with this focus, None if it violates none."""
        return _violated_invariant(self.plan(seed))

    def violation_without_focus(self, seed: int) -> str | None:
        """The same for the run that the seed gives without a focus."""
        wanted = self.bias.generation
        has_store = wanted is not None and wanted.features.metadata_in_store
        return _violated_invariant(draw(seed, wanted if has_store else None))


def _violated_invariant(plan: Plan) -> str | None:
    violation = run_plan(plan).violation
    return None if violation is None else violation.invariant


class QuorumFocus(StrictModel):
    """Runs of the quorum's simulation that are drawn with a bias; `why` as in `PlanFocus`."""

    quorum: chaos.ChaosBias = chaos.NO_BIAS
    why: str = ""

    def first_violation(self, seed: int) -> str | None:
        return chaos.run(seed, self.quorum).violation

    def violation_without_focus(self, seed: int) -> str | None:
        return chaos.run(seed).violation


class Change(StrictModel):
    """A change of one function (`protocol.broker.leader:PartitionLeader.fetch`). `before`, an expression or a statement
    that the function has exactly once, becomes `after`; a statement may become several. Without `before`, `after` is
    put at the start of the function.
    """

    function: Annotated[str, Field(pattern=r"^protocol(\.\w+)+:\w+(\.\w+)?$")]
    before: str = ""
    after: str

    @property
    def mutation(self) -> Mutation:
        """The change as a mutation of the operator `written`."""
        module, _, function = self.function.partition(":")
        before = self.before and ast.unparse(ast.parse(self.before))
        return Mutation(module, function, "", WRITTEN, before, self.after)


class Mutant(StrictModel):
    """One guard. `guard` is the rule, with its source; `instead` what happens without it; `expected` the invariants and
    findings on the history, one of which must be the first violation; `focus` the runs that are to reveal it.
    """

    name: str
    guard: str
    instead: str
    expected: Annotated[tuple[str, ...], AsTuple]
    changes: Annotated[tuple[Change, ...], AsTuple]
    focus: PlanFocus | QuorumFocus = PlanFocus()


@contextmanager
def switched_off(mutant: Mutant) -> Iterator[None]:
    """Switches the guard off until the end of the block. InputError for a change that does not apply, and in a compiled
    build, where calls are bound at compile time.
    """
    if is_compiled():
        raise InputError("this build", "", "compiled", "the interpreted sources, where functions can be replaced")
    with ExitStack() as stack:
        for name, code in _codes(mutant.changes).items():
            stack.callback(_set_code, name, function_named(name).__code__)
            _set_code(name, code)
        yield


@cache
def _codes(changes: tuple[Change, ...]) -> dict[str, CodeType]:
    """The changed code by function. A hunt switches its mutant off for each seed, so the code is compiled once."""
    return changed_codes([change.mutation for change in changes])


def function_named(name: str) -> FunctionType:
    """The function, method or getter of a property that is named as in a `Change`."""
    found = resolve_name(name)
    function: FunctionType = inspect.unwrap(getattr(found, "fget", found))
    return function


def _set_code(name: str, code: CodeType) -> None:
    """Replaces the code of a function, and drops results that it has cached."""
    function_named(name).__code__ = code
    getattr(resolve_name(name), "cache_clear", lambda: None)()
