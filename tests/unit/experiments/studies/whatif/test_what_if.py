"""What if: cases by hand, each with its derivation, and the command."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import pytest

from experiments.studies.layouts.describe import parse_describe
from experiments.studies.layouts.layout import Described, Layout, TopicLayout, layout_of
from experiments.studies.whatif.answers import Answer, Question, Rules, TopicAnswer
from experiments.studies.whatif.failures import failures_of
from experiments.studies.whatif.page import write_page
from experiments.studies.whatif.summary import opening, sentences
from experiments.support.errors import InputError
from protocol.config import ClusterConfig
from protocol.features import LOG_GENERATIONS, Generation
from tests.unit.experiments.studies.layouts.describe_text import described, zones


def ask(layout: Layout, *specs: str, generation: str = "kip-966-elr", **options: bool) -> list[Answer]:
    rules = Rules(ClusterConfig.of(Generation(generation)), 1, options.get("unclean", False))
    return list(Question(layout, rules).answers(failures_of(specs, layout, None)))


def topic(layout: Layout, *specs: str, generation: str = "kip-966-elr", **options: bool) -> TopicAnswer:
    [answer] = ask(layout, *specs, generation=generation, **options)
    [found] = answer.topics
    return found


THREE = layout_of([TopicLayout("t", ((0, 1, 2),), 2)], range(4), {0: "a", 1: "a", 2: "b", 3: "b"})
TWO = layout_of([TopicLayout("t", ((0, 1),), 1)])


@pytest.mark.parametrize("generation", [each.value for each in LOG_GENERATIONS])
def test_three_replicas_and_min_isr_2_by_hand(generation: str) -> None:
    """One broker down leaves 2 >= 2 in sync. Two down leave 1 < 2: writes are refused, the last one leads and holds
    everything. All three down: there is no leader. Records are lost with one page cache, that of the last to fail,
    where it is elected again without the logs of others being compared: before ELR, since it is still the ISR; in
    Kafka's first phase, since 1 returns unclean, which empties the ELR, and the last known leader is elected. With
    unclean recovery the longest log of all leads: that of 1, unless it has lost its page cache, too.
    """
    assert topic(THREE, "broker:0", generation=generation) == TopicAnswer("t", 1, 1, 0, 0, None)
    assert topic(THREE, "broker:3", generation=generation) == TopicAnswer("t", 1, 1, 0, 0, None)
    assert topic(THREE, "broker:0,1", generation=generation) == TopicAnswer("t", 1, 0, 0, 0, None)
    assert topic(THREE, "rack:a", generation=generation) == TopicAnswer("t", 1, 0, 0, 0, None)
    losses = {"kip-497": 1, "kip-966-elr": 1, "kip-966": 2}[generation]
    assert topic(THREE, "broker:0,1,2", generation=generation) == TopicAnswer("t", 1, 0, 1, 1, losses)


def test_two_replicas_and_min_isr_1_lose_with_the_last_page_cache() -> None:
    """After 0 fails, writes go to 1 alone; its page cache has the only copies."""
    assert topic(TWO, "broker:0,1") == TopicAnswer("t", 1, 0, 1, 1, 1)


def test_an_unclean_election_loses_without_the_loss_of_a_page_cache() -> None:
    """0 fails and 1 writes alone; 1 fails. The first to return is 0, without the records: elected only if unclean
    elections are enabled."""
    text = "Topic: t\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: unclean.leader.election.enable=true\n"
    text += "\tTopic: t\tPartition: 0\tLeader: 0\tReplicas: 0,1\tIsr: 0,1\n"
    enabled = layout_of(parse_describe(text, "t"))
    assert topic(enabled, "broker:0,1", generation="kip-497").losses == 0
    assert topic(TWO, "broker:0,1", generation="kip-497").losses == 1
    assert topic(TWO, "broker:0,1", generation="kip-497", unclean=True).losses == 0


def test_min_isr_above_the_replication_factor() -> None:
    """Before ELR writes are refused from the start; ELR limits min ISR to the number of replicas (E8)."""
    layout = layout_of([TopicLayout("t", ((0, 1),), 3)], range(3))
    assert topic(layout, "broker:2", generation="kip-497").writable == 0
    assert topic(layout, "broker:2").writable == 1


def test_it_begins_with_what_is_described() -> None:
    """Broker 2 leads nothing and is in no ISR: it is down. One more failure leaves one in sync, below min ISR 2."""
    states = (Described(0, (0, 1)), Described(1, (1,)))
    layout = layout_of([TopicLayout("t", ((0, 1, 2), (1, 2)), 2, states)])
    question = Question(layout, Rules(ClusterConfig.of(Generation.KIP_966_ELR), 1))
    assert (question.down, question.before().topics) == (frozenset({2}), (TopicAnswer("t", 2, 1, 0, 0, None),))
    assert topic(layout, "broker:0") == TopicAnswer("t", 2, 0, 0, 0, None)
    assert "broker 2 is down; before any failure writes are refused by 1 of 1 topic (t)" in opening(question)
    healthy = Question(layout, question.rules, is_healthy=True)
    assert healthy.before().topics == (TopicAnswer("t", 2, 2, 0, 0, None),)


def test_a_rolling_restart_moves_leaders_and_stops_what_has_no_spare() -> None:
    """Min ISR 2 of 2 refuses writes while either replica restarts; in sync again, it does not the step after."""
    layout = layout_of([TopicLayout("full", ((0, 1),), 2), TopicLayout("spare", ((0, 1, 2),), 2)])
    rules = Rules(ClusterConfig.of(Generation.KIP_966_ELR), 1)
    answers = list(Question(layout, rules).answers(failures_of(["rolling"], layout, "2,0,1")))
    assert [(answer.failed, answer.order) for answer in answers] == [((2,), (2,)), ((0,), (2, 0)), ((1,), (2, 0, 1))]
    assert [[each.topic for each in answer.stopped] for answer in answers] == [[], ["full"], ["full"]]
    assert not any(each.leaderless for answer in answers for each in answer.topics)


def test_a_pair_has_two_answers_only_where_the_order_matters() -> None:
    """A reassignment removes 1 and 2 of 0, 1, 2, which is complete with the next change of the partition. If 1 fails
    first, that change leaves 0 as the only replica, and its failure stops the partition. If 0 fails first, the final
    assignment is not in sync: the reassignment goes on, and 2 is left when 1 fails, too.
    """
    apart = layout_of([TopicLayout("t", ((0,), (1,)), 1)])
    [answer] = ask(apart, "any 2")
    assert (answer.failed, answer.order, answer.topics[0].leaderless) == ((0, 1), None, 2)
    moving = layout_of([TopicLayout("t", ((0, 1, 2),), 1, (Described(0, (0, 1, 2), removing=(1, 2)),))])
    found = {answer.order: answer.topics[0] for answer in ask(moving, "any 2", generation="kip-497")}
    assert found.keys() == {(0, 1), (1, 0), (0, 2), (2, 0), None}
    assert found[1, 0] == TopicAnswer("t", 1, 0, 1, 1, 1)
    assert found[0, 1] == TopicAnswer("t", 1, 1, 0, 0, None)


WRONG = {
    "broker:9": "--fail: found broker '9'; allowed: brokers of the layout, each once: 0, 1, 2, 3",
    "broker:1,1": "--fail: found a broker twice in '1,1'; allowed: brokers of the layout",
    "rack:z": "--fail: found rack 'z'; allowed: one of a, b",
    "any 4": "--fail: found 'any 4'; allowed: broker:ID",
    "rack:a,z": "--fail: found rack 'z'; allowed: one of a, b",
}


def test_every_three_brokers_are_those_asked_one_by_one_in_the_worst_order() -> None:
    """Each order of each three by a sequence of its own, partition by partition; the worst order counts, which makes
    a difference while a reassignment is under way."""
    layout = zones(6, 1, 12)
    moving = (Described(0, (0, 1, 2), removing=(1, 2)), Described(1, (1, 3)))
    topics = (*layout.topics, TopicLayout("moving", ((0, 1, 2), (1, 3, 4, 5)), 1, moving))
    layout = layout_of(topics, layout.brokers, layout.racks)
    each_order = [f"broker:{a},{b},{c}" for a, b, c in permutations(range(6), 3)]
    alone: dict[tuple[str, tuple[int, ...]], list[TopicAnswer]] = {}
    for each in layout.topics:
        for index, replicas in enumerate(each.replicas):
            state = None if each.described is None else (each.described[index],)
            part = layout_of([replace(each, replicas=(replicas,), described=state)], range(6))
            for answer in ask(part, *each_order, generation="kip-497"):
                alone.setdefault((each.name, answer.failed), []).extend(answer.topics)
    answers = ask(layout, "any 3", generation="kip-497")
    assert [answer.failed for answer in answers] == list(combinations(range(6), 3))
    for answer in answers:
        for found in answer.topics:
            orders = list(zip(*(alone[found.topic, order] for order in permutations(answer.failed)), strict=True))
            least = [part.losses for parts in orders for part in parts if part.losses is not None]
            assert found == TopicAnswer(
                found.topic,
                len(orders),
                sum(min(part.writable for part in parts) for parts in orders),
                sum(max(part.leaderless for part in parts) for parts in orders),
                sum(max(part.may_lose for part in parts) for parts in orders),
                min(least, default=None),
            )
    assert any(found.may_lose for answer in answers for found in answer.topics)


def test_two_racks_at_once_and_too_many_threes() -> None:
    """Of three racks with a replica each two are down: one is in sync, below min ISR 2, and it has everything."""
    layout = layout_of([TopicLayout("t", ((0, 1, 2),), 2)], range(3), {0: "a", 1: "b", 2: "c"})
    answers = ask(layout, "any 2 racks")
    assert [(answer.name, answer.failed) for answer in answers] == [
        ("racks a, b", (0, 1)),
        ("racks a, c", (0, 2)),
        ("racks b, c", (1, 2)),
    ]
    assert {answer.topics[0] for answer in answers} == {TopicAnswer("t", 1, 0, 0, 0, None)}
    assert sentences(answers, layout)[0].startswith("Racks a, b stop 1 of 1 topic (t); racks a, c stop 1 of 1 topic")
    assert ask(layout, "rack:c,b")[0] == replace(answers[2], name="racks c, b", failed=(2, 1))
    with pytest.raises(InputError, match="found any 3 of 60 brokers, 34,220 sets of three; allowed: at most 25,000"):
        failures_of(["any 3"], layout_of([TopicLayout("t", ((0, 1, 2),), 2)], range(60)), None)
    with pytest.raises(InputError, match=r"found 'any 2 racks'; allowed: .* with --racks"):
        failures_of(["any 2 racks"], TWO, None)


@pytest.mark.parametrize(("spec", "line"), WRONG.items())
def test_a_failure_of_no_known_form_is_refused(spec: str, line: str) -> None:
    with pytest.raises(InputError) as refused:
        failures_of([spec], THREE, None)
    assert line in str(refused.value)


def test_an_order_names_each_broker_once() -> None:
    with pytest.raises(InputError, match="--order: found no broker 3; allowed: each broker of the layout once"):
        failures_of(["rolling"], THREE, "0,1,2")
    with pytest.raises(InputError, match="--order: found an order and no rolling restart"):
        failures_of(["any 1"], THREE, "0,1,2,3")


def test_the_summary_counts_pairs_once_and_names_the_worst(tmp_path: Path) -> None:
    layout = layout_of([TopicLayout("a", ((0, 1), (1, 0)), 1), TopicLayout("b", ((1, 2),), 2)])
    answers = ask(layout, "any 1", "any 2")
    assert sentences(answers, layout) == [
        "Broker 1 stops 1 of 2 topics (b); broker 2 stops 1 of 2 topics (b).",
        "3 of 3 pairs of brokers stop a topic; at worst brokers 0, 1: 2 of 2 topics (a, b).",
        "Acknowledged records may be lost, if 1 failed broker or more loses the page cache, after: brokers 0, 1 (a),"
        " brokers 1, 2 (b).",
    ]
    with pytest.raises(InputError, match=r"--html: found .*; allowed: a file that can be written"):
        write_page(tmp_path, Question(layout, Rules(ClusterConfig(), 1)), answers, "")


def test_counts_of_many_partitions_are_those_of_the_single_ones() -> None:
    """The same partitions, each a topic of its own, asked one by one: 60 partitions, all failures."""
    layout = zones(7, 3, 20)
    alone = [
        layout_of([TopicLayout(f"{topic.name}-{index}", (replicas,), 2)], layout.brokers, layout.racks)
        for topic in layout.topics
        for index, replicas in enumerate(topic.replicas)
    ]
    specs = ("any 1", "any 2", "any rack", "rolling")
    single = [ask(each, *specs) for each in alone]
    for number, answer in enumerate(ask(layout, *specs)):
        parts = [answers[number].topics[0] for answers in single]
        for topic, found in enumerate(answer.topics):
            own = parts[20 * topic : 20 * topic + 20]
            assert found.writable == sum(part.writable for part in own)
            assert found.leaderless == sum(part.leaderless for part in own)
            assert found.may_lose == sum(part.may_lose for part in own)


def test_what_is_described_is_what_was_placed() -> None:
    layout = zones(6, 2, 30)
    found = layout_of(parse_describe("".join(f"{line}\n" for line in described(layout)), "t"))
    assert [topic.replicas for topic in found.topics] == [topic.replicas for topic in layout.topics]
