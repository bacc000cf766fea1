"""Conformance of one replica of the metadata log: recorded events of Apache Kafka's KafkaRaftClient, replayed on a
`QuorumReplica`.

A row is one JSON line: the disk on which the node 1 starts (`quorum`), and events, each with the answer of the node,
that of an earlier change of the voters (`completed`), and the node's state afterwards. Replicas are
[node id, number of the disk]; disk 0 is an unknown one. Both sides draw the shortest time wherever they draw one, and
have an election timeout of 1,000 ms and a fetch timeout of 2,000 ms, so that what is due happens at the same time.

After every event the answer is compared (error, epoch, leader, vote; end of the records, diverging epoch, snapshot and
high watermark of a fetch, which knows no high watermark, so that no leader delays it), the node's role, epoch, leader,
vote, high watermark, log end and voters, and that isray has requested every vote that Kafka
requests, which may wait for the response to an earlier request. So may the requests by which a node makes itself a
voter: isray has sent one before, and the same one unless the voters have changed since. Not compared:

- a high watermark that Kafka does not know (-1): isray has that of its snapshot, and keeps one that it knew
- the vote of a leader, which Kafka forgets, and with static voters the disk of the candidate: their names have none
- the epoch with which a log diverges from its start on: Kafka repeats the epoch of the request, isray says -1
- NOT_LEADER_OR_FOLLOWER where isray answers a change of the voters NOT_CONTROLLER (D13)
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from experiments.conformance.quorum_rows import (
    Advance,
    Answer,
    Answered,
    Append,
    Batch,
    BeginEpoch,
    ChangeVoter,
    EndEpoch,
    Event,
    Fetch,
    FetchAnswer,
    Initial,
    QuorumRow,
    Restart,
    State,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from experiments.conformance.shapes import Difference, compare_fields
from experiments.engines.sim.disk import SimStorage
from protocol.contract import CancelTimer, Outbox, Send, SetTimer
from protocol.errors import ErrorCode
from protocol.ids import METADATA_LOG, NO_EPOCH, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Request, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterRequest,
    BeginQuorumEpochRequest,
    ControlRecord,
    EndQuorumEpochRequest,
    LeaderChangeRecord,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumResponse,
    RemoveVoterRecord,
    RemoveVoterRequest,
    Voter,
    VoteRequest,
    VoteResponse,
)
from protocol.messages.records import MetadataRecord, UnregisterBrokerRecord
from protocol.quorum import state_file
from protocol.quorum.context import QuorumConfig
from protocol.quorum.election import Role
from protocol.quorum.log import SNAPSHOT_FILE, Snapshot
from protocol.quorum.membership import VoterRequest, joining_request
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet

CLUSTER = "recorded"
NODE: NodeId = 1
UNLIMITED = -1
"""Snapshots delete no records."""
UNKNOWN = -1
"""A high watermark that Kafka does not know yet."""

CHANGE_MS = 2_000
"""How long Kafka waits for a change of the voters to commit: its quorum's request timeout, not that of the request."""


def differences(row: QuorumRow, kafka_rules: frozenset[str] = frozenset()) -> tuple[Difference, ...]:
    """The differences of the first step at which the replica answers otherwise than recorded."""
    node = _Node(row.quorum, kafka_rules)
    unlike = node.compare_state("quorum.state", row.quorum.state)
    for index, step in enumerate(row.steps):
        if unlike:
            break
        found = node.apply(step.event)
        unlike = [
            *node.compare_answer(f"steps[{index}].answer", step.answer, found),
            *node.compare_answer(f"steps[{index}].completed", step.completed, node.completed),
            *node.compare_state(f"steps[{index}].state", step.state),
            *node.compare_votes(f"steps[{index}].votes", step.votes),
            *node.compare_joins(f"steps[{index}].joins", step.joins),
        ]
    return tuple(unlike)


