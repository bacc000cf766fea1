"""The leader of the metadata log: appends, fetches, the high watermark, check-quorum and changes of the voters.

The leader delays a fetch that finds no new records and no higher high watermark, and completes it as soon as there are
any. A second fetch of the same replica replaces the delayed one, which then completes with an empty response; so a
follower receives a response for every fetch that it sends. When the epoch ends, delayed fetches and waiting changes
complete with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.errors import ErrorCode
from protocol.events.quorum import QuorumVotersChanged
from protocol.ids import NO_OFFSET, NodeId, Offset, TimeMs
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records, remember_unpacked
from protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    LeaderChangeRecord,
    QuorumFetchRequest,
    QuorumFetchResponse,
    RemoveVoterRequest,
    Voter,
)
from protocol.messages.records import MetadataRecord
from protocol.quorum.context import FETCH_TIMER, QuorumContext
from protocol.quorum.kafka_rules import BLOCKED_CHANGE_REFUSED, LAST_VOTER_NOT_FOUND
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.log import Snapshot
from protocol.quorum.membership import Change, VoterRequest, blocking_reason, not_leader, rejection, response_to
from protocol.quorum.voters import ReplicaKey, VoterSet, matches_voter, replica_key

VOTER_TIMER_PREFIX = "quorum-voter/"
"""Prefix of the check-quorum timers, one per voter: the timer fires when the voter has not fetched for too long."""
BEGIN_TIMER = "quorum-begin"
CHANGE_TIMER = "quorum-change"


class QuorumLeader:
    """The leader for the length of one epoch. Its constructor appends the LeaderChange record of the epoch (D10)."""

    def __init__(self, context: QuorumContext, now_ms: TimeMs) -> None:
        self._context = context
        self.leader_state = LeaderState(context.epoch, context.log.end_offset, now_ms, context.key)
        self._delayed: dict[ReplicaKey, tuple[NodeId, QuorumFetchRequest]] = {}
        self.changes: list[Change] = []
        self._tracked = VoterSet()
        self._voters_with_me: VoterSet | None = None
        self._completed_at = (NO_OFFSET, NO_OFFSET)
        voters, uuid = _to_voters(context.voters.keys), context.state.uuid
        self.append(now_ms, [LeaderChangeRecord(leader_id=context.node_id, leader_uuid=uuid, voters=voters)])
        self._track_latest_voters(now_ms)

    @property
    def is_removed(self) -> bool:
        """Whether the removal of this leader from the voters is committed (D18)."""
        context = self._context
        voters = context.voters
        if voters is self._voters_with_me:
            return False
        if context.is_voter:
            self._voters_with_me = voters
            return False
        return context.log.voters.last_change < context.high_watermark

    def append(self, now_ms: TimeMs, records: Sequence[MetadataRecord], payload: bytes | None = None) -> Offset:
        """Appends records (`payload`: their encoding, if known) as a batch, not flushed; returns the log end offset."""
        log = self._context.log
        if payload is None:
            payload = pack_records(records)
        remember_unpacked(payload, records)
        batch = RecordBatch.unchecked(
            base_offset=log.end_offset,
            leader_epoch=self.leader_state.epoch,
            record_count=len(records),
            payload=payload,
            timestamp_ms=now_ms,
        )
        log.append(batch, records)
        return log.end_offset

    def settle(self, now_ms: TimeMs) -> bool:
        """After a flush: advances the high watermark, processes changes, completes fetches. Whether it is removed."""
        context, log = self._context, self._context.log
        if context.high_watermark != log.end_offset:
            self._advance_high_watermark()
        for change in list(self.changes):
            if change.offset < 0:
                self._append_change(now_ms, change)
            if change.is_done(context.high_watermark):
                self._complete_change(change)
        if self._tracked is not log.voters.latest:
            self._track_latest_voters(now_ms)
        completed_at = (log.end_offset, context.high_watermark)
        if completed_at != self._completed_at:
            self._completed_at = completed_at
            for replica, (_, request) in sorted(self._delayed.items()):
                if self._is_completable(request):
                    self._complete_fetch(replica)
        return log.voters.latest is not self._voters_with_me and self.is_removed

    def close(self) -> None:
        """Ends the epoch: cancels its timers and completes changes and delayed fetches with an error."""
        context = self._context
        self._track_voters(VoterSet(), 0)
        for timer in (BEGIN_TIMER, CHANGE_TIMER):
            context.out.cancel_timer(timer)
        for change in self.changes:
            context.out.send(change.requester, not_leader(change.request, context.leader, context.epoch))
        for _, (sender, request) in sorted(self._delayed.items()):
            context.respond(sender, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- voters and check-quorum ---------------------------------------------------------------------------------------

    def send_begin_epoch(self, now_ms: TimeMs) -> None:
        """Sends BeginQuorumEpoch to every voter that does not fetch, and repeats that until all of them do."""
        context = self._context
        inactive_voters = self.leader_state.inactive_voters(context.voters)
        for voter in inactive_voters:
            self._send(voter, BeginQuorumEpochRequest, voter_id=voter.id, voter_uuid=voter.uuid)
        if inactive_voters:
            context.out.set_timer(BEGIN_TIMER, now_ms + context.config.fetch_ms // 2)

    def expire_voter(self, now_ms: TimeMs, name: str) -> bool:
        """Handles the expired check-quorum timer of a voter; returns whether a majority is still active."""
        self.leader_state.inactive.add(int(name.removeprefix(VOTER_TIMER_PREFIX)))
        self.send_begin_epoch(now_ms)
        return self.leader_state.has_active_majority(self._context.voters)

    def _track_latest_voters(self, now_ms: TimeMs) -> None:
        self._track_voters(self._context.voters, now_ms)
        self.send_begin_epoch(now_ms)

    def _track_voters(self, voters: VoterSet, now_ms: TimeMs) -> None:
        """Starts timers for new voters and cancels those of removed ones. Inactive voters become active for another
        timeout, because a removed voter may have been the one that completed this leader's majority.
        """
        before, after = (
            {key.id for key in watched.keys} - {self._context.node_id} for watched in (self._tracked, voters)
        )
        self._tracked = voters
        for node in sorted(before - after):
            self.leader_state.inactive.discard(node)
            self._context.out.cancel_timer(f"{VOTER_TIMER_PREFIX}{node}")
        for node in sorted(after - (before - self.leader_state.inactive)):
            self._restart_voter_timer(node, now_ms)

    def _restart_voter_timer(self, voter: NodeId, now_ms: TimeMs) -> None:
        self.leader_state.inactive.discard(voter)
        at_ms = now_ms + self._context.config.fetch_ms * 3 // 2
        self._context.out.set_timer(f"{VOTER_TIMER_PREFIX}{voter}", at_ms, idle_with=voter, renewed_by=FETCH_TIMER)

    def send_end_epoch(self) -> None:
        """Sends EndQuorumEpoch to the other voters, so that they elect the next leader without waiting."""
        context = self._context
        successors = self.leader_state.preferred_successors(context.voters)
        for voter in successors:
            self._send(voter, EndQuorumEpochRequest, preferred_successors=_to_voters(successors))

    def _send(
        self, voter: ReplicaKey, kind: type[BeginQuorumEpochRequest | EndQuorumEpochRequest], **fields: Any
    ) -> None:
        context = self._context
        number, cluster, leader = context.next_correlation_id(), context.config.cluster_id, context.node_id
        request = kind(
            correlation_id=number, cluster_id=cluster, leader_id=leader, leader_epoch=context.epoch, **fields
        )
        context.out.send(voter.id, request)

    # -- replication ---------------------------------------------------------------------------------------------------

    def fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        """Delays a fetch whose position is in the log; answers another with a diverging epoch, snapshot id or error."""
        context, log = self._context, self._context.log
        if request.fetch_offset < 0:
            context.respond(sender, request, ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        mismatch = log.validate_fetch_position(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(mismatch, Snapshot):
            where = {"snapshot_epoch": mismatch.epoch, "snapshot_end_offset": mismatch.end_offset}
            context.respond(sender, request, ErrorCode.NONE, high_watermark=context.high_watermark, **where)
        elif mismatch is not None:
            context.respond(
                sender,
                request,
                high_watermark=context.high_watermark,
                diverging_epoch=mismatch.epoch,
                diverging_end_offset=mismatch.end_offset,
            )
        else:
            self._delay_fetch(now_ms, sender, request)

    def _delay_fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        replica = replica_key(request.replica_id, request.replica_uuid)
        self.leader_state.record_fetch(replica, request.fetch_offset, self._context.log.end_offset, now_ms)
        voter = self._tracked.key_of(replica.id)
        if voter is not None and matches_voter(voter, replica) and replica.id != self._context.node_id:
            self._restart_voter_timer(replica.id, now_ms)
        if replica in self._delayed:
            self._complete_fetch(replica, ())
        self._delayed[replica] = (sender, request)
        self.leader_state.progress[replica].has_delayed_fetch = True
        if self._is_completable(request):
            self._completed_at = (NO_OFFSET, NO_OFFSET)

    def _is_completable(self, fetch: QuorumFetchRequest) -> bool:
        context = self._context
        return fetch.fetch_offset < context.log.end_offset or fetch.high_watermark < context.high_watermark

    def _complete_fetch(self, replica: ReplicaKey, batches: Sequence[RecordBatch] | None = None) -> None:
        context, (sender, fetch) = self._context, self._delayed.pop(replica)
        self.leader_state.progress[replica].has_delayed_fetch = False
        response = QuorumFetchResponse.unchecked(
            correlation_id=fetch.correlation_id,
            leader_id=context.node_id,
            leader_epoch=context.epoch,
            high_watermark=context.high_watermark,
            batches=tuple(context.log.read(fetch.fetch_offset, fetch.max_bytes) if batches is None else batches),
        )
        context.out.send(sender, response)

    def _advance_high_watermark(self) -> None:
        context = self._context
        end = self.leader_state.majority_end_offset(context.voters, context.log.end_offset)
        if end is not None and end > context.high_watermark:
            context.high_watermark = end

    def fetch_snapshot(self, sender: NodeId, request: FetchSnapshotRequest) -> None:
        """Responds with bytes of the newest snapshot from `position` on; SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, or
        INVALID_REQUEST for no bytes.
        """
        context = self._context
        snapshot, raw = context.log.snapshot, context.log.raw_snapshot
        wanted = (request.snapshot_epoch, request.snapshot_end_offset)
        if snapshot is None or wanted != (snapshot.epoch, snapshot.end_offset):
            context.respond(sender, request, ErrorCode.SNAPSHOT_NOT_FOUND)
        elif not 0 <= request.position < len(raw):
            context.respond(sender, request, ErrorCode.POSITION_OUT_OF_RANGE)
        elif request.max_bytes < 1:
            context.respond(sender, request, ErrorCode.INVALID_REQUEST)
        else:
            context.respond(
                sender,
                request,
                snapshot_epoch=snapshot.epoch,
                snapshot_end_offset=snapshot.end_offset,
                size=len(raw),
                position=request.position,
                data=raw[request.position : request.position + request.max_bytes],
            )

    # -- changes of the voters -----------------------------------------------------------------------------------------

    def change_voters(self, now_ms: TimeMs, sender: NodeId, request: VoterRequest) -> None:
        """Rejects an AddVoter or RemoveVoter request or queues it (`membership.py`)."""
        error, message = self._rejection(request)
        change = Change(sender, request, now_ms + request.timeout_ms)
        if self._context.config.decides(BLOCKED_CHANGE_REFUSED):
            reason = "another change waits" if self.changes else self._blocking_reason(change)
            if reason and (error is ErrorCode.NONE or not reason.startswith(str(change.voter))):
                error, message = ErrorCode.REQUEST_TIMED_OUT, reason
        if error is not ErrorCode.NONE:
            self._context.out.send(sender, response_to(request, error, message))
            return
        self.changes.append(change)
        self._reset_change_timer()

    def _rejection(self, request: VoterRequest) -> tuple[ErrorCode, str]:
        context = self._context
        error, message = rejection(request, context.voters, static=context.config.is_static)
        if error is ErrorCode.INVALID_REQUEST and isinstance(request, RemoveVoterRequest):
            error = ErrorCode.VOTER_NOT_FOUND if context.config.decides(LAST_VOTER_NOT_FOUND) else error
        return error, message

    def _blocking_reason(self, change: Change) -> str:
        context = self._context
        return blocking_reason(
            change,
            context.log.voters,
            self.leader_state,
            context.high_watermark,
            context.log.end_offset,
            context.config.kafka_rules,
        )

    def _append_change(self, now_ms: TimeMs, change: Change) -> None:
        context = self._context
        error, message = self._rejection(change.request)
        if error is not ErrorCode.NONE:
            self._complete_change(change, error, message)
        elif not self.is_removed and not self._blocking_reason(change):
            change.offset = self.append(now_ms, [change.record(context.voters)]) - 1
            context.log.flush()
            context.out.trace(QuorumVotersChanged(tuple(map(str, context.voters.keys))))
            self._advance_high_watermark()

    def _complete_change(self, change: Change, error: ErrorCode = ErrorCode.NONE, message: str = "") -> None:
        self.changes.remove(change)
        self._context.out.send(change.requester, response_to(change.request, error, message))

    def expire_changes(self, now_ms: TimeMs) -> None:
        for change in [change for change in self.changes if change.until_ms <= now_ms]:
            why = self._blocking_reason(change) if change.offset < 0 else "appended; it may still be committed"
            message = f"not done within {change.request.timeout_ms} ms: {why}"
            self._complete_change(change, ErrorCode.REQUEST_TIMED_OUT, message)
        self._reset_change_timer()

    def _reset_change_timer(self) -> None:
        if self.changes:
            self._context.out.set_timer(CHANGE_TIMER, min(change.until_ms for change in self.changes))


def _to_voters(keys: Sequence[ReplicaKey]) -> tuple[Voter, ...]:
    return tuple(Voter(voter_id=key.id, voter_uuid=key.uuid) for key in keys)
