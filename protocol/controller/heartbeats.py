"""The state to which a heartbeat moves a broker (KIP-631), as a pure decision.

A broker is fenced, unfenced, in controlled shutdown, or ordered to shut down now. A fenced broker is unfenced once it
has applied its own registration, unless it asks to stay fenced. A broker that asks to shut down first loses its
leaderships; it may shut down when it leads no partition and every other active broker has applied the metadata up to
the offset at which its controlled shutdown began, so that clients and followers already use the new leaders (M56).
"""

from __future__ import annotations

from enum import Enum

from protocol.ids import Offset
from protocol.values import direct, immutable


@direct
class BrokerControlState(Enum):
    """A broker as the controller treats it."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@immutable
class HeartbeatView:
    """The input of the decision. `shutdown_offset` is the metadata offset at which controlled shutdown began, None
    before it; `lowest_active_offset` is the smallest metadata offset that another active broker is known to have
    applied, which counts in a controlled shutdown only.
    """

    state: BrokerControlState
    want_fence: bool
    want_shut_down: bool
    has_applied_registration: bool
    leads_partitions: bool
    shutdown_offset: Offset | None
    lowest_active_offset: Offset


def next_control_state(view: HeartbeatView) -> BrokerControlState:
    """The state to which the heartbeat moves the broker."""
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
