"""The controller node: decide, append, replay, answer; sessions; restart from its log."""

from __future__ import annotations

import sys

import pytest

from experiments.engines.admin_requests import alter_config, create_topic
from experiments.engines.port import Loss
from experiments.support.metadata_fetch import metadata_fetch
from protocol.contract import Exit, Send, SetTimer
from protocol.errors import CodecError, ErrorCode, ProtocolInvariantError
from protocol.ids import METADATA_LOG
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.commands import ShutdownCommand
from protocol.messages.metadata_batch import pack_records, unpack_records
from protocol.messages.quorum import LeaderChangeRecord, QuorumFetchResponse
from protocol.messages.records import ConfigRecord, PartitionChangeRecord
from protocol.nodes import leader_rebalance
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.leader_rebalance import REBALANCE_TIMER
from tests.unit.protocol.node_helpers import CLIENT, config_of, topic_records
from tests.unit.protocol.nodes.controller_bench import SESSION_MS, Bench


@pytest.mark.covers("E19", "M6")
def test_elr_clearing_and_config_are_one_durable_batch() -> None:
    bench = Bench().serve()
    bench.propose(0, 0, 1)
    bench.propose(0, 0)
    assert bench.partition.elr == (1,)
    bench.administer(alter_config("t", {"min.insync.replicas": 1}))
    log = bench.storage.open_log(METADATA_LOG)
    last = log.read(log.end_offset - 1, 1)[-1]
    assert [type(record) for record in unpack_records(last.payload)] == [PartitionChangeRecord, ConfigRecord]
    assert log.flushed_offset == log.end_offset
    assert bench.partition.elr == ()


def test_a_refused_request_has_a_message_and_writes_nothing() -> None:
    bench = Bench().serve()
    before = len(bench.node.records)
    answer = bench.administer(create_topic("t", ((0,),)))
    error, message = answer.failure()
    assert (answer.correlation_id, error) == (0, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert "'t'" in message
    assert len(bench.node.records) == before


# -- preferred leaders -------------------------------------------------------------------------------------------------


def test_the_active_controller_moves_leaderships_back_and_goes_on_at_once_where_there_may_be_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_rebalance, "MAX_ELECTIONS", 1)
    bench = Bench(config=config_of(auto_leader_rebalance_enable=True, leader_imbalance_check_interval_seconds=60))
    assert SetTimer(REBALANCE_TIMER, 60_000) in bench.effects
    bench.serve()
    bench.fire(f"{SESSION_PREFIX}0", SESSION_MS)
    bench.register(0, "two")
    bench.beat(0)
    assert (bench.partition.leader, bench.partition.isr) == (1, (1, 2))
    bench.fire(REBALANCE_TIMER, 60_000)
    assert SetTimer(REBALANCE_TIMER, 120_000) in bench.effects
    assert bench.partition.leader == 1, "the preferred replica is not in the ISR"
    bench.propose(1, 1, 2, 0)
    bench.fire(REBALANCE_TIMER, 120_000)
    assert SetTimer(REBALANCE_TIMER, 120_000) in bench.effects
    assert bench.partition.leader == 0
    bench.fire(REBALANCE_TIMER, 120_000)
    assert SetTimer(REBALANCE_TIMER, 180_000) in bench.effects


# -- metadata log ------------------------------------------------------------------------------------------------------


def test_a_parked_metadata_fetch_is_answered_when_there_is_more() -> None:
    bench = Bench().serve()
    end = len(bench.node.records)
    bench.receive(1, metadata_fetch(bench.node, 1))
    assert bench.effects == []
    bench.propose(0, 0, 1)
    answer = bench.sent(QuorumFetchResponse)
    [batch] = answer.batches
    assert (batch.base_offset, answer.high_watermark, len(unpack_records(batch.payload))) == (end, end + 1, 1)
    bench.propose(0, 0)
    assert not [e for e in bench.effects if isinstance(e, Send) and isinstance(e.message, QuorumFetchResponse)]
    whole = bench.receive(2, metadata_fetch(bench.node, 2, offset=0)).sent(QuorumFetchResponse)
    assert [record for batch in whole.batches for record in unpack_records(batch.payload)] == list(bench.node.records)


