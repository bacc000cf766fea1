"""The garbage of a node's process: collected while the node has nothing to do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest

from actors import garbage


class Cycle:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize(
    ("is_idle", "is_halted", "many", "is_freed"),
    [(True, False, 1, True), (False, False, 1, False), (True, True, 1, False), (True, False, 10**9, False)],
    ids=["idle", "busy", "halted", "few-objects"],
)
def test_garbage_is_collected_when_much_was_made_and_no_input_waits(
    is_idle: bool, is_halted: bool, many: int, is_freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MANY_OBJECTS", many)
    host = SimpleNamespace(is_idle=is_idle, is_halted=is_halted)

    async def run() -> bool:
        gc.disable()
        try:
            kept, made = [[] for _ in range(10)], weakref.ref(Cycle())
            garbage.collect_when_idle(host)  # type: ignore[arg-type]
            return made() is None and len(kept) == 10
        finally:
            gc.enable()

    assert asyncio.run(run()) == is_freed


def test_all_objects_are_walked_after_many_collections_of_the_young_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []
    monkeypatch.setattr(gc, "collect", walked.append)

    async def run() -> None:
        host = SimpleNamespace(is_idle=True, is_halted=False)
        for collections in (garbage.OLD_AFTER - 1, garbage.OLD_AFTER):
            monkeypatch.setattr(gc, "get_count", lambda found=collections: (garbage.MANY_OBJECTS, found, 0))
            garbage.collect_when_idle(host)  # type: ignore[arg-type]

    asyncio.run(run())
    assert walked == [0, 2]
