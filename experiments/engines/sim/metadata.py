"""Collects the committed metadata records of a simulated cluster: controllers drop those that a snapshot covers."""

from __future__ import annotations

from experiments.engines.sim.cluster import SimCluster
from protocol.events.base import Trace
from protocol.events.controller import ControllerStarted, MetadataCommitted
from protocol.ids import NodeId, TimeMs
from protocol.messages.records import MetadataRecord
from protocol.nodes.controller import ControllerNode


def kept_metadata(cluster: SimCluster) -> list[MetadataRecord]:
    """A list that grows with the committed records of the metadata log, from its start; call it before any node is
    started.
    """
    kept: list[MetadataRecord] = []

    def observe(now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, MetadataCommitted):
            end = trace.end_offset
        elif isinstance(trace, ControllerStarted):
            end = trace.next_offset
        else:
            return
        controller = cluster.nodes.get(node)
        if end > len(kept) and isinstance(controller, ControllerNode):
            begin = len(kept) - controller.first_record
            kept.extend(controller.records[begin : end - controller.first_record])

    cluster.trace_observers.append(observe)
    return kept
