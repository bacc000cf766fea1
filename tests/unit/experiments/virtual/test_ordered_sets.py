"""Sets in the order of insertion behave as Python's own in everything but their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from experiments.virtual.ordered_sets import OrderedFrozenSet, OrderedSet

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "minus": lambda a, b: a - b,
    "xor": lambda a, b: a ^ b,
    "union": lambda a, b: a.union(b, [9]),
    "intersection": lambda a, b: a.intersection(b, [1, 2]),
    "difference": lambda a, b: a.difference(b, [3]),
}
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a.add(7),
    "discard": lambda a, b: a.discard(3),
    "remove": lambda a, b: a.remove(3),
    "clear": lambda a, b: a.clear(),
    "update": lambda a, b: a.update(b, [8]),
    "difference_update": lambda a, b: a.difference_update(b),
    "intersection_update": lambda a, b: a.intersection_update(b),
    "ior": lambda a, b: a.__ior__(b),
    "isub": lambda a, b: a.__isub__(b),
    "iand": lambda a, b: a.__iand__(b),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_members_that_pythons_has(name: str) -> None:
    of = OPERATIONS[name]
    expected = of({3, 1, 2}, {2, 5})
    for a, b in (
        (OrderedSet([3, 1, 2]), OrderedSet([2, 5])),
        (OrderedSet([3, 1, 2]), {2, 5}),
        ({3, 1, 2}, OrderedSet([2, 5])),
    ):
        assert sorted(of(a, b)) == sorted(expected)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_leaves_the_members_that_pythons_leaves(name: str) -> None:
    ordered, python = OrderedSet([3, 1, 2]), {3, 1, 2}
    CHANGES[name](ordered, OrderedSet([2, 5]))
    CHANGES[name](python, {2, 5})
    assert ordered == python
    assert sorted(ordered) == sorted(python)
    assert len(ordered) == len([*ordered])


def test_members_are_in_the_order_of_insertion_and_texts_of_pythons_sets_are_sorted() -> None:
    assert [*OrderedSet(["b", "c", "a"])] == ["b", "c", "a"]
    assert [*(OrderedSet(["b", "a"]) | OrderedSet(["c", "b"]))] == ["b", "a", "c"]
    assert [*OrderedSet({"b", "c", "a"})] == ["a", "b", "c"]
    ordered = OrderedSet(["x", "y"])
    ordered.add("x")
    assert (ordered.pop(), [*ordered]) == ("y", ["x"])


def test_pythons_sets_are_instances_and_frozen_sets_have_the_hash_of_pythons() -> None:
    assert isinstance({1}, OrderedSet)
    assert isinstance(frozenset({1}), OrderedSet)
    assert not isinstance([1], OrderedSet)
    assert hash(OrderedFrozenSet(["a", "b"])) == hash(frozenset({"a", "b"}))
