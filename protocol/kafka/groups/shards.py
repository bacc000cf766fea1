"""The partitions of `__consumer_offsets` that this broker leads, with the groups whose records they have.

When the broker becomes the leader of such a partition it reads the log up to where it ended then, waits until all of
that is committed, and serves the groups; meanwhile it answers COORDINATOR_LOAD_IN_PROGRESS. When it leads no more, the
groups are dropped and their waiting members get NOT_COORDINATOR. So a committed offset lives and dies with its record:
it is acknowledged when min ISR replicas have it, and gone where an unclean election discards it.

The topic is created when a coordinator is first asked for: `PARTITIONS` partitions (Kafka: 50), up to three replicas,
compacted in name only, so that its log grows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol.config import CLEANUP_POLICY, COMPACT
from protocol.errors import ErrorCode
from protocol.ids import Epoch, TimeMs
from protocol.kafka.batches import build_batch
from protocol.kafka.calls import BROKER, CONTROLLER, Call, Calls, Handler, Signal
from protocol.kafka.groups.group import Group, restored
from protocol.kafka.groups.records import (
    OFFSETS_TOPIC,
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    partition_of,
    read_record,
)
from protocol.kafka.view import View
from protocol.messages.batch import RecordBatch
from protocol.messages.data import ConsumeRequest, ConsumeResponse, ProduceRequest
from protocol.messages.kafka_batch import UnreadableBatch, is_kafka, records_of
from protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.metadata.authorizer import BROKER_PRINCIPAL

PARTITIONS = 8
REPLICATION_FACTOR = 3
APPEND_MS = 5_000
"""`offsets.commit.timeout.ms` of Kafka."""
_READ_BYTES = 1_048_576
_READ_WAIT_MS = 500
CREATE_MS = 10_000


@dataclass(eq=False, slots=True)
class Shard:
    """A led partition. Its groups may be used once it `is_loaded`."""

    partition: int
    leader_epoch: Epoch
    is_loaded: bool = False
    groups: dict[str, Group] = field(default_factory=dict)


@dataclass(eq=False)
class Shards:
    """The shards of one broker."""

    view: View
    owned: dict[int, Shard] = field(default_factory=dict)
    on_loaded: Callable[[Shard, TimeMs], None] = lambda shard, now_ms: None
    seen_offset: int = -1
    """The end of the metadata that `follow` has seen."""

    def follow(self, now_ms: TimeMs) -> list[Shard]:
        """After a change of the metadata: begins to load the partitions of which this broker has become the leader.
        Returns the shards that it has lost.
        """
        image = self.view.image
        if image.next_offset == self.seen_offset:
            return []
        self.seen_offset = image.next_offset
        topic = image.topic_named(OFFSETS_TOPIC)
        led = {}
        for index, state in {} if topic is None else topic.partitions.items():
            replica = self.view.context.replica_named(OFFSETS_TOPIC, index)
            if state.leader == self.view.me and replica is not None and replica.leadership is not None:
                led[index] = state.leader_epoch
        lost = [shard for shard in self.owned.values() if led.get(shard.partition) != shard.leader_epoch]
        for shard in lost:
            del self.owned[shard.partition]
        for index, epoch in led.items():
            if index not in self.owned:
                self.owned[index] = shard = Shard(index, epoch)
                self.view.tasks.run(now_ms, self._load(shard), partial(self._loaded, shard))
        return lost

    def find(self, group: str) -> Shard | ErrorCode:
        """The shard of a group, or why this broker cannot serve it now."""
        topic = self.view.image.topic_named(OFFSETS_TOPIC)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self.owned.get(partition_of(group, len(topic.partitions)))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return shard if shard.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def create_topic(self) -> Handler:
        """Creates the topic where it does not exist yet."""
        replicas = min(REPLICATION_FACTOR, len(self.view.live_brokers()))
        configs = (CreatableTopicConfig(name=CLEANUP_POLICY, value=COMPACT),)
        topic = CreatableTopic(
            name=OFFSETS_TOPIC, num_partitions=PARTITIONS, replication_factor=replicas, configs=configs
        )
        request = CreateTopicsRequest(correlation_id=0, principal=BROKER_PRINCIPAL, topics=(topic,))
        yield Calls([Call(CONTROLLER, request)], self.view.now_ms + CREATE_MS)

    def append(self, shard: Shard, records: list[tuple[bytes, bytes | None]]) -> Handler:
        """Appends records to a shard's log. Returns NONE once they are committed, else the error for the client."""
        view = self.view
        batch = build_batch(records, view.now_ms, view.checksum)
        request = ProduceRequest.unchecked(
            correlation_id=0,
            principal=BROKER_PRINCIPAL,
            topic=OFFSETS_TOPIC,
            partition=shard.partition,
            acks=-1,
            batch=batch,
        )
        (answer,) = yield Calls([Call(BROKER, request)], view.now_ms + APPEND_MS)
        if self.owned.get(shard.partition) is not shard:
            return ErrorCode.NOT_COORDINATOR
        return client_error(ErrorCode.REQUEST_TIMED_OUT if answer is None else answer.error)

    def _load(self, shard: Shard) -> Handler:
        """Reads the log of a shard; returns whether all of it was read while the broker led."""
        replica = self.view.context.replica_named(OFFSETS_TOPIC, shard.partition)
        if replica is None:
            return False
        offset, end = replica.log.start_offset, replica.log.end_offset
        while offset < end:
            if self.owned.get(shard.partition) is not shard:
                return False
            request = ConsumeRequest.unchecked(
                correlation_id=0,
                principal=BROKER_PRINCIPAL,
                topic=OFFSETS_TOPIC,
                partition=shard.partition,
                fetch_offset=offset,
                max_bytes=_READ_BYTES,
                max_wait_ms=_READ_WAIT_MS,
            )
            (answer,) = yield Calls([Call(BROKER, request)], self.view.now_ms + 2 * _READ_WAIT_MS)
            if answer is not None and answer.error is ErrorCode.CORRUPT_MESSAGE:
                return False
            batches = answer.batches if isinstance(answer, ConsumeResponse) else ()
            for batch in batches:
                offset = batch.next_offset
                replay_batch(shard.groups, batch)
            if not batches:
                yield Signal(self.view.now_ms + _READ_WAIT_MS)
        return True

    def _loaded(self, shard: Shard, now_ms: TimeMs, is_complete: Any) -> None:
        shard.is_loaded = bool(is_complete)
        if shard.is_loaded:
            self.on_loaded(shard, now_ms)


