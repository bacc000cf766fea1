"""Malformed bytes, wrong requests and wrong directories on ray: brokers keep running, refusals are one clear line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import ray

from actors.failures import NodeFailedError
from actors.frames import joined_frame
from actors.storage import META_FILE
from experiments.engines.port import Loss
from protocol.errors import ErrorCode
from protocol.ids import node_name
from protocol.messages.codec import encode
from protocol.messages.commands import SendOutcome, SendRecords
from protocol.messages.data import ConsumeRequest, FetchPartition, FetchRequest, ProduceRequest
from tests.ray.cluster_helpers import ALL, T0, WITHIN_MS, ProcessPool, RunningCluster, content, running_cluster
from tests.unit.protocol.node_helpers import batch

MAX_BYTES = 20_000
UNKNOWN_SENDER = 2
"""A sender id that no broker of this cluster has."""


@pytest.fixture(scope="module")
def cluster(pool: ProcessPool) -> Iterator[RunningCluster]:
    """Two brokers, topic `t` on both."""
    config = {"broker.session.timeout.ms": 2_000, "retry.backoff.ms": 50}
    with running_cluster(brokers=2, config=config, pool=pool) as cluster:
        cluster.create_topic((0, 1), min_isr=2, config={"max.message.bytes": MAX_BYTES})
        yield cluster


PRODUCE = ProduceRequest(correlation_id=1, topic="t", partition=0, acks=0, batch=batch(1))
WRONG = {
    "a batch that is too large": replace(PRODUCE, batch=batch(1, payload=b"x" * 2 * MAX_BYTES)),
    "a wrong checksum": replace(PRODUCE, batch=replace(batch(1), crc=7)),
    "no records": replace(PRODUCE, batch=batch(0)),
    "an unknown partition": replace(PRODUCE, partition=-1),
    "an unknown way to acknowledge": replace(PRODUCE, acks=7),
    "an offset far beyond": ConsumeRequest(correlation_id=1, topic="t", partition=0, fetch_offset=2**63 - 1),
    "a fetch by an unknown replica": FetchRequest(
        replica_id=UNKNOWN_SENDER,
        replica_epoch=0,
        partitions=(FetchPartition(topic_id="no", partition_id=-1, current_leader_epoch=-1, fetch_offset=-5),),
    ),
}


def test_brokers_survive_malformed_bytes_and_wrong_requests_of_an_unknown_sender(cluster: RunningCluster) -> None:
    before = cluster.consumed()
    good = joined_frame([encode(PRODUCE)])
    junk = [
        b"",
        b"junk",
        joined_frame([b"junk"]),
        good[:-3],
        good[3:],
        good[:20] + b"\xff" * 9 + good[29:],
        b"\0" * 10**6,
    ]
    frames = [*junk, *(joined_frame([encode(message)]) for message in WRONG.values())]
    for broker in (0, 1):
        actor = ray.get_actor(node_name(broker), cluster.engine.cluster.run)
        ray.get([actor.deliver.remote(UNKNOWN_SENDER, False, frame) for frame in frames], timeout=60)
    assert cluster.produce(b"unharmed") == [ErrorCode.NONE]
    assert cluster.consumed() == [*before, b"unharmed"]
    assert all(cluster.engine.is_running(node) for node in cluster.engine.spec.node_ids)


def test_wrong_produce_commands_end_with_a_typed_error(cluster: RunningCluster) -> None:
    before = cluster.consumed()
    assert cluster.produce(b"x" * (MAX_BYTES + 1)) == [ErrorCode.MESSAGE_TOO_LARGE]
    assert cluster.produce(b"x", acks=5) == [ErrorCode.INVALID_REQUIRED_ACKS]
    assert cluster.produce(b"y") == [ErrorCode.NONE], "the producer goes on after what has failed"
    assert cluster.consumed() == [*before, b"y"]


def test_gathered_batches_that_are_too_large_are_split(cluster: RunningCluster) -> None:
    before = len(cluster.consumed())
    number = cluster.submit(
        lambda number: SendRecords(
            command_id=number, topic="t", partition=0, acks=ALL, record_count=3, record_bytes=MAX_BYTES // 2
        )
    )
    ranges = cluster.outcome(number, SendOutcome).ranges
    assert [(part.count, part.error) for part in ranges] == [(3, ErrorCode.NONE)]
    assert len(cluster.consumed()) > before


def refused(cluster: RunningCluster, node: int) -> str:
    """Starts a node that refuses its directory. Returns the message that an operator reads."""
    cluster.engine.start(node)
    with pytest.raises(NodeFailedError) as caught:
        cluster.engine.run_until(lambda: False, WITHIN_MS)
    return str(caught.value)


def test_directory_of_another_cluster_is_refused_in_one_line_and_left_unchanged(cluster: RunningCluster) -> None:
    records = cluster.consumed()
    cluster.engine.crash(1, Loss())
    path = cluster.engine.cluster.directory(1) / META_FILE
    meta = path.read_bytes()
    path.write_text(json.dumps(json.loads(meta) | {"cluster_id": "some-other-cluster"}))
    before = content(cluster.engine.cluster.directory(1))
    line = refused(cluster, 1)
    assert line.startswith(f"broker-1 failed: ForeignDirectoryError: {path}: ")
    assert "'some-other-cluster'" in line
    assert f"'{cluster.engine.cluster.run}'" in line
    assert "\n" not in line
    assert content(cluster.engine.cluster.directory(1)) == before
    path.write_bytes(meta)
    cluster.engine.start(1)
    cluster.until(lambda: cluster.engine.replica(1, T0) is not None, "it is back on its own directory")
    assert cluster.produce(b"both are there") == [ErrorCode.NONE]
    assert cluster.consumed() == [*records, b"both are there"]
