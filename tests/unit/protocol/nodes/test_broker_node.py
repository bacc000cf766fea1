"""The broker node: metadata, roles, and the end of a broker. Registration and heartbeats: `testdata/broker`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.engines.sim.disk import SimStorage
from protocol.broker.lifecycle import HEARTBEAT_TIMER
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import METADATA_LOG, TopicIdPartition
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse, BrokerRegistrationRequest
from protocol.messages.data import FetchRequest, ProduceRequest
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import QuorumFetchRequest, QuorumFetchResponse
from protocol.messages.records import MetadataRecord, PartitionChangeRecord, PartitionRecord, RegisterBrokerRecord
from tests.unit.protocol.node_helpers import (
    CLIENT,
    CONTROLLER,
    EPOCH,
    T0,
    BrokerBench,
    batch,
    config_of,
    registrations,
    topic_records,
)


def shut_down(bench: BrokerBench) -> BrokerBench:
    return bench.receive(CLIENT, ShutdownCommand())


# -- metadata ----------------------------------------------------------------------------------------------------------


def fetched(bench: BrokerBench, number: int | None, base_offset: int, *records: MetadataRecord) -> QuorumFetchResponse:
    """The leader's answer to the fetch of that number, by default the newest one; 9 records are committed."""
    payload = pack_records(records)
    found = RecordBatch(base_offset=base_offset, leader_epoch=EPOCH, record_count=len(records), payload=payload)
    return QuorumFetchResponse(
        correlation_id=(bench.node.replica.pending_fetch_id or 0) if number is None else number,
        leader_id=CONTROLLER,
        leader_epoch=EPOCH,
        high_watermark=9,
        batches=(found,),
    )


def test_metadata_records_are_replayed_in_order_and_once() -> None:
    bench = BrokerBench().run()
    [topic, config, partition] = topic_records()
    bench.receive(CONTROLLER, fetched(bench, None, 7, config))
    assert bench.node.context.image.next_offset == 6, "there is a gap before it"
    answered = bench.node.replica.pending_fetch_id
    bench.receive(CONTROLLER, fetched(bench, None, 6, topic, config))
    assert bench.sent(QuorumFetchRequest).fetch_offset == 8
    bench.receive(CONTROLLER, fetched(bench, answered, 6, topic, config))
    assert (bench.sends(Message), bench.node.context.image.next_offset) == ([], 8), "that is answered already"
    bench.receive(CONTROLLER, fetched(bench, None, 6, topic, config))
    assert bench.sent(QuorumFetchRequest).fetch_offset == bench.node.context.image.next_offset == 8
    assert T0 not in bench.node.context.replicas
    bench.receive(CONTROLLER, fetched(bench, None, 8, partition))
    assert bench.replica.leadership is not None


def test_replicas_see_only_metadata_that_is_complete() -> None:
    bench = BrokerBench().start().registered().publish()
    records = [*registrations(), *topic_records(1)]
    bench.fetched_metadata(*records[:8], high_watermark=9)
    assert bench.node.context.image.next_offset == 8
    assert bench.node.context.replicas == {}
    bench.fetched_metadata(records[8])
    assert T0 in bench.node.context.replicas


def test_uncommitted_metadata_is_stored_but_not_replayed() -> None:
    bench = BrokerBench().run()
    bench.fetched_metadata(*topic_records(1), high_watermark=6)
    assert (bench.sent(QuorumFetchRequest).fetch_offset, bench.sent(QuorumFetchRequest).high_watermark) == (9, 6)
    assert bench.storage.open_log(METADATA_LOG).flushed_offset == 9
    assert (bench.node.context.image.next_offset, bench.node.context.replicas) == (6, {})
    bench.fetched_metadata(high_watermark=9)
    assert T0 in bench.node.context.replicas


def test_a_restarted_broker_fetches_from_the_end_of_its_metadata_log() -> None:
    before = BrokerBench().run(*topic_records(1))
    bench = BrokerBench(storage=before.storage).start()
    [(to, fetch)] = bench.sends(QuorumFetchRequest)
    assert (to, fetch.fetch_offset, fetch.last_fetched_epoch, fetch.high_watermark) == (CONTROLLER, 9, EPOCH, 0)
    bench.registered(broker_epoch=9)
    assert bench.node.context.image.next_offset == 0, "what of it is committed it has to hear from the leader"
    again = RegisterBrokerRecord(broker_id=0, broker_epoch=9, incarnation_id="next")
    assert bench.publish(again).node.context.image.next_offset == 10
    assert T0 in bench.node.context.replicas


def test_a_restarted_broker_loads_its_last_snapshot() -> None:
    config = config_of(metadata_log_max_record_bytes_between_snapshots=200, metadata_max_retention_bytes=0)
    before = BrokerBench(config=config).run(*topic_records(1))
    for isr in ((0, 1), (0, 1, 2), (0, 1)):
        before.publish(PartitionChangeRecord(topic_id="T", partition_id=0, isr=isr))
    snapshot, log = before.node.replica.snapshot, before.node.replica.log
    assert snapshot is not None
    assert 0 < log.start_offset < log.end_offset
    bench = BrokerBench(config=config, storage=before.storage).start().publish()
    assert bench.node.context.image.next_offset == 12
    assert bench.node.context.image.to_records() == before.node.context.image.to_records()
    assert bench.node.context.replicas == {}, "it is not registered yet"


NEXT = CONTROLLER + 1


