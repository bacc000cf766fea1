"""Elections that are requested, and controlled shutdown (S1 "leadership change"; B3, B7, M56).

Both change many partitions by one pass of conditional writes, and send one request per broker. `elect_leaders` carries
out a preferred or an unclean election; the other types belong to later generations. `controlled_shutdown` moves the
leaderships of a broker that is going to stop to other members of the ISR, and takes the broker out of the ISRs: at its
end leaders need not wait until they notice. Where leaders write their ISRs themselves, the controller has to read every
state before; where only the controller writes them, it need not (B7). The test counts both.

A broker in controlled shutdown remains alive, and keeps the partitions of which it is the only member of the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ErrorCode, Refused
from protocol.ids import BrokerId, TopicPartition
from protocol.messages.partitions import ElectionType
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Choice
from protocol.v3.controller.procedure import Procedure
from protocol.v3.controller.publishing import change_states
from protocol.v3.store.records import LeaderAndIsr

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


def controlled_shutdown(
    controller: Controller, broker: BrokerId, broker_epoch: int
) -> Procedure[tuple[TopicPartition, ...]]:
    """Moves leaderships away from a broker; returns those that it keeps. Raises Refused for another broker epoch."""
    if controller.live.get(broker) != broker_epoch:
        known = controller.live.get(broker)
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
