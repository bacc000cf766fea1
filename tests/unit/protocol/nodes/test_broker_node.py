"""The broker node and its controller: registration, heartbeats, metadata, shutdown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.engines.sim.disk import SimStorage
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE, LifecycleState, take_clean_shutdown_epoch
from protocol.broker.lifecycle_manager import HEARTBEAT_TIMER, SHUTDOWN_TIMER
from protocol.contract import Exit
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import METADATA_LOG, TopicIdPartition
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from protocol.messages.data import FetchRequest, ProduceRequest
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import QuorumFetchRequest, QuorumFetchResponse
from protocol.messages.records import MetadataRecord, PartitionChangeRecord, PartitionRecord, RegisterBrokerRecord
from protocol.quorum.context import FETCH_TIMER
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

S = LifecycleState


def exits(bench: BrokerBench) -> bool:
    return any(isinstance(effect, Exit) for effect in bench.effects)


def shut_down(bench: BrokerBench) -> BrokerBench:
    return bench.receive(CLIENT, ShutdownCommand())


@pytest.mark.covers("E21", "G23")
def test_a_first_start_registers_without_a_previous_epoch() -> None:
    request = BrokerBench().start().sent(BrokerRegistrationRequest)
    assert (request.broker_id, request.previous_broker_epoch) == (0, -1)
    assert request.incarnation_id


@pytest.mark.covers("E22", "M14", "G23", "G26")
def test_a_clean_shutdown_flushes_everything_and_the_next_start_reports_its_epoch() -> None:
    bench = BrokerBench().run(*topic_records(1, replicas=(0,), isr=(0,)))
    bench.produce(acks=1, count=3)
    shut_down(bench)
    assert (bench.node.state, exits(bench)) == (S.SHUTTING_DOWN, False)
    assert bench.storage.read_file(CLEAN_SHUTDOWN_FILE) is None
    bench.heartbeat_answered(should_shut_down=True)
    assert (bench.node.state, exits(bench)) == (S.STOPPED, True)
    assert bench.storage.open_log("T/0").flushed_offset == 3
    again = BrokerBench(storage=bench.storage).start()
    assert again.sent(BrokerRegistrationRequest).previous_broker_epoch == 0
    assert BrokerBench(storage=bench.storage).start().sent(BrokerRegistrationRequest).previous_broker_epoch == -1


@pytest.mark.covers("M16", "E22")
def test_a_crash_leaves_no_clean_shutdown_file() -> None:
    storage = SimStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, b'{"BrokerEpoch":"0"}')
    BrokerBench(storage=storage).run()
    assert BrokerBench(storage=storage).start().sent(BrokerRegistrationRequest).previous_broker_epoch == -1


def test_registration_is_repeated_until_it_is_accepted() -> None:
    bench = BrokerBench().start()
    first = bench.sent(BrokerRegistrationRequest)
    assert bench.sent(QuorumFetchRequest).fetch_offset == 0, "it reads the metadata log meanwhile"
    assert bench.registered(error=ErrorCode.DUPLICATE_BROKER_REGISTRATION).node.state is S.REGISTERING
    again = bench.fire(HEARTBEAT_TIMER, at_ms=500).sent(BrokerRegistrationRequest)
    assert again.incarnation_id == first.incarnation_id
    assert bench.timer(HEARTBEAT_TIMER) is not None
    assert bench.registered().node.state is S.CATCHING_UP


def test_a_broker_stays_fenced_until_it_has_replayed_its_own_registration() -> None:
    bench = BrokerBench(me=1).start().registered()
    assert bench.sent(BrokerHeartbeatRequest).want_fence
    one = registrations((0, 1), fenced=(0, 1))
    bench.publish(one[0])
    assert bench.sends(BrokerHeartbeatRequest) == [], "its epoch is 1 and the log ends at 1"
    heartbeat = bench.publish(one[1]).sent(BrokerHeartbeatRequest)
    assert (heartbeat.want_fence, heartbeat.current_metadata_offset, heartbeat.broker_epoch) == (False, 2, 1)
    assert bench.heartbeat_answered(is_fenced=True).node.state is S.CATCHING_UP
    assert bench.heartbeat_answered(is_fenced=False).node.state is S.RUNNING


def test_heartbeats_of_a_broker_without_metadata_are_not_elided() -> None:
    bench = BrokerBench().start().registered()
    for is_fenced, idle_with in ((True, None), (False, CONTROLLER), (True, None)):
        bench.heartbeat_answered(is_fenced=is_fenced)
        timer = bench.fire(HEARTBEAT_TIMER).timer(HEARTBEAT_TIMER)
        assert timer is not None
        assert timer.idle_with == idle_with


def test_heartbeats_may_be_elided_from_the_one_on_that_unfences_the_broker() -> None:
    bench = BrokerBench().start().registered().publish(*registrations())
    newest, timer = bench.sent(BrokerHeartbeatRequest), bench.timer(HEARTBEAT_TIMER)
    assert not newest.want_fence
    assert timer is not None
    assert timer.idle_with == CONTROLLER
    stale = bench.heartbeat_answered(correlation_id=newest.correlation_id - 1, is_fenced=True)
    assert stale.timer(HEARTBEAT_TIMER) is None, "the response to the newest one is on its way"
    fenced = bench.heartbeat_answered(correlation_id=newest.correlation_id, is_fenced=True).timer(HEARTBEAT_TIMER)
    assert fenced is not None
    assert (fenced.at_ms, fenced.idle_with) == (timer.at_ms, None)
    unfenced = bench.heartbeat_answered(correlation_id=newest.correlation_id)
    assert unfenced.timer(HEARTBEAT_TIMER) is None


@pytest.mark.covers("B20")
@pytest.mark.parametrize("error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_broker_with_an_unknown_epoch_registers_a_new_incarnation_without_a_previous_epoch(error: ErrorCode) -> None:
    storage = SimStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, b'{"BrokerEpoch":"0"}')
    bench = BrokerBench(storage=storage).start()
    first = bench.sent(BrokerRegistrationRequest)
    assert first.previous_broker_epoch == 0
    bench.registered().publish(*registrations()).heartbeat_answered()
    request = bench.heartbeat_answered(error=error).sent(BrokerRegistrationRequest)
    assert bench.node.state is S.REGISTERING
    assert request.previous_broker_epoch == -1
    assert request.incarnation_id != first.incarnation_id
    assert bench.heartbeat_answered().node.state is S.REGISTERING, "an answer to the former incarnation"


@pytest.mark.covers("B20")
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.DUPLICATE_BROKER_REGISTRATION])
def test_a_response_to_a_former_incarnation_is_ignored(error: ErrorCode) -> None:
    bench = BrokerBench().run()
    former = bench.incarnation_id
    bench.heartbeat_answered(error=ErrorCode.STALE_BROKER_EPOCH)
    late = bench.registered(incarnation_id=former, broker_epoch=5, error=error)
    assert (late.effects, late.node.state) == ([], S.REGISTERING)
    assert late.node.context.broker_epoch == 0
    assert bench.registered(broker_epoch=9).node.state is S.CATCHING_UP
    assert bench.node.context.broker_epoch == 9


def test_every_heartbeat_of_a_shutdown_asks_for_permission() -> None:
    bench = shut_down(BrokerBench().run())
    assert bench.sent(BrokerHeartbeatRequest).want_shut_down
    assert bench.timer(SHUTDOWN_TIMER) is not None
    assert shut_down(bench).effects == [], "asked twice"
    assert bench.fire(HEARTBEAT_TIMER, at_ms=2_000).sent(BrokerHeartbeatRequest).want_shut_down
    assert not exits(bench.heartbeat_answered(should_shut_down=False))
    assert bench.node.state is S.SHUTTING_DOWN


def test_a_shutdown_before_registration_stops_at_once() -> None:
    bench = shut_down(BrokerBench().start())
    assert (bench.node.state, exits(bench)) == (S.STOPPED, True)
    assert bench.storage.read_file(CLEAN_SHUTDOWN_FILE) is None
    assert bench.registered().effects == []


def test_a_shutdown_without_permission_ends_after_its_timeout() -> None:
    bench = shut_down(BrokerBench().run())
    assert exits(bench.fire(SHUTDOWN_TIMER, at_ms=300_000))
    assert take_clean_shutdown_epoch(bench.storage) == 0


@pytest.mark.covers("E21", "M16")
@pytest.mark.parametrize("error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_broker_that_loses_its_epoch_during_shutdown_leaves_no_clean_shutdown_file(error: ErrorCode) -> None:
    bench = shut_down(BrokerBench().run()).heartbeat_answered(error=error)
    assert (bench.node.state, exits(bench)) == (S.STOPPED, True)
    assert bench.storage.read_file(CLEAN_SHUTDOWN_FILE) is None


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


def test_the_metadata_fetch_is_renewed() -> None:
    bench = BrokerBench().run()
    assert bench.fire(FETCH_TIMER, at_ms=500).sent(QuorumFetchRequest).fetch_offset == 6
    timer = bench.timer(FETCH_TIMER)
    assert timer is not None
    assert (timer.at_ms, timer.idle_with) == (1_000, CONTROLLER)


def test_a_broker_without_a_known_quorum_leader_keeps_fetching() -> None:
    bench = BrokerBench().start()
    for at_ms in (500, 1_000):
        [(to, _)] = bench.fire(FETCH_TIMER, at_ms).sends(QuorumFetchRequest)
        timer = bench.timer(FETCH_TIMER)
        assert timer is not None
        assert (to, timer.at_ms, timer.idle_with) == (CONTROLLER, at_ms + 500, None)


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


def test_a_new_controller_gets_a_heartbeat_at_once() -> None:
    bench = BrokerBench().run().receive(CONTROLLER, next_epoch(NEXT))
    [(to, heartbeat)] = bench.sends(BrokerHeartbeatRequest)
    assert (to, heartbeat.current_metadata_offset) == (NEXT, 6)
    timer = bench.timer(HEARTBEAT_TIMER)
    assert timer is not None
    assert timer.idle_with == NEXT
    [(to, fetch)] = bench.sends(QuorumFetchRequest)
    assert (to, fetch.current_leader_epoch, fetch.fetch_offset) == (NEXT, EPOCH + 1, 6)
    assert bench.receive(CONTROLLER, next_epoch(NEXT)).sends(BrokerHeartbeatRequest) == [], "that is known"


def test_an_unregistered_broker_registers_with_the_next_controller() -> None:
    bench = BrokerBench().start().receive(CONTROLLER, next_epoch(NEXT))
    [(to, request)] = bench.sends(BrokerRegistrationRequest)
    assert (to, request.incarnation_id) == (NEXT, bench.incarnation_id)


def test_the_former_quorum_leader_is_ignored() -> None:
    bench = BrokerBench().run().receive(CONTROLLER, next_epoch(NEXT))
    late = fetched(bench, None, 6, *topic_records(1))
    assert bench.receive(CONTROLLER, late).effects == []
    assert bench.receive(NEXT, replace(late, leader_id=NEXT)).effects == [], "it leads another epoch"
    assert bench.node.replica.log.end_offset == 6


def test_an_epoch_without_a_leader_keeps_the_controller() -> None:
    bench = BrokerBench().run().receive(CONTROLLER, next_epoch(-1))
    assert bench.sends(BrokerHeartbeatRequest) == []
    assert bench.node.context.controller_id == CONTROLLER
    assert bench.receive(NEXT, next_epoch(NEXT)).sends(BrokerHeartbeatRequest) != []


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
    assert bench.replica.leadership is not leadership, "a new leader epoch begins anew"


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
