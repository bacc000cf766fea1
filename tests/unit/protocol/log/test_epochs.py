"""The leader epoch cache: the same whether it follows appends or begins with the entries of a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import Epoch, Offset
from protocol.log.epochs import LeaderEpochCache

ENTRIES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), unique_by=(lambda x: x[0], lambda x: x[1])).map(
    lambda pairs: list(zip(sorted(epoch for epoch, _ in pairs), sorted(start for _, start in pairs), strict=True))
)


@given(ENTRIES, st.integers(0, 200), st.integers(-1, 51))
def test_a_cache_that_begins_with_entries_is_one_that_was_assigned_them(
    entries: list[tuple[Epoch, Offset]], offset: Offset, epoch: Epoch
) -> None:
    opened, followed = LeaderEpochCache(entries), LeaderEpochCache()
    for number, start in entries:
        followed.assign(number, start)
    assert opened.entries() == followed.entries() == entries
    assert opened.end_offset_for(epoch, 300) == followed.end_offset_for(epoch, 300)
    for cache in (opened, followed):
        cache.truncate(offset)
        cache.assign(60, offset)
    assert opened.entries() == followed.entries()


def test_a_cache_does_not_change_the_entries_that_it_begins_with() -> None:
    entries = [(1, 0), (2, 5)]
    LeaderEpochCache(entries).truncate(5)
    assert entries == [(1, 0), (2, 5)]
