"""The transport: frames, coalescing, order, channels, answers, cuts, peers that are gone; on fake peers whose answers
the test gives."""

from __future__ import annotations

import asyncio

import pytest

import actors.transport as module
from actors import resequencer
from actors.peers import PeerGoneError
from actors.transport import NOTHING, NodeLinks, pack_frame, unpack_frame
from protocol.errors import CodecError
from protocol.ids import DRIVER
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import ATTACH_BYTES, encode
from protocol.messages.data import FetchRenewal, ProduceRequest
from tests.unit.actors.transport_helpers import (
    CONTROL,
    DATA,
    ME,
    FakePeers,
    control,
    data,
    frame_of,
    high_watermark,
    numbers_of,
    on_loop,
    settled,
)


@pytest.fixture
def peers() -> FakePeers:
    return FakePeers()


@pytest.fixture(autouse=True)
def one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 1)


@on_loop
async def test_messages_wait_while_a_call_is_in_flight_and_leave_together_in_order(peers: FakePeers) -> None:
    await peers.send(0)
    await peers.send(*range(1, 5))
    assert peers.calls == [(1, DATA, [0])]
    await peers.answer()
    assert peers.calls == [(1, DATA, [0]), (1, DATA, [1, 2, 3, 4])]


@on_loop
async def test_the_messages_of_one_input_to_a_peer_are_one_frame(peers: FakePeers) -> None:
    await peers.send(*range(3))
    assert peers.calls == [(1, DATA, [0, 1, 2])]


@on_loop
async def test_a_blocked_data_channel_blocks_neither_control_nor_other_peers(peers: FakePeers) -> None:
    await peers.send(0)
    peers.transport.send(1, data(1))
    peers.transport.send(1, control(2))
    peers.transport.send(2, data(3))
    await settled()
    assert peers.calls == [(1, DATA, [0]), (1, CONTROL, [2]), (2, DATA, [3])]


@on_loop
async def test_a_frame_to_a_dead_peer_is_dropped_and_not_repeated(peers: FakePeers) -> None:
    await peers.send(0)
    peers.transport.send(1, data(1))
    await peers.answer(PeerGoneError("dead"))
    assert peers.calls == [(1, DATA, [0]), (1, DATA, [1])]
    assert peers.failures == []


@on_loop
async def test_any_other_error_is_reported(peers: FakePeers) -> None:
    await peers.send(0)
    await peers.answer(CodecError("bad"))
    assert [str(failure) for failure in peers.failures] == ["bad"]


@on_loop
async def test_a_cut_is_one_way_drops_queued_messages_and_heals(peers: FakePeers) -> None:
    await peers.send(0)
    peers.transport.send(1, data(1))
    peers.transport.set_links(NodeLinks(cut_to=frozenset({1}), cut_from=frozenset({2})))
    peers.transport.send(1, data(2))
    assert peers.transport.accepts_from(1)
    assert not peers.transport.accepts_from(2)
    await peers.answer()
    assert peers.calls == [(1, DATA, [0])]
    peers.transport.set_links(NodeLinks())
    await peers.send(3)
    assert peers.calls == [(1, DATA, [0]), (1, DATA, [3])]
    assert peers.transport.accepts_from(2)


