"""The leader epoch cache of a log (KIP-101, KIP-279): where each leader epoch begins.

Truncation needs the end offset of the records up to a leader epoch. Two logs that agree on an epoch and its end offset
agree on everything before it (log matching), so a follower truncates to the end of the last epoch that it shares with
the leader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from protocol.ids import NO_EPOCH, Epoch, Offset


class LeaderEpochCache:
    """Epochs and their start offsets, both strictly increasing (Kafka's `LeaderEpochFileCache`); begins with `entries`,
    which are. `latest_epoch` is the epoch of the last record, -1 on an empty log.
    """

    __slots__ = ("_epochs", "_starts", "latest_epoch")

    def __init__(self, entries: Iterable[tuple[Epoch, Offset]] = ()) -> None:
        known = tuple(entries)
        self._epochs: list[Epoch] = [epoch for epoch, _ in known]
        self._starts: list[Offset] = [start for _, start in known]
        self.latest_epoch: Epoch = self._epochs[-1] if known else NO_EPOCH

    def entries(self) -> list[tuple[Epoch, Offset]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: Epoch, start_offset: Offset) -> None:
        """Records a newer `epoch` from `start_offset` on; removes those that begin there too, without records."""
        if epoch > self.latest_epoch:
            self.truncate(start_offset)
            self._epochs.append(epoch)
            self._starts.append(start_offset)
            self.latest_epoch = epoch

    def end_offset_for(self, epoch: Epoch, log_end: Offset) -> tuple[Epoch, Offset]:
        """The largest known epoch <= `epoch`, and the offset after its last record; (-1, 0) if there is none."""
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            return NO_EPOCH, 0
        end = self._starts[index] if index < len(self._starts) else log_end
        return self._epochs[index - 1], end

    def forget_before(self, start_offset: Offset) -> None:
        """Removes the epochs that end at or below `start_offset`, at which the first of the others then begins."""
        index = bisect_right(self._starts, start_offset)
        if index:
            del self._starts[: index - 1], self._epochs[: index - 1]
            self._starts[0] = start_offset

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
        self.latest_epoch = NO_EPOCH

    def truncate(self, end_offset: Offset) -> None:
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
        self.latest_epoch = self._epochs[-1] if self._epochs else NO_EPOCH
