"""Sets that iterate in the order of insertion.

The order of Python's sets of texts depends on PYTHONHASHSEED, and with it what a library does first when it iterates
over topics, partitions or brokers. While a run lasts, the names `set` and `frozenset` in the modules of the library
mean these classes. Sets written as displays or comprehensions, and sets of the application's own modules, are Python's.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import Any

_HASHED_BY_SEED = (str, bytes, tuple)


class _AnySet(type):
    """`isinstance(x, set)` is true for Python's own sets as well."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, builtins.set | builtins.frozenset)


class OrderedSet(builtins.set[Any], metaclass=_AnySet):
    """A set in the order of insertion. From one of Python's sets of texts or tuples it takes their sorted order."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__()
        self._order: dict[Any, None] = dict.fromkeys(_ordered(items))
        super().update(self._order)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order)

    def add(self, item: Any) -> None:
        self._order[item] = None
        super().add(item)

    def discard(self, item: Any) -> None:
        self._order.pop(item, None)
        super().discard(item)

    def remove(self, item: Any) -> None:
        del self._order[item]
        super().remove(item)

    def pop(self) -> Any:
        item, _ = self._order.popitem()
        super().remove(item)
        return item

    def clear(self) -> None:
        self._order.clear()
        super().clear()

    def copy(self) -> Any:
        return type(self)(self)

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            for item in _ordered(other):
                self.add(item)

    def difference_update(self, *others: Iterable[Any]) -> None:
        for other in others:
            for item in [*other]:
                self.discard(item)

    def intersection_update(self, *others: Iterable[Any]) -> None:
        self.difference_update(self.difference(self.intersection(*others)))

    def union(self, *others: Iterable[Any]) -> Any:
        result = self.copy()
        OrderedSet.update(result, *others)
        return result

    def difference(self, *others: Iterable[Any]) -> Any:
        gone = builtins.set().union(*others)
        return type(self)([item for item in self if item not in gone])

    def intersection(self, *others: Iterable[Any]) -> Any:
        kept = [builtins.set(other) for other in others]
        return type(self)([item for item in self if all(item in other for other in kept)])

    def symmetric_difference(self, other: Iterable[Any]) -> Any:
        items = OrderedSet(other)
        return self.difference(items).union(items.difference(self))

    def __or__(self, other: Any) -> Any:
        return self.union(other)

    def __sub__(self, other: Any) -> Any:
        return self.difference(other)

    def __and__(self, other: Any) -> Any:
        return self.intersection(other)

    def __xor__(self, other: Any) -> Any:
        return self.symmetric_difference(other)

    def __ror__(self, other: Any) -> Any:
        return OrderedSet(other).union(self)

    def __rsub__(self, other: Any) -> Any:
        return OrderedSet(other).difference(self)

    def __rand__(self, other: Any) -> Any:
        return OrderedSet(other).intersection(self)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __isub__(self, other: Any) -> Any:
        self.difference_update(other)
        return self

    def __iand__(self, other: Any) -> Any:
        self.intersection_update(other)
        return self


class OrderedFrozenSet(OrderedSet):
    """What stands in the place of a frozen set; its hash is that of a frozen set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(builtins.frozenset(self))


def _ordered(items: Iterable[Any]) -> list[Any]:
    found = [*items]
    is_builtin = type(items) is builtins.set or type(items) is builtins.frozenset
    return sorted(found, key=repr) if is_builtin and all(isinstance(it, _HASHED_BY_SEED) for it in found) else found
