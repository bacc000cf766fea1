"""A run of the harness as text: one line per change, with time, replica and change.

A transcript has role changes, granted votes, appended and truncated records, the high watermark, voter sets and
responses to the operator. It omits messages that change none of these. It compares each replica before and after a
step, so it needs no help from the replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from experiments.hunt.quorum.global_view import ReplicaStep, decode_records
from experiments.hunt.quorum.harness import NOTHING, QuorumHarness
from protocol.errors import ErrorCode
from protocol.ids import DRIVER, METADATA_LOG, NO_LEADER, Epoch, NodeId, Offset, node_name
from protocol.messages.base import Response
from protocol.messages.quorum import AddVoterRecord, LeaderChangeRecord, RemoveVoterRecord, VoteRequest, VoteResponse
from protocol.messages.records import MetadataRecord, ProducerIdsRecord
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey


class _State(NamedTuple):
    """The state of a replica after its last step, as far as a transcript shows it."""

    role: Role | None
    epoch: Epoch
    leader: NodeId
    end: Offset
    high_watermark: Offset
    voters: tuple[ReplicaKey, ...]
    snapshot: Offset


_UNKNOWN = _State(None, 0, NO_LEADER, 0, 0, (), 0)


def short_key(key: ReplicaKey) -> str:
    """A replica key with the first four characters of the uuid."""
    return f"{key.id}:{key.uuid[:4]}"


class Transcript:
    """Collects the transcript of a harness from now on in `lines`."""

    def __init__(self, harness: QuorumHarness) -> None:
        self.lines: list[str] = []
        self._harness = harness
        self._states: dict[NodeId, _State] = {}
        harness.listeners.append(self._add_lines)

    def heading(self, text: str) -> None:
        """Adds a heading: the next action on the quorum."""
        self.lines.append(f"-- {text}")

    def _add_lines(self, step: ReplicaStep) -> None:
        for text in self._changes(step):
            self.lines.append(f"{step.now_ms / 1000:10.3f}  {node_name(step.node):<15}  {text}")

    def _changes(self, step: ReplicaStep) -> Iterator[str]:
        replica = step.replica
        if replica is None:
            self._states.pop(step.node, None)
            yield str(step.cause)
            return
        before, after = self._states.get(step.node, _UNKNOWN), _state_of(replica)
        self._states[step.node] = after
        if before.role is None:
            cause = "" if step.cause == NOTHING else f"{step.cause}: "
            yield f"{cause}{short_key(replica.key)}, {after.end} records, epoch {after.epoch}"
        yield from _granted_votes(step)
        has_moved = (before.role, before.epoch, before.leader) != (after.role, after.epoch, after.leader)
        if has_moved and after.role is not Role.RESIGNED:
            yield _role(after)
        yield from self._log_changes(step.node, before, after)
        if before.voters != after.voters:
            yield f"voters: {' '.join(map(short_key, after.voters)) or 'none'}"
        if after.high_watermark > before.high_watermark:
            yield f"high watermark {after.high_watermark}"
        if has_moved and after.role is Role.RESIGNED:
            yield _role(after)
        for send in step.sends:
            if send.to == DRIVER and isinstance(send.message, Response):
                error = send.message.error
                yield f"responds to the operator: {'done' if error is ErrorCode.NONE else error.name}"

    def _log_changes(self, node: NodeId, before: _State, after: _State) -> Iterator[str]:
        if after.snapshot > before.snapshot and before.role is not None:
            yield f"snapshot of {after.snapshot}"
        if after.end < before.end:
            yield f"truncates its log to {after.end}"
        if after.end <= before.end or before.role is None:
            return
        log = self._harness.disks[node].open_log(METADATA_LOG)
        for batch in log.read(before.end, 2**62):
            for offset, record in enumerate(decode_records(batch.payload), batch.base_offset):
                if offset >= before.end:
                    yield f"  {offset:>4}  {_record(record)}"


def _state_of(replica: QuorumReplica) -> _State:
    return _State(
        replica.role,
        replica.epoch,
        replica.leader,
        replica.log.end_offset,
        replica.high_watermark,
        replica.voters.keys,
        0 if replica.snapshot is None else replica.snapshot.end_offset,
    )


def _role(seen: _State) -> str:
    if seen.role is Role.FOLLOWER:
        return f"follows {seen.leader} in epoch {seen.epoch}"
    if seen.role is Role.LEADER:
        return f"leads epoch {seen.epoch}"
    return f"{seen.role} in epoch {seen.epoch}"


def _granted_votes(step: ReplicaStep) -> Iterator[str]:
    cause = step.cause
    answers = [send.message for send in step.sends if isinstance(send.message, VoteResponse)]
    if isinstance(cause, VoteRequest) and any(answer.vote_granted for answer in answers):
        candidate = short_key(ReplicaKey(cause.candidate_id, cause.candidate_uuid))
        would = "would vote" if cause.pre_vote else "votes"
        yield f"{would} for {candidate} in epoch {cause.candidate_epoch + cause.pre_vote}"


def _record(record: MetadataRecord) -> str:
    if isinstance(record, ProducerIdsRecord):
        return f"value {record.next_producer_id}"
    if isinstance(record, LeaderChangeRecord):
        return f"LeaderChange {short_key(ReplicaKey(record.leader_id, record.leader_uuid))}"
    if isinstance(record, AddVoterRecord | RemoveVoterRecord):
        key = ReplicaKey(record.voter_id, record.voter_uuid)
        return f"{type(record).__name__.removesuffix('Record')} {short_key(key)}"
    return type(record).__name__
