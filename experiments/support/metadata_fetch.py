"""The metadata fetch of a broker that a test, a bench or a recorded trace stands in for."""

from __future__ import annotations

from protocol.ids import NodeId, Offset
from protocol.messages.quorum import QuorumFetchRequest
from protocol.nodes.controller import ControllerNode


def metadata_fetch(controller: ControllerNode, broker: NodeId, offset: Offset | None = None) -> QuorumFetchRequest:
    """The QuorumFetch request of a broker that holds the controller's log up to `offset`, by default all of it."""
    replica = controller.replica
    end = replica.log.end_offset if offset is None else offset
    return QuorumFetchRequest(
        correlation_id=0,
        cluster_id=replica.config.cluster_id,
        replica_id=broker,
        replica_uuid="",
        current_leader_epoch=replica.epoch,
        fetch_offset=end,
        last_fetched_epoch=replica.log.epoch_at(end),
        high_watermark=min(end, replica.high_watermark),
    )
