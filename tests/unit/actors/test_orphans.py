"""Two incarnations of a node at a time: frames of the older one, and answers to its requests."""

from __future__ import annotations

from dataclasses import replace

from protocol.broker.lifecycle import LifecycleState
from protocol.errors import ErrorCode
from protocol.messages.control import BrokerHeartbeatResponse, BrokerRegistrationRequest
from tests.unit.actors.transport_helpers import FakeNode, Trio, assert_soon, on_loop
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, topic_records


@on_loop
async def test_frames_of_an_ignored_incarnation_or_an_older_one_are_dropped_until_that_ends() -> None:
    nodes = Trio()
    nodes.zero.transport.ignore_incarnations({1: 2})
    for incarnation in (1, 2):
        ignored = FakeNode(nodes, 1, incarnation)
        ignored.send(0, incarnation)
        await ignored.transport.await_delivery(60)
    nodes.two.send(0, 4)
    await assert_soon(lambda: nodes.zero.numbers == [4])
    newer = FakeNode(nodes, 1, incarnation=3)
    newer.send(0, 3)
    await assert_soon(lambda: nodes.zero.numbers == [4, 3])
    nodes.zero.transport.ignore_incarnations({})
    newer.send(0, 5)
    await assert_soon(lambda: nodes.zero.numbers == [4, 3, 5])


@on_loop
async def test_a_former_incarnation_that_still_runs_is_heard_beside_the_newer_one() -> None:
    """Epochs fence it, not the transport."""
    nodes = Trio()
    former, newer = nodes.one, FakeNode(nodes, 1, incarnation=2)
    for number, node in enumerate((former, newer, former, newer)):
        node.send(0, number)
        await assert_soon(lambda number=number: nodes.zero.numbers == [*range(number + 1)])  # type: ignore[misc]
    nodes.zero.send(1, 9)
    await assert_soon(lambda: newer.numbers == [9])
    assert former.numbers == []


def test_a_broker_drops_the_answer_to_a_heartbeat_of_another_incarnation() -> None:
    broker = BrokerBench().run(*topic_records(2))
    mine = broker.node.context.broker_epoch
    stale = BrokerHeartbeatResponse(correlation_id=9, error=ErrorCode.STALE_BROKER_EPOCH, broker_epoch=mine + 1)
    broker.receive(CONTROLLER, stale)
    assert broker.node.state is LifecycleState.RUNNING
    broker.receive(CONTROLLER, replace(stale, broker_epoch=mine))
    assert broker.node.state is LifecycleState.REGISTERING
    assert broker.sent(BrokerRegistrationRequest).previous_broker_epoch == -1
