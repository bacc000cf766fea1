"""The transport: coalescing, order, channels, cuts, peers that are gone; on fake peers whose answers the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import actors.transport as module
from actors.transport import PeerGoneError, Transport, pack_frame, unpack_frame
from protocol.errors import CodecError
from protocol.ids import DRIVER
from protocol.messages.admin import MetadataRequest
from protocol.messages.base import Message
from protocol.messages.codec import encode
from protocol.messages.control import BrokerHeartbeatResponse

DATA, CONTROL = False, True


def data(number: int, topic: str = "t") -> Message:
    return MetadataRequest(correlation_id=number, topic=topic)


def control(number: int) -> Message:
    return BrokerHeartbeatResponse(correlation_id=number)


class FakePeers:
    """Calls that stay open until the test answers them; `calls` are (peer, channel, correlation ids)."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool, list[int]]] = []
        self.open: list[asyncio.Future[None]] = []
        self.failures: list[BaseException] = []
        self.transport = Transport(self, self.failures.append)

    async def __call__(self, peer: int, frame: bytes, is_control: bool) -> None:
        messages = unpack_frame(frame, self.failures.append)
        numbers = [message.correlation_id for message in messages]  # type: ignore[attr-defined]
        self.calls.append((peer, is_control, numbers))
        answer = asyncio.get_running_loop().create_future()
        self.open.append(answer)
        await answer

    async def answer(self, error: Exception | None = None) -> None:
        """Answers the oldest open call, and lets everything happen that follows."""
        answer = self.open.pop(0)
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_messages_wait_while_a_call_is_in_flight_and_leave_together_in_order() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        for number in range(1, 5):
            peers.transport.send(1, data(number))
        await settled()
        assert peers.calls == [(1, DATA, [0])]
        await peers.answer()
        assert peers.calls == [(1, DATA, [0]), (1, DATA, [1, 2, 3, 4])]

    run(test())


def test_what_one_input_sends_to_a_peer_is_one_frame() -> None:
    async def test() -> None:
        peers = FakePeers()
        for number in range(3):
            peers.transport.send(1, data(number))
        await settled()
        assert peers.calls == [(1, DATA, [0, 1, 2])]

    run(test())


def test_a_blocked_data_path_holds_up_neither_control_nor_other_peers() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        peers.transport.send(1, data(1))
        peers.transport.send(1, control(2))
        peers.transport.send(2, data(3))
        await settled()
        assert peers.calls == [(1, DATA, [0]), (1, CONTROL, [2]), (2, DATA, [3])]

    run(test())


def test_a_frame_to_a_dead_peer_is_dropped_and_not_repeated() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        peers.transport.send(1, data(1))
        await peers.answer(PeerGoneError("dead"))
        assert peers.calls == [(1, DATA, [0]), (1, DATA, [1])]
        assert peers.failures == []

    run(test())


def test_any_other_error_is_reported() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        await peers.answer(CodecError("bad"))
        assert [str(failure) for failure in peers.failures] == ["bad"]

    run(test())


def test_a_cut_is_one_way_drops_what_waits_and_heals() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        peers.transport.send(1, data(1))
        peers.transport.cut(to=[1], sources=[2])
        peers.transport.send(1, data(2))
        assert peers.transport.hears(1)
        assert not peers.transport.hears(2)
        await peers.answer()
        assert peers.calls == [(1, DATA, [0])]
        peers.transport.cut(to=[], sources=[])
        peers.transport.send(1, data(3))
        await settled()
        assert peers.calls == [(1, DATA, [0]), (1, DATA, [3])]
        assert peers.transport.hears(2)

    run(test())


def test_the_experiment_is_heard_through_any_cut() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.cut(to=[], sources=[DRIVER])
        assert peers.transport.hears(DRIVER)

    run(test())


def test_paused_nothing_leaves_and_nothing_is_lost() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.pause()
        peers.transport.send(1, data(0))
        await settled()
        assert peers.calls == []
        peers.transport.send(1, data(1))
        peers.transport.resume()
        await settled()
        assert peers.calls == [(1, DATA, [0, 1])]

    run(test())


def test_closed_nothing_leaves_any_more() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        peers.transport.close()
        peers.transport.send(1, data(1))
        await settled()
        assert peers.calls == []

    run(test())


def test_a_full_channel_drops_what_comes_newly_and_takes_again_when_it_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        for number in range(1, 6):
            peers.transport.send(1, data(number, "t" * 300))
        await peers.answer()
        assert peers.calls[1:] == [(1, DATA, [1, 2])]
        peers.transport.send(1, data(9))
        await peers.answer()
        assert peers.calls[2:] == [(1, DATA, [9])]

    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 800)
    run(test())


def test_a_frame_has_a_size_and_one_message_always_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        peers = FakePeers()
        for number in range(4):
            peers.transport.send(1, data(number, "t" * (900 if number == 0 else 300)))
        for _ in range(3):
            await settled()
            await peers.answer()
        assert [numbers for _, _, numbers in peers.calls] == [[0], [1, 2], [3]]

    monkeypatch.setattr(module, "MAX_FRAME_BYTES", 800)
    run(test())


def test_settle_waits_for_what_is_queued() -> None:
    async def test() -> None:
        peers = FakePeers()
        peers.transport.send(1, data(0))
        await settled()
        peers.transport.send(1, data(1))
        waiting = asyncio.create_task(peers.transport.settle(60))
        await settled()
        await peers.answer()
        assert not waiting.done()
        await peers.answer()
        assert waiting.done()

    run(test())


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x01", b"\x91\x01", pack_frame([b"junk"])])
def test_bytes_that_are_no_frame_give_no_message_and_one_error(frame: bytes) -> None:
    errors: list[CodecError] = []
    assert unpack_frame(frame, errors.append) == []
    assert len(errors) == 1


def test_what_is_no_message_does_not_take_the_rest_of_its_frame_with_it() -> None:
    errors: list[CodecError] = []
    damaged = bytearray(encode(data(1)))
    damaged[-1] ^= 1
    assert unpack_frame(pack_frame([encode(data(0)), bytes(damaged), encode(data(2))]), errors.append) == [
        data(0),
        data(2),
    ]
    assert len(errors) == 1
