"""`isray bench failover`: the assignment, the sample of partitions, and the figures; no test of a time."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.bench.failover import SAMPLE, Failover, assignments, ends_session, figures_of, sample_of
from protocol.events.controller import SessionExpired
from protocol.events.store import StoreSessionBegan, StoreSessionEnded
from protocol.features import Generation

VICTIM, SURVIVORS = 1, (0, 2)
SOME = Failover(generation="v3", partitions=1_000, detected_ms=9_100, p50_ms=80, max_ms=120, all_served_ms=2_500)


def test_the_victim_leads_all_partitions_and_the_survivors_alternate_as_second_replica() -> None:
    found = assignments(101, VICTIM, SURVIVORS)
    assert len(found) == 101
    assert {replicas[0] for replicas in found} == {VICTIM}
    assert all(sorted(replicas[1:]) == sorted(SURVIVORS) for replicas in found)
    next_in_line = [replicas[1] for replicas in found]
    assert all(one != other for one, other in pairwise(next_in_line))


@pytest.mark.parametrize("partitions", [1, 2, SAMPLE - 1, SAMPLE])
def test_the_sample_of_few_partitions_is_all_of_them(partitions: int) -> None:
    assert sample_of(partitions) == list(range(partitions))


@given(st.integers(SAMPLE + 1, 200_000))
def test_the_sample_of_many_partitions_is_evenly_spread_from_first_to_last(partitions: int) -> None:
    found = sample_of(partitions)
    assert len(found) == SAMPLE
    assert (found[0], found[-1]) == (0, partitions - 1)
    steps = {after - before for before, after in pairwise(found)}
    assert min(steps) >= 1
    assert max(steps) - min(steps) <= 1


def test_times_count_from_the_detection_and_the_detection_from_the_kill() -> None:
    served, all_served = [10_130, 10_110, 10_190, 10_120], [11_000, 12_600, 10_900, 11_100]
    found = figures_of(Generation.V3, 4, 1_000, 10_100, served_ms=served, all_served_ms=all_served)
    assert found == Failover("v3", partitions=4, detected_ms=9_100, p50_ms=20, max_ms=90, all_served_ms=2_500)


def test_document_and_table_have_the_same_figures() -> None:
    assert asdict(SOME) == {
        "generation": "v3",
        "partitions": 1_000,
        "detected_ms": 9_100,
        "p50_ms": 80,
        "max_ms": 120,
        "all_served_ms": 2_500,
        "sessions": None,
        "multi": None,
        "cpu_s": 0.0,
    }
    texts = replace(SOME, cpu_s=4.26).texts()
    assert texts == ["v3", "1,000", "9,100 ms", "80 ms", "120 ms", "2,500 ms", "4.3 s"]
    assert replace(SOME, sessions=10, multi=100).texts()[:2] == ["v3, 10 sessions, multi 100", "1,000"]


def test_the_end_of_a_session_is_reported_by_the_controller_or_by_the_store() -> None:
    ended = [SessionExpired(VICTIM), StoreSessionEnded(7, VICTIM, True, ())]
    others = [SessionExpired(0), StoreSessionEnded(7, 0, True, ()), StoreSessionBegan(7, VICTIM)]
    assert [ends_session(trace, VICTIM) for trace in (*ended, *others)] == [True, True, False, False, False]
