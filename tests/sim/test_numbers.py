"""The numbers of the sources (section L), at sizes that take no time, and the committed page docs/numbers.md.

The claims that depend on sizes and latencies are checked at several of them: what is measured must follow.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from experiments.numbers import isr_changes, store_queue
from experiments.numbers.claims import CLAIMS, Claim, claims_of
from experiments.numbers.conditions import Conditions, Row
from experiments.numbers.failover import PUBLISH, change_controller, durations_of, fail_over, fail_over_by_log
from experiments.numbers.measured_cluster import CONTROLLER, LEADER, MeasuredCluster, MeasurementError
from experiments.numbers.page import introduction, section, summary
from experiments.support.errors import InputError
from protocol.features import LOG_GENERATIONS, Generation

pytestmark = pytest.mark.slow

STALE = "docs/numbers.md is stale: isray study numbers --write docs/numbers.md"
PAGE = Path(__file__).parents[2] / "docs" / "numbers.md"
SMALL = Conditions(partitions=120, sessions=(1, 4), multi=(10, 100))
SLOW = Conditions(partitions=60, write_ms=10, read_ms=3, network_ms=2, sessions=(3,), multi=(7,), seed=5)
BY_ITEM = {claim.item: claim for claim in CLAIMS}
REFUTED = {"L15": ["messages and fields on the wire"]}
"""What does not hold, as the page says."""
QUICK = [claim for claim in CLAIMS if not claim.grows]


def _marks(claim: Claim) -> list[pytest.MarkDecorator]:
    """The item that a test of the claim shows. L15 is about keys and tags, too, which messages here do not have."""
    return [] if claim.item == "L15" else [pytest.mark.covers(claim.item)]


@cache
def rows(item: str, conditions: Conditions = SMALL) -> tuple[Row, ...]:
    """The rows of an item."""
    return tuple(BY_ITEM[item].measure(conditions))


def refuted(item: str, conditions: Conditions = SMALL) -> list[str]:
    """The rows whose claim does not hold."""
    return [row.what for row in rows(item, conditions) if row.holds is False]


def measured(item: str, what: str, conditions: Conditions = SMALL) -> float:
    """The number in the only row that begins with `what`."""
    [found] = [row.measured for row in rows(item, conditions) if row.what.startswith(what)]
    assert isinstance(found, int | float)
    return found


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("L1", "N32", "N2")
def test_a_serial_failover_takes_partitions_times_the_latency_of_a_write() -> None:
    assert fail_over(SMALL).writing_ms == 120 * 4
    assert fail_over(SLOW).writing_ms == 60 * (10 + 2 * 2), "a client waits for the network, too"
    assert rows("L1")[0].claimed == rows("L1")[0].measured == 0.48
    assert rows("L1", SLOW)[0].ratio == pytest.approx(1.4)
    assert not refuted("L1")
    assert refuted("L1", SLOW) == [rows("L1", SLOW)[0].what], "S1's formula leaves the network out"


@pytest.mark.covers("L1")
@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_a_failover_in_a_log_is_one_commit(generation: Generation) -> None:
    found = fail_over_by_log(SLOW, generation)
    assert found.commits == 1
    assert found.changed_ms < fail_over(SLOW).writing_ms


@pytest.mark.covers("L2")
def test_sessions_and_transactions_divide_the_time() -> None:
    assert fail_over(SMALL, sessions=4).writing_ms == 120 * 4 / 4
    assert fail_over(SMALL, multi=10).writing_ms == 120 * 4 / 10
    assert fail_over(SMALL, multi=100).writing_ms == 2 * 4, "two transactions"
    assert fail_over(SLOW, sessions=3).writing_ms == 20 * 14
    assert fail_over(SLOW, multi=7).writing_ms == 9 * 14
    modelled = [row for conditions in (SMALL, SLOW) for row in rows("L2", conditions) if row.model is not None]
    assert len(modelled) == 6
    assert all(row.model == row.measured for row in modelled)
    alone = fail_over(SMALL, multi=100, mode=CONTROLLER)
    assert alone.published_ms - alone.noticed_ms == 3 + 2 * 4, "it reads the live brokers, and no state of a partition"
    assert not refuted("L2")


@pytest.mark.covers("L3", "N10")
def test_a_queue_in_the_store_takes_several_requests_and_a_command_takes_one() -> None:
    one, burst = store_queue.through_queue(SMALL, 1), store_queue.through_queue(SMALL, 50)
    assert (one.writes, one.watches, one.reads) == (2, 2, 3), "the deletion fires the watch of the receiver, too"
    assert one.delay_ms == 4 + 1 + 1
    assert burst.writes == 2 * 50
    assert 5 < burst.rpcs / 50 < 6 < one.rpcs, "S1's 6 is between"
    assert set(fail_over(SMALL).commands.values()) == {1}
    assert not refuted("L3")


@pytest.mark.covers("L4")
def test_publishing_takes_longest_of_the_steps_that_follow_the_end_of_the_session() -> None:
    many = Conditions(partitions=300, network_ms=1)
    steps = dict(durations_of(fail_over(many)))
    assert list(steps.values()).index(steps[PUBLISH]) == 2
    assert max(list(steps)[1:], key=steps.__getitem__) == PUBLISH
    assert steps[PUBLISH] == pytest.approx(300 * (4 + 2 + 1 + 2), rel=0.01)
    assert (steps["step 2, watch"], steps["step 4, commands"]) == (1, 1)
    assert sum(steps.values()) == fail_over(many).committed_ms
    few = dict(durations_of(fail_over(Conditions(partitions=10))))
    assert few["step 1, end of the session"] > few[PUBLISH], "the session timeout is there for any number of partitions"


@pytest.mark.covers("L5")
def test_a_failover_costs_a_write_per_partition_and_a_command_per_broker() -> None:
    for conditions in (SMALL, SLOW):
        course = fail_over(conditions)
        assert course.updates == course.transactions == conditions.partitions
        assert set(course.commands.values()) == {1}
    batched = fail_over(SMALL, multi=100)
    assert (batched.updates, batched.transactions) == (120, 2)


@pytest.mark.covers("L9")
def test_controlled_shutdown_saves_the_reads() -> None:
    assert isr_changes.shutdown(SMALL, LEADER) == 120 * (4 + 1)
    assert isr_changes.shutdown(SMALL, CONTROLLER) == 120 * 4
    assert measured("L9", "time saved, read 1 ms") == 20
    assert measured("L9", "time saved, read 4 ms") == 50
    assert refuted("L9") == [rows("L9")[-1].what], "reads as slow as writes save more than 40 %"


@pytest.mark.covers("L11")
def test_a_broker_that_comes_back_joins_by_one_request_instead_of_one_write_per_partition() -> None:
    before = isr_changes.come_back(SMALL)
    after = isr_changes.come_back(SMALL, mode=CONTROLLER, multi=100)
    later = isr_changes.come_back(SMALL, Generation.KIP_497)
    assert (before.requests, before.transactions, before.updates, before.joining_ms) == (0, 120, 120, 480)
    assert (after.requests, after.transactions, after.updates, after.joining_ms) == (1, 2, 120, 8)
    assert (later.requests, later.updates) == (1, 0)
    assert after.repetitions == later.repetitions == 0
    assert before.left == after.left == later.left == 0


@pytest.mark.covers("L21")
def test_a_controller_decides_alone_with_few_watches_and_messages_and_has_a_failover_of_its_own() -> None:
    course, change = fail_over(SMALL), change_controller(SMALL)
    assert course.deciders == 1
    assert course.watches == fail_over(SLOW).watches, "they do not grow with the partitions"
    batched = fail_over(SMALL, multi=100)
    assert batched.published_ms - batched.noticed_ms < course.published_ms - course.noticed_ms
    assert change.elected_ms < change.commanded_ms
    assert change.commanded_ms >= 120 * 1, "the new controller has read every state"
    assert not refuted("L21")


# -- the other claims --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [pytest.param(claim, marks=_marks(claim), id=claim.item) for claim in QUICK])
def test_the_claim_holds_and_the_page_says_what_is_measured(claim: Claim) -> None:
    found = claim.measure(Conditions())
    assert [row.what for row in found if row.holds is False] == REFUTED.get(claim.item, [])
    assert any(row.holds for row in found)
    text = PAGE.read_text(encoding="utf-8")
    assert section(claim, found) in text, STALE
    assert f"| {' | '.join(summary(claim, found))} |\n" in text, STALE


def test_the_page_has_every_claim_of_the_requirements_in_order() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(introduction(Conditions())), STALE
    assert [claim.item for claim in CLAIMS] == [f"L{number}" for number in range(1, 22)]
    heads = [f"## {claim.item}\n\n{claim.text} ({claim.source}.)\n\nRun: {claim.ran}\n" for claim in CLAIMS]
    places = [text.find(head) for head in heads]
    assert -1 not in places, STALE
    assert places == sorted(places)
    assert all(claim.remark in text for claim in CLAIMS)


def test_a_cluster_that_does_not_come_to_a_state_is_an_error() -> None:
    cluster = MeasuredCluster(Conditions())
    with pytest.raises(MeasurementError, match="not within 10 ms: a miracle"):
        cluster.await_("a miracle", lambda: False, 10)
    with pytest.raises(MeasurementError, match="the topic cannot be created"):
        cluster.create([(0, 0)])


def test_unknown_items_are_refused() -> None:
    with pytest.raises(InputError, match="--only"):
        claims_of(["L0"])
