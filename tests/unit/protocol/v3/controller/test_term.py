"""The command queue: order, repetition with an alert, dead brokers."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.events.store import StoreAlert
from protocol.messages.v3 import (
    ControllerCommand,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaPartition,
    StopReplicaRequest,
)
from protocol.v3.controller.decisions import Author
from protocol.v3.controller.procedure import BrokerCommand
from protocol.v3.controller.term import CommandQueue

LED = LeaderAndIsrPartition(
    topic="t", topic_id="T", partition_id=0, leader=1, leader_epoch=2, isr=(1,), version=3, replicas=(1, 2),
    controller_id=9, controller_epoch=4,
)  # fmt: skip
STOPPED = StopReplicaPartition(topic="t", topic_id="T", partition_id=1, leader_epoch=5)


class FakeOutlet:
    def __init__(self) -> None:
        self.sent: list[tuple[int, ControllerCommand]] = []
        self.alerts: list[str] = []

    def send(self, broker: int, request: ControllerCommand) -> None:
        self.sent.append((broker, request))

    def trace(self, event: StoreAlert) -> None:
        self.alerts.append(event.reason)


def make() -> tuple[CommandQueue, FakeOutlet]:
    outlet = FakeOutlet()
    return CommandQueue(Author(9, 4), outlet, ack_timeout_ms=100), outlet


def response(to: ControllerCommand, error: ErrorCode = ErrorCode.NONE) -> LeaderAndIsrResponse:
    return LeaderAndIsrResponse(correlation_id=to.correlation_id, error=error)


@pytest.mark.covers("A17", "A35", "G1", "G2", "G4")
def test_a_command_becomes_a_request_of_each_kind_one_after_the_other() -> None:
    queue, outlet = make()
    queue.put(0, BrokerCommand(1, (LED,), (STOPPED,), is_init=True))
    ((broker, first),) = outlet.sent
    assert broker == 1
    assert isinstance(first, LeaderAndIsrRequest)
    assert (first.is_init, first.partitions) == (True, (LED,))
    assert (first.controller_id, first.controller_epoch, first.ack_timeout_ms) == (9, 4, 100)
    queue.responded(10, 1, response(first))
    second = outlet.sent[1][1]
    assert isinstance(second, StopReplicaRequest)
    assert second.partitions == (STOPPED,)
    queue.responded(20, 1, response(first))
    assert queue.due_ms() == 110
    queue.responded(20, 1, response(second))
    assert queue.due_ms() is None
    assert len(outlet.sent) == 2


def test_an_empty_init_is_sent_and_other_empty_commands_are_not() -> None:
    queue, outlet = make()
    queue.put(0, BrokerCommand(1, is_init=True))
    queue.put(0, BrokerCommand(2))
    assert [broker for broker, _ in outlet.sent] == [1]


@pytest.mark.covers("A55")
def test_a_slow_broker_delays_no_other() -> None:
    queue, outlet = make()
    for broker in (1, 1, 2):
        queue.put(0, BrokerCommand(broker, (LED,)))
    assert [broker for broker, _ in outlet.sent] == [1, 2]
    queue.responded(5, 2, response(outlet.sent[1][1]))
    queue.put(5, BrokerCommand(2, (LED,)))
    assert [broker for broker, _ in outlet.sent] == [1, 2, 2]


@pytest.mark.covers("A51", "M38")
def test_a_request_without_a_response_is_repeated_with_an_alert() -> None:
    queue, outlet = make()
    queue.put(0, BrokerCommand(1, (LED,)))
    queue.put(0, BrokerCommand(2, stop_replica=(STOPPED,)))
    queue.responded(50, 2, response(outlet.sent[1][1]))
    queue.expire(99)
    assert not outlet.alerts
    assert queue.due_ms() == 100
    queue.expire(100)
    assert outlet.alerts == ["broker 1 has not responded to LeaderAndIsrRequest in 100 ms"]
    assert outlet.sent[2] == outlet.sent[0]
    assert queue.due_ms() == 200


@pytest.mark.covers("A36")
def test_commands_to_dead_brokers_are_dropped() -> None:
    queue, outlet = make()
    for broker in (1, 2):
        queue.put(0, BrokerCommand(broker, (LED,)))
    queue.keep({2: 5})
    queue.responded(5, 1, response(outlet.sent[0][1]))
    queue.expire(1_000)
    assert [broker for broker, _ in outlet.sent] == [1, 2, 2]
