"""The state to which a heartbeat moves a broker, a table of states and requests; and the order of requests."""

from __future__ import annotations

import itertools

import pytest

from protocol.controller.heartbeats import BrokerControlState, HeartbeatView, SendingOrder, next_control_state

S = BrokerControlState


def view(state: BrokerControlState, **fields: object) -> HeartbeatView:
    """A broker that is caught up, leads no partition and requests nothing; all brokers have applied offset 10."""
    defaults: dict[str, object] = {
        "want_fence": False,
        "want_shut_down": False,
        "has_applied_registration": True,
        "leads_partitions": False,
        "shutdown_offset": None,
        "lowest_active_offset": 10,
    }
    return HeartbeatView(state=state, **defaults | fields)  # type: ignore[arg-type]


CASES = {
    "fenced, ready": (view(S.FENCED), S.UNFENCED),
    "fenced, has not applied its registration": (view(S.FENCED, has_applied_registration=False), S.FENCED),
    "fenced, wants to stay so": (view(S.FENCED, want_fence=True), S.FENCED),
    "fenced, wants to go": (view(S.FENCED, want_shut_down=True), S.SHUTDOWN_NOW),
    "fenced, wants to go before it is ready": (
        view(S.FENCED, want_shut_down=True, want_fence=True, has_applied_registration=False),
        S.SHUTDOWN_NOW,
    ),
    "unfenced": (view(S.UNFENCED, leads_partitions=True), S.UNFENCED),
    "unfenced, wants to be fenced": (view(S.UNFENCED, want_fence=True, leads_partitions=True), S.FENCED),
    "unfenced, wants both": (view(S.UNFENCED, want_fence=True, want_shut_down=True), S.SHUTDOWN_NOW),
    "unfenced, wants to go, leads": (
        view(S.UNFENCED, want_shut_down=True, leads_partitions=True),
        S.CONTROLLED_SHUTDOWN,
    ),
    "unfenced, wants to go, leads nothing": (view(S.UNFENCED, want_shut_down=True), S.SHUTDOWN_NOW),
    "shutting down, still leads": (
        view(S.CONTROLLED_SHUTDOWN, leads_partitions=True, shutdown_offset=10),
        S.CONTROLLED_SHUTDOWN,
    ),
    "shutting down, others have not heard": (view(S.CONTROLLED_SHUTDOWN, shutdown_offset=11), S.CONTROLLED_SHUTDOWN),
    "shutting down, all have heard": (view(S.CONTROLLED_SHUTDOWN, shutdown_offset=10), S.SHUTDOWN_NOW),
    "shutting down since an unknown offset": (view(S.CONTROLLED_SHUTDOWN), S.CONTROLLED_SHUTDOWN),
    "ordered to shut down": (view(S.SHUTDOWN_NOW, leads_partitions=True), S.SHUTDOWN_NOW),
}


@pytest.mark.parametrize(("heartbeat", "expected"), CASES.values(), ids=CASES)
def test_next_control_state(heartbeat: HeartbeatView, expected: BrokerControlState) -> None:
    assert next_control_state(heartbeat) is expected


def all_views() -> list[HeartbeatView]:
    return [
        HeartbeatView(state, *flags, offset, 10)
        for state in S
        for flags in itertools.product([False, True], repeat=4)
        for offset in (None, 9, 10, 11)
    ]


def test_a_broker_is_unfenced_only_if_it_asks_and_has_applied_its_registration() -> None:
    for heartbeat in all_views():
        if heartbeat.state is S.FENCED and next_control_state(heartbeat) is S.UNFENCED:
            assert heartbeat.has_applied_registration
            assert not heartbeat.want_fence
            assert not heartbeat.want_shut_down


def test_a_broker_with_leaderships_may_not_shut_down() -> None:
    for heartbeat in all_views():
        serves = heartbeat.state is S.CONTROLLED_SHUTDOWN or (
            heartbeat.state is S.UNFENCED and not heartbeat.want_fence
        )
        if serves and heartbeat.leads_partitions:
            assert next_control_state(heartbeat) is not S.SHUTDOWN_NOW


def test_a_controlled_shutdown_does_not_return_to_unfenced() -> None:
    for heartbeat in all_views():
        if heartbeat.state in (S.CONTROLLED_SHUTDOWN, S.SHUTDOWN_NOW):
            assert next_control_state(heartbeat) in (S.CONTROLLED_SHUTDOWN, S.SHUTDOWN_NOW)


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
