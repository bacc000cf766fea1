"""What tests on Ray wait for."""

from __future__ import annotations

from experiments.ray_engine import RayEngine
from protocol.ids import NodeId


def unfenced(engine: RayEngine) -> set[NodeId]:
    """The brokers that the controller would place replicas on."""
    view = engine.view()
    return set() if view is None else {broker for broker, found in view.brokers.items() if not found.fenced}