def replay_batch(groups: dict[str, Group], batch: RecordBatch) -> None:
    """Applies the records of a batch. What cannot be read, since no coordinator has written it, has no effect."""
    if is_kafka(batch.payload):
        with suppress(UnreadableBatch):
            for record in records_of(batch):
                with suppress(ValueError):
                    replay(groups, record.key, record.value)


def replay(groups: dict[str, Group], key: bytes | None, value: bytes | None) -> None:
    """Applies a record to the groups."""
    found = read_record(key, value)
    if found is None:
        return
    name, content = found
    if isinstance(name, GroupKey) and not isinstance(content, CommittedOffset):
        _replay_group(groups, name.group, content)
    elif isinstance(name, OffsetKey) and not isinstance(content, StoredGroup):
        group = groups.setdefault(name.group, Group(name.group))
        if content is None:
            group.offsets.pop((name.topic, name.partition), None)
        else:
            group.offsets[name.topic, name.partition] = content


def _replay_group(groups: dict[str, Group], name: str, stored: StoredGroup | None) -> None:
    if stored is None:
        groups.pop(name, None)
    else:
        restored(groups.setdefault(name, Group(name)), stored)


def client_error(error: ErrorCode) -> ErrorCode:
    """What a client gets for an error of an append."""
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return error if error is ErrorCode.NONE else ErrorCode.COORDINATOR_NOT_AVAILABLE
