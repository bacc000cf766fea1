"""The unfenced brokers of a cluster view, and of an engine without a view."""

from __future__ import annotations

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, ClusterView
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.metadata.image import BrokerRegistration


def registration(broker: int, *, fenced: bool, leaving: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker, 7, f"incarnation-{broker}", fenced=fenced, in_controlled_shutdown=leaving)


def test_a_broker_is_unfenced_until_it_is_fenced_also_while_it_shuts_down() -> None:
    brokers = [registration(0, fenced=True), registration(1, fenced=False), registration(2, fenced=False, leaving=True)]
    assert ClusterView({}, {found.broker_id: found for found in brokers}).unfenced == {1, 2}


def test_no_broker_is_unfenced_without_an_active_controller() -> None:
    engine = CheckedEngine(ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966)))
    assert engine.unfenced() == frozenset()
    for node in engine.spec.node_ids:
        engine.start(node)
    assert engine.run_until(lambda: engine.unfenced() == {0, 1}, 60_000)
