"""The client's consumer, whatever the leader answers. Examples: `testdata/client/consumer.txt`."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.broker.reads import read
from protocol.client.context import WATCH_PREFIX
from protocol.errors import ErrorCode
from protocol.ids import DRIVER
from protocol.log.checksum import Checksum, checksum_of
from protocol.log.replica_log import ReplicaLog
from protocol.messages.base import changed
from protocol.messages.commands import ConsumeCommand, ConsumeOutcome
from protocol.messages.data import (
    EARLIEST,
    LATEST,
    ConsumeRequest,
    ConsumeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.unit.protocol.client.client_helpers import ClientBench
from tests.unit.protocol.node_helpers import batch

NONE = ErrorCode.NONE
OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


def log_of(*epochs: int, start: int = 0, committed: int | None = None) -> ReplicaLog:
    """Batches of one record each in these leader epochs, the first at `start`; `committed` is the high watermark."""
    log = ReplicaLog(SimLog())
    if start:
        log.reset(start)
    for epoch in epochs:
        log.append_as_leader(batch(), epoch)
    log.advance_high_watermark(log.end_offset if committed is None else committed)
    return log


class Reader(ClientBench):
    """A client with one read of `t-0` in progress, and the leader's log."""

    def __init__(self, log: ReplicaLog, leader: int = 0, checksum: Checksum | None = None, **fields: object) -> None:
        super().__init__(checksum=checksum)
        self.leader = leader
        self.log = log
        self.asked: list[ConsumeRequest] = []
        stands: dict[str, object] = {"command_id": 1, "topic": "t", "partition": 0}
        self.receive(DRIVER, ConsumeCommand(**(stands | fields)))

    def serve(self, steps: int = 1, max_bytes: int = 1) -> Reader:
        """The leader answers the last request, one batch at a time, `steps` times."""
        for _ in range(steps):
            for request in self.messages(ListOffsetsRequest):
                offset = self.log.high_watermark
                self.receive(0, ListOffsetsResponse(correlation_id=request.correlation_id, offset=offset))
            for fetch in self.messages(ConsumeRequest):
                self.asked.append(fetch)
                self.receive(0, read(self.log, fetch, max_bytes))
        return self

    def outcome(self) -> ConsumeOutcome:
        [found] = self.outcomes
        assert isinstance(found, ConsumeOutcome)
        assert self.is_at_rest()
        return found

    def offsets(self) -> list[int]:
        return [item.base_offset for item in self.outcome().batches]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["serve", "serve", "lose", "move", "append", "delete"]), max_size=30),
    st.sampled_from([EARLIEST, LATEST, 0, 2, 3]),
)
def test_each_offset_is_read_once_and_in_order(events: list[str], offset: int) -> None:
    reader = Reader(log_of(0, 0, 0), offset=offset)
    for event in events:
        if reader.outcomes:
            break
        if event == "serve":
            reader.serve()
        elif event == "lose":
            reader.fire(WATCH_PREFIX)
        elif event == "move":
            reader.leader_epoch += 1
            for fetch in reader.messages(ConsumeRequest):
                refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
                reader.receive(0, ConsumeResponse(correlation_id=fetch.correlation_id, error=refused))
        elif event == "append":
            reader.log.append_as_leader(batch(), reader.leader_epoch)
            reader.log.advance_high_watermark(reader.log.end_offset)
        else:
            reader.log.storage.roll()
            reader.log.delete_segments_before(reader.log.end_offset - 1)
    for _ in range(20):
        reader.serve(10, 100)
        if reader.outcomes:
            break
        reader.fire(WATCH_PREFIX)
    outcome = reader.outcome()
    seen = reader.offsets()
    assert seen == list(range(seen[0], seen[0] + len(seen))) if seen else True
    assert outcome.error in (NONE, OUT_OF_RANGE)
    if outcome.error is NONE and seen:
        assert outcome.next_offset == seen[-1] + 1 <= reader.log.high_watermark
        assert offset in (EARLIEST, LATEST, seen[0])


def test_a_batch_that_was_damaged_on_its_way_is_read_again() -> None:
    sealed = [changed(item, crc=checksum_of(item, crc32)) for item in (batch(), batch())]
    log = ReplicaLog(SimLog())
    for item in sealed:
        log.append_as_leader(item, 0)
    log.advance_high_watermark(2)
    reader = Reader(log, offset=EARLIEST, checksum=crc32)
    [fetch] = reader.messages(ConsumeRequest)
    whole = read(log, fetch, 1_000)
    damaged = (whole.batches[0], changed(whole.batches[1], payload=b"damaged"))
    reader.receive(0, changed(whole, batches=damaged))
    assert reader.outcomes == []
    reader.fire(WATCH_PREFIX)
    reader.serve(2, 1_000)
    assert reader.outcome().error is NONE
    assert reader.outcome().batches == whole.batches
