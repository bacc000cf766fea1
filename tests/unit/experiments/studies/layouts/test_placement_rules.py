"""Placements by rule: hand-computed copysets, racks, and the probability that failed brokers hit a replica set."""

from __future__ import annotations

from itertools import combinations

import pytest

from experiments.studies.layouts.layout import TopicLayout, layout_of
from experiments.studies.layouts.rules import RULES, PlacedTopic, place, probability_of_a_hit

NINE = tuple(range(9))
THREE_ZONES = {broker: "abc"[broker % 3] for broker in NINE}


@pytest.mark.parametrize("racks", [{}, THREE_ZONES], ids=["no racks", "three racks"])
@pytest.mark.parametrize(("scatter_width", "sets"), [(2, 3), (4, 6)])
def test_copysets_of_nine_brokers(scatter_width: int, sets: int, racks: dict[int, str]) -> None:
    """By hand (Cidon et al., section 4): 9 brokers and R = 3. S = 2 is one permutation, cut into 9 / 3 = 3 sets, which
    have no broker in common: each broker has 2 partners. S = 4 is two permutations and 6 sets, so that each broker is
    in 2 sets and has at most 4 partners, and 4 each where no two sets share two brokers. Three brokers that are down
    at once hit a set with the probability sets / C(9, 3) = 3 / 84 and 6 / 84.
    """
    layout = place("copysets", NINE, racks, [PlacedTopic("t", 60, 3)], 7, scatter_width)
    found = layout.replica_sets()
    per_broker = [sum(broker in members for members in found) for broker in NINE]
    assert (len(found), set(per_broker)) == (sets, {sets // 3})
    assert all(2 <= width <= scatter_width for width in layout.scatter_widths().values())
    if scatter_width == 2:
        assert set(layout.scatter_widths().values()) == {2}
    hits = [any(members <= set(down) for members in found) for down in combinations(NINE, 3)]
    assert sum(hits) / 84 == probability_of_a_hit(layout, 3) == sets / 84
    leaders = [replicas[0] for replicas in layout.topics[0].replicas]
    assert all(5 <= leaders.count(broker) <= 8 for broker in NINE)


def test_a_rest_of_a_permutation_is_taken_first_in_the_next() -> None:
    """8 brokers, R = 3, two permutations: 2 sets each and a rest of 2, which the second permutation begins with."""
    layout = place("copysets", NINE[:8], {}, [PlacedTopic("t", 40, 3)], 1, 4)
    assert len(layout.replica_sets()) == 4
    assert {broker for members in layout.replica_sets() for broker in members} == set(range(8))


def test_the_probability_of_a_hit_by_more_failures_than_replicas() -> None:
    """By hand: 5 brokers, one set {0, 1} of two and C(5, 3) = 10 choices of three, of which the 3 with 0 and 1 hit."""
    layout = layout_of([TopicLayout("t", ((0, 1), (1, 0)))], range(5))
    assert (probability_of_a_hit(layout, 2), probability_of_a_hit(layout, 3)) == (1 / 10, 3 / 10)


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
