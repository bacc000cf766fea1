"""The consumer of a simulated trial: reads each partition up to its high watermark, straight from the leader.

It stands for a consumer that polls all the time, whose fetch waits at the leader: it reads as soon as the high
watermark advances, and from each new leader. It sends the leader epoch of the last record that it has read (KIP-320).
A leader whose log differs from what was read makes it go back, and so does one whose log ends before its position; as
with `auto.offset.reset=latest` it then goes on at the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.engines.sim.cluster import SimCluster
from experiments.studies.trace.kinds import DIVERGED, FETCHED, OUT_OF_RANGE, Observation, Read
from experiments.studies.trials.states import PartitionStates
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, NO_EPOCH, NO_LEADER, NodeId, TopicPartition
from protocol.messages.data import ConsumeRequest, ConsumeResponse


@dataclass(slots=True)
class _Position:
    """The position in one partition: `offset` is the next to read, `epoch` the leader epoch of the record before it.
    `outstanding`: the number of the request in flight to `leader`; `follows`: whether another one follows it."""

    offset: int = 0
    epoch: int = NO_EPOCH
    outstanding: int | None = None
    leader: NodeId = NO_LEADER
    follows: bool = False


class Reader:
    """The consumer of all partitions in `states`; `add` takes the rows of the trace."""

    def __init__(self, cluster: SimCluster, states: PartitionStates, add: Callable[[Observation], None]) -> None:
        self._cluster = cluster
        self._states = states
        self._add = add
        self._positions = {name: _Position() for name in states.partitions}
        self._partitions: dict[int, TopicPartition] = {}
        self._last_number = 0

    def request(self, name: TopicPartition) -> None:
        """Reads now, or as soon as the read in flight has ended."""
        position = self._positions[name]
        if position.outstanding is not None:
            position.follows = True
        elif self._states.partitions[name].serves:
            self._send(name, position)

    def handle_leader(self, name: TopicPartition) -> None:
        """The partition has a leader that serves in a new leader epoch: reads from it, and gives up an earlier read."""
        position = self._positions[name]
        if position.outstanding is not None:
            del self._partitions[position.outstanding]
        position.outstanding = None
        self.request(name)

    def complete(self, response: ConsumeResponse) -> None:
        """Takes a response; one to a read that was given up is ignored."""
        name = self._partitions.pop(response.correlation_id, None)
        if name is None:
            return
        position = self._positions[name]
        position.outstanding = None
        if self._move(name, position, response) or position.follows:
            position.follows = False
            self.request(name)

    def _move(self, name: TopicPartition, position: _Position, response: ConsumeResponse) -> bool:
        """Moves the position as the response says; returns whether to read again at once."""
        diverging = response.diverging_epoch
        if diverging is not None:
            self._go_back(name, position, DIVERGED, diverging.end_offset, diverging.leader_epoch)
            return True
        if response.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._go_back(name, position, OUT_OF_RANGE, response.high_watermark, NO_EPOCH)
            return True
        if not response.batches:
            return False
        last = response.batches[-1]
        end = last.base_offset + last.record_count
        read = end - position.offset
        self._add(
            Read(
                self._states.partitions[name].index, position.leader, read, FETCHED, last.leader_epoch, position.offset
            )
        )
        position.offset, position.epoch = end, last.leader_epoch
        return end < response.high_watermark

    def _go_back(self, name: TopicPartition, position: _Position, detail: str, offset: int, epoch: int) -> None:
        missing = max(0, position.offset - offset)
        self._add(Read(self._states.partitions[name].index, position.leader, missing, detail, epoch, offset))
        position.offset, position.epoch = offset, epoch

    def _send(self, name: TopicPartition, position: _Position) -> None:
        self._last_number += 1
        position.outstanding, position.leader = self._last_number, self._states.partitions[name].leader
        self._partitions[self._last_number] = name
        request = ConsumeRequest.unchecked(
            correlation_id=self._last_number,
            topic=name.topic,
            partition=name.partition,
            fetch_offset=position.offset,
            last_fetched_epoch=position.epoch,
        )
        self._cluster.send(FIRST_CLIENT, position.leader, request)
