"""The transport: channels, frames, order, back-pressure, cut and slow links, peers that end and start again; over real
connections."""

from __future__ import annotations

import asyncio

import pytest

from actors import channel, connections
from actors.frames import joined_frame
from actors.peers import Address
from actors.transport import NodeLinks
from protocol.ids import DRIVER
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import ATTACH_BYTES, encode
from protocol.messages.data import ProduceRequest
from tests.unit.actors.transport_helpers import (
    CONTROL,
    DATA,
    FakeNode,
    Trio,
    assert_soon,
    closed,
    control,
    data,
    high_watermark,
    on_loop,
    open_sockets,
)

MIB = 1_048_576
SLOW_MS = 2_000
MORE_THAN_BUFFERS = 64
"""Messages of a MiB each, more than the system's buffers and the receiver's limit take."""


def flooded(monkeypatch: pytest.MonkeyPatch) -> Trio:
    """Nodes of which 1 handles nothing, and 0 sends it more than fits on the way."""
    monkeypatch.setattr(channel, "MAX_WAITING_BYTES", MORE_THAN_BUFFERS * 2 * MIB)
    nodes = Trio()
    nodes.one.unhandled = []
    for number in range(MORE_THAN_BUFFERS):
        nodes.zero.transport.send(1, data(number, "t" * MIB))
    return nodes


@on_loop
async def test_the_messages_of_one_input_to_a_peer_are_one_frame_and_arrive_in_order() -> None:
    nodes = Trio()
    nodes.zero.send(1, 0, 1, 2)
    await assert_soon(lambda: nodes.one.taken == [(0, DATA, [0, 1, 2])])
    for number in range(3, 50):
        nodes.zero.send(1, number)
        await asyncio.sleep(0)
    await assert_soon(lambda: nodes.one.numbers == [*range(50)])
    assert nodes.asked == [1], "one connection for all"


