"""A bench for leaders: broker 0 leads, and the test acts as the follower, broker 1."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.broker.fetch_sessions import bytes_of
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import TopicIdPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchRenewal, FetchRequest, FetchResponse
from protocol.messages.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from tests.unit.protocol.node_helpers import BrokerBench, batch, config_of

FOLLOWER = 1
WAIT_MS = 500
UNIT = 1_000
"""Default size of the batches that these tests produce, in bytes as the limits count them."""


def sized(size_bytes: int, **fields: int) -> RecordBatch:
    """A batch of that size."""
    return batch(payload=b"x" * (size_bytes - bytes_of(batch(payload=b""))), **fields)


def topic(partitions: int, leader: int = 0) -> list[MetadataRecord]:
    return [
        TopicRecord(name="t", topic_id="T"),
        ConfigRecord(topic_id="T", name="min.insync.replicas", value="1"),
        *(
            PartitionRecord(topic_id="T", partition_id=index, replicas=(0, 1), isr=(0, 1), leader=leader)
            for index in range(partitions)
        ),
    ]


class Leader:
    """Broker 0 leads partitions of `t`; broker 1 follows and fetches when the test calls `fetch`.

    `arrived` are the batches that broker 1 has of each partition, `position` its log end and `high_watermark` the last
    one it received. `under_way` are the responses that it has not processed yet, oldest first.
    """

    def __init__(self, partitions: int = 1, **config: int) -> None:
        limits = {"replica_fetch_wait_max_ms": WAIT_MS} | config
        self.bench = BrokerBench(config=config_of(Generation.KIP_966, **limits))
        self.bench.run(*topic(partitions))
        self.position = dict.fromkeys(range(partitions), 0)
        self.high_watermark = dict.fromkeys(range(partitions), 0)
        self.arrived: dict[int, list[RecordBatch]] = {index: [] for index in range(partitions)}
        self.under_way: list[FetchResponse] = []
        self.answers = 0
        self.sessions: dict[tuple[int, int], int] = {}
        self.requests: dict[tuple[int, int], int] = {}

    def sent(self) -> list[FetchResponse]:
        """The responses that the last input made the leader send."""
        sent = [message for _, message in self.bench.sends(FetchResponse)]
        self.under_way += sent
        return sent

    def produce(self, *sizes: int, partition: int = 0) -> list[FetchResponse]:
        """Appends a batch of each size; returns the responses that the leader sends."""
        sent = []
        for size_bytes in sizes:
            self.bench.produce(acks=1, partition=partition, batch=sized(size_bytes))
            sent += self.sent()
        return sent

    def fill(self, counts: Mapping[int, int]) -> None:
        """Appends batches of one unit to partitions without a parked fetch."""
        for partition, count in counts.items():
            assert self.produce(*[UNIT] * count, partition=partition) == []

    def fetch(
        self,
        *partitions: int,
        new_session: bool = False,
        replica_epoch: int = FOLLOWER,
        fetcher: int = 0,
        **fields_of_fetch: int,
    ) -> list[FetchResponse]:
        """The follower fetches from its position, in a new session if `new_session`; returns the leader's responses."""
        fetches = []
        for index in partitions or self.position:
            offset = self.position[index]
            fields = {"topic_id": "T", "partition_id": index, "current_leader_epoch": 0, "fetch_offset": offset}
            fields |= {
                "last_fetched_epoch": 0 if offset else -1,
                "high_watermark": self.high_watermark[index],
            } | fields_of_fetch
            fetches.append(FetchPartition(**fields))
        stream = (replica_epoch, fetcher)
        if new_session or stream not in self.sessions:
            self.sessions[stream] = self.sessions.get(stream, 0) + 1
            self.requests[stream] = 0
        self.requests[stream] += 1
        request = FetchRequest(
            replica_id=FOLLOWER,
            replica_epoch=replica_epoch,
            partitions=tuple(fetches),
            fetcher=fetcher,
            session=self.sessions[stream],
            number=self.requests[stream] - 1,
        )
        self.bench.receive(FOLLOWER, request)
        return self.sent()

    def renew(self, **fields: int) -> list[FetchResponse]:
        """The follower renews the session of its first fetcher; returns the leader's responses."""
        stream = (FOLLOWER, 0)
        stands = {"requests": self.requests[stream], "session": self.sessions[stream]}
        renewal = FetchRenewal(
            **({"replica_id": FOLLOWER, "replica_epoch": FOLLOWER} | stands | {"answers": self.answers} | fields)
        )
        self.bench.receive(FOLLOWER, renewal)
        return self.sent()

    def take(self) -> None:
        """The follower processes the oldest response and fetches again the partitions with records."""
        message = self.under_way.pop(0)
        self.answers += 1
        for result in message.partitions:
            assert (result.error, result.fetch_offset) == (ErrorCode.NONE, self.position[result.partition_id])
            self.arrived[result.partition_id] += result.batches
            self.position[result.partition_id] += sum(found.record_count for found in result.batches)
            self.high_watermark[result.partition_id] = result.high_watermark
        more = [result.partition_id for result in message.partitions if result.batches]
        if more:
            self.fetch(*more, fetcher=message.fetcher)

    def log_end(self, partition: int) -> int:
        return self.bench.node.context.replicas[TopicIdPartition("T", partition)].log.end_offset


def brought(*messages: FetchResponse) -> list[tuple[int, int]]:
    """(partition, number of batches) of the results with records."""
    return [(r.partition_id, len(r.batches)) for message in messages for r in message.partitions if r.batches]


def results(*messages: FetchResponse) -> list[FetchPartitionResult]:
    return [result for message in messages for result in message.partitions]
