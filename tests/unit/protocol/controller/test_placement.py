"""Placement of replicas: stripes over racks and brokers, and the rules that always hold."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.placement import UsableBroker, place, usable_brokers
from protocol.errors import ErrorCode, Refused
from protocol.messages.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from tests.unit.protocol.node_helpers import ControllerBench, registrations

SEEDS = st.integers(0, 2**32)
pytestmark = pytest.mark.covers("A6", "A19", "J19")


class Unshuffled(Random):
    """Every circle begins with its first member and stays in order."""

    def getrandbits(self, k: int) -> int:
        return 0

    def shuffle(self, x: object) -> None:
        return


def racks(*sizes: int, fenced: tuple[int, ...] = ()) -> list[UsableBroker]:
    """Brokers 10, 11, ... in rack 1, 20, 21, ... in rack 2, and so on."""
    ids = [10 * rack + index for rack, size in enumerate(sizes, 1) for index in range(size)]
    return [UsableBroker(broker, f"rack-{broker // 10}", broker in fenced) for broker in ids]


def brokers(*ids: int, fenced: tuple[int, ...] = ()) -> list[UsableBroker]:
    """Brokers without racks."""
    return [UsableBroker(broker, None, broker in fenced) for broker in ids]


@st.composite
def clusters(draw: st.DrawFn) -> list[UsableBroker]:
    """1 to 12 brokers in up to 5 racks (or in none), at least one of them active."""
    count = draw(st.integers(1, 12))
    names = st.sampled_from([None, "a", "b", "c", "d"])
    cluster = [UsableBroker(broker, draw(names), draw(st.booleans())) for broker in range(count)]
    alive = draw(st.integers(0, count - 1))
    cluster[alive] = UsableBroker(alive, cluster[alive].rack)
    return draw(st.permutations(cluster))


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[UsableBroker], int, list[tuple[int, ...]]]:
    """A cluster, a replication factor that it can serve, and what was placed."""
    cluster = draw(clusters())
    factor = draw(st.integers(1, len(cluster)))
    return cluster, factor, place(cluster, draw(st.integers(0, 40)), factor, Random(draw(SEEDS)))


@given(placements())
def test_a_broker_has_one_replica_of_a_partition_and_an_active_broker_leads(
    found: tuple[list[UsableBroker], int, list[tuple[int, ...]]],
) -> None:
    cluster, factor, placed = found
    active = {broker.broker_id for broker in cluster if not broker.fenced}
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= {broker.broker_id for broker in cluster}
        assert replicas[0] in active


@given(placements())
def test_no_rack_gets_a_second_replica_before_every_rack_has_one(
    found: tuple[list[UsableBroker], int, list[tuple[int, ...]]],
) -> None:
    cluster, factor, placed = found
    rack_of = {broker.broker_id: broker.rack for broker in cluster}
    rack_count = len(set(rack_of.values()))
    for replicas in placed:
        assert len({rack_of[broker] for broker in replicas[:rack_count]}) == min(factor, rack_count)


@given(placements())
def test_a_fenced_broker_is_taken_only_where_its_rack_has_no_active_one_left(
    found: tuple[list[UsableBroker], int, list[tuple[int, ...]]],
) -> None:
    cluster, _, placed = found
    by_id = {broker.broker_id: broker for broker in cluster}
    for replicas in placed:
        for position, replica in enumerate(replicas):
            if by_id[replica].fenced:
                mates = [b.broker_id for b in cluster if b.rack == by_id[replica].rack and not b.fenced]
                assert set(mates) <= set(replicas[:position])


@given(clusters(), SEEDS, st.data())
def test_equal_seeds_place_equally_whatever_the_order_of_brokers(
    cluster: list[UsableBroker], seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(cluster)))
    shuffled = data.draw(st.permutations(cluster))
    assert place(cluster, 20, factor, Random(seed)) == place(shuffled, 20, factor, Random(seed))


@given(st.integers(1, 9), st.integers(1, 8), SEEDS, st.data())
def test_without_racks_leaders_and_replicas_are_spread_evenly(
    count: int, rounds: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, count))
    placed = place(brokers(*range(count)), count * rounds, factor, Random(seed))
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(range(count), rounds)
    assert Counter(broker for replicas in placed for broker in replicas) == dict.fromkeys(range(count), rounds * factor)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3, 3), (2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_in_racks_of_one_size_leaders_are_balanced(sizes: tuple[int, ...], factor: int) -> None:
    per_broker = 400
    placed = place(racks(*sizes), per_broker * sum(sizes), factor, Random(1))
    leaders = Counter(replicas[0] for replicas in placed)
    assert len(leaders) == sum(sizes)
    assert all(abs(count - per_broker) < per_broker // 5 for count in leaders.values()), leaders


def test_two_followers_of_a_leader_are_not_always_the_same() -> None:
    pairs = Counter(place(brokers(0, 1, 2, 3), 400, 2, Random(1)))
    assert len(pairs) == 12, "all ordered pairs come up"
    assert max(pairs.values()) < 3 * min(pairs.values())


STRIPES = {
    "three racks": (racks(3, 3, 3), 3, [(10, 20, 30), (21, 31, 11), (32, 12, 22)]),
    "more replicas than racks": (racks(2, 2), 3, [(10, 20, 11), (21, 11, 20), (10, 20, 11)]),
    "fewer replicas than racks": (racks(2, 2, 2), 1, [(10,), (20,), (30,), (11,), (21,), (31,)]),
    "no racks": (brokers(0, 2, 3, 4), 3, [(0, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 2)]),
    "a fenced broker is not needed": (brokers(0, 1, 2, fenced=(1,)), 2, [(0, 2), (2, 0)]),
    "a fenced broker comes last": (brokers(1, 2, 3, fenced=(1,)), 3, [(2, 3, 1), (3, 2, 1)]),
    "one active broker": (brokers(0, 1, fenced=(1,)), 1, [(0,), (0,), (0,)]),
    "a rack without an active broker leads nothing": (racks(1, 1, 1, fenced=(20,)), 3, [(10, 20, 30), (30, 20, 10)]),
}


@pytest.mark.parametrize(("cluster", "factor", "expected"), STRIPES.values(), ids=STRIPES)
def test_stripes(cluster: list[UsableBroker], factor: int, expected: list[tuple[int, ...]]) -> None:
    assert place(cluster, len(expected), factor, Unshuffled()) == expected


IMPOSSIBLE = {
    "zero": (brokers(0, 1), 0, "not positive"),
    "negative": (brokers(0, 1), -2, "not positive"),
    "more than brokers": (brokers(0, 1), 3, "above the number of brokers, 2"),
    "all fenced": (brokers(0, 1, fenced=(0, 1)), 1, "all brokers are fenced"),
    "all fenced, and too few": (brokers(0, fenced=(0,)), 2, "all brokers are fenced"),
    "no brokers": ([], 1, "all brokers are fenced"),
}


@pytest.mark.parametrize(("cluster", "factor", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_invalid_replication_factor_is_refused(cluster: list[UsableBroker], factor: int, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        place(cluster, 1, factor, Random(0))
    assert caught.value.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_broker_that_shuts_down_is_not_usable_until_it_is_fenced() -> None:
    bench = ControllerBench(*registrations((0, 1), fenced=(1,)))
    bench.apply([RegisterBrokerRecord(broker_id=2, broker_epoch=9, incarnation_id="i", rack="r")])
    leaving = BrokerRegistrationChangeRecord(broker_id=0, broker_epoch=0, in_controlled_shutdown=True)
    bench.apply([leaving])
    rest = [UsableBroker(1, None, fenced=True), UsableBroker(2, "r", fenced=True)]
    assert usable_brokers(bench.state.image) == rest
    bench.apply([BrokerRegistrationChangeRecord(broker_id=0, broker_epoch=0, fenced=True)])
    assert usable_brokers(bench.state.image) == [UsableBroker(0, None, fenced=True), *rest]