@on_loop
async def test_a_node_that_does_not_keep_up_is_not_sent_more_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = flooded(monkeypatch)
    nodes.zero.transport.send(1, control(100))
    nodes.zero.send(2, 200)
    await assert_soon(lambda: (0, CONTROL, [100]) in nodes.one.taken and nodes.two.taken == [(0, DATA, [200])])
    await assert_soon(lambda: len(nodes.one.taken) >= connections.MAX_UNHANDLED_BYTES // MIB)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert len(nodes.one.taken) < MORE_THAN_BUFFERS, "the rest waits at the sender"
    nodes.one.handle_all()
    await assert_soon(lambda: len(nodes.one.numbers) > MORE_THAN_BUFFERS)
    assert [numbers for _, is_control, numbers in nodes.one.taken if not is_control] == [
        [number] for number in range(MORE_THAN_BUFFERS)
    ]


@on_loop
async def test_what_waits_while_the_peer_does_not_keep_up_leaves_in_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = flooded(monkeypatch)
    await assert_soon(lambda: len(nodes.one.taken) >= connections.MAX_UNHANDLED_BYTES // MIB)
    for number in (200, 201, 202):
        nodes.zero.send(1, number)
        await asyncio.sleep(0)
    nodes.one.handle_all()
    await assert_soon(lambda: 202 in nodes.one.numbers)
    assert nodes.one.taken[-1] == (0, DATA, [200, 201, 202])


@on_loop
async def test_messages_to_a_peer_that_does_not_exist_are_dropped_and_later_ones_reach_it() -> None:
    nodes = Trio()
    nodes.zero.send(5, 0)
    await assert_soon(lambda: nodes.forgotten == [5])
    five = FakeNode(nodes, 5)
    nodes.zero.send(5, 1)
    await assert_soon(lambda: five.numbers == [1])
    assert nodes.zero.failures == []


@on_loop
async def test_what_waits_is_dropped_where_nothing_listens_at_the_address_any_more() -> None:
    nodes = Trio()
    nodes.one.transport.close()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.forgotten == [1])
    again = FakeNode(nodes, 1, incarnation=2)
    nodes.zero.send(1, 1)
    await assert_soon(lambda: again.numbers == [1])


@on_loop
async def test_any_other_error_of_a_look_up_is_reported() -> None:
    async def fail() -> Address:
        raise ValueError("bad")

    nodes = Trio()
    nodes.answers[1] = fail
    nodes.zero.send(1, 0)
    await assert_soon(lambda: bool(nodes.zero.failures))
    assert [str(failure) for failure in nodes.zero.failures] == ["bad"]


@on_loop
async def test_the_end_of_a_peer_ends_its_connection_and_the_next_message_finds_its_successor() -> None:
    nodes = Trio()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.one.transport.close()
    again = FakeNode(nodes, 1, incarnation=2)
    await assert_soon(lambda: nodes.forgotten == [1])
    nodes.zero.send(1, 1)
    await assert_soon(lambda: again.numbers == [1])
    assert nodes.one.numbers == [0]


@on_loop
async def test_messages_go_to_a_newer_incarnation_once_it_has_been_heard_though_the_former_still_takes_them() -> None:
    nodes = Trio()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    former, successor = nodes.one, FakeNode(nodes, 1, incarnation=2)
    nodes.zero.send(1, 1)
    await assert_soon(lambda: former.numbers == [0, 1])
    successor.send(0, 5)
    await assert_soon(lambda: nodes.zero.numbers == [5])
    nodes.zero.send(1, 2)
    await assert_soon(lambda: successor.numbers == [2])
    assert former.numbers == [0, 1]


@on_loop
async def test_what_waits_for_the_address_of_a_former_incarnation_goes_to_the_newer_one_that_is_heard() -> None:
    async def wait() -> Address:
        return await asyncio.get_running_loop().create_future()

    nodes = Trio()
    nodes.answers[1] = wait
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.asked == [1])
    del nodes.answers[1]
    successor = FakeNode(nodes, 1, incarnation=2)
    successor.send(0, 5)
    await assert_soon(lambda: successor.numbers == [0])


@on_loop
async def test_a_cut_is_one_way_drops_what_waits_and_heals() -> None:
    nodes = Trio()
    nodes.zero.transport.pause()
    nodes.zero.send(1, 0)
    nodes.zero.transport.set_links(NodeLinks(cut_to=frozenset({1}), cut_from=frozenset({2})))
    nodes.zero.send(1, 1)
    nodes.zero.transport.resume()
    nodes.one.send(0, 2)
    nodes.two.send(0, 3)
    nodes.two.transport.send(0, control(4))
    await nodes.two.transport.await_delivery(60)
    await assert_soon(lambda: nodes.zero.numbers == [2])
    nodes.zero.transport.set_links(NodeLinks())
    nodes.zero.send(1, 5)
    FakeNode(nodes, 2, incarnation=2).send(0, 6)
    await assert_soon(lambda: nodes.one.numbers == [5] and nodes.zero.numbers == [2, 6])
    assert nodes.zero.transport.accepts_from(2)


