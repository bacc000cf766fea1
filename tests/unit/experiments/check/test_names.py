"""Names of records in the recording of a cluster of one's own: which send a batch in a log belongs to."""

from __future__ import annotations

from experiments.check.history import Ended, FinalPartition, Invoked, Operation, RecordRange, Seen, judge_and_count
from experiments.check.names import Names
from protocol.client.records import BY_DIGEST
from protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)
HELLO = 77


def batch(offset: int, digest: int = HELLO, epoch: int = 0, size: int = 1) -> RecordRange:
    return RecordRange(offset, epoch, BY_DIGEST - digest, 0, size)


def sent(send: int, offset: int | None, digest: int = HELLO) -> list[Operation]:
    result = Ended(send, 0, 1, "unknown") if offset is None else Ended(send, 0, 1, "acknowledged", offset)
    return [Invoked(send, 0, T0, 1, True, -1, digest), result]


def test_equal_batches_belong_to_the_sends_that_were_acknowledged_at_their_offsets() -> None:
    names = Names([*sent(1, 0), *sent(2, 1), *sent(3, None)])

    assert [names.run(T0, batch(offset)).send for offset in (1, 0, 2)] == [2, 1, 3]
    assert names.run(T0, batch(2)).send == 3, "the same batch has the same name again"
    assert names.run(T0, batch(3)) == batch(3), "one more of these was written by others"
    assert names.run(TopicPartition("t", 1), batch(0)) == batch(0)


def test_of_two_equal_sends_acknowledged_at_one_offset_the_first_is_lost() -> None:
    """The first was lost by an unclean election; the second was then appended at the same offset."""
    operations = [*sent(1, 0), *sent(2, 0)]
    names = Names(operations)
    final = names.final(FinalPartition(T0, 0, {0: [batch(0, epoch=2)]}))

    _, losses = judge_and_count(names.operations(operations), [final], others_write=True)

    assert losses.lost == {"all": 1}


def test_records_of_others_are_neither_strays_nor_copies_and_reads_of_them_are_compared() -> None:
    names = Names(sent(1, 0))
    final = names.final(FinalPartition(T0, 0, {0: [batch(0), batch(1, 5), batch(2, 5)]}))
    reads = [Seen(9, T0, (batch(1, 5),), 3), Seen(9, T0, (batch(2, 6),), 3)]

    findings, losses = judge_and_count(names.operations([*sent(1, 0), *reads]), [final], others_write=True)

    assert [type(found).__name__ for found in findings] == ["VanishedRead"]
    assert not losses.lost
