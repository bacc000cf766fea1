"""Operated plans: everything that an operator does, while everything fails that may fail.

One default seed in eight gets such a plan, and a third of the default seeds of `v3`: up to three topics, each with a
min ISR of its own, that the operations of the clients are spread over; racks; in four of five plans an authorizer
(`v3` has neither). Two timelines run beside each other, one of operations (`Fault.is_operation`) and one of faults of
all other kinds, so that each operation meets each fault in a few dozen plans. `coverage.py` counts which have met.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from experiments.faults import recipes
from experiments.faults.controls import OPERATOR
from experiments.faults.draw import Rates, timeline
from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.kinds.links import Effect
from experiments.faults.schema import Fault
from experiments.faults.targets import Targets
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.plan import Operation, Plan
from experiments.scenarios.model import TopicModel
from protocol.config import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    MIN_INSYNC_REPLICAS,
    REQUEST_TIMEOUT_MS,
    SUPER_USERS,
)
from protocol.ids import STORE

ONE_IN = 8
"""Seeds per operated plan."""
_FURTHER_TOPICS = ("u", "w")
_BROKERS = (3, 4, 5, 6, 7, 9)
_BETWEEN_FAULTS_MS = (250, 700, 2_000)
_FAULTS_LAST_MS = (30, 300, 1_000, 2_500, 5_000)
_BETWEEN_OPERATIONS_MS = (500, 1_000, 2_000)
_OPERATIONS_LAST_MS = (20, 500, 2_000, 5_000)
_SETTLING_MS = 2_500
_LATE: tuple[Effect, ...] = ("reorder", "duplicate")
_GIVES_UP_MS = 5_000
"""`delivery.timeout.ms` where batches arrive late."""


def is_operated(seed: int) -> bool:
    """Whether the plan of a seed is operated; default seeds of `v3` have a rule of their own (`swarm.py`)."""
    return seed % ONE_IN == ONE_IN - 1


def sizes(seed: int) -> Bias:
    """The sizes of a seed's operated plan, whose themes are none."""
    rng = Random(f"{seed}/sizes")
    return Bias(
        brokers=rng.choice(_BROKERS),
        controllers=rng.choice((1, 1, 3, 5)),
        themes=(),
        within_tolerance=rng.random() < 0.9,
    )


def operated(plan: Plan) -> Plan:
    """The plan with operations, further topics and faults of all kinds; its own faults are replaced."""
    rng = Random(f"{plan.seed}/operated")
    first = plan.topics[0]
    topics = (first, *(_topic(rng, plan, name) for name in rng.sample(_FURTHER_TOPICS, rng.choice((0, 1, 2)))))
    spec = plan.spec()
    targets = Targets(
        brokers=spec.broker_ids,
        controllers=spec.controller_ids,
        clients=spec.client_ids,
        topics={topic.name: len(topic.assignments) for topic in topics},
        replication_factor=len(first.assignments[0]),
        managers=spec.manager_ids,
        stores=(STORE,) if spec.has_store_metadata else (),
    )
    has_authorizer = rng.random() < 0.8 and not spec.has_store_metadata
    config = dict(plan.config)
    if has_authorizer:
        config |= {AUTHORIZER_CLASS_NAME: "standard", SUPER_USERS: OPERATOR, ALLOW_EVERYONE_IF_NO_ACL_FOUND: True}
    has_late_batches = rng.random() < 0.3 and not spec.has_store_metadata
    if has_late_batches:
        config |= {ENABLE_IDEMPOTENCE: True, DELIVERY_TIMEOUT_MS: _GIVES_UP_MS, REQUEST_TIMEOUT_MS: 1_000}
    begin_ms, end_ms = plan.operations[0].at_ms + 500, plan.operations[-1].at_ms - _SETTLING_MS

    def drawn(operations: bool, between_ms: Sequence[int], durations_ms: Sequence[int]) -> tuple[Fault, ...]:
        """Faults of some or all kinds that are operations, or that are none."""
        possible = {name: kind for name, kind in FAULT_KINDS.items() if kind.is_possible(targets)}
        kinds = [name for name, kind in possible.items() if kind.is_operation is operations]
        kinds = [name for name in kinds if has_authorizer or name != "deny"]
        chosen = rng.sample(kinds, rng.choice((4, *(len(kinds),) * 3)))
        rates = Rates(
            mean_between_ms=rng.choice(between_ms),
            durations_ms=tuple(sorted(rng.sample(durations_ms, 3))),
            weights=dict.fromkeys(chosen, 1),
        )
        return timeline(rates, targets, rng, begin_ms, end_ms)

    failures = drawn(False, _BETWEEN_FAULTS_MS, _FAULTS_LAST_MS)
    if has_late_batches:
        failures += _late_batches(rng, targets, begin_ms)
    changes = drawn(True, _BETWEEN_OPERATIONS_MS, _OPERATIONS_LAST_MS)
    return plan.model_copy(
        update={
            "topics": topics,
            "config": config,
            "racks": 0 if spec.has_store_metadata else rng.choice((0, 2, 3)),
            "operations": tuple(_spread(rng, operation, topics) for operation in plan.operations),
            "faults": tuple(sorted((*failures, *changes), key=lambda fault: fault.at_ms)),
        }
    )


def _late_batches(rng: Random, targets: Targets, begin_ms: int) -> tuple[Fault, ...]:
    """Batches, or copies of them, arrive when the producer has given later ones up and has its next epoch."""
    effect, late_ms = rng.choice(_LATE), begin_ms + rng.randrange(500)
    lost_ms = late_ms + 1_500
    clients, brokers, back_ms = targets.clients, targets.brokers, lost_ms + _GIVES_UP_MS + 200
    return (
        recipes.disturb(clients, brokers, effect, late_ms, lost_ms, only="produce", delay_ms=2 * _GIVES_UP_MS),
        recipes.disturb(clients, brokers, "lose", lost_ms, back_ms, only="produce"),
    )


def _topic(rng: Random, plan: Plan, name: str) -> TopicModel:
    """A further topic with as many replicas as the first, and a min ISR of its own, or that of the cluster."""
    factor = len(plan.topics[0].assignments[0])
    assignments = [rng.sample(range(plan.brokers), factor) for _ in range(rng.choice((1, 1, 2)))]
    min_isr = rng.choice((None, *range(1, factor + 1)))
    return TopicModel(
        name=name, assignments=assignments, config={} if min_isr is None else {MIN_INSYNC_REPLICAS: min_isr}
    )


def _spread(rng: Random, operation: Operation, topics: tuple[TopicModel, ...]) -> Operation:
    """The operation on a partition of any topic."""
    topic = rng.choice(topics)
    return operation.model_copy(update={"topic": topic.name, "partition": rng.randrange(len(topic.assignments))})
