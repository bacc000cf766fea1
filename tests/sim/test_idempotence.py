"""An idempotent producer under random faults: each record is stored once, in order, at the offset that was reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from experiments.engines.port import Loss
from experiments.hunt.mutants.registry import mutated
from protocol.client.records import identity, join, record, split
from protocol.errors import ErrorCode
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import (
    ROUND_ROBIN,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
)
from protocol.messages.data import ProduceRequest
from protocol.nodes.client import ClientNode
from tests.sim.chaos_helpers import BROKERS, HEAL_MS, PARTITIONS, Chaos
from tests.sim.seed_helpers import seeds

FAULTS = ("crash", "lossy", "shutdown", "pause", "isolate", "one_way", "mute", "mute", "deaf", "controller")
Record = tuple[int, int]
"""A command and the number of one of its records."""


@dataclass(slots=True)
class Producing(Chaos):
    """Chaos with one-directional link failures between client and brokers, and a client with many batches in flight.
    `reported` maps an acknowledged record to its partition and offset; `failed` are the records that definitely failed.
    """

    duration_ms: int = 60_000
    config: Mapping[str, object] = field(
        default_factory=lambda: {
            "request.timeout.ms": 2_000,
            "delivery.timeout.ms": 20_000,
            "batch.size": 64,
            "broker.session.timeout.ms": 3_000,
            "broker.heartbeat.interval.ms": 700,
        }
    )
    reported: dict[Record, tuple[int, int]] = field(default_factory=dict)
    failed: set[Record] = field(default_factory=set)
    sent: dict[int, int] = field(default_factory=dict)

    def _plan(self) -> list[tuple[int, str, object]]:
        random = Random(f"{self.seed}/producing")
        plan: list[tuple[int, str, object]] = []
        at_ms = 3_000
        while at_ms < self.duration_ms:
            broker = random.randrange(BROKERS)
            plan.append((at_ms, random.choice(FAULTS), broker))
            plan.append((at_ms + random.choice((2, 5, 60, 300, 3_000, 12_000)), "mend", broker))
            at_ms += random.choice((20, 50, 500, 4_000, 8_000))
        write_ms, number = 2_500, 10
        while write_ms < self.duration_ms:
            number += 1
            plan.append((write_ms, "write", (number, random.randint(1, 9), random.randrange(-2, len(PARTITIONS)))))
            write_ms += random.choice((1, 1, 1, 1, 2, 2, 3, 40, 200, 700))
        return sorted(plan, key=lambda item: (item[0], item[1], str(item[2])))

    def _write(self, what: object) -> None:
        """Sends a batch, or records for a partition or for any partition."""
        assert isinstance(what, tuple)
        number, count, partition = what
        self.sent[number] = count
        if partition < ROUND_ROBIN:
            payload = join([record(number, index, 12) for index in range(count)])
            command = ProduceCommand(
                command_id=number, topic="t", partition=number % 2, acks=-1, record_count=count, payload=payload
            )
            self.engine.submit(command)
        else:
            self.engine.submit(
                SendRecords(
                    command_id=number, topic="t", partition=partition, acks=-1, record_count=count, record_bytes=12
                )
            )

    def _mute(self, broker: int) -> None:
        self.engine.set_link(broker, FIRST_CLIENT, False)

    def _deaf(self, broker: int) -> None:
        self.engine.set_link(FIRST_CLIENT, broker, False)

    def _heal(self) -> None:
        for _ in range(2):
            for broker in range(BROKERS):
                self._mend(broker)
            self.engine.run_for(HEAL_MS)
        for number, count in self.sent.items():
            self._take_outcome(number, count)

    def _take_outcome(self, number: int, count: int) -> None:
        outcome = self.engine.outcome(number)
        if isinstance(outcome, SendOutcome):
            assert [part.first + n for part in outcome.ranges for n in range(part.count)] == list(range(count))
            ends = [(p.first, p.count, p.partition, p.error, p.base_offset, p.unknown) for p in outcome.ranges]
        else:
            assert isinstance(outcome, ProduceOutcome), f"no outcome of write {number}"
            ends = [(0, count, number % 2, outcome.error, outcome.base_offset, outcome.unknown)]
        for first, length, partition, error, offset, unknown in ends:
            for place in range(length):
                if error is ErrorCode.NONE:
                    self.reported[number, first + place] = (partition, offset + place)
                elif not unknown:
                    self.failed.add((number, first + place))

    def stored(self, partition: int) -> Iterator[tuple[int, Record]]:
        """Offsets and records of the leader's log."""
        view = self.engine.view()
        assert view is not None
        name = PARTITIONS[partition]
        for batch in self.engine.log(view.partitions[name].leader, name):
            for place, data in enumerate(split(batch.payload)):
                yield batch.base_offset + place, identity(data)

    def complaints(self) -> list[str]:
        found = super(Producing, self).complaints()
        for index, name in enumerate(PARTITIONS):
            places: dict[Record, list[int]] = {}
            for offset, item in self.stored(index):
                places.setdefault(item, []).append(offset)
            found += [f"{name}: {item} is stored at {offsets}" for item, offsets in places.items() if len(offsets) > 1]
            if list(places) != sorted(places):
                found.append(f"{name}: records are out of order")
            if self.engine.suite.truth.of(name).tolerant:
                reported = {item: offset for item, (partition, offset) in self.reported.items() if partition == index}
                wrong = [item for item, offset in reported.items() if places.get(item) != [offset]]
                found += [f"{name}: {item} is not at {reported[item]}" for item in wrong]
            found += [f"{name}: {item} has failed and is stored" for item in self.failed & places.keys()]
        return found


