"""Requests of a broker count once, in the order in which the broker sent them.

Apache Kafka's broker has one connection to the controller for each kind of request, with one request in flight. Here a
request may be overtaken or duplicated, and a late request would act on a state that has been superseded: a heartbeat
would unfence a broker that was allowed to shut down, or has crashed; an ISR proposal that was refused and withdrawn
would be accepted once the broker that it adds is unfenced. So each broker process numbers the requests of a kind,
repetitions included, and the controller takes a request only if its number is higher than all that it has taken. Other
requests are answered with an error, upon which a sender that still waits repeats the request under a new number.

Numbers belong to one incarnation of a broker and are kept in memory. A controller that restarts may lose them, since no
message to its previous incarnation reaches it: messages in flight to a process end with the process in the simulator,
as on a connection, and on ray no message is sent twice (`actors/transport.py`).
"""

from __future__ import annotations

from protocol.ids import BrokerId


class SendingOrder:
    """The highest number taken from the present incarnation of each broker, for one kind of request."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[BrokerId, int] = {}

    def takes(self, broker: BrokerId, number: int) -> bool:
        """Whether the request is newer than all that were taken; if it is, it counts as taken."""
        if number <= self._taken.get(broker, -1):
            return False
        self._taken[broker] = number
        return True

    def forget(self, broker: BrokerId) -> None:
        """Drops the broker's number: its next incarnation counts from the beginning."""
        self._taken.pop(broker, None)
