"""The state to which a heartbeat moves a broker (KIP-631), and what the active controller keeps in memory about the
present incarnations of brokers.

A fenced broker is unfenced once it has applied its own registration, unless it asks to stay fenced. A broker that asks
to shut down first loses its leaderships; it may shut down when it leads no partition and every other active broker has
applied the metadata up to the offset at which its controlled shutdown began, so that clients and followers already use
the new leaders (M56).

Requests of a broker count once, in the order in which the broker sent them (`SendingOrder`). Apache Kafka's broker has
one connection to the controller for each kind of request, with one request in flight. Here a request may be overtaken
or duplicated, and a late request would act on a state that has been superseded: a heartbeat would unfence a broker that
was allowed to shut down, or has crashed; an ISR proposal that was refused and withdrawn would be accepted once the
broker that it adds is unfenced. So each broker process numbers the requests of a kind, repetitions included, and the
controller answers one that is not newer than all that it has taken with an error, upon which a sender that still waits
repeats the request under a new number.

None of this is in the metadata log. A controller that becomes active notices a controlled shutdown with the next
heartbeat. It may lose the numbers of requests, since no message to its previous incarnation reaches it: messages in
flight to a process end with the process, and on ray no message is sent twice (`actors/transport.py`).
"""

from __future__ import annotations

from enum import Enum

from protocol.controller.context import ControllerState
from protocol.ids import BrokerId, Offset
from protocol.messages.control import BrokerHeartbeatRequest
from protocol.values import direct, immutable


@direct
class BrokerControlState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@immutable
class HeartbeatView:
    """The input of the decision. `shutdown_offset`: where controlled shutdown began, None before it;
    `lowest_active_offset`: what all other active brokers are known to have applied, for a controlled shutdown only.
    """

    state: BrokerControlState
    want_fence: bool
    want_shut_down: bool
    has_applied_registration: bool
    leads_partitions: bool
    shutdown_offset: Offset | None
    lowest_active_offset: Offset


def next_control_state(view: HeartbeatView) -> BrokerControlState:
    if view.state is BrokerControlState.CONTROLLED_SHUTDOWN:
        if view.leads_partitions or view.shutdown_offset is None or view.lowest_active_offset < view.shutdown_offset:
            return BrokerControlState.CONTROLLED_SHUTDOWN
    elif view.state is not BrokerControlState.SHUTDOWN_NOW and not view.want_shut_down:
        may_serve = view.state is BrokerControlState.UNFENCED or view.has_applied_registration
        return BrokerControlState.UNFENCED if may_serve and not view.want_fence else BrokerControlState.FENCED
    elif view.state is BrokerControlState.UNFENCED and view.leads_partitions and not view.want_fence:
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.SHUTDOWN_NOW


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
        """The next incarnation of the broker counts from the beginning."""
        self._taken.pop(broker, None)


class BrokerIncarnations:
    """`applied`: offset behind what a broker has applied; `shutdown_offsets`: log end when its shutdown began;
    `on_new_disk`: those that said so.
    """

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.applied: dict[BrokerId, Offset] = {}
        self.shutdown_offsets: dict[BrokerId, Offset] = {}
        self.on_new_disk: set[BrokerId] = set()
        self.heartbeats = SendingOrder()
        self.proposals = SendingOrder()

    def forget(self, broker: BrokerId) -> None:
        self.heartbeats.forget(broker)
        self.proposals.forget(broker)
        self.shutdown_offsets.pop(broker, None)
        self.applied.pop(broker, None)
        self.on_new_disk.discard(broker)

    def observe_applied(self, broker: BrokerId, offset: Offset) -> None:
        """Records that the broker has applied the log below `offset`, at most up to the end of the log."""
        if offset > self.applied.get(broker, 0):
            self.applied[broker] = min(offset, self._state.image.next_offset)

    def control_state(self, broker: BrokerId) -> BrokerControlState:
        if self._state.image.brokers[broker].fenced:
            return BrokerControlState.FENCED
        if broker in self.shutdown_offsets:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.UNFENCED

    def next_state(self, request: BrokerHeartbeatRequest) -> BrokerControlState:
        broker, image = request.broker_id, self._state.image
        shutdown_offset, lowest_offset = self.shutdown_offsets.get(broker), image.next_offset
        if shutdown_offset is not None:
            others = (other for other in image.brokers if other != broker and image.is_active(other))
            lowest_offset = min((self.applied.get(other, 0) for other in others), default=lowest_offset)
        return next_control_state(
            HeartbeatView(
                state=self.control_state(broker),
                want_fence=request.want_fence,
                want_shut_down=request.want_shut_down,
                has_applied_registration=request.current_metadata_offset > image.brokers[broker].broker_epoch,
                leads_partitions=self._state.has_leaderships(broker),
                shutdown_offset=shutdown_offset,
                lowest_active_offset=lowest_offset,
            )
        )
