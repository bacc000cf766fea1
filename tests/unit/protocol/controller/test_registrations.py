"""UnregisterBroker: the state that remains of the broker, and how a running broker learns of it."""

from __future__ import annotations

from experiments.engines import admin_requests
from experiments.support.metadata_fetch import metadata_fetch
from protocol.broker.lifecycle import LifecycleState
from protocol.contract import CancelTimer
from protocol.controller.administration import handle
from protocol.errors import ErrorCode
from protocol.messages.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import QuorumFetchResponse
from protocol.messages.records import MetadataRecord, PartitionChangeRecord, UnregisterBrokerRecord
from protocol.metadata.image import MetadataImage
from protocol.nodes.broker_sessions import SESSION_PREFIX
from tests.unit.protocol.node_helpers import (
    CONTROLLER,
    T0,
    BrokerBench,
    ControllerBench,
    config_of,
    registrations,
    topic_records,
)
from tests.unit.protocol.nodes.controller_bench import SESSION_MS, Bench


def bench(*records: MetadataRecord, **partition: object) -> ControllerBench:
    """Brokers 0..2 are active; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    return ControllerBench(*registrations(), *topic_records(2, **partition), *records, config=config_of())


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
    controller = bench()
    behind = MetadataImage(config_of())
    behind.load(controller.state.image.to_records(), controller.state.image.next_offset)
    controller.apply(handle(controller.state, admin_requests.unregister_broker(2)).records)
    behind.load(controller.state.image.to_records(), controller.state.image.next_offset)
    assert sorted(behind.brokers) == [0, 1]
    assert behind.partition(T0) == controller.partition()
