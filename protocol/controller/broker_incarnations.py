"""What the active controller remembers of the present lives of brokers; none of it is in the metadata log.

How far each has applied the log, by its heartbeats and its fetches; which of them are in controlled shutdown, and since
which offset; and which of their numbered requests it has taken (`sending_order.py`). A controller that has just become
active knows nothing of that: it sees a shutdown under way with the next heartbeat.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.controller.heartbeats import BrokerControlState, HeartbeatView, next_control_state
from protocol.controller.sending_order import SendingOrder
from protocol.ids import BrokerId, Offset
from protocol.messages.control import BrokerHeartbeatRequest


class BrokerIncarnations:
    """See the module docstring. `applied` is the offset behind what a broker has applied."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.applied: dict[BrokerId, Offset] = {}
        self.shutdown_offsets: dict[BrokerId, Offset] = {}
        self.heartbeats = SendingOrder()
        self.proposals = SendingOrder()

    def forget(self, broker: BrokerId) -> None:
        """This life is over."""
        self.heartbeats.forget(broker)
        self.proposals.forget(broker)
        self.shutdown_offsets.pop(broker, None)
        self.applied.pop(broker, None)

    def observe_applied(self, broker: BrokerId, offset: Offset) -> None:
        """The broker has applied the metadata log up to there; nobody has applied what is not in the log."""
        self.applied[broker] = max(self.applied.get(broker, 0), min(offset, self._state.image.next_offset))

    def control_state(self, broker: BrokerId) -> BrokerControlState:
        """Of a broker that is registered."""
        if self._state.image.brokers[broker].fenced:
            return BrokerControlState.FENCED
        if broker in self.shutdown_offsets:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.UNFENCED

    def next_state(self, request: BrokerHeartbeatRequest) -> BrokerControlState:
        """The state to which a heartbeat moves its broker."""
        broker = request.broker_id
        return next_control_state(
            HeartbeatView(
                state=self.control_state(broker),
                want_fence=request.want_fence,
                want_shut_down=request.want_shut_down,
                has_applied_registration=request.current_metadata_offset
                > self._state.image.brokers[broker].broker_epoch,
                leads_partitions=self._state.has_leaderships(broker),
                shutdown_offset=self.shutdown_offsets.get(broker),
                lowest_active_offset=self._lowest_active_offset(broker),
            )
        )

    def _lowest_active_offset(self, but: BrokerId) -> Offset:
        image = self._state.image
        active = (broker for broker in image.brokers if broker != but and image.is_active(broker))
        return min((self.applied.get(broker, 0) for broker in active), default=image.next_offset)
