"""Two incarnations of a node at a time: frames of the older one, and answers to its requests."""

from __future__ import annotations

from dataclasses import replace

from actors.transport import NOTHING
from protocol.broker.lifecycle import LifecycleState
from protocol.errors import ErrorCode
from protocol.messages.control import BrokerHeartbeatResponse, BrokerRegistrationRequest
from tests.unit.actors.transport_helpers import FakePeers, data, frame_of, on_loop, settled
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, topic_records


@on_loop
async def test_frames_of_an_ignored_incarnation_or_an_older_one_are_dropped_until_that_ends() -> None:
    peers = FakePeers()
    peers.transport.ignore_incarnations({1: 2})
    assert await peers.call(frame_of(1, incarnation=1)) == NOTHING
    assert await peers.call(frame_of(2, incarnation=2)) == NOTHING
    assert (peers.taken, peers.incarnations) == ([], [])
    peers.call(frame_of(3, incarnation=3))
    peers.call(frame_of(4, incarnation=2), sender=5)
    await settled()
    assert peers.taken == [(1, [3]), (5, [4])]
    peers.transport.ignore_incarnations({})
    assert await peers.call(frame_of(5, incarnation=2)) == NOTHING
    assert peers.taken == [(1, [3]), (5, [4]), (1, [5])]


@on_loop
async def test_a_frame_of_an_ignored_incarnation_in_an_answer_is_dropped_too() -> None:
    peers = FakePeers()
    peers.transport.ignore_incarnations({1: 2})
    peers.transport.send(1, data(1))
    await settled()
    await peers.answer(frame=frame_of(9, incarnation=2))
    assert peers.taken == []
    assert peers.failures == []


def test_a_broker_drops_the_answer_to_a_heartbeat_of_another_incarnation() -> None:
    broker = BrokerBench().run(*topic_records(2))
    mine = broker.node.context.broker_epoch
    stale = BrokerHeartbeatResponse(correlation_id=9, error=ErrorCode.STALE_BROKER_EPOCH, broker_epoch=mine + 1)
    broker.receive(CONTROLLER, stale)
    assert broker.node.state is LifecycleState.RUNNING
    broker.receive(CONTROLLER, replace(stale, broker_epoch=mine))
    assert broker.node.state is LifecycleState.REGISTERING
    assert broker.sent(BrokerRegistrationRequest).previous_broker_epoch == -1
