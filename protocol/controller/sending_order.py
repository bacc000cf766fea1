"""Requests of a broker count in the order in which it sent them, and once.

Apache Kafka's broker has a connection to the controller for each kind, with one request under way. Here a request may
be overtaken, or come twice. What came late would speak of what has been answered since: a heartbeat unfences a broker
that was let go, or is dead; an ISR proposal that was refused, and that its leader has withdrawn from its maximal ISR,
is accepted once the broker that it adds is unfenced. So a process numbers what it sends of a kind, repetitions too, and
the controller takes a number that is higher than all it has taken.

A number that is not taken stands for a request that was taken, or for one that its sender has followed up. Who waits
for its answer none the less is answered so that it asks again, under a new number: a refusal of a request as a whole
says nothing of the proposals in it (`broker/isr_manager.py`).

Numbers are of one life of a broker and kept in memory. A controller that restarts has forgotten them, and may: nothing
that reached its former life reaches it again. What the simulator has under way to a process ends with that process, as
on a connection, and on ray nothing is sent twice (`actors/transport.py`).
"""

from __future__ import annotations

from protocol.ids import BrokerId


class SendingOrder:
    """The highest number taken from each broker, in its present life, of one kind of request."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[BrokerId, int] = {}

    def takes(self, broker: BrokerId, number: int) -> bool:
        """Whether the request is newer than all that were taken; it is taken then."""
        if number <= self._taken.get(broker, -1):
            return False
        self._taken[broker] = number
        return True

    def forget(self, broker: BrokerId) -> None:
        """The broker's life is over: the next one counts anew."""
        self._taken.pop(broker, None)
