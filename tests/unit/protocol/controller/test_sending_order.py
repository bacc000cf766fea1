"""The order in which a broker's requests are taken (protocol/controller/sending_order.py)."""

from __future__ import annotations

import pytest

from protocol.controller.sending_order import SendingOrder


@pytest.mark.parametrize(
    ("numbers", "taken"),
    [([1, 2, 3], [1, 2, 3]), ([0], [0]), ([1, 1, 2, 2, 1], [1, 2]), ([3, 1, 2, 4], [3, 4]), ([7, 9, 8], [7, 9])],
)
def test_a_request_is_taken_once_and_only_with_the_highest_number(numbers: list[int], taken: list[int]) -> None:
    order = SendingOrder()
    assert [number for number in numbers if order.takes(0, number)] == taken


def test_each_broker_and_each_incarnation_has_its_own_order() -> None:
    order = SendingOrder()
    assert order.takes(0, 5)
    assert order.takes(1, 5)
    order.forget(0)
    order.forget(7)
    assert (order.takes(0, 5), order.takes(1, 5)) == (True, False)