@on_loop
async def test_a_slow_link_delays_what_goes_to_its_end_and_nothing_else(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays_s: list[float] = []
    sleep, ready = asyncio.sleep, asyncio.Event()

    async def sleep_until_ready(delay_s: float) -> None:
        if delay_s:
            delays_s.append(delay_s)
            await ready.wait()
        await sleep(0)

    monkeypatch.setattr("actors.transport.asyncio.sleep", sleep_until_ready)
    peers.transport.set_links(NodeLinks(slow_to=((1, 300),)))
    await peers.send(0)
    assert (peers.calls, delays_s) == ([], [0.3])
    peers.transport.send(2, data(5))
    await settled()
    assert peers.calls == [(2, DATA, [5])]
    ready.set()
    await settled()
    assert peers.calls == [(2, DATA, [5]), (1, DATA, [0])]


@on_loop
async def test_messages_of_the_experiment_pass_any_cut(peers: FakePeers) -> None:
    peers.transport.set_links(NodeLinks(cut_from=frozenset({DRIVER})))
    assert peers.transport.accepts_from(DRIVER)


@on_loop
async def test_a_paused_transport_sends_nothing_and_loses_nothing(peers: FakePeers) -> None:
    peers.transport.pause()
    await peers.send(0)
    assert peers.calls == []
    peers.transport.send(1, data(1))
    peers.transport.resume()
    await settled()
    assert peers.calls == [(1, DATA, [0, 1])]


@on_loop
async def test_a_closed_transport_sends_nothing(peers: FakePeers) -> None:
    peers.transport.send(1, data(0))
    peers.transport.close()
    await peers.send(1)
    assert peers.calls == []


@on_loop
async def test_a_full_channel_drops_new_messages_until_it_has_room(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 800)
    await peers.send(0)
    for number in range(1, 6):
        peers.transport.send(1, data(number, "t" * 300))
    await peers.answer()
    assert peers.calls[1:] == [(1, DATA, [1, 2])]
    peers.transport.send(1, data(9))
    await peers.answer()
    assert peers.calls[2:] == [(1, DATA, [9])]


@on_loop
async def test_a_frame_has_a_size_limit_but_always_room_for_one_message(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FRAME_BYTES", 800)
    for number in range(4):
        peers.transport.send(1, data(number, "t" * (900 if number == 0 else 300)))
    for _ in range(3):
        await settled()
        await peers.answer()
    assert [numbers for _, _, numbers in peers.calls] == [[0], [1, 2], [3]]


@on_loop
async def test_settle_waits_for_queued_messages(peers: FakePeers) -> None:
    await peers.send(0)
    peers.transport.send(1, data(1))
    waiting = asyncio.create_task(peers.transport.await_delivery(60))
    await settled()
    await peers.answer()
    assert not waiting.done()
    await peers.answer()
    assert waiting.done()


@on_loop
async def test_a_second_call_gathers_messages_before_it_is_sent(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 2)
    monkeypatch.setattr(module, "GATHER_S", 0)
    for number in range(3):
        peers.transport.send(1, data(number))
        await asyncio.sleep(0)
    assert peers.calls == [(1, DATA, [0])]
    await settled()
    assert peers.calls == [(1, DATA, [0]), (1, DATA, [1, 2])]
    await peers.send(3)
    assert len(peers.calls) == 2
    await peers.answer()
    assert peers.calls[2:] == [(1, DATA, [3])]


@on_loop
async def test_gathered_messages_are_sent_when_the_first_call_ends_or_the_frame_is_full(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 2)
    monkeypatch.setattr(module, "GATHER_S", 3_600)
    for number in range(2):
        peers.transport.send(1, data(number))
        await settled()
    assert peers.calls == [(1, DATA, [0])]
    await peers.answer()
    assert peers.calls[1:] == [(1, DATA, [1])]
    monkeypatch.setattr(module, "MAX_FRAME_BYTES", 2 * len(encode(data(2))))
    for number in (2, 3):
        assert len(peers.calls) == 2
        peers.transport.send(1, data(number))
        await settled()
    assert peers.calls[2:] == [(1, DATA, [2, 3])]


@on_loop
async def test_a_message_that_can_wait_does_not_end_a_held_call(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_DELAY_S", "HOLD_S"):
        monkeypatch.setattr(module, limit, 3_600)
    peers.transport.send(1, high_watermark(100))
    call = peers.call(frame_of(5))
    await settled()
    assert not call.done()
    peers.transport.send(1, data(1))
    assert numbers_of(await call) == [100, 1]


@on_loop
async def test_a_message_that_can_wait_is_sent_in_order_with_one_that_cannot(peers: FakePeers) -> None:
    peers.transport.send(1, high_watermark(100))
    await settled()
    assert peers.calls == []
    await peers.send(1)
    assert peers.calls == [(1, DATA, [100, 1])]


@on_loop
async def test_a_message_that_can_wait_is_sent_after_the_maximal_delay(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DELAY_S", 0)
    peers.transport.send(1, high_watermark(100))
    await asyncio.sleep(0)
    await settled()
    assert peers.calls == [(1, DATA, [100])]


@on_loop
async def test_a_renewal_waits_for_the_call_of_a_peer_and_not_longer_than_a_message_that_can_wait_less(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEWAL_DELAYS_S", (3_600, 3_600))
    monkeypatch.setattr(module, "HOLD_S", 0)
    renewal = FetchRenewal(replica_id=0, replica_epoch=1, requests=30)
    peers.transport.send(1, renewal)
    await settled()
    assert peers.calls == []
    assert numbers_of(await peers.call(frame_of(5))) == [30], "in the answer to a call that brings something else"
    monkeypatch.setattr(module, "MAX_DELAY_S", 1e-9)
    peers.transport.send(1, renewal)
    peers.transport.send(1, high_watermark(100))
    await asyncio.sleep(0)
    await settled()
    assert peers.calls == [(1, DATA, [30, 100])]


@on_loop
async def test_a_message_is_sent_in_the_answer_to_an_open_call(peers: FakePeers) -> None:
    call = peers.call(frame_of(5))
    await settled()
    assert peers.taken == [(1, [5])]
    assert not call.done()
    await peers.send(6)
    assert numbers_of(await call) == [6]
    assert peers.calls == []


@on_loop
async def test_what_the_node_sends_while_it_handles_a_call_is_in_the_answer_and_no_call(peers: FakePeers) -> None:
    peers.unhandled = []
    call = peers.call(frame_of(0))
    await settled()
    peers.transport.send(1, data(5))  # as an effect of the input that ends with the next line
    peers.unhandled.pop()()
    assert numbers_of(await call) == [5]
    assert peers.calls == []


@on_loop
async def test_the_next_call_ends_the_previous_one(peers: FakePeers) -> None:
    first, second = peers.call(frame_of(5)), peers.call(frame_of(6, number=2))
    await settled()
    assert await first == NOTHING
    assert not second.done()


@on_loop
async def test_a_held_call_is_answered_after_the_maximal_hold_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0)
    assert await FakePeers().call(frame_of(5)) == NOTHING


@on_loop
async def test_a_call_is_answered_only_after_its_frame_has_been_handled(peers: FakePeers) -> None:
    peers.unhandled = []
    call = peers.call(frame_of(5))
    await settled()
    peers.transport.send(2, data(0))
    await settled()
    assert not call.done()
    peers.unhandled.pop()()
    peers.transport.send(1, data(6))
    assert numbers_of(await call) == [6]


@on_loop
async def test_a_call_ends_only_after_the_frame_in_its_answer_has_been_handled(peers: FakePeers) -> None:
    peers.unhandled = []
    for number in (0, 1):
        peers.transport.send(1, data(number))
        await settled()
    await peers.answer(frame=frame_of(5))
    assert peers.taken == [(1, [5])]
    assert len(peers.calls) == 1
    peers.unhandled.pop()()
    await settled()
    assert peers.calls[1:] == [(1, DATA, [1])]


@on_loop
async def test_a_message_too_large_for_an_answer_is_sent_in_a_call(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100)
    peers.call(frame_of(5))
    await settled()
    peers.transport.send(1, data(6, "t" * 100))
    await settled()
    assert peers.calls == [(1, DATA, [6])]


@on_loop
async def test_a_paused_transport_answers_no_call(peers: FakePeers) -> None:
    call = peers.call(frame_of(5))
    await settled()
    peers.transport.pause()
    await peers.send(6)
    assert not call.done()
    peers.transport.resume()
    assert numbers_of(await call) == [6]


@pytest.mark.parametrize(
    ("numbers", "to_incarnation"),
    [((1, 3, 4, 2), ME), ((9, 11, 10), ME - 1)],
    ids=["to this incarnation", "to another one, counted from the first that arrives"],
)
@on_loop
async def test_frames_that_overtake_each_other_are_handled_in_order(
    peers: FakePeers, numbers: tuple[int, ...], to_incarnation: int
) -> None:
    for number in numbers:
        peers.call(frame_of(number, number=number, to_incarnation=to_incarnation))
    await settled()
    assert [taken for _, taken in peers.taken] == [[number] for number in sorted(numbers)]


@on_loop
async def test_a_lost_frame_is_awaited_and_then_skipped(peers: FakePeers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resequencer, "GAP_S", 0)
    for number in (1, 3):
        peers.call(frame_of(number, number=number))
    await settled()
    assert [numbers for _, numbers in peers.taken] == [[1], [3]]
    peers.call(frame_of(2, number=2))
    await settled()
    assert len(peers.taken) == 2


@on_loop
async def test_each_incarnation_of_a_peer_has_its_own_frame_numbers_and_the_former_gets_no_answer(
    peers: FakePeers,
) -> None:
    first = peers.call(frame_of(1, number=1, incarnation=1))
    await settled()
    new = peers.call(frame_of(2, number=1, incarnation=2))
    assert await first == NOTHING
    assert await peers.call(frame_of(3, number=2, incarnation=1)) == NOTHING
    assert peers.taken == [(1, [1]), (1, [2]), (1, [3])]
    assert peers.incarnations == [(1, 1), (1, 2)]
    peers.transport.send(1, data(4))
    assert numbers_of(await new) == [4]


@on_loop
async def test_frames_to_a_new_incarnation_are_numbered_from_1_once_earlier_calls_have_ended(peers: FakePeers) -> None:
    """Otherwise an answer would overtake a call that still looks up the peer."""
    await peers.send(0)
    call = peers.call(frame_of(5))
    await peers.send(1)
    assert not call.done()
    await peers.answer()
    frame = unpack_frame(await call, lambda error: pytest.fail(str(error)))
    assert frame is not None
    assert (frame.incarnation, frame.to_incarnation, frame.number) == (ME, 1, 1)


@on_loop
async def test_calls_of_the_experiment_are_not_held(peers: FakePeers) -> None:
    assert await peers.call(pack_frame([encode(data(3))]), DRIVER) == NOTHING
    assert peers.taken == [(DRIVER, [3])]


@on_loop
async def test_frames_over_a_cut_link_are_dropped_in_calls_and_in_answers(peers: FakePeers) -> None:
    await peers.send(0)
    peers.transport.set_links(NodeLinks(cut_from=frozenset({1})))
    assert await peers.call(frame_of(5)) == NOTHING
    await peers.answer(frame=frame_of(6))
    assert peers.taken == []


@on_loop
async def test_a_very_long_payload_travels_beside_the_frame_to_every_peer_as_the_same_object(peers: FakePeers) -> None:
    batch = RecordBatch(record_count=1, payload=bytes(ATTACH_BYTES), crc=7)
    request = ProduceRequest(correlation_id=5, topic="t", partition=0, acks=1, batch=batch)
    for peer in (1, 2):
        peers.transport.send(peer, request)
    await settled()
    assert peers.calls == [(1, DATA, [5]), (2, DATA, [5])]
    assert [[id(part) for part in attached] for attached in peers.attached] == 2 * [[id(batch.payload)]]


@on_loop
async def test_a_small_message_leaves_with_a_long_payload_behind_it_and_two_payloads_beyond_the_limit_do_not(
    peers: FakePeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FRAME_BYTES", ATTACH_BYTES)
    monkeypatch.setattr(module, "MAX_ATTACHED_BYTES", 2 * ATTACH_BYTES - 1)
    batch = RecordBatch(record_count=1, payload=bytes(ATTACH_BYTES), crc=7)
    peers.transport.send(1, data(4))
    for number in (5, 6):
        request = ProduceRequest(correlation_id=number, topic="t", partition=0, acks=1, batch=batch)
        peers.transport.send(1, request)
    await settled()
    await peers.answer()
    assert peers.calls == [(1, DATA, [4, 5]), (1, DATA, [6])]
