"""The broker node's life with its controller: registration, heartbeats, metadata, shutdown."""

from __future__ import annotations

import pytest

from experiments.sim.disk import SimStorage
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE, LifecycleState, take_clean_shutdown_epoch
from protocol.contract import Exit
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import TopicIdPartition
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    MetadataFetchRequest,
    MetadataFetchResponse,
)
from protocol.messages.data import FetchRequest, ProduceRequest
from protocol.messages.records import PartitionChangeRecord, PartitionRecord, RegisterBrokerRecord
from protocol.nodes.broker import HEARTBEAT_TIMER, METADATA_TIMER, SHUTDOWN_TIMER
from tests.unit.nodes_under_test import CLIENT, CONTROLLER, T0, BrokerBench, batch, registrations, topic_records

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
def test_a_clean_shutdown_flushes_everything_and_vouches_for_it_at_the_next_start() -> None:
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
def test_a_crash_leaves_no_claim_to_a_clean_shutdown() -> None:
    storage = SimStorage()
    storage.write_file(CLEAN_SHUTDOWN_FILE, b'{"BrokerEpoch":"0"}')
    BrokerBench(storage=storage).run()
    assert BrokerBench(storage=storage).start().sent(BrokerRegistrationRequest).previous_broker_epoch == -1


def test_registration_is_tried_until_it_is_accepted() -> None:
    bench = BrokerBench().start()
    first = bench.sent(BrokerRegistrationRequest)
    assert bench.registered(error=ErrorCode.DUPLICATE_BROKER_REGISTRATION).node.state is S.REGISTERING
    again = bench.fire(HEARTBEAT_TIMER, at_ms=500).sent(BrokerRegistrationRequest)
    assert again.incarnation_id == first.incarnation_id
    assert bench.timer(HEARTBEAT_TIMER) is not None
    assert bench.registered().node.state is S.CATCHING_UP
    assert bench.sent(MetadataFetchRequest).fetch_offset == 0


def test_it_asks_to_stay_fenced_until_it_has_seen_its_own_registration() -> None:
    bench = BrokerBench(me=1).start().registered()
    assert bench.sent(BrokerHeartbeatRequest).want_fence
    one = registrations((0, 1), fenced=(0, 1))
    bench.publish(one[0])
    assert bench.sends(BrokerHeartbeatRequest) == [], "its epoch is 1 and the log ends at 1"
    heartbeat = bench.publish(one[1]).sent(BrokerHeartbeatRequest)
    assert (heartbeat.want_fence, heartbeat.current_metadata_offset, heartbeat.broker_epoch) == (False, 2, 1)
    assert bench.heartbeat_answered(is_fenced=True).node.state is S.CATCHING_UP
    assert bench.heartbeat_answered(is_fenced=False).node.state is S.RUNNING


def test_only_a_running_broker_may_leave_heartbeats_out() -> None:
    bench = BrokerBench().start().registered()
    for answer, idle_with in ((True, None), (False, CONTROLLER), (True, None)):
        bench.heartbeat_answered(is_fenced=answer)
        timer = bench.fire(HEARTBEAT_TIMER).timer(HEARTBEAT_TIMER)
        assert timer is not None
        assert timer.idle_with == idle_with


