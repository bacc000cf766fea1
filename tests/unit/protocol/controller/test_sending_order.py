"""In which order requests of a broker count (protocol/controller/sending_order.py)."""

from __future__ import annotations

import pytest

from protocol.controller.sending_order import SendingOrder


@pytest.mark.parametrize(
    ("numbers", "taken"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([0], [0]),
        ([1, 1, 2, 2, 1], [1, 2]),
        ([3, 1, 2, 4], [3, 4]),
        ([7, 9, 8], [7, 9]),
    ],
)
def test_a_number_counts_once_and_if_it_is_the_highest(numbers: list[int], taken: list[int]) -> None:
    order = SendingOrder()
    assert [number for number in numbers if order.takes(0, number)] == taken


def test_every_broker_has_an_order_of_its_own_and_every_life_begins_one() -> None:
    order = SendingOrder()
    assert order.takes(0, 5)
    assert order.takes(1, 5)
    order.forget(0)
    order.forget(7)
    assert (order.takes(0, 5), order.takes(1, 5)) == (True, False)