@on_loop
async def test_what_is_on_its_way_to_a_node_that_does_not_keep_up_is_lost_when_the_link_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = flooded(monkeypatch)
    await assert_soon(lambda: len(nodes.one.taken) >= connections.MAX_UNHANDLED_BYTES // MIB)
    nodes.one.transport.set_links(NodeLinks(cut_from=frozenset({0})))
    nodes.zero.transport.set_links(NodeLinks(cut_to=frozenset({1})))
    taken = nodes.one.numbers
    nodes.one.handle_all()
    for node in (nodes.zero, nodes.one):
        node.transport.set_links(NodeLinks())
    nodes.zero.send(1, 100)
    await assert_soon(lambda: 100 in nodes.one.numbers)
    assert nodes.one.numbers == [*taken, 100]


@on_loop
async def test_a_slow_link_delays_what_goes_to_its_end_and_nothing_else_and_keeps_the_order() -> None:
    nodes, loop = Trio(), asyncio.get_running_loop()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.zero.transport.set_links(NodeLinks(slow_to=((1, SLOW_MS),)))
    began_s = loop.time()
    nodes.zero.send(1, 1)
    nodes.zero.send(2, 5)
    await assert_soon(lambda: nodes.two.numbers == [5])
    nodes.one.send(0, 6)
    await assert_soon(lambda: nodes.zero.numbers == [6])
    assert nodes.one.numbers == [0]
    nodes.zero.transport.set_links(NodeLinks())
    nodes.zero.send(1, 2)
    await assert_soon(lambda: nodes.one.numbers == [0, 1, 2])
    assert loop.time() - began_s >= SLOW_MS / 1_000


@on_loop
async def test_what_waits_on_a_slow_link_goes_to_a_newer_incarnation_that_is_heard() -> None:
    nodes = Trio()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.zero.transport.set_links(NodeLinks(slow_to=((1, SLOW_MS),)))
    nodes.zero.send(1, 1)
    successor = FakeNode(nodes, 1, incarnation=2)
    successor.send(0, 5)
    await assert_soon(lambda: nodes.zero.numbers == [5])
    await assert_soon(lambda: successor.numbers == [1])
    assert nodes.one.numbers == [0]


@on_loop
async def test_the_experiment_passes_any_cut_and_waits_until_its_messages_have_been_handled() -> None:
    nodes = Trio()
    nodes.zero.transport.set_links(NodeLinks(cut_from=frozenset({DRIVER})))
    assert nodes.zero.transport.accepts_from(DRIVER)
    nodes.zero.unhandled = []
    handling = asyncio.create_task(nodes.zero.transport.handle(DRIVER, CONTROL, joined_frame([encode(data(7))])))
    await assert_soon(lambda: nodes.zero.taken == [(DRIVER, CONTROL, [7])])
    assert not handling.done()
    nodes.zero.handle_all()
    await handling


@on_loop
async def test_a_paused_transport_sends_nothing_and_loses_nothing() -> None:
    nodes = Trio()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.zero.transport.pause()
    nodes.zero.send(1, 1)
    nodes.one.send(0, 2)
    await assert_soon(lambda: nodes.zero.numbers == [2])
    nodes.zero.send(1, 3)
    assert nodes.one.numbers == [0]
    nodes.zero.transport.resume()
    await assert_soon(lambda: nodes.one.numbers == [0, 1, 3])


@on_loop
async def test_a_closed_transport_sends_and_takes_nothing_and_leaves_no_socket_and_no_task() -> None:
    sockets, nodes = open_sockets(), Trio()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.zero.send(1, 1)
    nodes.zero.transport.close()
    nodes.zero.send(1, 2)
    nodes.one.send(0, 3)
    nodes.two.send(1, 4)
    await assert_soon(lambda: nodes.one.numbers == [0, 4])
    assert nodes.zero.taken == []
    await closed((nodes.zero, nodes.one, nodes.two), sockets)


@on_loop
async def test_a_closed_transport_gives_up_what_it_was_opening() -> None:
    async def wait() -> Address:
        return await asyncio.get_running_loop().create_future()

    sockets, nodes = open_sockets(), Trio()
    nodes.answers[1] = wait
    nodes.zero.send(1, 0)
    nodes.zero.send(2, 1)
    await assert_soon(lambda: nodes.asked == [1, 2])
    await closed((nodes.zero, nodes.one, nodes.two), sockets)
    assert nodes.two.taken == []


@on_loop
async def test_a_full_channel_drops_new_messages_until_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_WAITING_BYTES", 800)
    nodes = Trio()
    nodes.zero.transport.pause()
    for number in range(5):
        nodes.zero.transport.send(1, data(number, "t" * 300))
    nodes.zero.transport.resume()
    await assert_soon(lambda: nodes.one.numbers == [0, 1])
    nodes.zero.send(1, 9)
    await assert_soon(lambda: nodes.one.numbers == [0, 1, 9])


@on_loop
async def test_frames_on_a_slow_link_count_for_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_WAITING_BYTES", 800)
    nodes = Trio()
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.zero.transport.set_links(NodeLinks(slow_to=((1, SLOW_MS),)))
    for number in range(1, 5):
        nodes.zero.transport.send(1, data(number, "t" * 300))
        await asyncio.sleep(0)
    await assert_soon(lambda: nodes.one.numbers == [0, 1, 2])
    nodes.zero.send(1, 9)
    await assert_soon(lambda: nodes.one.numbers == [0, 1, 2, 9])


@on_loop
async def test_a_frame_has_a_size_limit_but_always_room_for_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_FRAME_BYTES", 800)
    nodes = Trio()
    for number in range(4):
        nodes.zero.transport.send(1, data(number, "t" * (900 if number == 0 else 300)))
    await assert_soon(lambda: len(nodes.one.taken) == 3)
    assert [numbers for _, _, numbers in nodes.one.taken] == [[0], [1, 2], [3]]


@on_loop
async def test_delivery_ends_when_all_peers_have_handled_what_was_sent() -> None:
    nodes = Trio()
    nodes.one.unhandled = []
    nodes.zero.send(1, 0)
    await assert_soon(lambda: nodes.one.numbers == [0])
    nodes.zero.send(1, 1)
    nodes.zero.send(2, 2)
    waiting = asyncio.create_task(nodes.zero.transport.await_delivery(60))
    await assert_soon(lambda: nodes.one.numbers == [0, 1] and nodes.two.numbers == [2])
    assert not waiting.done()
    nodes.one.handle_all()
    await asyncio.wait_for(waiting, 30)


@on_loop
async def test_delivery_to_a_peer_that_does_not_handle_is_awaited_so_long_and_to_none_not_at_all() -> None:
    nodes = Trio()
    await asyncio.wait_for(nodes.two.transport.await_delivery(3_600), 30)
    nodes.one.unhandled = []
    nodes.zero.send(1, 0)
    nodes.zero.send(7, 1)
    await assert_soon(lambda: nodes.one.numbers == [0])
    await asyncio.wait_for(nodes.zero.transport.await_delivery(0.1), 30)
    assert nodes.one.unhandled


@on_loop
async def test_a_message_that_can_wait_is_sent_in_order_with_one_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_DELAY_S", 3_600)
    nodes = Trio()
    nodes.zero.transport.send(1, high_watermark(100))
    nodes.zero.send(2, 1)
    await assert_soon(lambda: nodes.two.numbers == [1])
    assert nodes.one.taken == []
    nodes.zero.send(1, 1)
    await assert_soon(lambda: nodes.one.taken == [(0, DATA, [100, 1])])


@on_loop
async def test_a_message_that_can_wait_is_sent_after_the_maximal_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_DELAY_S", 0)
    nodes = Trio()
    nodes.zero.transport.send(1, high_watermark(100))
    await assert_soon(lambda: nodes.one.taken == [(0, DATA, [100])])


@on_loop
async def test_a_very_long_payload_arrives_whole_among_short_messages() -> None:
    nodes = Trio()
    payload = bytes(range(256)) * (ATTACH_BYTES // 128)
    batch = RecordBatch(record_count=1, payload=payload, crc=7)
    produce = ProduceRequest(correlation_id=5, topic="t", partition=0, acks=1, batch=batch)
    sent = [data(4), produce, data(6), produce, data(7)]
    for peer in (1, 2):
        for message in sent:
            nodes.zero.transport.send(peer, message)
    await assert_soon(lambda: nodes.one.messages == sent == nodes.two.messages)
