"""Client code in virtual time: unmodified aiokafka against simulated brokers, and the shipped examples."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from experiments.scenarios.runner import StepFailedError
from experiments.support.errors import InputError
from experiments.virtual.checks import acknowledged_are_kept, at_least_once, exactly_once, in_order
from experiments.virtual.examples import manual_commits, outbox, read_process_write
from experiments.virtual.simulation import RunResult, SimulatedKafka, StuckError

RECORDS = [b"%d" % number for number in range(100)]
PAIR = [[0, 1, 2]]
"""One partition, whose first leader is broker 0."""


async def write_then_read(servers: str) -> list[bytes | None]:
    """Writes 100 records with acks=all, one after the other, and reads them."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    await producer.start()
    for value in RECORDS:
        await producer.send_and_wait("t", value, key=b"k")
    await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    consumer.assign([TopicPartition("t", 0)])
    await consumer.start()
    consumer.seek(TopicPartition("t", 0), 0)
    read = [(await consumer.getone()).value for _ in RECORDS]
    await consumer.stop()
    return read


@cache
def with_leader_killed() -> RunResult:
    """The leader dies after 200 ms, in the middle of the writes, which take 3 ms or more each."""
    timeline = [{"at": "200ms", "crash": {"broker": 0, "lose": "unflushed"}}]
    return SimulatedKafka(5, timeline, topics={"t": PAIR}).run(write_then_read)


def test_all_records_are_acknowledged_and_read() -> None:
    result = SimulatedKafka(1).run(write_then_read)
    assert result.value == RECORDS
    assert [it.value for it in result.acknowledged] == RECORDS
    assert [it.offset for it in result.acknowledged] == [*range(100)]
    assert [record.value for record in result.records("t")] == RECORDS
    assert (result.violations, result.unhandled) == ([], [])
    assert SimulatedKafka(2).run(write_then_read).trace_hash != result.trace_hash


def test_a_leader_that_dies_costs_time_and_nothing_else() -> None:
    result = with_leader_killed()
    assert result.value == RECORDS
    assert result.duration_ms > 6_000, "the session of the dead leader has to expire first (broker.session.timeout.ms)"
    assert acknowledged_are_kept(result) == []
    assert exactly_once(RECORDS, [record.value for record in result.records("t")]) == []


def test_the_trace_is_the_same_under_every_hash_seed() -> None:
    """In processes of their own: PYTHONHASHSEED changes the order of Python's sets of texts."""
    script = "from tests.sim.test_client_code import with_leader_killed; print(with_leader_killed().trace_hash)"
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "77")
    ]
    hashes = {process.communicate()[0].strip() for process in running}
    assert hashes == {with_leader_killed().trace_hash}


def test_clocks_and_random_sources_are_as_before_after_a_run() -> None:
    async def read_clocks(servers: str) -> tuple[float, float, float]:
        return time.time(), time.monotonic(), random.random()

    before = (time.time, time.monotonic, time.sleep, os.urandom)
    random.seed(3)
    expected = random.Random(3).random()
    first, second = (SimulatedKafka(4).run(read_clocks).value for _ in range(2))
    assert first == second
    assert first[0] == first[1] < 60, "virtual time begins at 0"
    assert random.random() == expected
    assert (time.time, time.monotonic, time.sleep, os.urandom) == before


def test_a_run_that_does_not_end_names_its_tasks() -> None:
    async def wait_for_a_record(servers: str) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers)
        consumer.assign([TopicPartition("t", 0)])
        await consumer.start()
        try:
            await consumer.getone()
        finally:
            await consumer.stop()

    with pytest.raises(StuckError, match=r"not done after 20000 ms of virtual time; tasks: .*wait_for_a_record"):
        SimulatedKafka(1, within="20s").run(wait_for_a_record)


def test_an_error_of_the_application_is_raised() -> None:
    async def fail(servers: str) -> None:
        raise KeyError(servers)

    with pytest.raises(KeyError, match="broker-0:9092,broker-1:9092,broker-2:9092"):
        SimulatedKafka(1).run(fail)


@pytest.mark.parametrize(
    ("timeline", "field"),
    [
        ("storm", "timeline: found storm; allowed: swarm, or a list of steps"),
        (["crash"], "timeline: found crash; allowed: a step of scenarios"),
        ([{"at": "5", "crash": {"broker": 0}}], "timeline.at: found 5; allowed: a number and a unit"),
        ([{"at": "5s", "wait": "1s"}, {"at": "2s", "wait": "1s"}], "allowed: times `at` in ascending order"),
        ([{"crash": {"broker": 7}}], "7"),
        ([{"explode": {}}], "explode"),
    ],
)
def test_a_wrong_timeline_is_refused(timeline: object, field: str) -> None:
    with pytest.raises(InputError, match=field):
        SimulatedKafka(0, timeline)  # type: ignore[arg-type]


def test_a_seed_and_a_time_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="seed: found x; allowed: a whole number"):
        SimulatedKafka("x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="within: found soon; allowed: a number and a unit"):
        SimulatedKafka(within="soon")


def test_a_step_that_fails_ends_the_run() -> None:
    timeline = [{"at": "10ms", "expect": {"topic": "t", "partition": 0, "isr": [0]}}]
    with pytest.raises(StepFailedError, match="isr"):
        SimulatedKafka(1, timeline, topics={"t": PAIR}).run(read_process_write.feed, "t")


@pytest.mark.parametrize(
    ("example", "wrong", "right", "seed"),
    [
        (outbox, outbox.mark_when_buffered, outbox.mark_when_acknowledged, 8),
        (manual_commits, manual_commits.commit_first, manual_commits.carry_out_first, 1),
        (read_process_write, read_process_write.write_once, read_process_write.write_until_acknowledged, 0),
    ],
)
def test_a_seed_finds_the_mistake_of_an_example_and_nothing_without_it(
    example: Any, wrong: object, right: object, seed: int
) -> None:
    assert example.findings(example.run(seed, wrong))
    result = example.run(seed, right)
    assert example.findings(result) == []
    assert acknowledged_are_kept(result) == []
    assert result.violations == []


def test_a_producer_of_aiokafka_is_stuck_after_a_batch_has_expired() -> None:
    """Its sequence numbers have a gap then, which the broker refuses for good: with the outbox that keeps its producer
    the run of the seed above does not end.
    """
    with pytest.raises(StuckError):
        outbox.run(8, outbox.keep_the_producer)


def test_checks_find_what_is_missing_twice_or_out_of_order() -> None:
    assert at_least_once([b"a", b"b"], [b"b"]) == ["b'a' is taken for done and is not there"]
    assert exactly_once([b"a"], [b"a", b"a"]) == ["b'a' is there 2 times"]
    assert in_order([b"a", b"b", b"c"], [b"b", b"a", b"b", b"c"]) == ["b'b' comes before b'a'"]
    assert in_order([b"a", b"b"], [b"a", b"b", b"a"]) == []
