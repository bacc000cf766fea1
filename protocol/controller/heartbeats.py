"""The state to which a heartbeat moves a broker (KIP-631), and what the active controller keeps in memory about the
present incarnations of brokers.

A broker is fenced, unfenced, in controlled shutdown, or ordered to shut down now. A fenced broker is unfenced once it
has applied its own registration, unless it asks to stay fenced. A broker that asks to shut down first loses its
leaderships; it may shut down when it leads no partition and every other active broker has applied the metadata up to
the offset at which its controlled shutdown began, so that clients and followers already use the new leaders (M56).

The offset up to which each broker has applied the log, by its heartbeats and fetches, the offset at which its
controlled shutdown began, and the numbers of its latest requests (`sending_order.py`) are not in the metadata log. A
controller that becomes active begins with none of them: it notices a controlled shutdown with the next heartbeat.
"""

from __future__ import annotations

from enum import Enum

from protocol.controller.context import ControllerState
from protocol.controller.sending_order import SendingOrder
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
    if view.state is BrokerControlState.FENCED:
        if view.want_shut_down:
            return BrokerControlState.SHUTDOWN_NOW
        if view.want_fence or not view.has_applied_registration:
            return BrokerControlState.FENCED
        return BrokerControlState.UNFENCED
    if view.state is BrokerControlState.UNFENCED:
        if view.want_fence:
            return BrokerControlState.SHUTDOWN_NOW if view.want_shut_down else BrokerControlState.FENCED
        if view.want_shut_down:
            return BrokerControlState.CONTROLLED_SHUTDOWN if view.leads_partitions else BrokerControlState.SHUTDOWN_NOW
        return BrokerControlState.UNFENCED
    if view.state is BrokerControlState.CONTROLLED_SHUTDOWN:
        if view.leads_partitions or view.shutdown_offset is None or view.lowest_active_offset < view.shutdown_offset:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.SHUTDOWN_NOW
    return BrokerControlState.SHUTDOWN_NOW


class BrokerIncarnations:
    """`applied`: offset behind what a broker has applied; `shutdown_offsets`: log end when its shutdown began."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.applied: dict[BrokerId, Offset] = {}
        self.shutdown_offsets: dict[BrokerId, Offset] = {}
        self.heartbeats = SendingOrder()
        self.proposals = SendingOrder()

    def forget(self, broker: BrokerId) -> None:
        self.heartbeats.forget(broker)
        self.proposals.forget(broker)
        self.shutdown_offsets.pop(broker, None)
        self.applied.pop(broker, None)

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
        broker, end_offset = request.broker_id, self._state.image.next_offset
        shutdown_offset = self.shutdown_offsets.get(broker)
        return next_control_state(
            HeartbeatView(
                state=self.control_state(broker),
                want_fence=request.want_fence,
                want_shut_down=request.want_shut_down,
                has_applied_registration=request.current_metadata_offset
                > self._state.image.brokers[broker].broker_epoch,
                leads_partitions=self._state.has_leaderships(broker),
                shutdown_offset=shutdown_offset,
                lowest_active_offset=end_offset if shutdown_offset is None else self._lowest_active_offset(broker),
            )
        )

    def _lowest_active_offset(self, but: BrokerId) -> Offset:
        image = self._state.image
        active = (broker for broker in image.brokers if broker != but and image.is_active(broker))
        return min((self.applied.get(broker, 0) for broker in active), default=image.next_offset)
