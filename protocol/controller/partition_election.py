"""Leader election among the replicas of one partition, as a pure function.

Order of preference (requirements E29, E31, K5; Kafka's partition change code of October 2024):

1. a replica that holds every committed record: a member of the ISR or, only when the ISR is empty, of the ELR. The
   present leader is kept while it qualifies; otherwise the first that qualifies in the order of the assignment. A
   PREFERRED election asks the first replica of the assignment before the present leader;
2. the last known leader, where the caller names one; an unclean choice;
3. in an UNCLEAN election, the first acceptable replica of the assignment. The KIP asks for any (K6); Kafka takes the
   order of the assignment, and so does this module: the same state always elects the same leader.

A designation is not an election: a user names the leader of a leaderless partition and accepts that records are lost,
unless that replica is in ISR or ELR (F22-F24, C12).

Departure: the last known leader must be acceptable, like any other candidate. Kafka's code of that time elected it
whether it was alive or not (KAFKA-19522, requirement N33).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from protocol.ids import NO_LEADER, BrokerId
from protocol.values import direct


@direct
class Election(Enum):
    """What an election may do to find a leader."""

    PREFERRED = "PREFERRED"
    ONLINE = "ONLINE"
    UNCLEAN = "UNCLEAN"


class Elected(NamedTuple):
    """The outcome: the leader (-1 if no replica may lead) and whether its log may lack committed records."""

    leader: BrokerId
    unclean: bool


class Candidates(NamedTuple):
    """The candidates of an election; `last_known_leader` is -1 where it may not be elected."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    present_leader: BrokerId
    last_known_leader: BrokerId


def elect(election: Election, candidates: Candidates, is_acceptable_leader: Callable[[BrokerId], bool]) -> Elected:
    """A complete replica, else the last known leader, else any if UNCLEAN; it may be the present leader."""
    replicas = candidates.replicas
    complete = candidates.isr or candidates.elr
    present = candidates.present_leader
    order = (*replicas[:1], present, *replicas[1:]) if election is Election.PREFERRED else (present, *replicas)
    for broker in order:
        if broker in complete and is_acceptable_leader(broker):
            return Elected(broker, unclean=False)
    last_known = candidates.last_known_leader
    if last_known != NO_LEADER and is_acceptable_leader(last_known):
        return Elected(last_known, unclean=True)
    if election is Election.UNCLEAN:
        for broker in replicas:
            if is_acceptable_leader(broker):
                return Elected(broker, unclean=True)
    return Elected(NO_LEADER, unclean=False)


def designate(leader: BrokerId, candidates: Candidates, is_acceptable_leader: Callable[[BrokerId], bool]) -> Elected:
    """The broker that a user names, if it is an acceptable replica; no leader (-1) otherwise."""
    if leader not in candidates.replicas or not is_acceptable_leader(leader):
        return Elected(NO_LEADER, unclean=False)
    return Elected(leader, unclean=leader not in candidates.isr + candidates.elr)
