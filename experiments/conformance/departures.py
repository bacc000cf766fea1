"""Departures: where isray answers otherwise than Kafka's recorded code on purpose.

A departure is a rule of Kafka's code that isray does not follow, and the reason (`DEPARTURES`). It names no rows. A row
that is not answered as recorded is *explained* by departures if the protocol gives exactly the recorded answers, in all
fields, with Kafka's rules in the place of its own (`protocol/kafka_rules.py`); every other row fails. This is sound for
event sequences, too: under Kafka's rule the replayed controller goes through the state that Kafka reached, so that all
later steps are compared in full.

A row is explained by the smallest set that does it, in the order of `DEPARTURES` among equals: a rule that changes
nothing in a row is in no smallest set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import chain, combinations

from experiments.support.errors import InputError
from protocol.kafka_rules import KAFKA_RULES, KafkaRule


@dataclass(frozen=True, slots=True)
class Departure:
    """One rule that isray does not follow. `reason` says what isray does instead, and why. `scenario` is a shipped
    scenario, and `<scenario>-kafka` the same failures and commands under Kafka's rule; `story` says how they differ,
    `lost` how many acknowledged records the latter loses (None: undecided, as no leader can be read).
    """

    rule: KafkaRule
    reason: str
    scenario: str
    story: str
    lost: int | None

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def kafka_scenario(self) -> str:
        return f"{self.scenario}-kafka"


DEPARTURES: tuple[Departure, ...] = (
    Departure(
        rule=KAFKA_RULES["returning-replica-eligible"],
        reason="isray removes a returning replica from the ELR (E20, E34): its log was deleted, or not written to.",
        scenario="returning-replica",
        story="A replica that was moved away and back is elected cleanly; what was written meanwhile is lost.",
        lost=1,
    ),
    Departure(
        rule=KAFKA_RULES["removed-replica-blocks-last-known-leader"],
        reason="isray asks for members of the ELR that hold a replica; the others can never be elected.",
        scenario="removed-replica-in-elr",
        story="The last known leader is back, but not elected; an unclean election takes an empty, adding replica.",
        lost=1,
    ),
    Departure(
        rule=KAFKA_RULES["dead-last-known-leader-elected"],
        reason="isray elects only a last known leader that is alive (E24, N33): a dead one serves no request.",
        scenario="dead-last-known-leader",
        story="A dead broker leads, so an unclean election is refused though another replica has all records.",
        lost=1,
    ),
    Departure(
        rule=KAFKA_RULES["unassigned-last-known-leader-elected"],
        reason="isray elects only a last known leader that is in the assignment (E24): another holds no replica.",
        scenario="last-known-leader-removed",
        story="A broker without replica leads; nothing can be written or read, and no election is possible.",
        lost=None,
    ),
    Departure(
        rule=KAFKA_RULES["withdrawn-replica-awaited"],
        reason="isray waits for the adding replicas that the latest request wants (E32): the others are to be removed.",
        scenario="withdrawn-replica",
        story="A reassignment that was taken back by another one never ends; only a cancellation ends it.",
        lost=0,
    ),
    Departure(
        rule=KAFKA_RULES["dead-original-in-isr"],
        reason="isray refuses a cancellation that leaves no active replica (E33, E35): nothing could lead.",
        scenario="cancelled-in-absence",
        story="No broker leads, and the controllers fail over one after the other at each registration of the replica.",
        lost=None,
    ),
)


def departure_named(name: str, option: str) -> Departure:
    """The departure of that name. InputError for an unknown one."""
    found = {departure.name: departure for departure in DEPARTURES}
    if name not in found:
        raise InputError(option, "", repr(name), f"one of {', '.join(found)}")
    return found[name]


def explanation(differences: Callable[[frozenset[str]], Collection[object]]) -> tuple[Departure, ...]:
    """The smallest set of departures under which `differences` of a row is empty; empty if there is none."""
    sets = chain.from_iterable(combinations(DEPARTURES, size) for size in range(1, len(DEPARTURES) + 1))
    for chosen in sets:
        if not differences(frozenset(departure.name for departure in chosen)):
            return chosen
    return ()
