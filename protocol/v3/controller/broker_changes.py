"""`on_broker_change`: brokers have died or come back (S1 A; A11-A17, M25-M28, M38, M39).

    1. read the live brokers, with a watch for the next change
    2. set_p: the partitions whose leader is dead or whose ISR has a dead broker
    3. for each of them: read, decide, write conditionally        (publishing.py)
    4. send the new states to the brokers that they concern, one request per broker
    5. send brokers that have come back all that they hold
    6. initialise partitions that could not be initialised while all of their replicas were dead

Whatever the reason for which a broker's session is gone, all its partitions are decided on (A52).

Steps 5 and 6 are additions: what the controller decides after S1's broker has read its state, at its start, and before
its registration would never reach it. So the first command to each incarnation of a broker is INIT. A broker whose
session has been replaced between two reads has been dead though the list of brokers looks the same: its epoch shows it.

Where leaders write their ISRs themselves, the ISR that the controller knows may lack a broker that has joined since.
Partitions that a dead broker is assigned to are therefore read too (step 2), and written only if they change.

Elections that are requested, and controlled shutdown (S1 "leadership change"; B3, B7, M56), change many partitions by
one pass of conditional writes, and send one request per broker. `controlled_shutdown` also takes the broker out of the
ISRs: at its end leaders need not wait until they notice. A broker in controlled shutdown remains alive, and keeps the
partitions of which it is the only member of the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ErrorCode, Refused
from protocol.ids import NO_LEADER, BrokerId, TopicPartition
from protocol.messages.partitions import ElectionType
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
    brokers = controller.brokers

    def decide(key: TopicPartition, state: LeaderAndIsr) -> Choice | None:
        allowed = controller.settings.unclean_allowed
        return decisions.after_broker_change(state, controller.assigned(key), brokers, allowed)

    changed = yield from change_states(controller, _affected(controller, set(departed)), decide)
    offline = [key for key in changed if controller.states[key].state.leader == NO_LEADER]
    if offline:
        yield Alert(f"{len(offline)} partitions, {offline[0]} first: no replica that may lead is alive")
    return changed


def _affected(controller: Controller, departed: set[BrokerId]) -> list[TopicPartition]:
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


_ELECTIONS = {ElectionType.PREFERRED: decisions.preferred, ElectionType.UNCLEAN: decisions.unclean}


def elect_leaders(
    controller: Controller, election: ElectionType, partitions: Iterable[TopicPartition] | None
) -> Procedure[dict[TopicPartition, ErrorCode]]:
    """Elects leaders (of all partitions if None); returns each outcome. Raises Refused for an election that V3 does not
    know.
    """
    if election not in _ELECTIONS:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"election {election.name}; allowed in v3: PREFERRED, UNCLEAN")
    wanted = controller.partitions() if partitions is None else list(dict.fromkeys(partitions))
    outcome = dict.fromkeys(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    rule, brokers = _ELECTIONS[election], controller.brokers

    def decide(key: TopicPartition, state: LeaderAndIsr) -> Choice | None:
        choice = rule(state, controller.assigned(key), brokers)
        outcome[key] = choice if isinstance(choice, ErrorCode) else ErrorCode.REQUEST_TIMED_OUT
        return None if isinstance(choice, ErrorCode) else choice

    changed = yield from change_states(controller, [key for key in wanted if controller.assigned(key)], decide)
    yield controller.leader_and_isr(changed)
    return outcome | dict.fromkeys(changed, ErrorCode.NONE)


def rebalance_leaders(controller: Controller) -> Procedure[None]:
    """Moves leaderships back to the preferred replicas, of live brokers that lack too many of theirs; partitions that
    are being reassigned stay as they are (Kafka's controller of the time did the same).
    """
    settings = controller.settings
    assert settings.rebalance_ms is not None
    preferred: dict[BrokerId, list[TopicPartition]] = {broker: [] for broker in sorted(controller.live)}
    for key in controller.partitions():
        preferred.get(controller.assigned(key)[0], []).append(key)
    wanted = []
    for broker, keys in preferred.items():
        lacking = [key for key in keys if key in controller.states and controller.states[key].state.leader != broker]
        if len(lacking) * 100 > len(keys) * settings.imbalance_percentage:
            wanted += [key for key in lacking if key not in controller.moves]
    yield from elect_leaders(controller, ElectionType.PREFERRED, wanted)
    yield Later(Event.REBALANCE, settings.rebalance_ms)


def controlled_shutdown(
    controller: Controller, broker: BrokerId, broker_epoch: int
) -> Procedure[tuple[TopicPartition, ...]]:
    """Moves leaderships away from a broker; returns those that it keeps. Raises Refused for another broker epoch."""
    if (known := controller.live.get(broker)) != broker_epoch:
        raise Refused(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} has epoch {known}, not {broker_epoch}")
    controller.leaving.add(broker)
    brokers = controller.brokers

    def decide(key: TopicPartition, state: LeaderAndIsr) -> Choice | None:
        return decisions.without(state, controller.assigned(key), broker, brokers)

    held = [key for key in controller.partitions() if broker in controller.holders(key)]
    changed = yield from change_states(controller, held, decide)
    yield controller.leader_and_isr(changed)
    return tuple(
        key for key in held if (stored := controller.states.get(key)) is not None and stored.state.leader == broker
    )
