"""Which controllers a client tries, when, and which response counts; each test scripts the controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.client.administration import TRY_NEXT_MS, Attempt, next_node
from protocol.client.partition_sender import RETRY_MS
from protocol.errors import ErrorCode
from protocol.ids import DRIVER
from protocol.messages.admin import (
    AdminRequest,
    AdminResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataResponse,
)
from protocol.messages.base import Message
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.commands import AdminCommand, AdminOutcome, ConsumeCommand, ConsumeOutcome, ProduceOutcome
from protocol.messages.partitions import ElectionType, ElectLeadersRequest
from protocol.messages.topics import DeleteTopicsResponse
from tests.unit.protocol.client.client_helpers import BACKOFF_MS, DELIVERY_MS, REQUEST_MS, ClientBench

A, B, C, D, E = 1000, 1001, 1002, 1003, 1004
BROKERS = (0, 1)
SILENT, STANDBY, ACTIVE = "silent", "standby", "active"
NONE, TIMED_OUT, NOT_CONTROLLER = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER
Script = Mapping[int, Sequence[tuple[int, str]]]
"""What each controller is from which time (ms) on; at first it is silent."""
Attempts = list[tuple[int, int]]
"""The attempts: time (ms) and node."""

assert (TRY_NEXT_MS, RETRY_MS, BACKOFF_MS, REQUEST_MS, DELIVERY_MS) == (1_000, 1_000, 100, 5_000, 30_000)


class Quorum(ClientBench):
    """A client, controllers that answer at once as scripted, and brokers that answer with `broker_error`, if any."""

    def __init__(self, script: Script, broker_error: ErrorCode | None = None) -> None:
        self.script = script
        self.broker_error = broker_error
        self.attempts: Attempts = []
        self.numbers: list[int] = []
        self._commands = 0
        super().__init__(producer_ids=(), controllers=tuple(script))

    def administer(self, request: AdminRequest) -> Quorum:
        self.attempts, self.numbers = [], []
        self._commands += 1
        self.receive(DRIVER, AdminCommand(command_id=self._commands, request=request))
        return self

    def delete_topic(self) -> Quorum:
        return self.administer(admin_requests.delete_topic("t"))

    def to_the_end(self) -> AdminOutcome:
        """Advances the time until the last command is done; returns its outcome."""
        number = self._commands
        while len(self.ends) < number:
            self.run_until(min(self.timers.values()))
        assert [outcome.command_id for outcome in self.ends] == list(range(1, number + 1)), "one outcome each"
        assert self.is_at_rest()
        return self.ends[-1]

    @property
    def ends(self) -> list[AdminOutcome]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, AdminOutcome)]

    def respond(self, attempt: int, error: ErrorCode = NONE) -> Quorum:
        """The response to an attempt, counted from 0 (-1: the last), arrives now."""
        self.receive(A, DeleteTopicsResponse(correlation_id=self.numbers[attempt], error=error))
        return self

    def _answer(self, node: int, message: Message) -> None:
        if not isinstance(message, AdminRequest):
            super()._answer(node, message)
            return
        self.attempts.append((self.now_ms, node))
        self.numbers.append(message.correlation_id)
        error = self._state_of(node)
        if error is None:
            return
        answer: AdminResponse = AdminResponse(correlation_id=message.correlation_id, error=error)
        if isinstance(message, InitProducerIdRequest):
            answer = InitProducerIdResponse(correlation_id=message.correlation_id, error=error, producer_id=5)
        self._done(self.node.receive(self.now_ms, node, answer))

    def _state_of(self, node: int) -> ErrorCode | None:
        if node in BROKERS:
            return self.broker_error
        states = [state for since_ms, state in self.script[node] if since_ms <= self.now_ms]
        return {SILENT: None, STANDBY: NOT_CONTROLLER, ACTIVE: NONE}[states[-1] if states else SILENT]


def always(**states: str) -> Script:
    """Controllers that never change their state: `A="silent"`."""
    ids = {"A": A, "B": B, "C": C, "D": D, "E": E}
    return {ids[name]: [(0, state)] for name, state in states.items()}


def every(step_ms: int, first_ms: int, nodes: Sequence[int], before_ms: int) -> Attempts:
    """The nodes in rotation, one each `step_ms`."""
    times = range(first_ms, before_ms, step_ms)
    return [(at_ms, nodes[index % len(nodes)]) for index, at_ms in enumerate(times)]


# -- what changes something --------------------------------------------------------------------------------------------

BECOMES_ACTIVE: dict[str, tuple[Script, Attempts]] = {
    "the first one is active": (always(A=ACTIVE, B=STANDBY, C=STANDBY), [(0, A)]),
    "the next one is": (always(A=STANDBY, B=ACTIVE, C=STANDBY), [(0, A), (100, B)]),
    "the last of five is": (
        always(A=STANDBY, B=STANDBY, C=STANDBY, D=STANDBY, E=ACTIVE),
        [(0, A), (100, B), (200, C), (300, D), (400, E)],
    ),
    "none is, until one is elected": (
        {A: [(0, STANDBY)], B: [(0, STANDBY)], C: [(0, STANDBY), (250, ACTIVE)]},
        [(0, A), (100, B), (200, C), (300, A), (400, B), (500, C)],
    ),
    "the first one is dead": (always(A=SILENT, B=ACTIVE, C=STANDBY), [(0, A), (1_000, B)]),
    "two are dead": (always(A=SILENT, B=SILENT, C=ACTIVE), [(0, A), (1_000, B), (2_000, C)]),
    "one is dead, one of the others is elected": (
        {A: [(0, SILENT)], B: [(0, STANDBY)], C: [(0, STANDBY), (1_250, ACTIVE)]},
        [(0, A), (1_000, B), (1_100, C), (1_200, B), (1_300, C)],
    ),
    "the next one is dead": (
        {A: [(0, STANDBY), (150, ACTIVE)], B: [], C: [(0, STANDBY)]},
        [(0, A), (100, B), (1_100, C), (1_200, A)],
    ),
    "all are cut off, then heard again": (
        {A: [(6_500, STANDBY)], B: [(6_500, STANDBY)], C: [(6_500, ACTIVE)]},
        [(0, A), (1_000, B), (2_000, C), (5_000, A), (6_000, B), (7_000, C)],
    ),
    "killed, and restarted without the request": (
        {A: [(700, ACTIVE)], B: [], C: []},
        [(0, A), (1_000, B), (2_000, C), (5_000, A)],
    ),
    "killed and restarted, the others alive all along": (
        {A: [(3_000, ACTIVE)], B: [(0, STANDBY)], C: [(0, STANDBY)]},
        [(0, A), *every(100, 1_000, (B, C), 5_000), (5_000, A)],
    ),
    "the only one, which was not active at once": ({A: [(0, STANDBY), (150, ACTIVE)]}, [(0, A), (100, A), (200, A)]),
}


@pytest.mark.parametrize(("script", "attempts"), BECOMES_ACTIVE.values(), ids=BECOMES_ACTIVE)
def test_a_change_is_tried_at_controllers_until_one_is_active(script: Script, attempts: Attempts) -> None:
    quorum = Quorum(script).delete_topic()
    outcome = quorum.to_the_end()
    assert (quorum.attempts, outcome.error) == (attempts, NONE)
    assert isinstance(outcome.response, AdminResponse)


NEVER_ACTIVE: dict[str, tuple[Script, ErrorCode, Attempts]] = {
    "the only one is silent, and is tried once": (always(A=SILENT), TIMED_OUT, [(0, A)]),
    "the only one is not active": (always(A=STANDBY), NOT_CONTROLLER, every(100, 0, (A,), DELIVERY_MS)),
    "none is active": (always(A=STANDBY, B=STANDBY), NOT_CONTROLLER, every(100, 0, (A, B), DELIVERY_MS)),
    "all are silent": (
        always(A=SILENT, B=SILENT, C=SILENT),
        TIMED_OUT,
        [(round_ms + turn * 1_000, (A, B, C)[turn]) for round_ms in range(0, DELIVERY_MS, 5_000) for turn in range(3)],
    ),
    "one is silent, and may have done it": (
        always(A=SILENT, B=STANDBY),
        TIMED_OUT,
        [
            attempts
            for round_ms in range(0, DELIVERY_MS, 5_000)
            for attempts in [(round_ms, A), *every(100, round_ms + 1_000, (B,), round_ms + 5_000)]
        ],
    ),
}


@pytest.mark.parametrize(("script", "error", "attempts"), NEVER_ACTIVE.values(), ids=NEVER_ACTIVE)
def test_without_an_active_controller_the_outcome_tells_not_done_from_unknown(
    script: Script, error: ErrorCode, attempts: Attempts
) -> None:
    quorum = Quorum(script).delete_topic()
    outcome = quorum.to_the_end()
    assert (outcome.error, quorum.now_ms, outcome.response) == (error, DELIVERY_MS, None)
    assert quorum.attempts == attempts


def test_the_first_response_of_any_attempt_ends_the_command() -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT, C=STANDBY)).delete_topic()
    quorum.run_until(2_500)
    assert len(set(quorum.numbers)) == len(quorum.attempts) > 3
    assert quorum.respond(0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED).to_the_end().error is not NONE
    for attempt in range(len(quorum.numbers)):
        assert quorum.respond(attempt).is_at_rest(), "the other responses are ignored"
    assert len(quorum.ends) == 1


def test_a_controller_that_answered_late_not_controller_is_tried_again() -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT, C=SILENT)).delete_topic()
    quorum.run_until(3_000)
    assert quorum.attempts == [(0, A), (1_000, B), (2_000, C)]
    quorum.respond(1, NOT_CONTROLLER).run_until(3_099)
    assert len(quorum.attempts) == 3
    quorum.run_until(3_100)
    assert quorum.attempts[3:] == [(3_100, B)], "the other two still have not answered"


def test_a_duplicate_response_counts_once() -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT, C=SILENT)).delete_topic().respond(0, NOT_CONTROLLER)
    quorum.now_ms = 60
    quorum.respond(0, NOT_CONTROLLER).run_until(1_100)
    assert quorum.attempts == [(0, A), (100, B), (1_100, C)]


def test_a_change_refused_once_is_unknown_if_another_attempt_is_open() -> None:
    quorum = Quorum(always(A=SILENT, B=STANDBY)).delete_topic().respond(0, NOT_CONTROLLER)
    quorum.run_until(500)
    assert quorum.respond(0).to_the_end().error is NONE


def test_a_refused_attempt_does_not_decide_another_at_the_same_controller() -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT)).delete_topic()
    quorum.run_until(REQUEST_MS)
    assert quorum.attempts == [(0, A), (1_000, B), (5_000, A)]
    quorum.respond(0, NOT_CONTROLLER).run_until(9_999)
    assert quorum.attempts[3:] == [(6_000, B)], "A has not answered its second attempt"


def test_elections_get_the_remaining_time_as_timeout() -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT))
    wanted = admin_requests.elect_leader("t", 0, ElectionType.LONGEST_LOG_PROACTIVE)
    quorum.administer(replace(wanted, timeout_ms=60_000))
    sent = [*quorum.messages(ElectLeadersRequest), *quorum.fire("watch").messages(ElectLeadersRequest)]
    assert [request.timeout_ms for request in sent] == [27_000, 26_100]
    assert [to for _, to in quorum.attempts] == [A, B]


# -- what is known of the controller -----------------------------------------------------------------------------------


def test_the_controller_that_answered_is_presumed_active_by_all_parts_of_the_client() -> None:
    quorum = Quorum(always(A=SILENT, B=ACTIVE, C=STANDBY))
    quorum.delete_topic().to_the_end()
    quorum.delete_topic().to_the_end()
    assert quorum.attempts == [(1_000, B)]
    quorum.attempts = []
    quorum.produce(7)
    assert quorum.attempts == [(1_000, B)]


def test_an_error_response_ends_the_command() -> None:
    quorum = Quorum(always(A=STANDBY, B=SILENT)).delete_topic()
    quorum.run_until(100)
    assert quorum.respond(-1, ErrorCode.INVALID_REQUEST).to_the_end().error is ErrorCode.INVALID_REQUEST
    assert quorum.delete_topic().attempts == [(100, B)]


def test_after_the_last_controller_comes_the_first() -> None:
    quorum = Quorum({A: [(0, STANDBY), (500, ACTIVE)], B: [(0, STANDBY)], C: [(0, ACTIVE), (300, STANDBY)]})
    quorum.delete_topic().to_the_end()
    quorum.run_until(600)
    quorum.delete_topic().to_the_end()
    assert quorum.attempts == [(600, C), (700, A)]


def test_a_producer_id_comes_from_the_active_controller_and_identifies_it() -> None:
    quorum = Quorum(always(A=STANDBY, B=SILENT, C=ACTIVE))
    quorum.produce(7)
    quorum.run_until(1_100)
    assert quorum.attempts == [(0, A), (100, B), (1_100, C)]
    [request] = quorum.requests()
    assert request.batch.producer_id == 5
    quorum.answer(request)
    assert quorum.delete_topic().attempts == [(1_100, C)]
    quorum.to_the_end()


def test_not_controller_does_not_change_the_presumed_active_controller() -> None:
    quorum = Quorum(always(A=SILENT, B=STANDBY, C=SILENT))
    quorum.produce(7)
    quorum.run_until(1_000)
    assert quorum.attempts == [(0, A), (1_000, B)]
    assert quorum.delete_topic().attempts == [(1_000, A)]


# -- what only asks ----------------------------------------------------------------------------------------------------

QUESTION = DescribeClusterRequest(correlation_id=0)
QUERIES: dict[str, tuple[Script, ErrorCode | None, Attempts, ErrorCode]] = {
    "the first one answers": (always(A=ACTIVE, B=ACTIVE), NONE, [(0, A)], NONE),
    "a standby leaves it to the next": (always(A=STANDBY, B=ACTIVE), NONE, [(0, A), (100, B)], NONE),
    "a broker will do": (always(A=STANDBY, B=SILENT), NONE, [(0, A), (100, B), (1_100, 0)], NONE),
    "round and round": ({A: [(0, STANDBY), (1_500, ACTIVE)]}, NOT_CONTROLLER, every(100, 0, (A, 0, 1), 1_501), NONE),
    "no node answers": (always(A=SILENT), None, every(1_000, 0, (A, 0, 1), DELIVERY_MS), TIMED_OUT),
    "no controller is active": (
        always(A=STANDBY),
        NOT_CONTROLLER,
        every(100, 0, (A, 0, 1), DELIVERY_MS),
        NOT_CONTROLLER,
    ),
}


@pytest.mark.parametrize(("script", "broker_error", "attempts", "error"), QUERIES.values(), ids=QUERIES)
def test_a_query_is_tried_at_node_after_node(
    script: Script, broker_error: ErrorCode | None, attempts: Attempts, error: ErrorCode
) -> None:
    quorum = Quorum(script, broker_error).administer(QUESTION)
    assert (quorum.to_the_end().error, quorum.attempts) == (error, attempts)


def test_a_query_begins_at_the_presumed_active_controller_and_does_not_change_it() -> None:
    quorum = Quorum({A: [(0, SILENT)], B: [(0, ACTIVE), (2_000, SILENT)], C: [(0, STANDBY), (2_500, ACTIVE)]})
    quorum.delete_topic().to_the_end()
    quorum.run_until(2_000)
    quorum.administer(QUESTION).to_the_end()
    assert quorum.attempts == [(2_000, B), (3_000, C)], "any controller may have answered it"
    assert quorum.delete_topic().attempts == [(3_000, B)]


def test_a_response_to_an_earlier_query_is_ignored() -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT)).administer(QUESTION)
    quorum.run_until(1_000)
    quorum.receive(A, DescribeClusterResponse(correlation_id=quorum.numbers[0]))
    assert quorum.ends == []
    quorum.receive(B, DescribeClusterResponse(correlation_id=quorum.numbers[1]))
    assert quorum.to_the_end().error is NONE


STANDBY_RESPONSES: dict[str, tuple[ErrorCode, ErrorCode]] = {
    "controllers that are not active": (NOT_CONTROLLER, TIMED_OUT),
    "a node without the topic": (NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.parametrize(("response_error", "error"), STANDBY_RESPONSES.values(), ids=STANDBY_RESPONSES)
def test_not_controller_does_not_make_a_topic_unknown(response_error: ErrorCode, error: ErrorCode) -> None:
    quorum = Quorum(always(A=SILENT, B=SILENT))
    quorum.leader = None
    quorum.produce(7, acks=1).receive(DRIVER, ConsumeCommand(command_id=8, topic="t", partition=0))
    number = quorum.node._context.requests.last_id
    for controller in (A, B):
        quorum.receive(controller, MetadataResponse(correlation_id=number, error=response_error))
    quorum.run_until(DELIVERY_MS)
    found = [end for end in quorum.outcomes if isinstance(end, ProduceOutcome | ConsumeOutcome)]
    assert sorted((end.command_id, end.error) for end in found) == [(7, error), (8, error)]


# -- the decision ------------------------------------------------------------------------------------------------------

NEXT_NODES: dict[str, tuple[list[Attempt], tuple[int, int]]] = {
    "no attempt yet": ([], (A, 1_000)),
    "a node without a response is skipped": ([Attempt(A, 900)], (B, 1_000)),
    "a node that has refused is not skipped": ([Attempt(A, 900, True)], (A, 1_000)),
    "a controller tried long ago": ([Attempt(A, 500)], (A, 1_000)),
    "no node has answered": ([Attempt(A, 900), Attempt(B, 700), Attempt(C, 800)], (B, 1_200)),
    "of equals the first in the rotation": ([Attempt(A, 800), Attempt(B, 700), Attempt(C, 700)], (B, 1_200)),
    "the last attempt counts": ([Attempt(A, 300), Attempt(A, 800), Attempt(B, 900), Attempt(C, 900)], (A, 1_300)),
    "an earlier attempt may be unanswered": (
        [Attempt(A, 600), Attempt(A, 800, True), Attempt(B, 900), Attempt(C, 900)],
        (A, 1_100),
    ),
}


@pytest.mark.parametrize(("attempts", "turn"), NEXT_NODES.values(), ids=NEXT_NODES)
def test_next_node(attempts: list[Attempt], turn: tuple[int, int]) -> None:
    assert next_node((A, B, C), attempts, 1_000, 500) == turn


STATES = st.lists(st.tuples(st.integers(0, DELIVERY_MS), st.sampled_from([SILENT, STANDBY])), max_size=6).map(sorted)


@settings(deadline=None, max_examples=60)
@given(st.lists(STATES, min_size=2, max_size=5))
def test_no_node_is_tried_too_soon_and_every_node_eventually(states: list[list[tuple[int, str]]]) -> None:
    quorum = Quorum({A + number: script for number, script in enumerate(states)}).delete_topic()
    quorum.to_the_end()
    owes, owed = dict[int, int](), False
    for (at_ms, node), before in zip(quorum.attempts, [None, *quorum.attempts], strict=False):
        assert at_ms - owes.get(node, -REQUEST_MS) >= REQUEST_MS, "it may still be doing it"
        assert before is None or BACKOFF_MS <= at_ms - before[0] <= REQUEST_MS
        quorum.now_ms = at_ms
        if quorum._state_of(node) is None:
            owes[node], owed = at_ms, True
        else:
            owes.pop(node, None)
    assert {node for _, node in quorum.attempts} == set(quorum.script)
    assert (quorum.ends[0].error is NOT_CONTROLLER) == (not owed)
