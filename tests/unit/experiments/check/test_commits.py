"""What committed offsets of groups may be: each finding by hand, in a history and through its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.check.history import (
    Committed,
    FinalPartition,
    Finding,
    Invoked,
    OffsetShown,
    Operation,
    RecordRange,
    WrongCommit,
    judge,
)
from experiments.check.recording import HistoryReader, HistoryWriter
from protocol.ids import NO_OFFSET, TopicPartition

T0 = TopicPartition("t", 0)
FINAL = FinalPartition(T0, 0, {0: [RecordRange(0, 0, 1, 0, 9)]})
SENT = Invoked(1, 0, T0, 9)


def commit(offset: int, result: str = "acknowledged") -> list[Operation]:
    """A commit with its outcome; `sent` for none yet."""
    sent = Committed("g", T0, offset, "sent")
    return [sent] if result == "sent" else [sent, sent._replace(result=result)]  # type: ignore[arg-type]


def shown(offset: int, group: str = "g") -> OffsetShown:
    return OffsetShown(group, T0, offset)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([*commit(3), shown(3), *commit(5), shown(5)], ""),
        ([shown(NO_OFFSET)], ""),
        ([*commit(3, "sent"), shown(NO_OFFSET)], ""),
        ([*commit(3, "unknown"), *commit(5), shown(3)], ""),
        ([*commit(3), *commit(5, "sent"), shown(3)], ""),
        ([*commit(3), *commit(5, "sent"), shown(5)], ""),
        ([*commit(3), shown(NO_OFFSET)], "although the commit of 3 was acknowledged before"),
        ([*commit(3), *commit(5), shown(3)], "although the commit of 5 was acknowledged before"),
        ([*commit(3), shown(4)], "which no member has committed"),
        ([*commit(3), shown(3, "h")], "which no member has committed"),
        ([*commit(10), shown(10)], "beyond the end of the log, 9"),
    ],
)
def test_a_committed_offset_is_the_last_acknowledged_one_or_one_of_unknown_outcome(
    history: list[Operation], reason: str, tmp_path: Path
) -> None:
    """The log has nine records, so its end is offset 9."""
    writer = HistoryWriter(tmp_path / "history.jsonl")
    for operation in (SENT, *history):
        writer.write(operation)
    writer.close()
    read = list(HistoryReader(tmp_path / "history.jsonl"))
    assert read == [SENT, *history]
    found: list[Finding] = [it for it in judge(read, [FINAL]) if isinstance(it, WrongCommit)]
    last = history[-1]
    assert isinstance(last, OffsetShown)
    assert found == ([WrongCommit(T0, last.group, last.offset, reason)] if reason else [])
    assert all(it.text == f"t-0: group {last.group} has committed offset {last.offset}, {reason}" for it in found)
