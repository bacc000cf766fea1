"""A producer that is faster than the cluster is slowed: what nobody takes is bounded, and says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from experiments.hunt.soak.cluster import rss_of
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NodeId
from protocol.messages.commands import SendOutcome, SendRecords
from tests.ray.cluster_helpers import ALL, T0, Lab, running_lab

MIB = 1_048_576
RECORD_BYTES = 65_536
RECORDS = 10
BUFFER_BYTES = 4 * MIB
MAX_BLOCK_MS = 5_000
COMMANDS = 2_000
"""Of 640 KiB each: 1.2 GiB in all, of which 4 MiB fit the producer's buffer."""
FITTING = BUFFER_BYTES // (RECORDS * (RECORD_BYTES + 100))
"""Commands that the buffer holds at once: none of them waits for space, however slow the machine is."""
GENEROUS_MIB = 250
CONFIG = {
    "buffer.memory": BUFFER_BYTES,
    "max.block.ms": MAX_BLOCK_MS,
    "batch.size": RECORD_BYTES + 100,
    "delivery.timeout.ms": 60_000,
    "broker.session.timeout.ms": 600_000,
    "replica.lag.time.max.ms": 600_000,
}
"""Nobody is given up for the pause: the cluster as a whole waits for who is paused."""


@pytest.fixture(scope="module")
def lab(private_ray: None) -> Iterator[Lab]:
    """Two brokers, topic `t` on both, min ISR 2."""
    with running_lab(brokers=2, config=CONFIG, within_ms=90_000) as lab:
        lab.create_topic((0, 1), min_isr=2)
        lab.until(lambda: lab.leader() != NO_LEADER, "a leader")
        yield lab


def send(lab: Lab, commands: int) -> list[int]:
    """Commands as fast as they are taken; their numbers."""
    numbers = []
    for at in range(commands):
        numbers.append(
            lab.submit(
                lambda number: SendRecords(
                    command_id=number, topic="t", partition=0, acks=ALL, record_count=RECORDS, record_bytes=RECORD_BYTES
                )
            )
        )
        if at % 100 == 99:
            lab.engine.run_for(1)
    return numbers


def records(lab: Lab, numbers: list[int]) -> dict[tuple[ErrorCode, bool], int]:
    """How the records of these commands ended: by error, and whether that is unknown; how many."""
    lab.until(lambda: all(lab.engine.outcome(number) is not None for number in numbers), "an end for all")
    found: Counter[tuple[ErrorCode, bool]] = Counter()
    for number in numbers:
        outcome = lab.engine.outcome(number)
        assert isinstance(outcome, SendOutcome)
        for part in outcome.ranges:
            found[part.error, part.unknown] += part.count
    return found


def memory_mib(lab: Lab) -> dict[NodeId, int]:
    """Resident memory of the nodes' processes."""
    found = {node: rss_of(pid) // MIB for node, pid in lab.engine.pids().items()}
    assert all(found.values()), "every process is there"
    return found


@pytest.mark.parametrize("who", ["the follower", "the leader"])
def test_a_producer_is_slowed_by_a_paused_broker_and_memory_is_bounded(lab: Lab, who: str) -> None:
    leader = lab.leader()
    paused = leader if who == "the leader" else 1 - leader
    assert set(records(lab, send(lab, FITTING))) == {(ErrorCode.NONE, False)}
    before = memory_mib(lab)
    end = lab.engine.log(leader, T0)[-1].next_offset
    lab.engine.pause(paused)
    numbers = send(lab, COMMANDS)
    lab.engine.run_for(MAX_BLOCK_MS)
    grown = {node: now - before[node] for node, now in memory_mib(lab).items()}
    assert max(grown.values()) < GENEROUS_MIB, grown
    taken = BUFFER_BYTES // RECORD_BYTES
    if paused != leader:
        stored = lab.engine.log(leader, T0)[-1].next_offset
        assert stored <= end + taken, "no more than the producer's buffer holds has reached a log"
    lab.engine.resume(paused)
    ended = records(lab, numbers)
    assert set(ended) == {(ErrorCode.NONE, False), (ErrorCode.REQUEST_TIMED_OUT, False)}, "clear ends, none unknown"
    assert ended[ErrorCode.NONE, False] >= taken - RECORDS
    assert sum(ended.values()) == COMMANDS * RECORDS
    assert lab.leader() == leader
    stored = lab.engine.log(leader, T0)[-1].next_offset
    assert stored == end + ended[ErrorCode.NONE, False], "what was acknowledged, once, and nothing that was refused"