def next_epoch(leader: int, epoch: int = EPOCH + 1) -> QuorumFetchResponse:
    """The response of any controller in the next epoch."""
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return QuorumFetchResponse(correlation_id=0, error=error, leader_id=leader, leader_epoch=epoch)


def test_the_former_quorum_leader_is_ignored() -> None:
    bench = BrokerBench().run().receive(CONTROLLER, next_epoch(NEXT))
    late = fetched(bench, None, 6, *topic_records(1))
    assert bench.receive(CONTROLLER, late).effects == []
    assert bench.receive(NEXT, replace(late, leader_id=NEXT)).effects == [], "it leads another epoch"
    assert bench.node.replica.log.end_offset == 6


@pytest.mark.covers("B22")
def test_unanswered_proposals_go_to_the_next_controller() -> None:
    bench = BrokerBench().run(*topic_records(1, isr=(0, 1))).fetch(2, 0)
    [(to, proposed)] = bench.sends(AlterPartitionRequest)
    assert to == CONTROLLER
    [(to, again)] = bench.receive(CONTROLLER, next_epoch(NEXT)).sends(AlterPartitionRequest)
    assert (to, again.partitions) == (NEXT, proposed.partitions)
    assert again.correlation_id > proposed.correlation_id
    [(to, _)] = bench.receive(CONTROLLER, next_epoch(NEXT + 1, EPOCH + 2)).sends(AlterPartitionRequest)
    assert to == NEXT + 1
    late = AlterPartitionResponse(correlation_id=again.correlation_id, error=ErrorCode.NOT_CONTROLLER)
    assert bench.receive(NEXT, late).effects == [], "it is asked no more"


@pytest.mark.covers("M36", "A34")
def test_stale_logs_are_deleted_at_start() -> None:
    storage = SimStorage()
    for name in ("T/0", "T/1", "Deleted/0"):
        storage.open_log(name).append(batch(2))
    bench = BrokerBench(storage=storage).run(*topic_records(1, replicas=(0, 1), isr=(0, 1)))
    assert storage.log_names() == ["T/0", METADATA_LOG]
    assert bench.replica.log.end_offset == 2


@pytest.mark.covers("A34", "M37")
def test_a_broker_that_missed_elections_takes_its_current_role() -> None:
    elections = [PartitionChangeRecord(topic_id="T", partition_id=0, leader=leader) for leader in (0, 1, 0, 2)]
    bench = BrokerBench().run(*topic_records(1), *elections)
    assert bench.replica.leadership is None
    assert (bench.replica.leader_id, bench.replica.leader_epoch) == (2, 4)
    assert bench.traces("became_leader") == []


@pytest.mark.covers("A25", "M35")
def test_a_change_within_the_leader_epoch_keeps_the_role() -> None:
    bench = BrokerBench().run(*topic_records(1))
    leadership = bench.replica.leadership
    bench.publish(PartitionChangeRecord(topic_id="T", partition_id=0, isr=(0, 1)))
    assert bench.replica.leadership is leadership
    assert leadership is not None
    assert (leadership.isr, leadership.partition_epoch) == ((0, 1), 1)
    bench.publish(PartitionChangeRecord(topic_id="T", partition_id=0, leader=0))
    assert bench.replica.leadership is not leadership, "a new leader epoch starts with a new state"


def test_partitions_of_other_brokers_are_ignored() -> None:
    other = PartitionRecord(topic_id="T", partition_id=1, replicas=(1, 2), isr=(1, 2), leader=1)
    bench = BrokerBench().run(*topic_records(1), other)
    assert list(bench.node.context.replicas) == [TopicIdPartition("T", 0)]


def test_a_restarted_peer_is_eligible_under_its_new_epoch_only() -> None:
    bench = BrokerBench().run(*topic_records(1, isr=(0, 1)))
    again = RegisterBrokerRecord(broker_id=2, broker_epoch=9, incarnation_id="next", fenced=False)
    bench.publish(again)
    assert bench.node.context.image.broker_epoch(2) == 9
    assert bench.fetch(2, 0).traces("isr_proposed") == []
    assert bench.fetch(2, 0, replica_epoch=9).traces("isr_proposed") != []


def test_a_broker_describes_topics_from_its_image() -> None:
    bench = BrokerBench().run(*topic_records(1, leader=1))
    bench.receive(CLIENT, MetadataRequest(correlation_id=4, topic="t"))
    [topic] = bench.sent(MetadataResponse).topics
    assert [(p.partition, p.leader) for p in topic.partitions] == [(0, 1)]


def test_an_unknown_timer_breaks_an_invariant() -> None:
    bench = BrokerBench().run()
    with pytest.raises(ProtocolInvariantError, match="no-such-timer"):
        bench.fire("no-such-timer")


def test_a_stopped_broker_does_nothing_more() -> None:
    bench = shut_down(BrokerBench().run(*topic_records(1))).heartbeat_answered(should_shut_down=True)
    bench.receive(CLIENT, ProduceRequest(correlation_id=1, topic="t", partition=0, acks=1, batch=batch()))
    assert bench.effects == []
    assert bench.receive(1, FetchRequest(replica_id=1, replica_epoch=1, partitions=())).effects == []
    assert bench.fire(HEARTBEAT_TIMER, at_ms=5_000).effects == []


def test_each_start_has_its_own_incarnation_id() -> None:
    bench = BrokerBench().start()
    assert bench.sent(BrokerRegistrationRequest) == BrokerBench().start().sent(BrokerRegistrationRequest), (
        "the same seed gives the same incarnation id"
    )
