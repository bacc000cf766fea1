"""The comparison of a leader's log with what was acknowledged."""

from __future__ import annotations

import pytest

from experiments.studies.trials.processes.cluster import kept_records
from protocol.messages.batch import RecordBatch

ACKED = [(3, b"a"), (4, b"b"), (5, b"c")]


def log(*records: tuple[int, bytes]) -> list[RecordBatch]:
    return [RecordBatch(base_offset=offset, record_count=1, payload=payload) for offset, payload in records]


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ([(2, b"x"), *ACKED, (6, b"later")], 3),
        ([(2, b"x"), *ACKED[:2]], 2),
        ([(2, b"x"), (3, b"a"), (4, b"of another leader"), (5, b"too")], 1),
        ([(2, b"x")], 0),
        ([], 0),
        ([(5, b"c")], 3),
        ([(5, b"of another leader")], 2),
        ([(6, b"all acknowledged records were deleted by retention")], 3),
    ],
)
def test_records_are_kept_up_to_the_last_one_that_the_log_has(records: list[tuple[int, bytes]], kept: int) -> None:
    assert kept_records(ACKED, log(*records)) == kept
