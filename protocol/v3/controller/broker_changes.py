"""`on_broker_change`: brokers have died or come back (S1 A; A11-A17, M25-M28, M38, M39).

    1. read the live brokers, with a watch for the next change
    2. set_p: the partitions whose leader is dead or whose ISR has a dead broker
    3. for each of them: read, decide, write conditionally        (publishing.py)
    4. send the new states to the brokers that they concern, one request per broker
    5. send brokers that have come back all that they hold
    6. initialise partitions that could not be initialised while all of their replicas were dead

The granularity is the broker: whatever the reason, if its session is gone, all its partitions are decided on (A52).

Steps 5 and 6 are additions. S1's broker reads its state from the store when it starts and obeys commands from then on;
what the controller decides between that read and its registration would never reach it. So the first command to each
incarnation of a broker is INIT, with everything that it holds. A broker whose session has been replaced between two
reads has been dead though the list of brokers looks the same: its epoch shows it, and its partitions fail over.

Where leaders write their ISRs themselves, the ISR that the controller knows may lack a broker that has joined since.
Partitions that a dead broker is assigned to are therefore read too (step 2), and written only if they change.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.ids import NO_LEADER, BrokerId, TopicPartition
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Choice
from protocol.v3.controller.procedure import Alert, Event, Later, Procedure
from protocol.v3.controller.publishing import change_states, read_brokers
from protocol.v3.controller.topics import init_leaders, uninitialised
from protocol.v3.store.records import LeaderAndIsr


def on_broker_change(controller: Controller) -> Procedure[None]:
    known = controller.live
    registered = yield from read_brokers(controller)
    replaced = {broker for broker in registered if registered[broker] != known.get(broker, registered[broker])}
    arrived = sorted((registered.keys() - known.keys()) | replaced)
    departed = (known.keys() - registered.keys()) | replaced
    controller.leaving &= registered.keys() - replaced

    changed: list[TopicPartition] = []
    if replaced:
        controller.live = {broker: epoch for broker, epoch in registered.items() if broker not in replaced}
        changed += yield from _fail_over(controller, departed)
    controller.live = registered
    changed += yield from _fail_over(controller, departed)

    yield controller.leader_and_isr(dict.fromkeys(changed), but=arrived)
    yield controller.init(arrived)
    yield from init_leaders(controller, uninitialised(controller))
    if controller.unsettled:
        yield Later(Event.BROKER_CHANGE, controller.settings.retry_ms)


def _fail_over(controller: Controller, departed: Iterable[BrokerId]) -> Procedure[list[TopicPartition]]:
    """Steps 2 and 3."""
    brokers = controller.brokers

    def decide(key: TopicPartition, state: LeaderAndIsr) -> Choice | None:
        allowed = controller.settings.unclean_allowed
        return decisions.after_broker_change(state, controller.assigned(key), brokers, allowed)

    changed = yield from change_states(controller, affected(controller, set(departed)), decide)
    offline = [key for key in changed if controller.states[key].state.leader == NO_LEADER]
    if offline:
        yield Alert(f"{len(offline)} partitions, {offline[0]} first: no replica that may lead is alive")
    return changed


def affected(controller: Controller, departed: set[BrokerId]) -> list[TopicPartition]:
    """The partitions that a change of brokers may concern (A12), in order."""
    brokers, reads_again = controller.brokers, controller.settings.leaders_write_isr
    return [
        key
        for key in controller.partitions()
        if (stored := controller.states.get(key)) is not None
        and (
            decisions.is_affected(stored.state, brokers)
            or key in controller.unsettled
            or (reads_again and not departed.isdisjoint(controller.holders(key)))
        )
    ]
