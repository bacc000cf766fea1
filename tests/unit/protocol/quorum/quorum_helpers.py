"""A bench for controller 1000 of three: tests play the voters 1001 and 1002, the brokers and the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from experiments.engines import admin_requests
from experiments.engines.sim.disk import SimStorage, formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import ClusterConfig
from protocol.contract import Effect, Send
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.registry import detail_of
from protocol.features import Generation
from protocol.ids import CLUSTER_ID
from protocol.messages.admin import AdminResponse
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    LeaderChangeRecord,
    QuorumFetchResponse,
    QuorumRequest,
    VoteRequest,
    VoteResponse,
)
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.nodes.controller import ControllerNode
from protocol.quorum.context import ELECTION_TIMER
from protocol.quorum.voters import ReplicaKey, VoterSet
from tests.unit.protocol.node_helpers import CLIENT, config_of, registrations, topic_records

ME, NEXT, THIRD = 1000, 1001, 1002
KEYS = {node: ReplicaKey(node, f"disk-of-{node}") for node in (ME, NEXT, THIRD)}
VOTERS = VoterSet.of(KEYS.values())
LEVELS: list[MetadataRecord] = [
    FeatureLevelRecord(name=name, feature_level=level) for name, level in Generation.KIP_966.feature_levels.items()
]
M = TypeVar("M", bound=Message)


class Bench:
    """Controller 1000; `effects` are those of the last input."""

    def __init__(self, storage: SimStorage | None = None, config: ClusterConfig | None = None) -> None:
        self.storage = storage or formatted_disk(ME, VOTERS)
        self.node = ControllerNode(ME, tuple(KEYS), config or config_of(), self.storage, Random(1))
        self.now_ms = 0
        self.number = 0
        self.effects: list[Effect] = self.node.start(0)

    def receive(self, sender: int, message: Message) -> Bench:
        self.effects = self.node.receive(self.now_ms, sender, message)
        return self

    def fire(self, name: str) -> Bench:
        self.effects = self.node.fire(self.now_ms, name)
        return self

    def sends(self, kind: type[M]) -> list[tuple[int, M]]:
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def sent(self, kind: type[M]) -> M:
        [(_, message)] = self.sends(kind)
        return message

    @property
    def external_effects(self) -> list[Effect]:
        """Effects that reach nodes other than replicas of the log."""
        return [
            effect
            for effect in self.effects
            if (isinstance(effect, Send) and not isinstance(effect.message, QuorumRequest | QuorumFetchResponse))
            or (isinstance(effect, Trace) and not effect.kind.startswith("quorum"))
        ]

    def traces(self, kind: str) -> list[dict[str, object]]:
        return [detail_of(e) for e in self.effects if isinstance(e, Trace) and e.kind == kind]

    @property
    def image(self) -> MetadataImage:
        return self.node.state.image

    @property
    def end(self) -> int:
        return self.node.replica.log.end_offset

    def elect(self) -> Bench:
        """The election timeout expires, and 1001 grants its pre-vote and vote."""
        self.fire(ELECTION_TIMER)
        for _ in range(2):
            [request] = [request for to, request in self.sends(VoteRequest) if to == NEXT]
            number, epoch = request.correlation_id, request.candidate_epoch
            self.receive(NEXT, VoteResponse(correlation_id=number, leader_epoch=epoch, vote_granted=True))
        assert self.node.replica.is_leader
        return self

    def fetch(self, follower: int = NEXT, offset: int | None = None) -> Bench:
        """A voter fetches at `offset`, by default the log end."""
        fetch = metadata_fetch(self.node, follower, offset)
        return self.receive(follower, replace(fetch, replica_uuid=KEYS[follower].uuid))

    def activate(self) -> Bench:
        """The controller is elected, and all its records are committed."""
        self.elect().fetch().fetch()
        assert self.node.is_active
        assert self.node.replica.high_watermark == self.end
        return self

    def begin_epoch(self, leader: int = NEXT, epoch: int | None = None) -> Bench:
        """Another replica announces that it leads."""
        message = BeginQuorumEpochRequest(
            correlation_id=1,
            cluster_id=CLUSTER_ID,
            voter_id=ME,
            voter_uuid=KEYS[ME].uuid,
            leader_id=leader,
            leader_epoch=self.node.replica.epoch + 1 if epoch is None else epoch,
        )
        return self.receive(leader, message)

    def follow(self, *batches: Sequence[MetadataRecord], committed: int) -> Bench:
        """The leader's fetch response with batches, the first `committed` of which are committed."""
        epoch, end, found, ends = self.node.replica.epoch, self.end, list[RecordBatch](), [self.end]
        for records in batches:
            payload = pack_records(records)
            batch = RecordBatch(base_offset=end, leader_epoch=epoch, record_count=len(records), payload=payload)
            found.append(batch)
            end = batch.next_offset
            ends.append(end)
        answer = QuorumFetchResponse(
            correlation_id=self.node.replica.pending_fetch_id or 0,
            leader_id=self.node.replica.leader,
            leader_epoch=epoch,
            high_watermark=ends[committed],
            batches=tuple(found),
        )
        return self.receive(self.node.replica.leader, answer)

    def register(self, broker: int = 0, incarnation_id: str = "one") -> Bench:
        self.number += 1
        request = BrokerRegistrationRequest(correlation_id=self.number, broker_id=broker, incarnation_id=incarnation_id)
        return self.receive(broker, request)

    def beat(self, broker: int = 0, **fields: object) -> Bench:
        self.number += 1
        present = {"correlation_id": self.number, "broker_id": broker, "broker_epoch": self.image.broker_epoch(broker)}
        present["current_metadata_offset"] = self.node.replica.high_watermark
        return self.receive(broker, BrokerHeartbeatRequest(**(present | fields)))

    def serve(self) -> Bench:
        """The controller is active, brokers 0 to 2 are unfenced, topic `t` is on all of them, and everything is
        committed.
        """
        self.activate()
        for broker in (0, 1, 2):
            self.register(broker).fetch()
            self.beat(broker).fetch()
            assert not self.sent(BrokerHeartbeatResponse).is_fenced
        self.receive(CLIENT, admin_requests.create_topic("t", ((0, 1, 2),), {"min.insync.replicas": 2})).fetch()
        assert self.sent(AdminResponse).failure()[0] is ErrorCode.NONE
        return self


def leader_change(leader: int) -> LeaderChangeRecord:
    return LeaderChangeRecord(leader_id=leader, leader_uuid=KEYS[leader].uuid, voters=())


def standing_by() -> Bench:
    """1001 is active; registrations of brokers 0 to 2 and topic `t` are committed."""
    bench = Bench().begin_epoch()
    return bench.follow([leader_change(NEXT), *LEVELS], registrations(), topic_records(2), committed=3)
