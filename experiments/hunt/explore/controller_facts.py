"""What the model asks of a controller's state, once per state: the metadata log, and which brokers are fenced."""

from __future__ import annotations

from functools import cache

from experiments.hunt.explore.machines import Local, Machines
from experiments.hunt.explore.values import VALUES
from protocol.ids import FIRST_CONTROLLER, METADATA_LOG, NO_EPOCH, Epoch, NodeId, Offset
from protocol.messages.quorum import QuorumFetchResponse
from protocol.nodes.controller import ControllerNode

_MAX_BYTES = 2**62


class ControllerFacts:
    """Facts of the controllers' states in `machines`."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.batch_ends = cache(self._batch_ends)
        self.fetched = cache(self._fetched)
        self.fenced_epoch = cache(self._fenced_epoch)

    def _node(self, controller: Local) -> ControllerNode:
        node = self._machines.nodes[controller]
        assert isinstance(node, ControllerNode)
        return node

    def _batch_ends(self, controller: Local) -> tuple[Offset, ...]:
        """Where the batches of the metadata log end."""
        log = self._node(controller).storage.open_log(METADATA_LOG)
        return tuple(batch.next_offset for batch in log.read(0, _MAX_BYTES))

    def _fetched(self, controller: Local, offset: Offset, end: Offset, fetch_id: int) -> int:
        """The number of the answer to a broker's fetch of the metadata log: the batches between these offsets."""
        node = self._node(controller)
        log = node.storage.open_log(METADATA_LOG)
        batches = [batch for batch in log.read(offset, _MAX_BYTES) if offset <= batch.base_offset < end]
        message = QuorumFetchResponse(
            correlation_id=fetch_id,
            leader_id=FIRST_CONTROLLER,
            leader_epoch=node.replica.epoch,
            high_watermark=end,
            batches=tuple(batches),
        )
        return VALUES.number(message)

    def _fenced_epoch(self, controller: Local, broker: NodeId) -> Epoch | None:
        """The broker's epoch if it is registered and fenced, -1 if it is unfenced, None if it is not registered."""
        registration = self._node(controller).state.image.brokers.get(broker)
        if registration is None:
            return None
        return registration.broker_epoch if registration.fenced else NO_EPOCH
