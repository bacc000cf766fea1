"""A term of a controller: which change of the store starts which procedure (S1 A-H).

| the watch on | starts |
|---|---|
| `/controller` | the election, on every broker; not part of a term |
| `/brokers/ids` | `on_broker_change`, before everything that waits |
| `/brokers/topics` | `on_topic_change` |
| `/admin/partitions_reassigned` and below | `on_partitions_reassigned` |
| `/admin/partitions_add` and below | `on_partitions_add` |
| `/admin/partitions_remove` and below | `on_partitions_remove` |
| `/isr_change_notification` | `on_isr_change` |

The agent's timer starts `on_wakeup`; the failover is the first procedure of a term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from protocol.v3.controller.broker_changes import on_broker_change
from protocol.v3.controller.context import Controller
from protocol.v3.controller.failover import on_controller_failover
from protocol.v3.controller.isr_updates import on_isr_change
from protocol.v3.controller.partitions import on_partitions_add, on_partitions_remove
from protocol.v3.controller.procedure import Event, Procedure
from protocol.v3.controller.reassignments import on_partitions_reassigned, on_wakeup
from protocol.v3.controller.topics import on_topic_change
from protocol.v3.store import paths

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
    """What the events of a term start."""
    return {event: partial(procedure, controller) for event, procedure in _PROCEDURES.items()}


def event_of(path: str) -> Event | None:
    """The event of a watch that has fired at `path`, None for that of the election. Raises UnknownPathError."""
    return _EVENTS.get(paths.locate(path).root)
