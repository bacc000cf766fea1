"""The page of a run: a lane for the application's host, and its requests with their responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from experiments.virtual.simulation import SimulatedKafka
from tests.unit.experiments.explorer.explorer_helpers import data_of

APPLICATION = 6000


async def write_one(servers: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    await producer.start()
    await producer.send_and_wait("t", b"hello")
    await producer.stop()


async def fail(servers: str) -> None:
    await write_one(servers)
    raise LookupError("no such order")


def page_of(path: Path) -> Any:
    [run] = data_of(path.read_text())["runs"]
    return run


def event(run: Any, number: int) -> tuple[int, str, str, dict[str, Any], int]:
    """Node, role, kind, fields and the number of the cause (-1: none) of an event."""
    role, kind, _ = run["kinds"][run["kind"][number]]
    fields = dict(zip(run["shapes"][run["shape"][number]], run["values"][number], strict=True))
    back = run["cause"][number]
    return run["nodes"][run["node"][number]]["id"], role, kind, fields, number - back if back else -1


def test_requests_and_responses_are_arrows_between_the_application_and_the_leader(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    kafka = SimulatedKafka(3, topics={"t": [[0, 1, 2]]})
    trace_hash = kafka.run(write_one).trace_hash
    kafka.html = path
    assert kafka.run(write_one).trace_hash == trace_hash, "recording changes nothing"
    run = page_of(path)
    events = [event(run, number) for number in range(len(run["kind"]))]
    sent = {
        (node, kind): (number, fields)
        for number, (node, role, kind, fields, _) in enumerate(events)
        if role == "send" and kind.startswith("Kafka Produce")
    }
    request, fields = sent[APPLICATION, "Kafka Produce request"]
    assert fields["to"] == 0
    assert [(it["topic"], it["partition"], it["records"]) for it in fields["partitions"]] == [("t", 0, ["b'hello'"])]
    response, answered = sent[0, "Kafka Produce response"]
    assert [(it["partition"], it["base_offset"], it["error_code"]) for it in answered["partitions"]] == [(0, 0, "none")]
    arrived = {cause: (node, role) for node, role, _, _, cause in events if cause in (request, response)}
    assert arrived == {request: (0, "receive"), response: (APPLICATION, "receive")}
    assert "Kafka's protocol" in {group for _, _, group in run["kinds"]}


def test_a_crash_of_the_broker_resets_the_connection_on_the_page(tmp_path: Path) -> None:
    """The leader crashes at 10 ms; the application hears of its connections from the reset."""
    path = tmp_path / "run.html"
    timeline = [{"at": "10ms", "crash": {"broker": 0}}]
    kafka = SimulatedKafka(3, timeline, topics={"t": [[0, 1, 2]]})
    kafka.html = path
    kafka.run(write_one)
    run = page_of(path)
    reasons = {
        fields.get("reason")
        for node, role, kind, fields, _ in (event(run, number) for number in range(len(run["kind"])))
        if (node, role, kind) == (APPLICATION, "receive", "ClientDisconnected")
    }
    assert reasons & {"Connection reset by peer", "Connection refused"}
    assert any("crash" in text for _, text in run["headings"])


def test_a_run_that_fails_has_a_page_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    kafka = SimulatedKafka(3)
    kafka.html = path
    with pytest.raises(LookupError):
        kafka.run(fail)
    assert ["application", "LookupError: no such order"] in page_of(path)["facts"]
