"""UnregisterBroker: the state that remains of the broker, and how a running broker learns of it."""

from __future__ import annotations

import pytest

from experiments.engines import admin_requests
from experiments.support.metadata_fetch import metadata_fetch
from protocol.broker.lifecycle import LifecycleState
from protocol.config import LOG_GENERATIONS, Generation
from protocol.contract import CancelTimer
from protocol.controller import brokers
from protocol.controller.administration import handle
from protocol.controller.recovery_decisions import RecoveryNeed, recovery_need
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import QuorumFetchResponse
from protocol.messages.records import MetadataRecord, PartitionChangeRecord, UnregisterBrokerRecord
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState
from protocol.nodes.broker_sessions import SESSION_PREFIX
from tests.unit.protocol.node_helpers import (
    CONTROLLER,
    T0,
    BrokerBench,
    ControllerBench,
    config_of,
    fencing,
    registrations,
    topic_records,
)
from tests.unit.protocol.nodes.test_controller_node import SESSION_MS, Bench

OLD, ELR, NEW = Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING


def bench(*records: MetadataRecord, generation: Generation = ELR, **partition: object) -> ControllerBench:
    """Brokers 0..2 are active; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    return ControllerBench(*registrations(), *topic_records(2, **partition), *records, config=config_of(generation))


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_an_unknown_broker_cannot_be_unregistered(generation: Generation) -> None:
    found = handle(bench(generation=generation).state, admin_requests.unregister_broker(7))
    assert (found.response.failure()[0], list(found.records)) == (ErrorCode.BROKER_ID_NOT_REGISTERED, [])


@pytest.mark.covers("E20", "E26")
@pytest.mark.parametrize("fenced", [False, True])
def test_an_unregistered_broker_leaves_isr_and_elr_and_its_replicas_stay(fenced: bool) -> None:
    partition = {"isr": (1,), "leader": 1, "eligible_leader_replicas": (0,)} if fenced else {"isr": (0, 1)}
    controller = bench(*([fencing(0, 0, True)] if fenced else []), generation=NEW, **partition)
    records = controller.apply(handle(controller.state, admin_requests.unregister_broker(0)).records)
    assert records[-1] == UnregisterBrokerRecord(broker_id=0, broker_epoch=0)
    found = controller.partition()
    assert (found.isr, found.leader, found.elr, found.last_known_elr) == ((1,), 1, (), (0,))
    assert found.replicas == (0, 1, 2)
    assert 0 not in controller.state.image.brokers
    assert (controller.state.partitions_with(0), controller.state.has_leaderships(0)) == ([], False)


@pytest.mark.covers("E20", "E24")
@pytest.mark.parametrize(
    ("generation", "expected"), [(NEW, ((), (0,), 0)), (ELR, ((), (0,), NO_LEADER)), (OLD, ((0,), (), NO_LEADER))]
)
def test_unregistering_the_last_member_records_it_as_last_known(
    generation: Generation, expected: tuple[tuple[int, ...], tuple[int, ...], int]
) -> None:
    controller = bench(generation=generation, isr=(0,))
    controller.apply(handle(controller.state, admin_requests.unregister_broker(0)).records)
    found = controller.partition()
    assert (found.isr, found.last_known_elr, found.last_known_leader) == expected
    assert (found.leader, found.elr) == (NO_LEADER, ())
    back = brokers.register(controller.state, 0, "again", 0, None)
    controller.apply(back)
    controller.apply(brokers.unfence(controller.state, 0, back[-1].broker_epoch))  # type: ignore[attr-defined]
    found = controller.partition()
    if generation is NEW:
        assert recovery_need(controller.state.image, T0, found) is RecoveryNeed.RECOVERY, "the last known ELR is back"
        return
    assert (found.leader, found.isr) == (0, (0,))
    assert found.leader_recovery_state is (RECOVERED if generation is OLD else RECOVERING)


@pytest.mark.covers("E21")
@pytest.mark.parametrize("previous", [-1, 0, 5])
def test_a_broker_without_a_registered_epoch_was_not_shut_down_cleanly(previous: int) -> None:
    """Such a log comes from a controller that leaves unregistered brokers in the ELR, as Kafka's does."""
    forgotten = UnregisterBrokerRecord(broker_id=1, broker_epoch=1)
    controller = bench(forgotten, generation=NEW, isr=(0,), eligible_leader_replicas=(1,))
    controller.apply(brokers.register(controller.state, 1, "again", previous, None))
    assert (controller.partition().elr, controller.partition().last_known_elr) == ((), (1,))


def test_unregistering_a_broker_ends_its_session_and_is_traced() -> None:
    node = Bench().serve()
    end = node.node.state.image.next_offset
    epoch = node.node.state.image.broker_epoch(1)
    node.receive(1, metadata_fetch(node.node, 1))
    assert node.administer(admin_requests.unregister_broker(1)).failure()[0] is ErrorCode.NONE
    assert CancelTimer(f"{SESSION_PREFIX}1") in node.effects
    [batch] = node.sent(QuorumFetchResponse).batches
    assert [type(record) for record in unpack_records(batch.payload)] == [PartitionChangeRecord, UnregisterBrokerRecord]
    assert (node.partition.isr, 1 in node.node.state.image.brokers) == ((0, 2), False)
    assert node.fire(f"{SESSION_PREFIX}1", SESSION_MS).effects == []
    beat = BrokerHeartbeatRequest(correlation_id=1, broker_id=1, broker_epoch=epoch or 0, current_metadata_offset=end)
    assert node.receive(1, beat).sent(BrokerHeartbeatResponse).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert node.register(1, incarnation="two").broker_epoch > (epoch or 0)
    assert not node.beat(1).is_fenced
    again = Bench(node.storage)
    assert again.node.state.image.to_records() == node.node.state.image.to_records()


def test_a_controller_that_restarts_gives_unregistered_brokers_no_session() -> None:
    node = Bench().serve()
    node.administer(admin_requests.unregister_broker(1))
    again = Bench(node.storage)
    assert [again.session(broker) for broker in (0, 1, 2)] == [SESSION_MS, None, SESSION_MS]


def test_a_running_broker_that_was_unregistered_registers_anew() -> None:
    broker = BrokerBench().run(*topic_records(2))
    assert broker.timer("heartbeat") is None
    out = (
        PartitionChangeRecord(topic_id="T", partition_id=0, isr=(1, 2), leader=1),
        UnregisterBrokerRecord(broker_id=0, broker_epoch=0),
    )
    broker.publish(*out)
    assert broker.sent(BrokerHeartbeatRequest).broker_epoch == 0
    assert broker.replica.leadership is None
    broker.receive(CONTROLLER, BrokerHeartbeatResponse(correlation_id=1, error=ErrorCode.BROKER_ID_NOT_REGISTERED))
    request = broker.sent(BrokerRegistrationRequest)
    assert (request.broker_id, request.previous_broker_epoch) == (0, -1)
    assert broker.node.state is LifecycleState.REGISTERING


def test_a_snapshot_has_no_unregistered_broker() -> None:
    controller = bench(generation=NEW)
    behind = MetadataImage(config_of(NEW))
    behind.load(controller.state.image.to_records(), controller.state.image.next_offset)
    controller.apply(handle(controller.state, admin_requests.unregister_broker(2)).records)
    behind.load(controller.state.image.to_records(), controller.state.image.next_offset)
    assert sorted(behind.brokers) == [0, 1]
    assert behind.partition(T0) == controller.partition()
