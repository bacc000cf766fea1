"""`isray what-if` answers as the simulator does, topic by topic."""

from __future__ import annotations

from random import Random

import pytest

from experiments.studies.layouts.layout import Layout, TopicLayout, layout_of
from experiments.studies.whatif.answers import Question, Rules
from experiments.studies.whatif.failures import Failure
from protocol.config import ClusterConfig
from protocol.features import LOG_GENERATIONS, Generation
from tests.sim.what_if_scenarios import Found, asked


def drawn_layout(rng: Random, brokers: int, topics: int) -> Layout:
    """Topics of one partition with 1 to 3 replicas, and min ISR from 1 to their number."""
    found = []
    for number in range(topics):
        replicas = tuple(rng.sample(range(brokers), rng.choice((1, 2, 2, 3, 3, 3))))
        found.append(TopicLayout(f"t{number}", (replicas,), rng.randint(1, len(replicas))))
    return layout_of(found, range(brokers))


def answered(layout: Layout, generation: Generation, failure: Failure) -> dict[str, Found]:
    question = Question(layout, Rules(ClusterConfig.of(generation), 1))
    found = {answer.failed: answer.topics for answer in question.answers([failure])}
    return {
        topic.topic: Found(topic.writable == 1, topic.leaderless == 1, topic.losses) for topic in found[failure.brokers]
    }


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_singles_pairs_in_order_and_racks(generation: Generation) -> None:
    rng = Random(f"what-if {generation.value}")
    layout = drawn_layout(rng, brokers=3, topics=8)
    a, b, _ = rng.sample(layout.brokers, 3)
    for failure in (
        Failure("brokers", "", (a,)),
        Failure("brokers", "", (a, b)),
        Failure("rack", "", (b, a), at_once=True),
    ):
        expected = asked(layout, generation.value, failure.brokers, failure.at_once)
        assert answered(layout, generation, failure) == expected, failure
