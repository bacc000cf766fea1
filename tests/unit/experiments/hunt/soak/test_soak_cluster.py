"""When a soak's cluster counts as whole, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.ray.engine import PolledEngine
from experiments.engines.sim.engine import SimEngine
from experiments.hunt.soak.cluster import HEAL_WITHIN_MS, SoakCluster
from experiments.hunt.soak.faults import registered_epoch
from experiments.hunt.soak.run import read_final_logs
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import NodeId, TopicPartition
from protocol.messages.batch import RecordBatch

SESSION_MS = 9_000
"""`broker.session.timeout.ms`, by default."""


def test_a_cluster_whose_broker_has_restarted_is_whole_when_the_broker_is_registered_again() -> None:
    """The killed broker starts at once. The controller refuses to register it until the session of the incarnation
    before has ended, 9 s after its last heartbeat (of which it sends one every 2 s), and shows that one meanwhile.
    """
    engine = SimEngine(ClusterSpec(3, 3, ClusterConfig.of(Generation.KIP_966, {})))
    cluster = SoakCluster(cast("PolledEngine[object]", engine), None, {})
    cluster.start(engine.spec.node_ids)
    cluster.wait(cluster.is_whole, "the cluster is whole")
    cluster.create_topic(2)
    cluster.wait(cluster.is_whole, "the cluster is whole")
    for broker in engine.spec.broker_ids:
        killed_ms = engine.now_ms()
        engine.crash(broker, Loss())
        cluster.start([broker])
        view = engine.view()
        assert view is not None
        assert (view.unfenced, cluster.is_whole()) == ({0, 1, 2}, False)
        cluster.wait(cluster.is_whole, "the cluster is whole")
        assert engine.now_ms() - killed_ms > SESSION_MS - 2_000


def test_without_an_active_controller_a_broker_has_no_known_epoch() -> None:
    """None, not an epoch below all others: the registration that is seen next may be that of the same incarnation."""
    engine = SimEngine(ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966, {})))
    cluster = SoakCluster(cast("PolledEngine[object]", engine), None, {})
    cluster.start(engine.spec.node_ids)
    before = cluster.wait_for(lambda: registered_epoch(engine.view(), 0), "broker 0 is registered")
    controller = cluster.controller()
    engine.crash(controller, Loss())
    assert registered_epoch(engine.view(), 0) is None
    cluster.start([controller])
    assert cluster.wait_for(lambda: registered_epoch(engine.view(), 0), "a controller is active") == before
    engine.crash(0, Loss())
    cluster.start([0])
    cluster.wait(lambda: (registered_epoch(engine.view(), 0) or before) > before, "broker 0 is registered again")


class Noting(SoakCluster):
    """Notes what it waits for, and for how long, and whether that holds."""

    def wait(self, condition: Callable[[], bool], what: str, within_ms: int = HEAL_WITHIN_MS) -> None:
        self.waits = [*getattr(self, "waits", []), (what, within_ms, condition())]


def test_the_time_to_heal_begins_when_all_processes_answer() -> None:
    """Broker 2 has no process yet. A busy machine took 110 s to start one; healing has 120 s after that."""
    spec = ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966, {}))
    nodes = set(spec.node_ids)
    cluster = SimpleNamespace(pids=lambda: {0: 17})
    engine = SimpleNamespace(spec=spec, answering=lambda: nodes - {2}, view=lambda: None, cluster=cluster)
    noting = Noting(cast("Any", engine), None, {})
    noting.await_whole()
    assert noting.waits == [("all nodes answer", 600_000, False), ("the cluster is whole", 120_000, False)]
    assert noting.pids == {0: 17}
    engine.answering = lambda: nodes
    noting.await_whole()
    assert noting.waits[2] == ("all nodes answer", 600_000, True)


class Simulated(SoakCluster):
    def await_whole(self) -> None:
        self.wait(self.is_whole, "the cluster is whole")


class Disturbed(SimEngine):
    """Broker 1 is killed and starts again when the last log of partition 0 has been read."""

    is_disturbed = False

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        found = super().log(broker, partition)
        if not self.is_disturbed and (broker, partition.partition) == (2, 0):
            self.is_disturbed = True
            self.crash(1, Loss())
            self.start(1)
        return found


def test_a_log_is_read_once_its_partition_is_led_again() -> None:
    """Partition 1, which broker 1 leads, has no leader for a while once the logs of partition 0 have been read."""
    engine = Disturbed(ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966, {})))
    cluster = Simulated(cast("PolledEngine[object]", engine), None, {})
    cluster.start(engine.spec.node_ids)
    cluster.await_whole()
    cluster.create_topic(3)
    cluster.await_whole()
    view = engine.view()
    assert view is not None
    assert [view.partitions[partition].leader for partition in cluster.partitions] == [0, 1, 2]
    findings: list[str] = []
    finals = read_final_logs(cluster, findings)
    assert (engine.is_disturbed, findings) == (True, [])
    assert [final.partition for final in finals] == list(cluster.partitions)
