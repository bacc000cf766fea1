"""Placements by rule: hand-computed copysets, racks, and the probability that failed brokers hit a replica set."""

from __future__ import annotations

from itertools import combinations

import pytest

from experiments.studies.layouts.rules import RULES, PlacedTopic, place

NINE = tuple(range(9))
THREE_ZONES = {broker: "abc"[broker % 3] for broker in NINE}


@pytest.mark.parametrize("racks", [{}, THREE_ZONES], ids=["no racks", "three racks"])
@pytest.mark.parametrize(("scatter_width", "sets"), [(2, 3), (4, 6)])
def test_copysets_of_nine_brokers(scatter_width: int, sets: int, racks: dict[int, str]) -> None:
    """By hand (Cidon et al., section 4): 9 brokers and R = 3. S = 2 is one permutation, cut into 9 / 3 = 3 sets, which
    have no broker in common: each broker has 2 partners. S = 4 is two permutations and 6 sets, so that each broker is
    in 2 sets and has 4 partners, as no two sets share two brokers. Three brokers that are down
    at once hit a set with the probability sets / C(9, 3) = 3 / 84 and 6 / 84.
    """
    layout = place("copysets", NINE, racks, [PlacedTopic("t", 60, 3)], 7, scatter_width)
    found = layout.replica_sets()
    per_broker = [sum(broker in members for members in found) for broker in NINE]
    assert (len(found), set(per_broker)) == (sets, {sets // 3})
    assert set(layout.scatter_widths().values()) == {scatter_width}
    hits = [any(members <= set(down) for members in found) for down in combinations(NINE, 3)]
    assert (sum(hits), len(hits)) == (sets, 84)
    leaders = [replicas[0] for replicas in layout.topics[0].replicas]
    assert all(5 <= leaders.count(broker) <= 8 for broker in NINE)


@pytest.mark.parametrize("seed", range(8))
def test_permutations_that_repeat_pairs_are_drawn_again(seed: int) -> None:
    """By hand: of 4 brokers 2 replicas each, scatter width 3 is every pair: 3 permutations, each cut into 2 sets, have
    the 6 pairs only if no set comes twice; of three permutations drawn once each that holds with probability 2 / 9. Of
    9 brokers and 3 replicas, 12 sets in which each pair is once (the lines of the affine plane of order 3) are 4
    permutations; where the first ones admit no such fourth, further sets give all the 8 partners."""
    pairs = place("copysets", NINE[:4], {}, [PlacedTopic("t", 60, 2)], seed, 3).replica_sets()
    assert pairs == {frozenset(pair) for pair in combinations(NINE[:4], 2)}
    layout = place("copysets", NINE, {}, [PlacedTopic("t", 60, 3)], seed, 8)
    assert set(layout.scatter_widths().values()) == {8}
    assert 12 <= len(layout.replica_sets()) <= 18


def test_a_rest_of_a_permutation_is_taken_first_in_the_next_and_gets_sets_until_its_width_is_reached() -> None:
    """8 brokers, R = 3, S = 4: two permutations have 2 sets each and a rest of 2, with which the second one begins. The
    4 sets give 4 x 3 x 2 = 24 partners, and 8 brokers with 4 each need 32: 2 sets more at least."""
    layout = place("copysets", NINE[:8], {}, [PlacedTopic("t", 40, 3)], 1, 4)
    assert min(layout.scatter_widths().values()) == 4
    assert 6 <= len(layout.replica_sets()) <= 8
    assert min(place("copysets", NINE[:7], {}, [PlacedTopic("t", 40, 3)], 1, 2).scatter_widths().values()) == 2


@pytest.mark.parametrize(("racks", "most"), [({}, 8), (THREE_ZONES, 6)], ids=["no racks", "three racks"])
def test_a_scatter_width_is_at_most_the_number_of_brokers_that_may_share_a_partition(
    racks: dict[int, str], most: int
) -> None:
    topics = [PlacedTopic("t", 60, 3)]
    assert set(place("copysets", NINE, racks, topics, 0, most).scatter_widths().values()) == {most}
    with pytest.raises(ValueError, match=f"scatter_width {most + 1} with 3 replicas: allowed: at most {most}"):
        place("copysets", NINE, racks, topics, 0, most + 1)
    assert set(place("copysets", NINE[:3], {}, topics, 0).scatter_widths().values()) == {2}, "the default fits"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_racks_and_the_seed(rule: str) -> None:
    topics = [PlacedTopic("a", 30, 3, 2), PlacedTopic("b", 7, 2)]
    layout = place(rule, NINE, THREE_ZONES, topics, 3)
    assert layout == place(rule, NINE, THREE_ZONES, topics, 3) != place(rule, NINE, THREE_ZONES, topics, 4)
    assert [(len(topic.replicas), topic.min_insync_replicas) for topic in layout.topics] == [(30, 2), (7, None)]
    for topic, factor in zip(layout.topics, (3, 2), strict=True):
        assert {len({THREE_ZONES[broker] for broker in replicas}) for replicas in topic.replicas} == {factor}


def test_racks_that_are_too_few_are_shared() -> None:
    layout = place("random", NINE, dict.fromkeys(NINE, "a"), [PlacedTopic("t", 5, 3)], 0)
    assert {len(set(replicas)) for replicas in layout.topics[0].replicas} == {3}


def test_another_rule_and_too_many_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: rack-aware, random, copysets"):
        place("round", NINE, {}, [], 0)
    with pytest.raises(ValueError, match="topic 't': allowed: a replication factor from 1 to 9"):
        place("random", NINE, {}, [PlacedTopic("t", 1, 10)], 0)
