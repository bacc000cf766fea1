"""Nodes on a bench: one broker, or one controller's state, fed by hand and asked what it did.

Brokers 0, 1, 2 have the broker epochs 0, 1, 2 (the offsets of their registrations). Topic `t` has the id `T`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from experiments.engines.sim.disk import SimStorage
from protocol.broker.context import Replica
from protocol.broker.lifecycle import LifecycleState
from protocol.broker.recovery import DataLossHook, no_routine
from protocol.config import ClusterConfig
from protocol.contract import CancelTimer, Effect, Send, SetTimer
from protocol.controller.context import ControllerState
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.features import Generation
from protocol.ids import NodeId, TopicIdPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.control import (
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.data import FetchPartition, FetchRequest, FetchResponse, ProduceRequest
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import FetchSnapshotRequest, FetchSnapshotResponse, QuorumFetchResponse
from protocol.messages.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker import BrokerNode
from protocol.quorum.log import Snapshot
from protocol.quorum.voters import ReplicaKey, VoterSet

CONTROLLER, CLIENT = 1000, 3000
EPOCH = 1
"""Of the metadata log."""
T0 = TopicIdPartition("T", 0)
M = TypeVar("M", bound=Message)


def config_of(generation: Generation = Generation.KIP_966, **values: object) -> ClusterConfig:
    """A cluster's config; `replica_lag_time_max_ms=5` stands for `replica.lag.time.max.ms`."""
    return ClusterConfig.of(generation, {name.replace("_", "."): value for name, value in values.items()})


def batch(count: int = 1, base_offset: int = 0, leader_epoch: int = 0, payload: bytes = b"x") -> RecordBatch:
    return RecordBatch(base_offset=base_offset, leader_epoch=leader_epoch, record_count=count, payload=payload)


def registrations(brokers: Sequence[int] = (0, 1, 2), fenced: Sequence[int] = ()) -> list[MetadataRecord]:
    """Registers the brokers at offsets (and broker epochs) 0, 1, ... and unfences all but `fenced`."""
    records: list[MetadataRecord] = [
        RegisterBrokerRecord(broker_id=broker, broker_epoch=epoch, incarnation_id=f"incarnation-{broker}")
        for epoch, broker in enumerate(brokers)
    ]
    return [*records, *(fencing(broker, epoch, False) for epoch, broker in enumerate(brokers) if broker not in fenced)]


def fencing(broker: int, epoch: int, fenced: bool) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, fenced=fenced)


def topic_records(min_isr: int = 1, **partition: object) -> list[MetadataRecord]:
    """Topic `t` with one partition; by default replicas and ISR 0, 1, 2, led by 0 in leader epoch 0."""
    fields: dict[str, object] = {"replicas": (0, 1, 2), "isr": (0, 1, 2), "leader": 0} | partition
    return [
        TopicRecord(name="t", topic_id="T"),
        ConfigRecord(topic_id="T", name="min.insync.replicas", value=str(min_isr)),
        PartitionRecord(**({"topic_id": "T", "partition_id": 0} | fields)),
    ]


class ControllerBench:
    """A controller's state, filled by records; `apply` replays what a decision returned."""

    def __init__(self, *records: MetadataRecord, config: ClusterConfig | None = None) -> None:
        self.state = ControllerState(config or config_of(), Random(0))
        self.apply(records)

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[MetadataRecord]:
        for record in records:
            self.state.replay(record)
        return records

    def partition(self, key: TopicIdPartition = T0) -> PartitionState:
        state = self.state.image.partition(key)
        assert state is not None
        return state