@pytest.mark.covers("L18")
@pytest.mark.parametrize("seed", seeds(range(16), fast=4))
def test_every_record_is_stored_once_at_its_reported_offset_and_in_order(seed: int) -> None:
    run = Producing(seed, Generation.KIP_966).run()
    assert run.complaints() == []
    assert len(run.reported) > 200


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_in_every_generation(generation: Generation) -> None:
    run = Producing(100, generation).run()
    assert run.complaints() == []
    assert len(run.reported) > 200


def _complaints_of(seeds: range) -> int:
    return sum(bool(Producing(seed, Generation.KIP_966).run().complaints()) for seed in seeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "least"),
    [("sequences-not-compared", 4), ("retry-gets-a-new-sequence-number", 1)],
    ids=["log", "producer"],
)
def test_sequence_numbers_that_are_not_checked_or_kept_are_detected(mutant: str, least: int) -> None:
    with mutated(mutant):
        assert _complaints_of(range(4)) >= least


def restarted() -> Producing:
    """Three batches are committed while the client receives nothing; all brokers crash and restart before it does."""
    run = Producing(0, Generation.KIP_966, duration_ms=0)
    run.run()
    run._write((11, 1, 0))
    run.engine.run_for(1_000)
    for broker in range(BROKERS):
        run._mute(broker)
    for number in (12, 13, 14):
        run._write((number, number, 0))
    run.engine.run_for(200)
    for broker in range(BROKERS):
        run._crash(broker)
    for broker in range(BROKERS):
        run.engine.start(broker)
    run.engine.run_for(8_000)
    run.reported.clear()
    run._heal()
    return run


def test_producer_state_survives_a_restart_of_the_whole_cluster() -> None:
    run = restarted()
    assert run.complaints() == []
    assert [item for _, item in run.stored(0)] == sorted(run.reported)
    assert len(run.reported) == 1 + 12 + 13 + 14


def test_a_log_that_loses_its_producer_state_at_a_restart_is_detected() -> None:
    with mutated("producers-not-rebuilt-at-restart"):
        assert restarted().complaints() != []


# -- back-pressure -----------------------------------------------------------------------------------------------------


def test_a_paused_cluster_blocks_its_producer_and_stores_every_record_once_afterwards() -> None:
    run = Producing(0, Generation.KIP_966, duration_ms=0)
    run.config = {**run.config, "buffer.memory": 2_000, "delivery.timeout.ms": 120_000, "max.block.ms": 120_000}
    run.__post_init__()
    run.run()
    run._write((11, 1, 0))
    run.engine.run_for(1_000)
    client = run.engine.cluster.nodes[FIRST_CLIENT]
    assert isinstance(client, ClientNode)
    for broker in range(BROKERS):
        run._pause(broker)
    for number in range(12, 72):
        run._write((number, 100, number % 2))
        run.engine.run_for(300)
        assert client.buffered_bytes <= 2_000
    waiting = [item for backlog in run.engine.cluster._backlogs.values() for event in backlog for item in event]
    produced = [message for message in waiting if isinstance(message, ProduceRequest)]
    assert 0 < sum(message.batch.size_bytes for message in produced) <= 10 * 2_000, "each is repeated every 2 s of 18 s"
    run._heal()
    assert run.complaints() == []
    assert len(run.reported) == 1 + 60 * 100


# -- consumers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_following_consumer_reads_each_committed_offset_once_and_in_order() -> None:
    for seed in (1, 2, 3, 5):
        run = Producing(seed, Generation.KIP_966)
        seen: list[RecordBatch] = []
        follow(run, seen)
        run.run()
        assert run.complaints() == []
        assert run.engine.suite.truth.of(PARTITIONS[0]).tolerant
        offsets = [batch.base_offset for batch in seen]
        assert offsets == [0, *(batch.next_offset for batch in seen)][: len(offsets)]
        stored = [(offset, item) for offset, item in run.stored(0)]
        shown = [(b.base_offset + n, identity(data)) for b in seen for n, data in enumerate(split(b.payload))]
        assert shown == stored[: len(shown)]
        assert len(shown) == len(stored)


def follow(run: Producing, seen: list[RecordBatch]) -> None:
    """Makes the client read `t-0` again and again, each time from its position, waiting for more."""
    cluster, position, number = run.engine.cluster, 0, 1_000_000

    def read() -> None:
        nonlocal position, number
        outcome = cluster.outcomes.pop(number, None)
        if isinstance(outcome, ConsumeOutcome):
            if outcome.error is ErrorCode.NONE:
                seen.extend(outcome.batches)
                position = outcome.next_offset
            number += 1
        if outcome is not None or number == 1_000_000:
            number += number == 1_000_000
            command = ConsumeCommand(command_id=number, topic="t", partition=0, offset=position, max_wait_ms=500)
            cluster.command(FIRST_CLIENT, command)
        if cluster.now_ms < run.duration_ms + HEAL_MS // 2:
            cluster.call_at(cluster.now_ms + 100, read)

    cluster.call_at(2_200, read)


def test_a_producer_needs_the_controller_once() -> None:
    run = Producing(0, Generation.KIP_966, duration_ms=0)
    run.run()
    run._write((11, 1, 0))
    run.engine.run_for(1_000)
    run.engine.crash(FIRST_CONTROLLER, Loss("none"))
    run._write((12, 1, 0))
    run._write((13, 1, 1))
    run.engine.run_for(1_000)
    outcomes = [run.engine.outcome(number) for number in (11, 12, 13)]
    assert [getattr(outcome, "error", None) for outcome in outcomes] == [ErrorCode.NONE] * 3
