"""Simulated logs: the leader epochs and sizes that a log keeps are those of its batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.contract import BATCH_OVERHEAD_BYTES, SegmentInfo
from protocol.ids import Epoch, Offset
from protocol.messages.batch import RecordBatch

OPERATIONS = st.tuples(
    st.sampled_from(("append", "append", "next epoch", "truncate", "roll", "delete", "reset")), st.integers(0, 12)
)


def epochs_of(log: SimLog, last: Epoch) -> list[tuple[Epoch, Offset]]:
    """Where the epochs of the batches begin; for a log of which deletion has left nothing, its last epoch."""
    found: dict[Epoch, Offset] = {}
    for batch in log.read(log.start_offset, 2**62):
        found.setdefault(batch.leader_epoch, batch.base_offset)
    return list(found.items()) or ([(last, log.start_offset)] if last >= 0 else [])


def newest_of(log: SimLog, segment: SegmentInfo) -> int:
    """The largest timestamp of the segment's batches, -1 without one."""
    batches = log.read(segment.base_offset, 2**62) if segment.end_offset > segment.base_offset else ()
    return max((batch.timestamp_ms for batch in batches if batch.base_offset < segment.end_offset), default=-1)


@given(st.lists(OPERATIONS, max_size=40))
def test_epochs_are_those_of_the_batches_whatever_was_truncated_or_deleted(operations: list[tuple[str, int]]) -> None:
    log, epoch, deleted = SimLog(), 0, -1
    for operation, number in operations:
        before = log.read(log.start_offset, 2**62)
        if operation == "append":
            log.append(
                RecordBatch(
                    base_offset=log.end_offset, leader_epoch=epoch, record_count=2, payload=b"p", timestamp_ms=number
                )
            )
        elif operation == "next epoch":
            epoch += 1
        elif operation == "truncate":
            log.truncate(max(log.start_offset, log.end_offset - number))
            deleted = deleted if log.end_offset > log.start_offset or not before else -1
        elif operation == "roll":
            log.roll()
        elif operation == "delete":
            log.delete_segments_before(log.start_offset + number)
            kept = log.read(log.start_offset, 2**62)
            deleted = before[-1].leader_epoch if before and not kept else deleted
        else:
            log.reset(number)
            deleted = -1
        assert list(log.epoch_starts()) == epochs_of(log, deleted)
        assert sum(segment.size_bytes for segment in log.segments()) == sum(
            BATCH_OVERHEAD_BYTES + len(batch.payload) for batch in log.read(log.start_offset, 2**62)
        )
        assert [segment.newest_ms for segment in log.segments()] == [
            newest_of(log, segment) for segment in log.segments()
        ]