@pytest.mark.covers("B20")
@pytest.mark.parametrize("error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_broker_that_lost_its_epoch_registers_as_a_new_incarnation_without_a_past(error: ErrorCode) -> None:
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
def test_the_answer_to_a_former_incarnation_registers_nobody(error: ErrorCode) -> None:
    bench = BrokerBench().run()
    former = bench.incarnation_id
    bench.heartbeat_answered(error=ErrorCode.STALE_BROKER_EPOCH)
    late = bench.registered(incarnation_id=former, broker_epoch=5, error=error)
    assert (late.effects, late.node.state) == ([], S.REGISTERING)
    assert late.node.context.broker_epoch == 0
    assert bench.registered(broker_epoch=9).node.state is S.CATCHING_UP
    assert bench.node.context.broker_epoch == 9


def test_a_shutdown_says_so_with_every_heartbeat() -> None:
    bench = shut_down(BrokerBench().run())
    assert bench.sent(BrokerHeartbeatRequest).want_shut_down
    assert bench.timer(SHUTDOWN_TIMER) is not None
    assert shut_down(bench).effects == [], "asked twice"
    assert bench.fire(HEARTBEAT_TIMER, at_ms=2_000).sent(BrokerHeartbeatRequest).want_shut_down
    assert not exits(bench.heartbeat_answered(should_shut_down=False))
    assert bench.node.state is S.SHUTTING_DOWN


def test_a_broker_that_was_never_registered_just_stops() -> None:
    bench = shut_down(BrokerBench().start())
    assert (bench.node.state, exits(bench)) == (S.STOPPED, True)
    assert bench.storage.read_file(CLEAN_SHUTDOWN_FILE) is None
    assert bench.registered().effects == []


def test_a_controller_that_never_answers_does_not_keep_it() -> None:
    bench = shut_down(BrokerBench().run())
    assert exits(bench.fire(SHUTDOWN_TIMER, at_ms=300_000))
    assert take_clean_shutdown_epoch(bench.storage) == 0


@pytest.mark.covers("E21", "M16")
@pytest.mark.parametrize("error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_broker_that_loses_its_epoch_while_it_shuts_down_goes_without_a_claim(error: ErrorCode) -> None:
    bench = shut_down(BrokerBench().run()).heartbeat_answered(error=error)
    assert (bench.node.state, exits(bench)) == (S.STOPPED, True)
    assert bench.storage.read_file(CLEAN_SHUTDOWN_FILE) is None


# -- metadata ----------------------------------------------------------------------------------------------------------


def test_metadata_is_taken_in_order_and_once() -> None:
    bench = BrokerBench().run()
    [topic, config, partition] = topic_records()

    def fetched(base_offset: int, *records: object) -> MetadataFetchResponse:
        fields = {"base_offset": base_offset, "records": records, "high_watermark": 9, "controller_id": CONTROLLER}
        return MetadataFetchResponse.model_validate(fields)

    bench.receive(CONTROLLER, fetched(7, config))
    assert bench.node.context.image.next_offset == 6, "there is a gap before it"
    bench.receive(CONTROLLER, fetched(6, topic, config))
    assert bench.sent(MetadataFetchRequest).fetch_offset == 8
    bench.receive(CONTROLLER, fetched(6, topic, config))
    assert bench.effects == []
    assert T0 not in bench.node.context.replicas
    bench.receive(CONTROLLER, fetched(8, partition))
    assert bench.replica.leadership is not None


def test_the_metadata_wish_is_repeated() -> None:
    bench = BrokerBench().run()
    assert bench.fire(METADATA_TIMER, at_ms=500).sent(MetadataFetchRequest).fetch_offset == 6
    timer = bench.timer(METADATA_TIMER)
    assert timer is not None
    assert (timer.at_ms, timer.idle_with) == (1_000, CONTROLLER)


def test_replicas_see_only_metadata_that_is_complete() -> None:
    bench = BrokerBench().start().registered()
    records = [*registrations(), *topic_records(1)]
    half = MetadataFetchResponse(base_offset=0, records=tuple(records[:8]), high_watermark=9, controller_id=CONTROLLER)
    bench.receive(CONTROLLER, half)
    assert bench.node.context.replicas == {}
    bench.records = records[:8]
    bench.publish(records[8])
    assert T0 in bench.node.context.replicas


@pytest.mark.covers("M36", "A34")
def test_logs_that_the_metadata_does_not_place_here_are_deleted_at_start() -> None:
    storage = SimStorage()
    for name in ("T/0", "T/1", "Deleted/0"):
        storage.open_log(name).append(batch(2))
    bench = BrokerBench(storage=storage).run(*topic_records(1, replicas=(0, 1), isr=(0, 1)))
    assert storage.log_names() == ["T/0"]
    assert bench.replica.log.end_offset == 2


@pytest.mark.covers("A34", "M37")
def test_a_broker_that_missed_elections_takes_the_role_that_stands_now() -> None:
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


def test_a_partition_elsewhere_is_none_of_its_business() -> None:
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


def test_clients_are_told_what_the_broker_knows() -> None:
    bench = BrokerBench().run(*topic_records(1, leader=1))
    bench.receive(CLIENT, MetadataRequest(correlation_id=4, topic="t"))
    [topic] = bench.sent(MetadataResponse).topics
    assert [(p.partition, p.leader) for p in topic.partitions] == [(0, 1)]


def test_a_timer_that_no_broker_set_is_a_broken_invariant() -> None:
    bench = BrokerBench().run()
    with pytest.raises(ProtocolInvariantError, match="no-such-timer"):
        bench.fire("no-such-timer")


def test_a_stopped_broker_does_nothing_more() -> None:
    bench = shut_down(BrokerBench().run(*topic_records(1))).heartbeat_answered(should_shut_down=True)
    bench.receive(CLIENT, ProduceRequest(correlation_id=1, topic="t", partition=0, acks=1, batch=batch()))
    assert bench.effects == []
    assert bench.receive(1, FetchRequest(replica_id=1, replica_epoch=1, partitions=())).effects == []
    assert bench.fire(HEARTBEAT_TIMER, at_ms=5_000).effects == []


def test_lives_are_told_apart_by_their_incarnation() -> None:
    bench = BrokerBench().start()
    assert bench.sent(BrokerRegistrationRequest) == BrokerBench().start().sent(BrokerRegistrationRequest), (
        "the same seed gives the same life"
    )
