"""The orphan of a raylet that was killed: it goes on, is fenced by its epochs, and acknowledges nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.nodes import pieces_of
from actors.transport import NOTHING, pack_frame, unpack_frame
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine
from experiments.hunt.soak.cluster import SoakCluster, homes_of
from experiments.hunt.soak.ray_nodes import RayNodes, ray_nodes
from protocol.config import ClusterConfig, Generation
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CONTROLLER, FIRST_LOAD, TopicPartition, node_name
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
"""A next life that is kept from its heartbeats for a whole session lets the orphan be the broker again, as in Kafka."""


@ray.remote(num_cpus=0)
class BoundProducer:
    """Stands at a client's address and keeps the answers that come there."""

    def __init__(self) -> None:
        self._answers: list[tuple[int, int]] = []

    def deliver(self, sender: int, *pieces: bytes) -> bytes:
        frame = unpack_frame(b"".join(pieces), lambda error: None)
        for message in () if frame is None else frame.messages:
            if isinstance(message, ProduceResponse):
                self._answers.append((message.correlation_id, int(message.error)))
        return NOTHING

    def deliver_control(self, sender: int, *pieces: bytes) -> bytes:
        return NOTHING

    def answers(self) -> list[tuple[int, int]]:
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
            lab = SoakCluster(engine, nodes, homes)
            lab.start(engine.spec.node_ids)
            lab.await_whole()
            lab.create_topic(1)
            lab.await_whole()
            yield lab, nodes
        finally:
            engine.close()


def produce(lab: SoakCluster, payload: bytes) -> ErrorCode:
    number = lab.next_id()
    lab.engine.submit(
        ProduceCommand(command_id=number, topic="soak", partition=0, acks=-1, record_count=1, payload=payload)
    )
    lab.wait(lambda: lab.engine.outcome(number) is not None, "an outcome")
    outcome = lab.engine.outcome(number)
    assert isinstance(outcome, ProduceOutcome)
    return outcome.error


def produce_frame(number: int) -> list[bytes]:
    """A produce request with acks=all from the client that is bound to the orphan."""
    request = ProduceRequest(
        correlation_id=number,
        principal=node_principal(FIRST_LOAD),
        topic="soak",
        partition=0,
        acks=-1,
        batch=RecordBatch(record_count=1, payload=b"lonely %d" % number),
    )
    return pieces_of(pack_frame([encode(request)]))


def refusals(lab: SoakCluster, *, after_ms: int) -> set[tuple[int, str, str]]:
    """(who, what, error) of the requests of the broker's lives that were refused."""
    return {
        (event.node, event.trace.message, event.trace.error)
        for event in lab.engine.traces()
        if event.trace.kind == "refused" and event.trace.sender == ORPHAN and event.time_ms > after_ms
    }


def registered_epoch(lab: SoakCluster) -> int:
    view = lab.engine.view()
    return -1 if view is None else view.brokers[ORPHAN].broker_epoch


def payloads(lab: SoakCluster, broker: int) -> list[bytes]:
    return [batch.payload for batch in lab.engine.log(broker, SOAK)]


def test_an_orphan_is_fenced_by_its_epochs_and_acknowledges_nothing() -> None:
    with cluster_of_machines() as (lab, nodes):
        engine = lab.engine
        assert lab.leader(SOAK) == ORPHAN
        assert produce(lab, b"before") is ErrorCode.NONE
        answers = bound_producer(engine.run, nodes.head)
        handle = ray.get_actor(node_name(ORPHAN), engine.run)
        ray.get(handle.deliver.remote(FIRST_LOAD, *produce_frame(1)), timeout=30)
        lab.wait(lambda: answers() == [(1, 0)], "the leader acknowledges while it leads")
        process, directory, epoch = os.pidfd_open(lab.pids[ORPHAN]), engine.directory(ORPHAN), registered_epoch(lab)
        try:
            engine.isolate([ORPHAN])
            nodes.kill_raylet(lab.homes[ORPHAN])
            sent = [handle.deliver.remote(FIRST_LOAD, *produce_frame(number)) for number in (2, 3)]
            ray.wait(sent, num_returns=2, timeout=30)
            lab.wait(lambda: not engine.is_running(ORPHAN), "Ray gives the broker up")
            engine.move(ORPHAN, nodes.workers[3])
            engine.start(ORPHAN)
            lab.wait(lambda: registered_epoch(lab) > epoch, "the next life is registered")
            back_ms = engine.now_ms()
            engine.isolate([])
            expected = (FIRST_CONTROLLER, "BrokerHeartbeatRequest", "STALE_BROKER_EPOCH")
            lab.wait(lambda: expected in refusals(lab, after_ms=back_ms), "the orphan talks and is refused")
            assert not leaves_within(lab.pids[ORPHAN], 0)
            lab.wait(lab.is_whole, "the cluster is whole with the next life, the orphan still there")
            assert lab.leader(SOAK) != ORPHAN
            assert produce(lab, b"after") is ErrorCode.NONE
            assert engine.directory(ORPHAN) != directory
            assert not leaves_within(lab.pids[ORPHAN], 0)
        finally:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
            nodes.reap(lab.homes[ORPHAN])
        assert [number for number, error in answers() if error == 0] == [1]
        assert lab.leader(SOAK) != ORPHAN
        lab.wait(lambda: [len(payloads(lab, broker)) for broker in range(3)] == [3] * 3, "all have all records")
        assert [payloads(lab, broker) for broker in range(3)] == [[b"before", b"lonely 1", b"after"]] * 3
        assert orphans_log(directory).count(b"lonely") >= 1


def bound_producer(run: str, home: str) -> Any:
    """A function that gives the answers which have come to the address of the bound client."""
    pin = NodeAffinitySchedulingStrategy(home, soft=False)
    actor = BoundProducer.options(name=node_name(FIRST_LOAD), namespace=run, scheduling_strategy=pin).remote()
    ray.get(actor.answers.remote(), timeout=60)
    return lambda: ray.get(actor.answers.remote(), timeout=30)


def orphans_log(directory: Path) -> bytes:
    """The bytes of the orphan's log of the topic, which has a directory of its own."""
    return b"".join(path.read_bytes() for path in directory.glob("logs/*/*/*.log"))