@pytest.mark.covers("C9")
def test_every_batch_of_the_metadata_log_has_the_time_of_its_input() -> None:
    started_ms, created_ms = 1_700_000_000_000, 1_700_000_060_000
    bench = Bench(start_ms=started_ms)
    batches = bench.storage.open_log(METADATA_LOG).read(1, sys.maxsize)
    assert {batch.timestamp_ms for batch in batches} == {started_ms}, "the election and the first records"
    end = bench.node.replica.log.end_offset
    bench.now_ms = created_ms
    bench.serve()
    assert {batch.timestamp_ms for batch in bench.storage.open_log(METADATA_LOG).read(end, sys.maxsize)} == {created_ms}


def test_a_restarted_controller_replays_its_log() -> None:
    bench = Bench().serve()
    bench.propose(0, 0, 1)
    bench.propose(0, 0)
    bench.storage.apply_loss(Loss("unflushed"))
    again = Bench(bench.storage)
    *found, last = again.node.records
    assert found == list(bench.node.records)
    assert isinstance(last, LeaderChangeRecord), "the next epoch begins with it"
    assert again.partition == bench.partition
    assert dict(again.node.state.image.brokers) == dict(bench.node.state.image.brokers)
    assert [again.session(broker) for broker in (0, 1, 2)] == [SESSION_MS] * 3
    again.fire(f"{SESSION_PREFIX}0", SESSION_MS)
    assert (again.partition.leader, set(again.partition.elr)) == (1, {0})


@pytest.mark.covers("C9")
def test_a_controller_that_has_taken_snapshots_restarts_from_the_last_one() -> None:
    config = config_of(metadata_log_max_record_bytes_between_snapshots=1_500, metadata_max_retention_bytes=0)
    bench = Bench(config=config).serve()
    for number in range(20):
        bench.administer(alter_config("t", {"min.insync.replicas": 1 + number % 2}))
    snapshot, log = bench.node.replica.snapshot, bench.storage.open_log(METADATA_LOG)
    assert snapshot is not None
    assert 0 < log.start_offset <= snapshot.end_offset < log.end_offset
    bench.storage.apply_loss(Loss("unflushed"))
    again = Bench(bench.storage, config)
    assert again.node.first_record == snapshot.end_offset
    assert list(again.node.records)[:-1] == list(bench.node.records)[snapshot.end_offset :]
    assert again.node.state.image.to_records() == bench.node.state.image.to_records()
    assert again.node.state.image.next_offset == bench.node.state.image.next_offset + 1
    assert [again.session(broker) for broker in (0, 1, 2)] == [SESSION_MS] * 3


def test_metadata_batches_hold_records_only() -> None:
    records = topic_records()
    assert list(unpack_records(pack_records(records, 1))) == records
    with pytest.raises(ProtocolInvariantError, match="ShutdownCommand"):
        unpack_records(pack_records([ShutdownCommand()], 1))  # type: ignore[list-item]
    with pytest.raises(CodecError):
        unpack_records(pack_records(records, 1)[:-1] + b"\x00")


def test_metadata_requests_are_answered_and_a_shutdown_ends_the_node() -> None:
    bench = Bench().serve()
    [topic] = bench.receive(CLIENT, MetadataRequest(correlation_id=1, topic="t")).sent(MetadataResponse).topics
    assert topic.partitions[0].leader == 0
    assert [type(effect) for effect in bench.receive(CLIENT, ShutdownCommand()).effects] == [Exit]
    with pytest.raises(ProtocolInvariantError, match="no-such-timer"):
        bench.fire("no-such-timer", 1)
