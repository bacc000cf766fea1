"""The leader-epoch cache of a log (KIP-101, KIP-279): where each leader epoch begins.

The cache answers the one question of truncation: "of the records up to leader epoch E, where do mine end?" Two logs
that agree on an epoch and its end agree on everything before it (log matching), so a follower that is told where the
leader's part of their last common epoch ends knows what to drop.
"""

from __future__ import annotations

from bisect import bisect_right

from protocol.ids import NO_EPOCH, Epoch, Offset


class LeaderEpochCache:
    """Epochs and their start offsets, both strictly rising."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[Epoch] = []
        self._starts: list[Offset] = []

    @property
    def latest_epoch(self) -> Epoch:
        """The epoch of the last record, -1 on an empty log."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def entries(self) -> list[tuple[Epoch, Offset]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: Epoch, start_offset: Offset) -> None:
        """Notes that records of `epoch` begin at `start_offset`, unless the epoch is known. An epoch that began there
        too has no records.
        """
        if epoch > self.latest_epoch:
            self.truncate(start_offset)
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    def end_offset_for(self, epoch: Epoch, log_end: Offset) -> tuple[Epoch, Offset]:
        """The largest epoch here that is <= `epoch`, and the offset behind its last record; (-1, 0) if there is
        none.
        """
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            return NO_EPOCH, 0
        end = self._starts[index] if index < len(self._starts) else log_end
        return self._epochs[index - 1], end

    def forget_before(self, start_offset: Offset) -> None:
        """Forgets the epochs that end at or below `start_offset`; the last one that begins there or earlier begins at
        `start_offset` from then on.
        """
        index = bisect_right(self._starts, start_offset)
        if index:
            del self._starts[: index - 1], self._epochs[: index - 1]
            self._starts[0] = start_offset

    def clear(self) -> None:
        """Forgets all."""
        self._epochs.clear()
        self._starts.clear()

    def truncate(self, end_offset: Offset) -> None:
        """Forgets the epochs that begin at or behind `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
