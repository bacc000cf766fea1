"""The messages in flight between nodes: each content of a channel is stored once and has a number."""

from __future__ import annotations


class Channels:
    """Contents of channels by number; 0 is the empty channel."""

    def __init__(self) -> None:
        self._contents: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._longer: dict[tuple[int, int], int] = {}
        self._shorter: dict[int, tuple[int, int]] = {}

    def with_last(self, number: int, message: int) -> int:
        """The number of this content and one more message."""
        key = (number, message)
        found = self._longer.get(key)
        if found is None:
            found = self._longer[key] = self.number((*self._contents[number], message))
        return found

    def first_of(self, number: int) -> tuple[int, int]:
        """The first message of this content, which must not be empty, and the number of what follows it."""
        found = self._shorter.get(number)
        if found is None:
            content = self._contents[number]
            found = self._shorter[number] = content[0], self.number(content[1:])
        return found

    def __getitem__(self, number: int) -> tuple[int, ...]:
        return self._contents[number]

    def number(self, content: tuple[int, ...]) -> int:
        found = self._numbers.get(content)
        if found is None:
            found = self._numbers[content] = len(self._contents)
            self._contents.append(content)
        return found