class BrokerBench:
    """A broker node and the metadata log that it fetches; `effects` are those of the last input."""

    def __init__(
        self,
        me: int = 0,
        config: ClusterConfig | None = None,
        storage: SimStorage | None = None,
        hook: DataLossHook = no_routine,
    ) -> None:
        self.me = me
        self.storage = storage or SimStorage()
        self.node = BrokerNode(me, [CONTROLLER], config or config_of(), self.storage, Random(1), data_loss_hook=hook)
        self.now_ms = 0
        self.records: list[MetadataRecord] = []
        self.effects: list[Effect] = []
        self.incarnation_id = ""
        self._sessions: dict[tuple[NodeId, int], tuple[int, int]] = {}

    def _did(self, effects: list[Effect]) -> BrokerBench:
        self.effects = effects
        for _, request in self.sends(BrokerRegistrationRequest):
            self.incarnation_id = request.incarnation_id
        return self

    def start(self) -> BrokerBench:
        return self._did(self.node.start(self.now_ms))

    def receive(self, sender: NodeId, message: Message) -> BrokerBench:
        return self._did(self.node.receive(self.now_ms, sender, message))

    def fire(self, name: str, at_ms: int | None = None) -> BrokerBench:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        return self._did(self.node.fire(self.now_ms, name))

    def publish(self, *records: MetadataRecord) -> BrokerBench:
        """The broker receives more of the metadata log."""
        if self.node.replica.leader != CONTROLLER:
            self.fetched_metadata()
        self.records += records
        return self.fetched_metadata(*records)

    def fetched_metadata(self, *records: MetadataRecord, high_watermark: int | None = None) -> BrokerBench:
        """The leader of the metadata log answers the broker's fetch with these records; all of them are committed, or
        what is below the high watermark.
        """
        log = self.node.replica.log
        base = log.end_offset
        packed = pack_records(records)
        batch = RecordBatch(base_offset=base, leader_epoch=EPOCH, record_count=len(records), payload=packed)
        return self.receive(
            CONTROLLER,
            QuorumFetchResponse(
                correlation_id=self.node.replica.pending_fetch_id or 0,
                leader_id=CONTROLLER,
                leader_epoch=EPOCH,
                high_watermark=base + len(records) if high_watermark is None else high_watermark,
                batches=(batch,) if records else (),
            ),
        )

    def fetched_snapshot(self, image: MetadataImage, end_offset: int) -> BrokerBench:
        """The leader of the metadata log has deleted what the broker fetches, and sends this image as a snapshot."""
        voters = VoterSet.of([ReplicaKey(CONTROLLER, "u")])
        data = Snapshot(EPOCH, end_offset, voters, pack_records(image.to_records())).encode()
        fields = {"leader_id": CONTROLLER, "leader_epoch": EPOCH, "snapshot_epoch": EPOCH}
        fields["snapshot_end_offset"] = end_offset
        number = self.node.replica.pending_fetch_id
        self.receive(CONTROLLER, QuorumFetchResponse(**(fields | {"correlation_id": number})))
        wanted = self.sent(FetchSnapshotRequest)
        assert (wanted.snapshot_epoch, wanted.snapshot_end_offset, wanted.position) == (EPOCH, end_offset, 0)
        part = {"correlation_id": wanted.correlation_id, "size": len(data), "position": 0, "data": data}
        return self.receive(CONTROLLER, FetchSnapshotResponse(**(fields | part)))

    def registered(self, **fields: object) -> BrokerBench:
        """The controller answers the broker's last registration."""
        answer = {"correlation_id": 1, "broker_epoch": self.me, "incarnation_id": self.incarnation_id} | fields
        return self.receive(CONTROLLER, BrokerRegistrationResponse(**answer))

    def heartbeat_answered(self, **fields: object) -> BrokerBench:
        answer = BrokerHeartbeatResponse(**({"correlation_id": 1, "is_fenced": False} | fields))
        return self.receive(CONTROLLER, answer)

    def run(self, *records: MetadataRecord) -> BrokerBench:
        """Starts the broker, registers it and its peers, shows it the metadata with `records`, and unfences it."""
        self.start().registered().publish(*registrations(), *records).heartbeat_answered()
        assert self.node.state is LifecycleState.RUNNING
        return self

    def sends(self, kind: type[M]) -> list[tuple[NodeId, M]]:
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def sent(self, kind: type[M]) -> M:
        """The one message of that type among the last effects."""
        [(_, message)] = self.sends(kind)
        return message

    def timer(self, name: str) -> SetTimer | None:
        """How the last input left the timer, None if it did not set it."""
        setting = None
        for effect in self.effects:
            if isinstance(effect, SetTimer | CancelTimer) and effect.name == name:
                setting = effect if isinstance(effect, SetTimer) else None
        return setting

    def traces(self, kind: str) -> list[Trace]:
        return [effect for effect in self.effects if isinstance(effect, Trace) and effect.kind == kind]

    @property
    def replica(self) -> Replica:
        return self.node.context.replicas[T0]

    @property
    def high_watermark(self) -> int:
        return self.replica.log.high_watermark

    def produce(self, acks: int = -1, count: int = 1, correlation_id: int = 7, **fields: object) -> BrokerBench:
        wanted = {"correlation_id": correlation_id, "topic": "t", "partition": 0, "acks": acks, "batch": batch(count)}
        return self.receive(CLIENT, ProduceRequest(**(wanted | fields)))

    def fetch(self, follower: int, offset: int, epoch: int | None = None, **fields_of_fetch: object) -> BrokerBench:
        """A follower's fetch under its known broker epoch, or `replica_epoch`; it knows high watermark 0. It goes on in
        the follower's session, or begins one where the leader knows of none.
        """
        replica_epoch = int(str(fields_of_fetch.pop("replica_epoch", follower)))
        fields = {"topic_id": "T", "partition_id": 0, "current_leader_epoch": self.replica.leader_epoch}
        last_epoch = (-1 if offset == 0 else self.replica.log.latest_epoch) if epoch is None else epoch
        fields |= {"fetch_offset": offset, "last_fetched_epoch": last_epoch} | fields_of_fetch
        partitions = (FetchPartition(**fields),)
        session, number = self._sessions.get((follower, replica_epoch), (1, 0))
        while True:
            request = FetchRequest(
                replica_id=follower, replica_epoch=replica_epoch, partitions=partitions, session=session, number=number
            )
            self.receive(follower, request)
            self._sessions[follower, replica_epoch] = session, number + 1
            if ErrorCode.FETCH_SESSION_ID_NOT_FOUND not in [answer.error for _, answer in self.sends(FetchResponse)]:
                return self
            session, number = session + 1, 0


def bench(
    *records: MetadataRecord, generation: Generation = Generation.KIP_966, **partition: object
) -> ControllerBench:
    """Brokers 0..3 are active, 4 is fenced; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    base = [*registrations((0, 1, 2, 3, 4), fenced=(4,)), *topic_records(2, **partition)]
    return ControllerBench(*base, *records, config=config_of(generation))
