"""The messages in flight between nodes: each content of a channel is stored once and has a number."""

from __future__ import annotations

from functools import cache


class Channels:
    """Contents of channels by number; 0 is the empty channel."""

    def __init__(self) -> None:
        self._contents: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self.with_last = cache(self._with_last)
        self.first_of = cache(self._first_of)

    def _with_last(self, number: int, message: int) -> int:
        """The number of this content and one more message."""
        return self.number((*self._contents[number], message))

    def _first_of(self, number: int) -> tuple[int, int]:
        """The first message of this content, which must not be empty, and the number of what follows it."""
        message, *left = self._contents[number]
        return message, self.number(tuple(left))

    def __getitem__(self, number: int) -> tuple[int, ...]:
        return self._contents[number]

    def number(self, content: tuple[int, ...]) -> int:
        """The number of a content."""
        number = self._numbers.setdefault(content, len(self._contents))
        if number == len(self._contents):
            self._contents.append(content)
        return number
