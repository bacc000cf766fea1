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

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from experiments.conformance.shapes import Difference
from experiments.support.errors import InputError
from protocol.kafka_rules import KAFKA_RULES, KafkaRule
from protocol.quorum.kafka_rules import QUORUM_RULES

_STEP = re.compile(r"steps\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Departure:
    """One rule that isray does not follow. `reason` says what isray does instead, and why. `scenario` is a shipped
    scenario, and `<scenario>-kafka` the same failures and commands under Kafka's rule; `story` says how they differ,
    `lost` how many acknowledged records the latter loses (None: undecided, as no leader can be read). All three are
    empty where the rule only refuses a request, or delays an election.
    """

    rule: KafkaRule
    reason: str
    scenario: str = ""
    story: str = ""
    lost: int | None = None

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def kafka_scenario(self) -> str:
        return f"{self.scenario}-kafka" if self.scenario else ""


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
        rule=KAFKA_RULES["min-isr-change-clears-elr"],
        reason="isray empties an ELR where the ISR reaches the new min ISR (E19, M6, M7): else it is still needed.",
        scenario="min-isr-change",
        story="No replica can be elected any more; an unclean election takes the first one, whose disk was replaced.",
        lost=1,
    ),
    Departure(
        rule=KAFKA_RULES["first-partition-counts"],
        reason="isray bounds the min ISR of each partition by its own replicas (E8), and counts those that will stay.",
        scenario="first-partition",
        story="A partition has no ELR since another one has one replica; its leader returns without disk, and leads.",
        lost=1,
    ),
    Departure(
        rule=KAFKA_RULES["unregistered-broker-eligible"],
        reason="isray removes such a broker from ISR and ELR: when it registers again nothing proves a clean shutdown.",
    ),
    Departure(
        rule=KAFKA_RULES["cluster-min-isr-kept"],
        reason="isray takes the static value again, which all nodes share and which is in force at once (H15).",
    ),
    Departure(
        rule=KAFKA_RULES["feature-level-alone"],
        reason="isray makes the ISR of a partition without leader its ELR (M23), so that its last leader stays known.",
    ),
    Departure(
        rule=KAFKA_RULES["registration-fences"],
        reason="isray leaves the ISRs as they are (K7, N36): the broker left them when it was fenced or shut down.",
    ),
    Departure(
        rule=KAFKA_RULES["dead-original-in-isr"],
        reason="isray refuses a cancellation that leaves no active replica (E33, E35): nothing could lead.",
        scenario="cancelled-in-absence",
        story="No broker leads, and the controllers fail over one after the other at each registration of the replica.",
        lost=None,
    ),
    Departure(
        rule=KAFKA_RULES["recovered-with-next-change"],
        reason="isray's leader says so at once (C5, C8): else no controller knows whether the routine is over.",
    ),
    Departure(
        rule=KAFKA_RULES["complete-follower-kept"],
        reason="isray removes it (A47, M41), so that min ISR counts replicas that still fetch.",
    ),
    Departure(
        rule=KAFKA_RULES["new-directory-elects-nobody"],
        reason="isray's brokers have one directory, and may lead with a new disk as soon as they are unfenced.",
    ),
    Departure(
        rule=KAFKA_RULES["new-directory-empties-elr"],
        reason="isray's members of the ELR leave it for what happens to themselves: they have all committed records.",
        scenario="replaced-disk",
        story="The ELR is emptied, and the last known leader, whose disk was replaced, is elected with an empty log.",
        lost=1,
    ),
)

QUORUM_DEPARTURES: tuple[Departure, ...] = tuple(
    Departure(rule=QUORUM_RULES[name], reason=reason)
    for name, reason in {
        "candidacy-resumed": "isray starts unattached, and asks in a new epoch: a lost election is not repeated.",
        "leader-without-endpoint": "isray follows it: a leader that is removed leads until that is committed (D18).",
        "resigned-enters-next-epoch": "isray asks for pre-votes in its epoch first: they change no state (KIP-996).",
        "pre-vote-given-up": "isray asks again, after the backoff where it lost: no second wait is needed.",
        "leader-ignored-in-pre-vote": "isray follows a leader that it hears again: no election is needed any more.",
        "election-timeout-kept": "isray draws a new timeout in a new epoch, so that its candidate has the time to win.",
        "observer-keeps-leader": "isray becomes unattached, and looks for a leader among all servers (D2).",
        "ended-leader-protected": "isray grants them from then on: no leader is left that an election could depose.",
        "vote-repeated": "isray compares the logs each time: the disk of a static voter may have been replaced.",
        "epoch-before-voter-key": "isray takes nothing from a request that is for another disk (D24).",
        "uncommitted-removal-obeyed": "isray's voter may be elected until that is committed: it may alone have it.",
        "blocked-change-refused": "isray lets the change wait until its timeout (D11, D12, D15, D16).",
        "caught-up-once": "isray waits until it has all records (D12): a new voter that lags stops the high watermark.",
        "last-voter-not-found": "isray answers INVALID_REQUEST (D20): the voter was found, and must stay.",
        "truncated-voters-missed": "isray reads every change in its log (D8, D9): else old voters elect.",
    }.items()
)
"""Where a replica of the metadata log departs from KafkaRaftClient."""
ALL_DEPARTURES = (*DEPARTURES, *QUORUM_DEPARTURES)


def departure_named(name: str, option: str) -> Departure:
    """The departure of that name. InputError for an unknown one."""
    found = {departure.name: departure for departure in ALL_DEPARTURES}
    if name not in found:
        raise InputError(option, "", repr(name), f"one of {', '.join(found)}")
    return found[name]


MOST_AT_ONCE = 3
"""How many rules may be needed together for one step of a sequence."""


def explanation(
    differences: Callable[[frozenset[str]], Sequence[Difference]], most_at_once: int = MOST_AT_ONCE
) -> tuple[Departure, ...]:
    """The smallest set of departures under which `differences` of a row is empty; empty if there is none.

    Each rule of such a set moves the first difference of a sequence of events to a later step, alone or together with
    others, at most `most_at_once` of them, so sets grow from those that do.
    """
    frontier: dict[tuple[Departure, ...], int] = {(): _first_step(differences(frozenset()))}
    while frontier:
        for added in range(1, most_at_once + 1):
            further: dict[tuple[Departure, ...], int] = {}
            for chosen, reached in frontier.items():
                for more in combinations([it for it in DEPARTURES if it not in chosen], added):
                    wider = tuple(it for it in DEPARTURES if it in chosen or it in more)
                    if wider in further:
                        continue
                    left = differences(frozenset(it.name for it in wider))
                    if not left:
                        return wider
                    if _first_step(left) > reached:
                        further[wider] = _first_step(left)
            if further:
                break
        frontier = further
    return ()


def quorum_explanation(differences: Callable[[frozenset[str]], Sequence[Difference]]) -> tuple[Departure, ...]:
    """A set of departures of the quorum under which `differences` of a row is empty, and no smaller one within it is;
    empty if there is none."""
    chosen = QUORUM_DEPARTURES
    if differences(frozenset(it.name for it in chosen)):
        return ()
    for left_out in QUORUM_DEPARTURES:
        fewer = tuple(it for it in chosen if it is not left_out)
        if not differences(frozenset(it.name for it in fewer)):
            chosen = fewer
    return chosen


def _first_step(differences: Sequence[Difference]) -> int:
    """The step of the first difference of a sequence of events; 0 of a single decision."""
    found = _STEP.match(differences[0].field) if differences else None
    return int(found[1]) if found else 0
