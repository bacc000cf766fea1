"""`on_controller_failover`: what a broker does that has been elected controller (S1 D; A33, M33); and which change of
the store starts which procedure of its term (S1 A-H).

    3. read the requests for reassignments, the live brokers, the topics, and leader and ISR of each partition
    4. send INIT to every live broker: all that it holds, in one request; commands of the former controller may be lost
    5. on_broker_change(), which ends with step 6: init_leaders() for partitions that have none
    7. on_partitions_reassigned()   8. on_partitions_add()   9. on_partitions_remove()

Watches are set by the reads themselves, so what changes after a read makes an event. A watch that is set after the read
misses what happens in between.

Departures. S1 reads reassignments in step 7, after INIT; but a replica that a reassignment adds is not assigned yet,
and would be deleted by an INIT that does not name it: so they are read first. S1 sends INIT to "relevant" brokers; a
broker that holds nothing any more is one, since its StopReplica may be what was lost. INIT goes to live brokers only
(A36), which are therefore read before. A node that is damaged raises an alert and is left alone, and INIT deletes
nothing while there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from protocol.v3.controller.broker_changes import on_broker_change
from protocol.v3.controller.context import Controller
from protocol.v3.controller.isr_updates import on_isr_change, remove_notifications
from protocol.v3.controller.partitions import on_partitions_add, on_partitions_remove
from protocol.v3.controller.procedure import Event, Procedure
from protocol.v3.controller.publishing import read_brokers, read_states, read_topics
from protocol.v3.controller.reassignments import on_partitions_reassigned, on_wakeup, read_moves
from protocol.v3.controller.topics import on_topic_change
from protocol.v3.store import paths


def on_controller_failover(controller: Controller) -> Procedure[None]:
    """Takes over from the former controller. Steps 1 and 2 are `election.elect`."""
    controller.live = yield from read_brokers(controller)
    controller.topics = yield from read_topics(controller)
    yield from read_states(controller, controller.partitions())
    yield from read_moves(controller)
    yield controller.init(sorted(controller.live))
    yield from on_broker_change(controller)
    yield from on_wakeup(controller)
    yield from on_partitions_add(controller)
    yield from on_partitions_remove(controller)
    yield from remove_notifications()
    if controller.settings.leaders_write_isr:
        yield from on_isr_change(controller)


_PROCEDURES: Final[Mapping[Event, Callable[[Controller], Procedure[None]]]] = {
    Event.FAILOVER: on_controller_failover,
    Event.BROKER_CHANGE: on_broker_change,
    Event.TOPIC_CHANGE: on_topic_change,
    Event.REASSIGNED: on_partitions_reassigned,
    Event.WAKE_UP: on_wakeup,
    Event.ADDED: on_partitions_add,
    Event.REMOVED: on_partitions_remove,
    Event.ISR_CHANGE: on_isr_change,
}
_EVENTS: Final = {
    paths.BROKER_IDS: Event.BROKER_CHANGE,
    paths.TOPICS: Event.TOPIC_CHANGE,
    paths.REASSIGNED: Event.REASSIGNED,
    paths.ADDED: Event.ADDED,
    paths.REMOVED: Event.REMOVED,
    paths.ISR_CHANGES: Event.ISR_CHANGE,
}
URGENT: Final = frozenset({Event.BROKER_CHANGE})
"""Events that go before those that wait (A41)."""


def procedures(controller: Controller) -> dict[Event, Callable[[], Procedure[None]]]:
    return {event: partial(procedure, controller) for event, procedure in _PROCEDURES.items()}


def event_of(path: str) -> Event | None:
    """The event of a watch that has fired at `path`, None for that of the election. Raises UnknownPathError."""
    return _EVENTS.get(paths.locate(path).root)
