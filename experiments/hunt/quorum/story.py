"""A run of the laboratory as a story: time, replica, what happened to it. Told is what a replica becomes, whom it votes
for, what its log gains and loses, what it knows to be committed, and who votes by its log; fetches and other messages
that change none of that are left out. It is told from what can be seen of a replica before and after an event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from experiments.hunt.quorum.lab import NOTHING, QuorumLab
from experiments.hunt.quorum.truth import Event, records_of
from protocol.errors import ErrorCode
from protocol.ids import DRIVER, METADATA_LOG, NO_LEADER, Epoch, NodeId, Offset, node_name
from protocol.messages.base import Response
from protocol.messages.quorum import AddVoterRecord, LeaderChangeRecord, RemoveVoterRecord, VoteRequest, VoteResponse
from protocol.messages.records import MetadataRecord, ProducerIdsRecord
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey


class _Seen(NamedTuple):
    """What a replica was after its last event."""

    role: Role | None
    epoch: Epoch
    leader: NodeId
    end: Offset
    high_watermark: Offset
    voters: tuple[ReplicaKey, ...]
    snapshot: Offset


_NOTHING = _Seen(None, 0, NO_LEADER, 0, 0, (), 0)


def short(key: ReplicaKey) -> str:
    """The id and the beginning of the uuid."""
    return f"{key.id}:{key.uuid[:4]}"


class Story:
    """The lines of what happens in a laboratory from now on."""

    def __init__(self, lab: QuorumLab) -> None:
        self.lines: list[str] = []
        self._lab = lab
        self._seen: dict[NodeId, _Seen] = {}
        lab.observing.append(self._tell)

    def chapter(self, text: str) -> None:
        """What is done to the quorum next."""
        self.lines.append(f"-- {text}")

    def _tell(self, event: Event) -> None:
        for text in self._told(event):
            self.lines.append(f"{event.now_ms / 1000:10.3f}  {node_name(event.node):<15}  {text}")

    def _told(self, event: Event) -> Iterator[str]:
        replica = event.replica
        if replica is None:
            self._seen.pop(event.node, None)
            yield str(event.cause)
            return
        before, after = self._seen.get(event.node, _NOTHING), _seen(replica)
        self._seen[event.node] = after
        if before.role is None:
            began = "" if event.cause == NOTHING else f"{event.cause}: "
            yield f"{began}{short(replica.key)}, {after.end} records, epoch {after.epoch}"
        yield from _votes(event)
        has_moved = (before.role, before.epoch, before.leader) != (after.role, after.epoch, after.leader)
        if has_moved and after.role is not Role.RESIGNED:
            yield _standing(after)
        yield from self._log_told(event.node, before, after)
        if before.voters != after.voters:
            yield f"voters: {' '.join(map(short, after.voters)) or 'none'}"
        if after.high_watermark > before.high_watermark:
            yield f"{after.high_watermark} committed"
        if has_moved and after.role is Role.RESIGNED:
            yield _standing(after)
        for send in event.sends:
            if send.to == DRIVER and isinstance(send.message, Response):
                yield _answer(send.message)

    def _log_told(self, node: NodeId, before: _Seen, after: _Seen) -> Iterator[str]:
        if after.snapshot > before.snapshot and before.role is not None:
            yield f"snapshot of {after.snapshot}"
        if after.end < before.end:
            yield f"cuts its log at {after.end}"
        if after.end <= before.end or before.role is None:
            return
        log = self._lab.disks[node].open_log(METADATA_LOG)
        for batch in log.read(before.end, 2**62):
            for offset, record in enumerate(records_of(batch.payload), batch.base_offset):
                if offset >= before.end:
                    yield f"  {offset:>4}  {_record(record)}"


def _seen(replica: QuorumReplica) -> _Seen:
    return _Seen(
        replica.role,
        replica.epoch,
        replica.leader,
        replica.log.end_offset,
        replica.high_watermark,
        replica.voters.keys,
        0 if replica.snapshot is None else replica.snapshot.end_offset,
    )


def _standing(seen: _Seen) -> str:
    if seen.role is Role.FOLLOWER:
        return f"follows {seen.leader} in epoch {seen.epoch}"
    if seen.role is Role.LEADER:
        return f"leads epoch {seen.epoch}"
    return f"{seen.role} in epoch {seen.epoch}"


def _votes(event: Event) -> Iterator[str]:
    cause = event.cause
    if isinstance(cause, VoteRequest) and any(_is_granted(send.message) for send in event.sends):
        candidate = short(ReplicaKey(cause.candidate_id, cause.candidate_uuid))
        would = "would vote" if cause.pre_vote else "votes"
        yield f"{would} for {candidate} in epoch {cause.candidate_epoch + cause.pre_vote}"


def _is_granted(message: object) -> bool:
    return isinstance(message, VoteResponse) and message.vote_granted


def _answer(answer: Response) -> str:
    said = "done" if answer.error is ErrorCode.NONE else answer.error.name
    return f"answers the operator: {said}"


def _record(record: MetadataRecord) -> str:
    if isinstance(record, ProducerIdsRecord):
        return f"value {record.next_producer_id}"
    if isinstance(record, LeaderChangeRecord):
        return f"LeaderChange {short(ReplicaKey(record.leader_id, record.leader_uuid))}"
    if isinstance(record, AddVoterRecord | RemoveVoterRecord):
        key = ReplicaKey(record.voter_id, record.voter_uuid)
        return f"{type(record).__name__.removesuffix('Record')} {short(key)}"
    return type(record).__name__
