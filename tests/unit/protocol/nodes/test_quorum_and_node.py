"""Inputs upon whose outcome the replica of the metadata log and its node must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.support.metadata_fetch import metadata_fetch
from protocol.contract import Send
from protocol.errors import ErrorCode
from protocol.messages.quorum import FetchSnapshotRequest, QuorumFetchRequest, QuorumFetchResponse
from tests.unit.protocol.messages.malformed_helpers import Controller
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, config_of
from tests.unit.protocol.nodes.controller_bench import Bench


def test_an_incomplete_snapshot_is_not_published() -> None:
    bench = Bench(
        config=config_of(metadata_log_max_record_bytes_between_snapshots=2_000, metadata_max_retention_bytes=0)
    ).serve()
    node = bench.node
    bench.change_until_snapshot()
    epoch = node.state.image.broker_epoch(0)
    bench.fire("session/0", 9_000)
    assert bench.partition.leader == 1, "0 leads by the snapshot, and does not by the log"
    broker = BrokerBench().start()
    answer = next(e.message for e in node.receive(0, 0, broker.sent(QuorumFetchRequest)) if isinstance(e, Send))
    broker.registered(broker_epoch=epoch).receive(CONTROLLER, answer)
    became = []
    for _ in range(10):
        asked = [m for _, m in broker.sends(QuorumFetchRequest)] + [m for _, m in broker.sends(FetchSnapshotRequest)]
        if not asked:
            break
        answers = [e.message for e in node.receive(0, 0, asked[-1]) if isinstance(e, Send)]
        if not answers:
            break
        broker.receive(CONTROLLER, answers[-1])
        became += broker.traces("became_leader")
    assert broker.node.context.image.next_offset == node.state.image.next_offset
    assert became == []


@pytest.mark.parametrize("epoch", [2, 2**31 - 1])
def test_a_brokers_fetch_does_not_end_the_epoch_of_the_leader(epoch: int) -> None:
    controller = Controller()
    fetch = replace(metadata_fetch(controller.node, 0), current_leader_epoch=epoch)
    controller.receive(0, fetch)
    assert controller.node.is_active


def test_S3b_an_epoch_at_the_end_of_its_type_does_not_break_the_controller() -> None:
    controller = Controller()
    fetch = replace(metadata_fetch(controller.node, 0), current_leader_epoch=2**31 - 1)
    controller.receive(0, fetch)
    controller.node.fire(5_000, "quorum-election")
    assert controller.node.is_active


@pytest.mark.parametrize("offset", [-1, -(2**63)])
def test_a_fetch_from_before_the_log_is_refused(offset: int) -> None:
    controller = Controller()
    fetch = replace(metadata_fetch(controller.node, 0), fetch_offset=offset)
    [answer] = controller.receive(0, fetch).sends(QuorumFetchResponse)
    assert (answer.error, answer.batches) == (ErrorCode.OFFSET_OUT_OF_RANGE, ())


@pytest.mark.parametrize(
    "fields", [{"fetch_offset": 2**63 - 1, "high_watermark": 2**63 - 1}, {"cluster_id": "another"}]
)
def test_a_refused_fetch_does_not_advance_the_applied_offset(fields: dict[str, object]) -> None:
    controller = Controller()
    for broker in (1, 2):
        controller.beat(broker)
    assert not controller.beat(0, want_shut_down=True).should_shut_down
    for broker in (1, 2):
        controller.receive(broker, replace(metadata_fetch(controller.node, broker), **fields))
    assert not controller.beat(0, want_shut_down=True).should_shut_down
