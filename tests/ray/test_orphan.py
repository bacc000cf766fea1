"""An orphan, the actor of a killed raylet, keeps running, is fenced by its epochs, and acknowledges nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.connections import Listener
from actors.frames import joined_frame
from actors.peers import Address, RayPeers
from actors.transport import Transport
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine
from experiments.hunt.soak.cluster import SoakCluster, homes_of
from experiments.hunt.soak.ray_nodes import RayNodes, ray_nodes
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, FIRST_LOAD, TopicPartition, node_name
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import encode
from protocol.messages.commands import ProduceCommand, ProduceOutcome
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.metadata.authorizer import node_principal
from tests.ray.cluster_helpers import FAST
from tests.strays import leaves_within

SOAK = TopicPartition("soak", 0)
ORPHAN = 0
PATIENT = {**FAST, "broker.session.timeout.ms": 9_000}
"""If the next incarnation sends no heartbeat for a whole session, the orphan may register again, as in Kafka."""


@ray.remote(num_cpus=0)
class BoundProducer:
    """Has a client's name, and keeps the responses that arrive there."""

    def __init__(self, run: str) -> None:
        self._answers: list[tuple[int, int]] = []
        listener = Listener(ray.util.get_node_ip_address(), incarnation=1)
        self._transport = Transport(FIRST_LOAD, listener, RayPeers(run), lambda error: None)
        self._is_serving = False

    async def address(self) -> Address:
        if not self._is_serving:
            self._is_serving = True
            self._transport.serve(self)
        return self._transport.address

    def deliver(self, sender: int, messages: Sequence[Message], control: bool, done: Callable[[], None]) -> None:
        """As the host's."""
        for message in messages:
            if isinstance(message, ProduceResponse):
                self._answers.append((message.correlation_id, int(message.error)))
        done()

    async def answers(self) -> list[tuple[int, int]]:
        """(correlation id, error) of every answer so far."""
        return self._answers


@contextmanager
def cluster_of_machines() -> Iterator[tuple[SoakCluster, RayNodes]]:
    """Three brokers on Ray nodes of their own, one Ray node to spare; topic `soak`, led by broker 0."""
    with ray_nodes(4) as nodes:
        spec = ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966, PATIENT))
        homes = homes_of(spec, nodes)
        engine = RayEngine(spec, homes=homes)
        try:
            cluster = SoakCluster(engine, nodes, homes)
            cluster.start(engine.spec.node_ids)
            cluster.await_whole()
            cluster.create_topic(1)
            cluster.await_whole()
            yield cluster, nodes
        finally:
            engine.close()


def produce(cluster: SoakCluster, payload: bytes) -> ErrorCode:
    number = cluster.next_id()
    cluster.engine.submit(
        ProduceCommand(command_id=number, topic="soak", partition=0, acks=-1, record_count=1, payload=payload)
    )
    cluster.wait(lambda: cluster.engine.outcome(number) is not None, "an outcome")
    outcome = cluster.engine.outcome(number)
    assert isinstance(outcome, ProduceOutcome)
    return outcome.error


def produce_call(number: int) -> tuple[int, bool, bytes]:
    """The arguments that deliver a produce request with acks=all from the client that is bound to the orphan."""
    request = ProduceRequest(
        correlation_id=number,
        principal=node_principal(FIRST_LOAD),
        topic="soak",
        partition=0,
        acks=-1,
        batch=RecordBatch(record_count=1, payload=b"lonely %d" % number),
    )
    return FIRST_LOAD, False, joined_frame([encode(request)])


def refusals(cluster: SoakCluster, *, after_ms: int) -> set[tuple[int, str, str]]:
    """(node, request, error) of refused requests of the broker's incarnations."""
    return {
        (event.node, event.trace.message, event.trace.error)
        for event in cluster.engine.traces()
        if event.trace.kind == "refused" and event.trace.sender == ORPHAN and event.time_ms > after_ms
    }


def registered_epoch(cluster: SoakCluster) -> int:
    view = cluster.engine.view()
    return -1 if view is None else view.brokers[ORPHAN].broker_epoch


def payloads(cluster: SoakCluster, broker: int) -> list[bytes]:
    return [batch.payload for batch in cluster.engine.log(broker, SOAK)]


def test_an_orphan_is_fenced_by_its_epochs_and_acknowledges_nothing() -> None:
    with cluster_of_machines() as (cluster, nodes):
        engine = cluster.engine
        assert cluster.leader(SOAK) == ORPHAN
        assert produce(cluster, b"before") is ErrorCode.NONE
        answers = bound_producer(engine.cluster.run, nodes.head)
        handle = ray.get_actor(node_name(ORPHAN), engine.cluster.run)
        ray.get(handle.deliver.remote(*produce_call(1)), timeout=30)
        cluster.wait(lambda: answers() == [(1, 0)], "the leader acknowledges while it leads")
        process, directory = os.pidfd_open(cluster.pids[ORPHAN]), engine.cluster.directory(ORPHAN)
        epoch = registered_epoch(cluster)
        try:
            engine.cluster.isolate([ORPHAN])
            nodes.kill_raylet(cluster.homes[ORPHAN])
            sent = [handle.deliver.remote(*produce_call(number)) for number in (2, 3)]
            ray.wait(sent, num_returns=2, timeout=30)
            cluster.wait(lambda: not engine.is_running(ORPHAN), "Ray gives the broker up")
            engine.move(ORPHAN, nodes.workers[3])
            engine.start(ORPHAN)
            cluster.wait(lambda: registered_epoch(cluster) > epoch, "the next incarnation is registered")
            back_ms = engine.now_ms()
            engine.cluster.isolate([])
            expected = (FIRST_CONTROLLER, "BrokerHeartbeatRequest", "STALE_BROKER_EPOCH")
            cluster.wait(lambda: expected in refusals(cluster, after_ms=back_ms), "the orphan talks and is refused")
            assert not leaves_within(cluster.pids[ORPHAN], 0)
            cluster.wait(cluster.is_whole, "all in sync while the orphan still runs")
            assert cluster.leader(SOAK) != ORPHAN
            assert produce(cluster, b"after") is ErrorCode.NONE
            assert engine.cluster.directory(ORPHAN) != directory
            assert not leaves_within(cluster.pids[ORPHAN], 0)
        finally:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
            nodes.reap(cluster.homes[ORPHAN])
        assert [number for number, error in answers() if error == 0] == [1]
        assert cluster.leader(SOAK) != ORPHAN
        cluster.wait(lambda: [len(payloads(cluster, broker)) for broker in range(3)] == [3] * 3, "all have all records")
        assert [payloads(cluster, broker) for broker in range(3)] == [[b"before", b"lonely 1", b"after"]] * 3
        assert orphans_log(directory).count(b"lonely") >= 1


def bound_producer(run: str, home: str) -> Any:
    """A function that returns the responses that have arrived at the bound client's address."""
    pin = NodeAffinitySchedulingStrategy(home, soft=False)
    actor = BoundProducer.options(name=node_name(FIRST_LOAD), namespace=run, scheduling_strategy=pin).remote(run)
    ray.get(actor.answers.remote(), timeout=60)
    return lambda: ray.get(actor.answers.remote(), timeout=30)


def orphans_log(directory: Path) -> bytes:
    """The bytes of the orphan's log of the topic, which has a directory of its own."""
    return b"".join(path.read_bytes() for path in directory.glob("logs/*/*/*.log"))
