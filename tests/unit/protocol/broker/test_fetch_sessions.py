"""Fetch sessions at the leader: which renewals and requests are accepted, refused, or ignored."""

from __future__ import annotations

import pytest

from protocol.broker.isr_shrink import SILENT_PREFIX
from protocol.errors import ErrorCode
from tests.unit.protocol.broker.leader_helpers import FOLLOWER, UNIT, Leader, brought


def test_a_renewal_with_matching_counts_is_not_answered_and_leaves_the_fetches_parked() -> None:
    leader = Leader()
    leader.fetch()
    leader.bench.now_ms = 20_000
    assert leader.renew() == []
    setting = leader.bench.timer(f"{SILENT_PREFIX}{FOLLOWER}")
    assert setting is not None
    assert (setting.at_ms, setting.idle_with) == (50_000, FOLLOWER)
    assert brought(*leader.produce(UNIT)) == [(0, 1)]


def test_a_renewal_that_lacks_responses_gets_the_number_of_the_next_one() -> None:
    leader = Leader()
    leader.fetch()
    leader.produce(UNIT)
    [response] = leader.renew(answers=0)
    assert (response.partitions, response.session, response.number, response.error) == ((), 1, 1, ErrorCode.NONE)
    assert leader.renew(answers=1) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"requests": 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH), ({"session": 2}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)],
)
def test_a_renewal_of_an_unknown_session_is_refused_and_does_not_restart_the_silence_timer(
    fields: dict[str, int], error: ErrorCode
) -> None:
    leader = Leader()
    leader.fetch()
    before = leader.bench.timer(f"{SILENT_PREFIX}{FOLLOWER}")
    leader.bench.now_ms = 20_000
    [response] = leader.renew(**fields)
    assert (response.error, response.session, response.partitions) == (error, fields.get("session", 1), ())
    assert leader.bench.timer(f"{SILENT_PREFIX}{FOLLOWER}") in (None, before)


def test_a_request_after_a_lost_one_is_refused() -> None:
    leader = Leader(2)
    leader.fetch(0)
    leader.requests[FOLLOWER, 0] += 1
    [response] = leader.fetch(1)
    assert (response.partitions, response.error) == ((), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert leader.produce(UNIT, partition=1) == []
    assert brought(*leader.fetch(anew=True)) == [(1, 1)]


def test_duplicate_and_outdated_requests_are_ignored() -> None:
    leader = Leader(2)
    leader.fetch(0)
    leader.requests[FOLLOWER, 0] -= 1
    assert leader.fetch(1) == [], "a number that was there before"
    leader.fetch(0, anew=True)
    leader.sessions[FOLLOWER, 0] -= 1
    assert leader.fetch(1) == [], "a session that was there before"
    assert leader.renew(session=1) == []
    assert leader.produce(UNIT, partition=1) == []


def test_responses_are_numbered_per_session() -> None:
    leader = Leader()
    for session in (1, 2, 3):
        sent = leader.fetch(anew=True) + leader.produce(UNIT)
        assert [(message.session, message.number) for message in sent] == [(session, n) for n in range(len(sent))]
        assert brought(*sent) != []
