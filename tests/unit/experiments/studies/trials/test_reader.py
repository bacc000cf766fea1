"""A trial's consumer reads all that consumers can read, and goes back where a leader's log lacks what it has read."""

from __future__ import annotations

from typing import cast

import pytest

from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import TOPIC, Simulated
from experiments.studies.trace.kinds import ACKED, Loss, Produced, Read
from experiments.studies.trials.estimators import run_cell_trial
from experiments.studies.trials.reader import Reader
from experiments.studies.trials.states import PartitionStates
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeRequest, ConsumeResponse, EpochEndOffset
from tests.trace_rows import as_rows

HARSH = {"tail_loss_probability": 0.5, "broker_mttf": "12d", "broker_mttr": "3d", "generation": "kip-497"}
NAME = TopicPartition(TOPIC, 0)


def cell(**given: object) -> CellParameters:
    base = {**HARSH, "min_insync_replicas": 1, "estimator": "plain", **given}
    return study_from({"name": "s", "trials": 1, "duration": "60d", "base": base}, "s.yaml").cells[0].parameters


def test_consumer_reads_acknowledged_records_and_loses_those_that_a_loss_takes() -> None:
    lost = 0
    for seed in range(12):
        rows = as_rows(run_cell_trial(cell(consumer="polling", start="fresh"), seed).rows)
        written = {row.offset for row in rows if row.kind == Produced.KIND and row.detail == ACKED}
        fetched = [row for row in rows if row.kind == Read.KIND and row.detail == "fetched"]
        read = {offset for row in fetched for offset in range(row.offset, row.offset + row.value)}
        assert written - read <= {max(written)}
        undone = sum(row.value for row in rows if row.kind == Read.KIND and row.detail != "fetched")
        taken = sum(row.value for row in rows if row.kind == Loss.KIND)
        assert undone >= taken  # a consumer also reads records whose acknowledgement got lost
        assert bool(undone) == bool(taken)
        lost += taken
    assert lost > 0


def test_consumer_changes_no_other_row() -> None:
    for seed in range(3):
        alone, read = (run_cell_trial(cell(consumer=consumer), seed).rows for consumer in ("none", "polling"))
        assert [row for row in read if not isinstance(row.what, Read)] == alone


class Leader:
    """Stands for the cluster: keeps the requests that the reader sends."""

    def __init__(self) -> None:
        self.requests: list[ConsumeRequest] = []

    def send(self, source: NodeId, target: NodeId, message: Message) -> None:
        assert isinstance(message, ConsumeRequest)
        self.requests.append(message)


@pytest.fixture
def rows() -> list[Read]:
    return []


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def reader(rows: list[Read], leader: Leader) -> Reader:
    states = PartitionStates([Simulated(NAME, (0,), 1, "all")], 120_000, rows.append, lambda at_ms, action: None)
    states.partitions[NAME].serves = True
    return Reader(cast("SimCluster", leader), states, rows.append)


def batches(first: int, count: int, epoch: int) -> tuple[RecordBatch, ...]:
    return (RecordBatch(base_offset=first, record_count=count, leader_epoch=epoch, payload=b"r"),)


def test_reader_goes_back_to_where_the_logs_differ_and_reads_on(
    reader: Reader, leader: Leader, rows: list[Read]
) -> None:
    reader.request(NAME)
    reader.complete(ConsumeResponse(correlation_id=1, high_watermark=5, batches=batches(0, 5, 2)))
    reader.handle_leader(NAME)
    sent = leader.requests[-1]
    assert (sent.fetch_offset, sent.last_fetched_epoch) == (5, 2)
    diverging = EpochEndOffset(leader_epoch=1, end_offset=3)
    reader.complete(ConsumeResponse(correlation_id=2, high_watermark=6, diverging_epoch=diverging))
    sent = leader.requests[-1]
    assert (sent.fetch_offset, sent.last_fetched_epoch) == (3, 1)
    assert [(row.outcome, row.offset, row.records, row.epoch) for row in rows] == [
        ("fetched", 0, 5, 2),
        ("diverged", 3, 2, 1),
    ]


def test_reader_whose_position_the_log_does_not_have_goes_on_at_the_high_watermark(
    reader: Reader, leader: Leader, rows: list[Read]
) -> None:
    reader.request(NAME)
    reader.complete(ConsumeResponse(correlation_id=1, high_watermark=5, batches=batches(0, 5, 0)))
    reader.request(NAME)
    refused = ConsumeResponse(correlation_id=2, error=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=1)
    reader.complete(refused)
    assert (leader.requests[-1].fetch_offset, leader.requests[-1].last_fetched_epoch) == (1, -1)
    assert (rows[-1].outcome, rows[-1].offset, rows[-1].records) == ("out_of_range", 1, 4)


def test_reader_has_one_request_in_flight_and_gives_it_up_with_its_leader(reader: Reader, leader: Leader) -> None:
    reader.request(NAME)
    reader.request(NAME)
    assert len(leader.requests) == 1
    reader.handle_leader(NAME)
    assert len(leader.requests) == 2
    late = ConsumeResponse(correlation_id=1, high_watermark=5, batches=batches(0, 5, 0))
    reader.complete(late)
    assert len(leader.requests) == 2
    reader.complete(ConsumeResponse(correlation_id=2, high_watermark=0))
    assert len(leader.requests) == 3
