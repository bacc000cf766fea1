"""What the gauges of a node's process show: read from the node as it is, whenever they are exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from actors.metrics import Sample, lag_sample, partition_samples
from protocol.contract import Node
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.controller import ControllerNode


class NodeReadings:
    """The gauges of a node (`actors.metrics.Readings`). Only the active controller has gauges of partitions, which it
    reads from its metadata; a broker has one per replica.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def is_controller(self) -> bool:
        return isinstance(self._node, ControllerNode)

    def of_controller(self) -> Mapping[str, int]:
        if not isinstance(self._node, ControllerNode):
            return {}
        return self._node.metrics()

    def of_partitions(self) -> Iterator[Sample]:
        node = self._node
        if isinstance(node, BaseBroker):
            for replica in list(node.context.replicas.values()):
                log, leads = replica.log, replica.leadership is not None
                yield lag_sample(replica.name, log.end_offset - log.high_watermark if leads else 0)
        elif isinstance(node, ControllerNode) and node.is_active:
            image = node.state.image
            for partition, state in [(image.name_of(key), state) for key, state in image.partitions()]:
                yield from partition_samples(partition, len(state.isr), len(state.elr))
