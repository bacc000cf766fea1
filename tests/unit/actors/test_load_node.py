"""The load generator: batches under way, measurements, and error responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.load import BEGIN_TIMER, END_TIMER, LOOK_UP_TIMER, PROBE_TIMER, RETRY_MS, LoadNode, p50_and_p99
from actors.log.format import crc32c
from protocol.contract import CancelTimer, Effect, Send, SetTimer
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import DRIVER, FIRST_LOAD, NO_LEADER
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from protocol.messages.base import Message
from protocol.messages.commands import LoadCommand, LoadOutcome, ProbeCommand, ProbeOutcome
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.metadata.authorizer import node_principal

M = TypeVar("M", bound=Message)
BROKERS = (0, 1, 2)
LEADERS = {0: 1, 1: 2}
LOAD = LoadCommand(
    command_id=4,
    topic="t",
    partitions=(0, 1),
    acks=-1,
    record_count=3,
    payload_bytes=100,
    in_flight=5,
    warm_up_ms=200,
    duration_ms=1_000,
)
PROBE = ProbeCommand(
    command_id=5, topic="t", partitions=(7, 3, 5), brokers=(1, 2), acks=-1, payload_bytes=1, in_flight=2, retry_ms=20
)
REFUSED = ErrorCode.NOT_LEADER_OR_FOLLOWER


class LoadBench:
    """A load generator, its timers and its clock; `sent` are the messages to brokers of the last input."""

    def __init__(self) -> None:
        self.clock_s = 50.0
        self.now_ms = 0
        self.timers: dict[str, int] = {}
        self.sent: list[tuple[int, Message]] = []
        self.outcomes: list[Message] = []
        self.node = LoadNode(FIRST_LOAD, BROKERS, crc32c, lambda: self.clock_s)
        assert self.node.start(0) == []

    def receive(self, message: Message, sender: int = 0) -> LoadBench:
        return self._did(self.node.receive(self.now_ms, sender, message))

    def command(self, command: LoadCommand | ProbeCommand) -> LoadBench:
        return self.receive(command, DRIVER)

    def fire(self, name: str) -> LoadBench:
        """Moves the clock to the due time of the timer and fires it."""
        due_ms = max(self.now_ms, self.timers.pop(name))
        self.clock_s += (due_ms - self.now_ms) / 1_000
        self.now_ms = due_ms
        return self._did(self.node.fire(due_ms, name))

    def _did(self, effects: Sequence[Effect]) -> LoadBench:
        self.sent = []
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.name] = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.name, None)
            elif isinstance(effect, Send) and effect.to == DRIVER:
                self.outcomes.append(effect.message)
            elif isinstance(effect, Send):
                self.sent.append((effect.to, effect.message))
        return self

    def outcome(self) -> LoadOutcome:
        """The outcome of the only load so far."""
        [outcome] = self.outcomes
        assert isinstance(outcome, LoadOutcome)
        return outcome

    def messages(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def offers(self) -> list[tuple[int, int]]:
        """(broker, partition) of the produce requests of the last input."""
        return [(to, message.partition) for to, message in self.sent if isinstance(message, ProduceRequest)]

    def find(self, leaders: Mapping[int, int] = LEADERS, correlation_id: int | None = None) -> LoadBench:
        """Answers the last metadata request with these leaders."""
        number = self.messages(MetadataRequest)[0].correlation_id if correlation_id is None else correlation_id
        partitions = tuple(PartitionMetadata(partition=index, leader=leader) for index, leader in leaders.items())
        topic = TopicMetadata(name="t", topic_id="T", partitions=partitions)
        return self.receive(MetadataResponse(correlation_id=number, topics=(topic,)))

    def loaded(self) -> list[ProduceRequest]:
        """Begins the load; returns the batches under way."""
        return self.command(LOAD).find().messages(ProduceRequest)

    def answer(self, request: ProduceRequest, error: ErrorCode = ErrorCode.NONE, after_s: float = 0.0) -> LoadBench:
        self.clock_s += after_s
        return self.receive(ProduceResponse(correlation_id=request.correlation_id, error=error))


@pytest.fixture
def bench() -> LoadBench:
    return LoadBench()


# -- load --------------------------------------------------------------------------------------------------------------


def test_a_load_begins_with_a_metadata_request_to_every_broker(bench: LoadBench) -> None:
    bench.command(LOAD)
    questions = bench.messages(MetadataRequest)
    assert [to for to, _ in bench.sent] == list(BROKERS)
    assert {(item.topic, item.principal) for item in questions} == {("t", node_principal(FIRST_LOAD))}
    assert bench.timers == {LOOK_UP_TIMER: RETRY_MS, BEGIN_TIMER: 200}


def test_the_commanded_number_of_batches_is_sent_to_the_leaders_in_turn(bench: LoadBench) -> None:
    requests = bench.loaded()
    assert bench.offers() == [(1, 0), (2, 1), (1, 0), (2, 1), (1, 0)]
    assert len({request.correlation_id for request in requests}) == LOAD.in_flight
    for request in requests:
        assert (request.topic, request.acks, request.principal) == ("t", -1, node_principal(FIRST_LOAD))
        assert (request.batch.record_count, len(request.batch.payload)) == (3, 100)
    assert bench.timers == {BEGIN_TIMER: 200}


@pytest.mark.parametrize("leaders", [{0: 1}, {0: 1, 1: NO_LEADER}, {}])
def test_no_batch_is_sent_until_all_leaders_are_known(bench: LoadBench, leaders: Mapping[int, int]) -> None:
    first = bench.command(LOAD).messages(MetadataRequest)[0].correlation_id
    assert bench.find(leaders, first).sent == []
    again = bench.fire(LOOK_UP_TIMER).messages(MetadataRequest)
    assert len(again) == len(BROKERS)
    assert bench.find(LEADERS, first).sent == [], "an answer to the question before"
    assert len(bench.find(LEADERS, again[0].correlation_id).offers()) == LOAD.in_flight
    assert bench.find(LEADERS, again[0].correlation_id).sent == [], "the second broker answers the same"


def test_a_batch_has_the_time_at_which_it_is_sent(bench: LoadBench) -> None:
    bench.now_ms = 1_700_000_000_000
    [first, *others] = bench.loaded()
    assert {request.batch.timestamp_ms for request in (first, *others)} == {bench.now_ms}
    bench.now_ms += 5
    [following] = bench.answer(first).messages(ProduceRequest)
    assert following.batch.timestamp_ms == bench.now_ms


def test_an_acknowledgement_makes_room_for_the_next_batch(bench: LoadBench) -> None:
    first, second, *_ = bench.loaded()
    assert bench.answer(second).offers() == [(2, 1)]
    assert bench.answer(first).offers() == [(1, 0)]
    assert bench.answer(first).sent == [], "it comes twice"


def test_only_acknowledgements_between_warm_up_and_end_are_measured(bench: LoadBench) -> None:
    warm, slow, fast, *_ = bench.loaded()
    bench.answer(warm, after_s=0.05)
    bench.fire(BEGIN_TIMER)
    assert bench.timers == {END_TIMER: 1_200}
    bench.answer(slow, after_s=0.25)
    [late] = bench.messages(ProduceRequest)
    bench.answer(fast)
    bench.answer(late, after_s=0.004)
    bench.fire(END_TIMER)
    outcome = bench.outcome()
    assert (outcome.command_id, outcome.acknowledged, outcome.refused) == (LOAD.command_id, 3, 0)
    assert outcome.unanswered == LOAD.in_flight
    assert outcome.elapsed_us == 1_254_000, "the time that has passed, not the commanded one"
    assert (outcome.p50_us, outcome.p99_us) == p50_and_p99([500_000, 500_000, 4_000])
    assert bench.timers == {}


def test_after_an_error_leaders_are_looked_up_once_before_further_batches(bench: LoadBench) -> None:
    first, second, third, *_ = bench.loaded()
    bench.fire(BEGIN_TIMER)
    assert bench.answer(first, REFUSED).sent == []
    asked_at_ms = bench.timers[LOOK_UP_TIMER]
    assert asked_at_ms == bench.now_ms + RETRY_MS
    bench.now_ms += 10
    assert bench.answer(second, ErrorCode.NOT_ENOUGH_REPLICAS).sent == []
    assert bench.timers[LOOK_UP_TIMER] == asked_at_ms
    assert bench.answer(third).sent == [], "who leads is in doubt"
    assert len(bench.fire(LOOK_UP_TIMER).messages(MetadataRequest)) == len(BROKERS)
    assert bench.find({0: 0, 1: 2}).offers() == [(2, 1), (0, 0), (2, 1)]
    bench.fire(END_TIMER)
    outcome = bench.outcome()
    assert (outcome.acknowledged, outcome.refused, outcome.unanswered) == (1, 2, LOAD.in_flight)
    assert outcome.last_error is ErrorCode.NOT_ENOUGH_REPLICAS


def test_errors_during_the_warm_up_are_not_counted(bench: LoadBench) -> None:
    first, *_ = bench.loaded()
    bench.answer(first, REFUSED)
    bench.fire(LOOK_UP_TIMER).find()
    bench.fire(BEGIN_TIMER).fire(END_TIMER)
    outcome = bench.outcome()
    assert (outcome.acknowledged, outcome.refused, outcome.last_error) == (0, 0, REFUSED)
    assert (outcome.p50_us, outcome.p99_us) == (0, 0)


def test_a_load_without_leaders_ends_too(bench: LoadBench) -> None:
    bench.command(LOAD).fire(LOOK_UP_TIMER).fire(BEGIN_TIMER).fire(END_TIMER)
    outcome = bench.outcome()
    assert (outcome.acknowledged, outcome.unanswered) == (0, 0)
    assert bench.timers == {}


@pytest.mark.parametrize("running", [LOAD, PROBE])
@pytest.mark.parametrize("second", [LOAD, PROBE])
def test_a_second_command_while_one_is_under_way_is_an_error(
    bench: LoadBench, running: LoadCommand | ProbeCommand, second: LoadCommand | ProbeCommand
) -> None:
    bench.command(running)
    with pytest.raises(ProtocolInvariantError, match="one command at a time"):
        bench.command(second)


def test_late_responses_of_an_ended_load_do_not_count_for_the_next(bench: LoadBench) -> None:
    old = bench.loaded()
    bench.fire(BEGIN_TIMER).fire(END_TIMER)
    bench.loaded()
    bench.fire(BEGIN_TIMER)
    for request in old:
        assert bench.answer(request).sent == []
    bench.fire(END_TIMER)
    assert [outcome.acknowledged for outcome in bench.outcomes if isinstance(outcome, LoadOutcome)] == [0, 0]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["acknowledge", "refuse", "look"]))))
def test_the_number_of_batches_under_way_is_never_exceeded_and_all_are_counted(answers: list[tuple[int, str]]) -> None:
    bench = LoadBench()
    under_way = bench.loaded()
    bench.fire(BEGIN_TIMER)
    acknowledged = refused = 0
    for place, what in answers:
        bench.sent = []
        if what == "look" and LOOK_UP_TIMER in bench.timers:
            bench.fire(LOOK_UP_TIMER).find()
        elif what != "look" and under_way:
            request = under_way.pop(place % len(under_way))
            bench.answer(request, ErrorCode.NONE if what == "acknowledge" else REFUSED)
            acknowledged, refused = acknowledged + (what == "acknowledge"), refused + (what == "refuse")
        under_way += bench.messages(ProduceRequest)
        assert len(under_way) <= LOAD.in_flight
        assert len(under_way) == LOAD.in_flight or LOOK_UP_TIMER in bench.timers
    bench.fire(END_TIMER)
    outcome = bench.outcome()
    assert (outcome.acknowledged, outcome.refused, outcome.unanswered) == (acknowledged, refused, len(under_way))


# -- probe -------------------------------------------------------------------------------------------------------------


def test_a_probe_sends_to_all_brokers_for_a_limited_number_of_partitions(bench: LoadBench) -> None:
    bench.command(PROBE)
    assert bench.offers() == [(1, 7), (2, 7), (1, 3), (2, 3)], "leaders are not looked up"
    assert {(item.acks, item.batch.record_count) for item in bench.messages(ProduceRequest)} == {(-1, 1)}
    assert bench.timers == {}


def test_the_first_acknowledgement_counts_and_starts_the_next_partition(bench: LoadBench) -> None:
    seven, _, _, three = bench.command(PROBE).messages(ProduceRequest)
    bench.now_ms = 30
    assert bench.answer(three).offers() == [(1, 5), (2, 5)]
    five, five_again = bench.messages(ProduceRequest)
    bench.now_ms = 40
    assert bench.answer(five).sent == []
    bench.now_ms = 45
    assert bench.answer(five_again).sent == []
    bench.now_ms = 60
    bench.answer(seven)
    assert bench.outcomes == [ProbeOutcome(command_id=5, acknowledged_ms=(60, 30, 40))], "in the command's order"
    assert bench.command(replace(PROBE, command_id=6)).offers() != [], "it is free again"


def test_a_partition_that_all_brokers_refuse_is_retried_later(bench: LoadBench) -> None:
    seven, seven_too, three, three_too = bench.command(PROBE).messages(ProduceRequest)
    assert bench.answer(seven, REFUSED).timers == {}, "one may still acknowledge"
    bench.now_ms = 10
    assert bench.answer(seven_too, REFUSED).sent == [], "its place is taken"
    assert bench.timers == {PROBE_TIMER: 30}
    bench.now_ms = 15
    bench.answer(three, REFUSED).answer(three_too, REFUSED)
    assert bench.timers == {PROBE_TIMER: 30}
    assert bench.fire(PROBE_TIMER).offers() == [(1, 7), (2, 7), (1, 3), (2, 3)]
    assert bench.timers == {}


def test_a_partition_that_awaits_its_retry_counts_as_under_way(bench: LoadBench) -> None:
    command = replace(PROBE, partitions=(7, 3, 5, 9))
    seven, seven_too, three, _ = bench.command(command).messages(ProduceRequest)
    bench.answer(seven, REFUSED).answer(seven_too, REFUSED)
    assert bench.answer(three).offers() == [(1, 5), (2, 5)]


def test_one_acknowledgement_outweighs_an_error_of_another_broker(bench: LoadBench) -> None:
    first, second, *_ = bench.command(PROBE).messages(ProduceRequest)
    bench.answer(first, REFUSED)
    assert bench.answer(second).offers() == [(1, 5), (2, 5)]
    assert bench.timers == {}


def test_the_other_partitions_follow_those_ahead_after_one_look_up_each_at_its_leader(bench: LoadBench) -> None:
    command = replace(PROBE, partitions=(7, 3, 5, 9, 4), in_flight=5, ahead=2)
    seven, seven_too, three, _ = bench.command(command).messages(ProduceRequest)
    bench.answer(seven, REFUSED).answer(seven_too, REFUSED)
    assert bench.answer(three).sent == [], "partition 7 has been refused"
    [again, _] = bench.fire(PROBE_TIMER).messages(ProduceRequest)
    assert [(to, type(message)) for to, message in bench.answer(again).sent] == [(1, MetadataRequest)]
    assert bench.find({5: 2, 9: 1, 4: 0}).offers() == [(2, 5), (1, 9), (1, 4), (2, 4)], "broker 0 is not probed"
    five, nine, four, _ = bench.messages(ProduceRequest)
    bench.answer(five, REFUSED)
    assert bench.fire(PROBE_TIMER).offers() == [(1, 5), (2, 5)], "the leader was an old one"
    for request in (bench.messages(ProduceRequest)[0], nine, four):
        bench.answer(request)
    [outcome] = bench.outcomes
    assert isinstance(outcome, ProbeOutcome)
    assert outcome.acknowledged_ms == (20, 0, 40, 40, 40), "one retry each of the partitions 7 and 5, 20 ms later"


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_probe_ends_when_the_last_partition_has_acknowledged(errors: list[bool], in_flight: int, rng: Random) -> None:
    bench = LoadBench()
    open_offers = bench.command(replace(PROBE, in_flight=in_flight)).messages(ProduceRequest)
    acknowledged: dict[int, int] = {}
    while not bench.outcomes:
        if not open_offers:
            open_offers += bench.fire(PROBE_TIMER).messages(ProduceRequest)
        assert len({request.partition for request in open_offers} - set(acknowledged)) <= in_flight
        bench.now_ms += 1
        request = open_offers.pop(rng.randrange(len(open_offers)))
        error = REFUSED if errors and errors.pop() else ErrorCode.NONE
        if error is ErrorCode.NONE:
            acknowledged.setdefault(request.partition, bench.now_ms)
        open_offers += bench.answer(request, error).messages(ProduceRequest)
    [outcome] = bench.outcomes
    assert isinstance(outcome, ProbeOutcome)
    assert outcome.acknowledged_ms == tuple(acknowledged[partition] for partition in PROBE.partitions)


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "p50", "p99"),
    [
        ([], 0, 0),
        ([7], 7, 7),
        ([3, 1], 1, 3),
        ([30, 10, 20], 20, 30),
        (range(101), 50, 99),
        (range(1, 100_001), 50_000, 99_000),
        ([1] * 98 + [900] * 2, 1, 900),
        ([1] * 999 + [900], 1, 1),
    ],
)
def test_p50_and_p99(values: Sequence[int], p50: int, p99: int) -> None:
    assert p50_and_p99(list(values)) == (p50, p99)
