"""The seven ways in which a follower's log can differ from its new leader's, and where it is truncated (M43).

The cases A to G are those of the published description of the replication protocol (section 3.3), between two broker
nodes that exchange messages until none is left (on two logs: `log/test_replica_log.py`). Then the cases in which the
leader has deleted the beginning of its log.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from experiments.engines.sim.disk import SimStorage
from protocol.broker.context import log_name
from protocol.contract import Send
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import NodeId
from protocol.log.replica_log import ReplicaLog
from protocol.messages.base import Message
from protocol.messages.data import EpochEndOffset, FetchRequest, FetchResponse
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.node_helpers import T0, BrokerBench, batch, config_of, registrations, topic_records

LEADER, FOLLOWER = 0, 1
NEW_EPOCH = 4


@dataclass(frozen=True, slots=True)
class Case:
    """Leader epochs of the records in either log; the (epoch, end offset) of the leader's first diverging epoch, and
    the offset to which the follower truncates, both None where its log is a prefix of the leader's.
    """

    follower: tuple[int, ...]
    leader: tuple[int, ...]
    diverging: tuple[int, int] | None
    cut: int | None


CASES = {
    "A: behind, same epoch": Case((1, 1), (1, 1, 1, 1), None, None),
    "B: behind, later epoch": Case((1, 1), (1, 1, 2, 2), None, None),
    "C: ahead, same epoch": Case((1, 1, 1, 1), (1, 1), (1, 2), 2),
    "D: ahead, later epoch": Case((1, 1, 2, 2), (1, 1), (1, 2), 2),
    "E: forked, an epoch each": Case((1, 1, 2, 2), (1, 1, 3, 3), (1, 2), 2),
    "F: forked, the leader's first epoch is longer": Case((1, 2, 2), (1, 1), (1, 2), 1),
    "G: nothing in common": Case((2, 2), (1, 3), (1, 1), 0),
}
TABLE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def storage_with(*epochs: int) -> SimStorage:
    """A disk with a log of one record per epoch, in a segment each; records of a leader are the same on all disks."""
    storage = SimStorage()
    log = storage.open_log(log_name(T0))
    for offset, epoch in enumerate(epochs):
        log.roll()
        log.append(batch(1, offset, epoch, f"{epoch}@{offset}".encode()))
    return storage


class Pair:
    """Broker 0 has become leader in epoch 4, broker 1 follows; `diverging` are the results with a diverging epoch."""

    def __init__(self, leader: SimStorage, follower: SimStorage) -> None:
        disks = {LEADER: leader, FOLLOWER: follower}
        self.benches = {me: BrokerBench(me, storage=disk) for me, disk in disks.items()}
        self.cuts: list[int] = []
        self.diverging: list[EpochEndOffset] = []
        self.on_the_way: list[tuple[NodeId, NodeId, Message]] = []
        created = topic_records(2, replicas=(0, 1), isr=(0, 1), leader=1)
        moved = [PartitionChangeRecord(topic_id="T", partition_id=0, leader=LEADER) for _ in range(NEW_EPOCH)]
        for bench in self.benches.values():
            bench.start().registered().publish(*registrations(), *created, *moved)
            self._note(bench)
            bench.heartbeat_answered()

    def _note(self, bench: BrokerBench) -> None:
        for effect in bench.effects:
            if isinstance(effect, Send) and isinstance(effect.message, FetchRequest | FetchResponse):
                self.on_the_way.append((effect.to, bench.me, effect.message))
        self.cuts += [trace.to_offset for trace in bench.traces("truncated")]

    def settle(self) -> None:
        """Delivers messages in the order sent until there are none."""
        while self.on_the_way:
            to, sender, message = self.on_the_way.pop(0)
            if isinstance(message, FetchResponse):
                self.diverging += [r.diverging_epoch for r in message.partitions if r.diverging_epoch is not None]
            self._note(self.benches[to].receive(sender, message))

    def log(self, broker: NodeId) -> ReplicaLog:
        return self.benches[broker].replica.log


@pytest.mark.covers("M43", "N1")
@TABLE
def test_divergence_between_two_brokers(case: Case) -> None:
    pair = Pair(storage_with(*case.leader), storage_with(*case.follower))
    assert pair.benches[LEADER].replica.leader_epoch == NEW_EPOCH
    pair.settle()
    first = None if not pair.diverging else (pair.diverging[0].leader_epoch, pair.diverging[0].end_offset)
    assert first == case.diverging
    assert (pair.cuts[0] if pair.cuts else None) == case.cut
    stored = pair.log(LEADER).storage.read(0, 1 << 20)
    assert [found.leader_epoch for found in stored] == list(case.leader)
    assert list(pair.log(FOLLOWER).storage.read(0, 1 << 20)) == list(stored)
    assert pair.log(FOLLOWER).epochs.entries() == pair.log(LEADER).epochs.entries()
    assert pair.log(FOLLOWER).high_watermark == pair.log(LEADER).high_watermark == len(case.leader)


@pytest.mark.covers("M43", "E3")
@TABLE
def test_a_diverging_follower_does_not_advance_the_high_watermark(case: Case) -> None:
    """The first fetch of a diverging follower commits nothing, even if its log is the longer one."""
    pair = Pair(storage_with(*case.leader), storage_with(*case.follower))
    to, sender, message = pair.on_the_way.pop(0)
    assert (to, sender) == (LEADER, FOLLOWER)
    pair.benches[LEADER].receive(sender, message)
    expected = 0 if case.diverging else len(case.follower)
    assert pair.log(LEADER).high_watermark == expected


# -- a leader whose log starts later -----------------------------------------------------------------------------------


def leader_with_two_segments(**config: object) -> BrokerBench:
    """Broker 0, alone in the ISR, has committed records 0 and 1 in a closed segment and 2 in the active one."""
    bench = BrokerBench(config=config_of(Generation.KIP_966, **config)).run(*topic_records(1, isr=(0,)))
    bench.produce(acks=1, count=2)
    bench.replica.log.storage.roll()
    bench.produce(acks=1)
    return bench


OUT_OF_RANGE = {
    "below the log start": (1, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
    "at the log start": (2, 0, ErrorCode.NONE),
    "an empty log below the log start": (0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    "an empty log at the log start": (2, -1, ErrorCode.NONE),
    "an empty log behind the log end": (4, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    "negative": (-1, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
}


@pytest.mark.parametrize(("offset", "epoch", "error"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_out_of_range_fetches_get_the_log_start_offset(offset: int, epoch: int, error: ErrorCode) -> None:
    bench = leader_with_two_segments()
    assert bench.replica.log.delete_segments_before(2)
    [result] = bench.fetch(1, offset, epoch).sent(FetchResponse).partitions
    assert (result.error, result.log_start_offset, len(result.batches)) == (error, 2, int(error is ErrorCode.NONE))


def test_retention_may_delete_what_a_queued_fetch_asks_for() -> None:
    bench = leader_with_two_segments(replica_fetch_min_bytes=10_000)
    assert bench.fetch(1, 0).sends(FetchResponse) == []
    assert bench.replica.log.delete_segments_before(2)
    [result] = bench.produce(acks=1).sent(FetchResponse).partitions
    assert (result.error, result.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


DELETED = {
    "a follower with an old epoch only": ((1, 1), (1, 1, 3, 3), 3),
    "a follower that forked before": ((1, 2, 2), (1, 1, 3, 3), 2),
    "a follower that forked in what is there": ((1, 1, 2, 2), (1, 1, 3, 3), 1),
    "an empty follower": ((), (1, 1, 3, 3), 3),
    "nothing in common": ((2, 2, 2, 2, 2), (1, 3, 3), 1),
}


@pytest.mark.parametrize(("follower", "leader", "start"), DELETED.values(), ids=DELETED)
def test_logs_converge_from_the_leaders_log_start_on(
    follower: tuple[int, ...], leader: tuple[int, ...], start: int
) -> None:
    """The leader has deleted its records below `start` before the follower's first fetch."""
    disk = storage_with(*leader)
    disk.open_log(log_name(T0)).delete_segments_before(start)
    pair = Pair(disk, storage_with(*follower))
    pair.settle()
    stored = list(pair.log(LEADER).storage.read(start, 1 << 20))
    assert pair.log(LEADER).start_offset == start
    assert list(pair.log(FOLLOWER).storage.read(start, 1 << 20)) == stored
    assert pair.log(FOLLOWER).end_offset == len(leader)
    assert pair.log(FOLLOWER).high_watermark == pair.log(LEADER).high_watermark == len(leader)


@pytest.mark.covers("M43")
def test_a_follower_whose_log_starts_within_a_batch_of_the_leader_starts_again_with_that_batch() -> None:
    """Everything it has diverges, so it truncates its log to the log start, offset 3; the leader's batch has 1 to 4."""
    disk = storage_with(2, 2, 2, 2, 2, 2)
    disk.open_log(log_name(T0)).delete_segments_before(3)
    leader = SimStorage()
    for records in (batch(1, 0, 1), batch(4, 1, 1)):
        leader.open_log(log_name(T0)).append(records)
    pair = Pair(leader, disk)
    pair.settle()
    log = pair.log(FOLLOWER)
    assert pair.cuts == [3]
    assert list(log.storage.read(0, 1 << 20)) == [batch(4, 1, 1)]
    assert (log.start_offset, log.end_offset, log.high_watermark) == (1, 5, 5)
    assert log.epochs.entries() == [(1, 1)]
