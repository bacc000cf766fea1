"""The messages in flight between nodes: each content of a channel is stored once and has a number."""

from __future__ import annotations


class Channels:
    """Contents of channels by number; 0 is the empty channel."""

    def __init__(self) -> None:
        self._contents: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def __getitem__(self, number: int) -> tuple[int, ...]:
        return self._contents[number]

    def number(self, content: tuple[int, ...]) -> int:
        found = self._numbers.get(content)
        if found is None:
            found = self._numbers[content] = len(self._contents)
            self._contents.append(content)
        return found
