"""What a run shows against the client: each kind of finding from a book and logs made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.engines.port import Violation
from experiments.hunt.clients.application import Book, Send
from experiments.hunt.clients.findings import BUSY, findings
from experiments.hunt.clients.plan import TOPIC, ClientPlan
from experiments.virtual.observer import Acknowledged, Exchange
from experiments.virtual.simulation import RunResult
from protocol.ids import TopicPartition
from protocol.messages.kafka_batch import KafkaRecord

PLACE = TopicPartition(TOPIC, 0)
PLAN = ClientPlan(seed=1)


def result_of(values: list[bytes], sends: list[Send] | None = None, **book: Any) -> RunResult:
    """A run whose log has these values; by default they are sent, acknowledged on the wire and to the application, and
    read, in this order.
    """
    if sends is None:
        sends = [Send(0, value, "acknowledged", offset) for offset, value in enumerate(dict.fromkeys(values))]
    read = [(0, 0, offset, value) for offset, value in enumerate(values)]
    return RunResult(
        seed=1,
        value=Book(**({"sends": sends, "read": read} | book)),
        duration_ms=1,
        trace_hash="",
        acknowledged=[Acknowledged(1, PLACE, it.offset, None, it.value) for it in sends if it.outcome != "open"],
        logs={PLACE: [KafkaRecord(offset, 0, None, value) for offset, value in enumerate(values)]},
        exchanges=[],
        violations=[],
        unhandled=[],
    )


def names(result: RunResult, plan: ClientPlan = PLAN) -> list[str]:
    return [finding.name for finding in findings(plan, result)]


def test_a_run_without_mistakes_has_no_findings() -> None:
    assert names(result_of([b"a", b"b"])) == []
    assert names(result_of([b"a"], [Send(0, b"a", "failed", error="KafkaTimeoutError")])) == [], "written nevertheless"


def test_an_acknowledgement_that_only_the_client_has_given() -> None:
    sends = [Send(0, b"a", "acknowledged", 0), Send(0, b"b", "acknowledged", 1)]
    result = result_of([b"a"], sends)
    assert names(replace(result, acknowledged=result.acknowledged[:1])) == ["acknowledged-by-the-client-alone"]
    assert names(result) == ["cluster-lost", "offset-of-another-record"]


def test_a_record_that_is_there_twice_is_a_duplicate_with_idempotence_only() -> None:
    result = result_of([b"a", b"b", b"a"])
    assert names(result) == ["duplicate"]
    assert names(result, PLAN.model_copy(update={"idempotent": False})) == []


def test_acknowledged_records_in_another_order_are_reordered() -> None:
    sends = [Send(0, b"b", "acknowledged", 1), Send(0, b"a", "acknowledged", 0)]
    assert names(result_of([b"a", b"b"], sends)) == ["reordered"]
    assert names(result_of([b"a", b"b"], [replace(sends[0], outcome="failed"), sends[1]])) == []


def test_readers_that_skip_or_go_back() -> None:
    values = [b"a", b"b", b"c"]
    read = [(0, 0, 0, b"a"), (0, 0, 2, b"c")]
    assert names(result_of(values, read=read)) == ["skipped"]
    again = [(0, 0, 0, b"a"), (0, 0, 1, b"b"), (0, 0, 0, b"a"), (0, 0, 1, b"b")]
    assert names(result_of(values, read=again)) == ["read-twice"]
    assert names(result_of(values, read=again), PLAN.model_copy(update={"members": 2})) == []
    assert names(result_of(values, read=[(0, 0, 0, b"x")])) == ["cluster-read"]


def test_what_is_stuck_is_the_clusters_fault_if_a_new_client_is_stuck_too() -> None:
    stuck = [("producer", "X", "partition 0: 3 sends, the last one failed")]
    assert names(result_of([b"a"], stuck=stuck)) == ["stuck-producer: X"]
    found = findings(PLAN, result_of([b"a"], stuck=stuck, control=["nor can another one"]))
    assert [(it.kind, it.detail) for it in found] == [("cluster-stuck-producer", f"{stuck[0][2]}; nor can another one")]


def test_exceptions_that_are_not_kafkas() -> None:
    assert names(result_of([b"a"], errors=[("consumer", KeyError("x"))])) == ["exception: KeyError from consumer"]
    text = "Task exception was never retrieved: IndexError('pop')"
    result = replace(result_of([b"a"]), unhandled=[text], violations=[Violation("LogMatching", 1, "differ")])
    assert names(result) == [
        "cluster-violation: LogMatching",
        "exception: IndexError, Task exception was never retrieved",
    ]


@pytest.mark.parametrize(("count", "found"), [(100, "stuck-reader: silent"), (101, "stuck-reader: repeats API 2")])
def test_a_stuck_reader_is_known_by_what_it_repeats(count: int, found: str) -> None:
    """More than five times a second over the last 20 s."""
    exchanges = [Exchange(5_000 + 199 * number, 1, 0, 2, None) for number in range(count)]
    result = replace(result_of([b"a"], stuck=[("reader", "", "offset 1")]), exchanges=exchanges)
    assert names(result) == [found]


@pytest.mark.parametrize(("count", "found"), [(BUSY, []), (BUSY + 1, ["busy: API 1"])])
def test_more_requests_in_a_second_than_the_workload_needs(count: int, found: list[str]) -> None:
    exchanges = [Exchange(5_000 + number, 1, 0, 1, None) for number in range(count)]
    assert names(replace(result_of([b"a"]), exchanges=exchanges)) == found