class _Shortest(Random):
    """Draws the shortest time wherever one is drawn."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if stop is None else start


class _Node:
    """A replica on a disk of its own, fed with recorded events."""

    def __init__(self, initial: Initial, kafka_rules: frozenset[str]) -> None:
        self._initial = initial
        self._disk = SimStorage()
        self._now_ms: TimeMs = 0
        self._timers: dict[str, TimeMs] = {}
        self._ids = count(1)
        self._open: list[tuple[NodeId, Request]] = []
        self._asked = 0
        self._answers: dict[int, Response] = {}
        self._change: int | None = None
        self._following: tuple[Role, Epoch, NodeId] | None = None
        self._round: set[str] = set()
        """The requests for votes of the latest election; `_votes`: of all since the last event."""
        self._votes: set[str] = set()
        self._joins: set[str] = set()
        """The requests to become a voter since it follows its leader."""
        self.completed: Response | None = None
        keys = [_replica(node, 1) for node in initial.voters]
        static = tuple(initial.voters) if initial.static else ()
        self._config = QuorumConfig(
            CLUSTER,
            static,
            bootstrap=(2, 3),
            retention_bytes=UNLIMITED,
            joins=initial.joins,
            kafka_rules=kafka_rules,
        )
        log = self._disk.open_log(METADATA_LOG)
        if not initial.static:
            snapshot = Snapshot(initial.start_epoch, initial.start, VoterSet.of(keys), b"")
            self._disk.write_file(SNAPSHOT_FILE, snapshot.encode())
            log.reset(initial.start)
        for epoch, records in initial.batches:
            log.append(_batch(log.end_offset, epoch, [_DATA] * records))
        log.flush()
        own = QuorumState(CLUSTER, _replica(NODE, initial.disk).uuid)
        if initial.epoch >= 0:
            voted = None if initial.voted < 0 else _replica(initial.voted, 1)
            own = QuorumState(CLUSTER, own.uuid, initial.epoch, initial.leader, voted)
        self._disk.write_file(state_file.FILE, state_file.encode(own))
        self._start()

    def _start(self) -> None:
        self._timers.clear()
        self._open.clear()
        self._change = None
        self._joins.clear()
        self._out = Outbox()
        self._replica = QuorumReplica(NODE, self._config, self._disk, _Shortest(0), self._out)
        self._replica.start(self._now_ms)
        self._settle()

    def apply(self, event: Event) -> Response | None:
        self._answers.clear()
        self._votes = set(self._round)
        self._asked, self.completed = 0, None
        match event:
            case Advance():
                self._advance(event.ms)
            case Restart():
                self._start()
            case Append():
                self._replica.append(self._now_ms, [_DATA] * event.count)
            case VoteAnswer() | FetchAnswer() | VoterAnswer():
                self._respond(event)
            case _:
                sender, request = _request(event, next(self._ids))
                self._asked = request.correlation_id
                self._replica.receive(self._now_ms, sender, request)
        self._settle()
        answer = self._answers.get(self._asked)
        if self._change in self._answers:
            self.completed, self._change = self._answers[self._change], None
        if isinstance(event, ChangeVoter) and answer is None:
            self._change = self._asked
        return answer

    def _advance(self, ms: int) -> None:
        until_ms = self._now_ms + ms
        while self._timers and min(self._timers.values()) <= until_ms:
            name = min(self._timers, key=self._timers.__getitem__)
            self._now_ms = max(self._now_ms, self._timers.pop(name))
            self._replica.fire(self._now_ms, name)
            self._settle()
        self._now_ms = until_ms

    def _settle(self) -> None:
        self._replica.settle(self._now_ms)
        effects = self._out.drain()
        requested = [
            (it.to, it.message) for it in effects if isinstance(it, Send) and isinstance(it.message, VoteRequest)
        ]
        if requested:
            self._round = {f"{'pre_vote' if request.pre_vote else 'vote'}/{to}" for to, request in requested}
            self._votes |= self._round
        following = (self._replica.role, self._replica.epoch, self._replica.leader)
        if following != self._following:
            self._following = following
            self._joins.clear()
        for effect in effects:
            match effect:
                case SetTimer():
                    self._timers[effect.name] = effect.at_ms
                case CancelTimer():
                    self._timers.pop(effect.name, None)
                case Send(to=to, message=Request() as request):
                    self._open.append((to, request))
                    if isinstance(request, VoterRequest):
                        self._joins.add(_joining(request, to))
                case Send(message=Response() as response):
                    self._answers[response.correlation_id] = response

    def _respond(self, event: Answered) -> None:
        for to, request in reversed(self._open):
            if isinstance(event, VoteAnswer) and isinstance(request, VoteRequest):
                asked = (to, request.candidate_epoch, request.pre_vote)
                if asked == (event.sender, event.asked, event.pre_vote):
                    break
            elif not isinstance(event, VoteAnswer) and isinstance(request, _REQUESTS[type(event)]):
                break
        else:
            return
        fields: dict[str, Any] = {"error": ErrorCode[event.error]}
        if not isinstance(event, VoterAnswer):
            fields |= {"leader_id": event.leader, "leader_epoch": event.epoch}
        if isinstance(event, VoteAnswer):
            fields["vote_granted"] = event.granted
        elif isinstance(event, FetchAnswer):
            fields |= {
                "high_watermark": event.high_watermark,
                "batches": self._batches(event.batches),
                "diverging_epoch": event.diverging_epoch,
                "diverging_end_offset": event.diverging_end,
            }
        answer = request.response_type()(correlation_id=request.correlation_id, **fields)
        self._replica.receive(self._now_ms, event.sender, answer)

    def _batches(self, recorded: tuple[Batch, ...]) -> tuple[RecordBatch, ...]:
        """The batches from the log end on. Kafka records whole voter sets, isray their changes."""
        base, voters = self._replica.log.end_offset, self._replica.voters
        made: list[RecordBatch] = []
        for batch in recorded:
            records: list[MetadataRecord] = [_DATA] * batch.count
            if batch.leader_change is not None:
                records = [LeaderChangeRecord(leader_id=batch.leader_change, leader_uuid=NO_UUID, voters=())]
            elif batch.voters is not None:
                [change] = _changes(voters, VoterSet.of(_replica(*key) for key in batch.voters))
                records, voters = [change], voters.after(change)
            made.append(_batch(base, batch.epoch, records))
            base += batch.count
        return tuple(made)

    # -- comparison ----------------------------------------------------------------------------------------------------

    def compare_state(self, what: str, recorded: State) -> list[Difference]:
        replica = self._replica
        voted = None if replica.voted is None else _key(replica.voted)
        found = {
            "role": replica.role.value,
            "epoch": replica.epoch,
            "leader": replica.leader,
            "voted": voted,
            "high_watermark": replica.high_watermark,
            "last_epoch": max(replica.log.last_epoch, 0),
            "end_offset": replica.log.end_offset,
            "voters": tuple(_key(key) for key in replica.voters.keys),
        }
        expected = recorded.model_dump()
        if recorded.leader == NODE:
            found["voted"] = recorded.voted
        elif self._initial.static and recorded.voted is not None and voted is not None:
            found["voted"] = (voted[0], recorded.voted[1])
        if recorded.high_watermark == UNKNOWN:
            del expected["high_watermark"]
        return compare_fields(what, expected, found)

    def compare_votes(self, what: str, recorded: tuple[str, ...]) -> list[Difference]:
        missing = sorted(set(recorded) - self._votes)
        return [Difference(what, missing, sorted(self._votes))] if missing else []

    def compare_joins(self, what: str, recorded: tuple[str, ...]) -> list[Difference]:
        replica, sent = self._replica, set(self._joins)
        request = joining_request(replica.key, replica.voters, correlation_id=0)
        if sent and request is not None:
            sent.add(_joining(request, replica.leader))
        missing = sorted(set(recorded) - sent)
        return [Difference(what, missing, sorted(sent))] if missing else []

    def compare_answer(self, what: str, recorded: Answer | None, response: Response | None) -> list[Difference]:
        expected = None if recorded is None else recorded.model_dump(exclude_none=True)
        found = None if response is None else _fields(response)
        if expected is None or found is None:
            return compare_fields(what, expected, found)
        if expected.get("high_watermark") == UNKNOWN:
            del expected["high_watermark"]
        if found.get("diverging") == (NO_EPOCH, self._initial.start) and "diverging" in expected:
            found["diverging"] = (expected["diverging"][0], self._initial.start)
        return compare_fields(what, expected, dict.fromkeys(expected) | found)


def _fields(response: Response) -> dict[str, object]:
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER if response.error is ErrorCode.NOT_CONTROLLER else response.error
    found: dict[str, object] = {"error": error.name}
    if isinstance(response, QuorumResponse):
        found |= {"epoch": response.leader_epoch, "leader": response.leader_id}
    if isinstance(response, VoteResponse):
        found["granted"] = response.vote_granted
    if isinstance(response, QuorumFetchResponse):
        found |= {
            "high_watermark": response.high_watermark,
            "diverging": (response.diverging_epoch, response.diverging_end_offset),
            "snapshot": (response.snapshot_epoch, response.snapshot_end_offset),
            "end": response.batches[-1].next_offset if response.batches else -1,
        }
    return found


_REQUESTS = {FetchAnswer: (QuorumFetchRequest,), VoterAnswer: (AddVoterRequest, RemoveVoterRequest)}
"""The kinds of a request that such a response may be to."""
_DATA = UnregisterBrokerRecord(broker_id=9, broker_epoch=0)


def _batch(base: Offset, epoch: Epoch, records: list[MetadataRecord]) -> RecordBatch:
    return RecordBatch(
        base_offset=base, leader_epoch=epoch, record_count=len(records), payload=pack_records(records), timestamp_ms=0
    )


def _changes(before: VoterSet, after: VoterSet) -> list[ControlRecord]:
    removed = [RemoveVoterRecord(voter_id=key.id, voter_uuid=key.uuid) for key in before.keys if key not in after]
    added = [AddVoterRecord(voter_id=key.id, voter_uuid=key.uuid) for key in after.keys if key not in before]
    return [*removed, *added]


def _joining(request: VoterRequest, to: NodeId) -> str:
    kind = "add_voter" if isinstance(request, AddVoterRequest) else "remove_voter"
    node, disk = _key(ReplicaKey(request.voter_id, request.voter_uuid))
    return f"{kind}/{node}/{disk} to {to}"


def _replica(node: int, disk: int) -> ReplicaKey:
    return ReplicaKey(node, f"disk-{disk}" if disk else NO_UUID)


def _key(key: ReplicaKey) -> tuple[int, int]:
    return key.id, int(key.uuid.removeprefix("disk-") or 0)


def _request(event: Vote | BeginEpoch | EndEpoch | Fetch | ChangeVoter, number: int) -> tuple[NodeId, Request]:
    """The sender and the request of an event."""
    match event:
        case Vote():
            candidate, voter = _replica(*event.candidate), _replica(*event.voter)
            return candidate.id, VoteRequest(
                correlation_id=number,
                cluster_id=CLUSTER,
                candidate_id=candidate.id,
                candidate_uuid=candidate.uuid,
                candidate_epoch=event.epoch,
                voter_id=voter.id,
                voter_uuid=voter.uuid,
                last_offset_epoch=event.last_epoch,
                last_offset=event.last_offset,
                pre_vote=event.pre_vote,
            )
        case BeginEpoch():
            voter = _replica(*event.voter)
            return event.leader, BeginQuorumEpochRequest(
                correlation_id=number,
                cluster_id=CLUSTER,
                leader_id=event.leader,
                leader_epoch=event.epoch,
                voter_id=voter.id,
                voter_uuid=voter.uuid,
            )
        case EndEpoch():
            successors = [_replica(*key) for key in event.successors]
            return event.leader, EndQuorumEpochRequest(
                correlation_id=number,
                cluster_id=CLUSTER,
                leader_id=event.leader,
                leader_epoch=event.epoch,
                preferred_successors=tuple(Voter(voter_id=key.id, voter_uuid=key.uuid) for key in successors),
            )
        case Fetch():
            replica = _replica(*event.replica)
            return replica.id, QuorumFetchRequest(
                correlation_id=number,
                cluster_id=CLUSTER,
                replica_id=replica.id,
                replica_uuid=replica.uuid,
                current_leader_epoch=event.epoch,
                fetch_offset=event.offset,
                last_fetched_epoch=event.last_epoch,
                high_watermark=-1,
            )
        case ChangeVoter():
            voter = _replica(*event.voter)
            kind = AddVoterRequest if event.type == "add_voter" else RemoveVoterRequest
            return NODE, kind(correlation_id=number, voter_id=voter.id, voter_uuid=voter.uuid, timeout_ms=CHANGE_MS)
