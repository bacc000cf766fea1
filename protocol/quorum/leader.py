"""The leader's side of the metadata log: fetches and their answers, the high watermark, changes of the voters.

A fetch that finds nothing new is parked until there is: more records, or a higher high watermark. A second one of the
same replica is answered at once, whatever there is, so that followers hear from their leader as often as they ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ErrorCode
from protocol.ids import NodeId, Offset, TimeMs
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    LeaderChangeRecord,
    QuorumFetchRequest,
    QuorumFetchResponse,
    Voter,
)
from protocol.messages.records import MetadataRecord
from protocol.quorum.context import QuorumContext
from protocol.quorum.leadership import Leadership
from protocol.quorum.log import Snapshot
from protocol.quorum.membership import WITHIN_MS, Change, VoterRequest, may_append, refusal
from protocol.quorum.voters import ReplicaKey

CHECK_TIMER = "quorum-check"
BEGIN_TIMER = "quorum-begin"
CHANGE_TIMER = "quorum-change"
CHUNK_BYTES = 1_048_576
"""How much of a snapshot travels in one answer."""


@dataclass(slots=True)
class _Parked:
    """A fetch that waits for news."""

    sender: NodeId
    correlation_id: int
    offset: Offset
    high_watermark: Offset


class LeaderSide:
    """One epoch of a leader; its first record is appended as it begins."""

    def __init__(self, context: QuorumContext, now_ms: TimeMs) -> None:
        self._context = context
        self.leadership = Leadership(context.epoch, context.log.end_offset, now_ms, context.key)
        self._parked: dict[ReplicaKey, _Parked] = {}
        self._changes: list[Change] = []
        voters = _told(context.voters.keys)
        first = LeaderChangeRecord(leader_id=context.node_id, leader_uuid=context.state.uuid, voters=voters)
        self.append([first])
        context.out.set_timer(CHECK_TIMER, now_ms + self._patience_ms)
        self.announce(now_ms)

    @property
    def _patience_ms(self) -> int:
        return self._context.config.fetch_ms * 3 // 2

    @property
    def is_changing(self) -> bool:
        """Whether somebody waits for a change of the voters."""
        return bool(self._changes)

    @property
    def is_superseded(self) -> bool:
        """Whether the voters do without this leader, and have committed that."""
        context = self._context
        return not context.is_voter and context.log.voters.last_change < context.high_watermark

    def append(self, records: Sequence[MetadataRecord], payload: bytes | None = None) -> Offset:
        """Appends records in one batch, encoded as `payload` if that is given; the offset behind them."""
        log = self._context.log
        batch = RecordBatch(
            base_offset=log.end_offset,
            leader_epoch=self.leadership.epoch,
            record_count=len(records),
            payload=pack_records(records) if payload is None else payload,
        )
        log.append(batch)
        return batch.next_offset

    def settle(self) -> None:
        """What has been flushed counts, and who waits for it is told."""
        self._advance()
        self._make_changes()
        for replica, parked in sorted(self._parked.items()):
            if parked.offset < self._context.log.end_offset or parked.high_watermark < self._context.high_watermark:
                self._answer_fetch(replica, parked)

    def end(self) -> None:
        """The epoch is over for this leader."""
        for timer in (CHECK_TIMER, BEGIN_TIMER, CHANGE_TIMER):
            self._context.out.cancel_timer(timer)
        for change in self._changes:
            self._context.answer(change.asked_by, change.request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- the others ----------------------------------------------------------------------------------------------------

    def announce(self, now_ms: TimeMs) -> None:
        """Tells voters that do not fetch who leads, and goes on telling them."""
        context = self._context
        every_ms = context.config.fetch_ms // 2
        for voter in self.leadership.silent(context.voters, now_ms - every_ms):
            context.out.send(
                voter.id,
                BeginQuorumEpochRequest(
                    correlation_id=context.next_correlation_id(),
                    cluster_id=context.config.cluster_id,
                    voter_id=voter.id,
                    voter_uuid=voter.uuid,
                    leader_id=context.node_id,
                    leader_epoch=context.epoch,
                ),
            )
        context.out.set_timer(BEGIN_TIMER, now_ms + every_ms)

    def has_majority(self, now_ms: TimeMs) -> bool:
        """Whether a majority of the voters fetches; it is looked at again when it may not any more."""
        until_ms = self.leadership.majority_until_ms(self._context.voters, self._patience_ms, now_ms)
        if until_ms > now_ms:
            self._context.out.set_timer(CHECK_TIMER, until_ms)
        return until_ms > now_ms

    def say_farewell(self) -> None:
        """The others may elect the next leader at once."""
        context = self._context
        successors = self.leadership.successors(context.voters)
        for voter in successors:
            context.out.send(
                voter.id,
                EndQuorumEpochRequest(
                    correlation_id=context.next_correlation_id(),
                    cluster_id=context.config.cluster_id,
                    leader_id=context.node_id,
                    leader_epoch=context.epoch,
                    preferred_successors=_told(successors),
                ),
            )

    # -- replication ---------------------------------------------------------------------------------------------------

    def fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        context, log = self._context, self._context.log
        replica = ReplicaKey(request.replica_id, request.replica_uuid)
        lacking = log.lacks(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(lacking, Snapshot):
            context.answer(sender, request, snapshot_epoch=lacking.epoch, snapshot_end_offset=lacking.end_offset)
        elif lacking is not None:
            context.answer(sender, request, diverging_epoch=lacking.epoch, diverging_end_offset=lacking.end_offset)
        else:
            self.leadership.fetched(replica, request.fetch_offset, now_ms)
            is_renewal = replica in self._parked
            parked = _Parked(sender, request.correlation_id, request.fetch_offset, request.high_watermark)
            self._parked[replica] = parked
            if is_renewal:
                self._answer_fetch(replica, parked)

    def _answer_fetch(self, replica: ReplicaKey, parked: _Parked) -> None:
        del self._parked[replica]
        context = self._context
        response = QuorumFetchResponse(
            correlation_id=parked.correlation_id,
            leader_id=context.node_id,
            leader_epoch=context.epoch,
            high_watermark=context.high_watermark,
            batches=tuple(context.log.read(parked.offset)),
        )
        context.out.send(parked.sender, response)

    def _advance(self) -> None:
        """Raises the high watermark to what a majority has."""
        context = self._context
        end = self.leadership.majority_end(context.voters, context.log.end_offset)
        if end is not None and end > context.high_watermark:
            context.high_watermark = end

    def fetch_snapshot(self, sender: NodeId, request: FetchSnapshotRequest) -> None:
        context = self._context
        snapshot, raw = context.log.snapshot, context.log.raw_snapshot
        wanted = (request.snapshot_epoch, request.snapshot_end_offset)
        if snapshot is None or wanted != (snapshot.epoch, snapshot.end_offset):
            context.answer(sender, request, ErrorCode.SNAPSHOT_NOT_FOUND)
        elif not 0 <= request.position < len(raw):
            context.answer(sender, request, ErrorCode.POSITION_OUT_OF_RANGE)
        else:
            context.answer(
                sender,
                request,
                snapshot_epoch=snapshot.epoch,
                snapshot_end_offset=snapshot.end_offset,
                size=len(raw),
                position=request.position,
                data=raw[request.position : request.position + CHUNK_BYTES],
            )

    # -- changes of the voters -----------------------------------------------------------------------------------------

    def change_voters(self, now_ms: TimeMs, sender: NodeId, request: VoterRequest) -> None:
        error, detail = self._refusal(request)
        if error is not ErrorCode.NONE:
            self._context.answer(sender, request, error, detail=detail)
            return
        self._changes.append(Change(sender, request, now_ms + WITHIN_MS))
        self._wait_for_changes()

    def _refusal(self, request: VoterRequest) -> tuple[ErrorCode, str]:
        return refusal(request, self._context.voters, static=self._context.config.is_static)

    def _make_changes(self) -> None:
        """Answers what is committed, and appends what may be; a change that another has overtaken is refused."""
        context = self._context
        for change in list(self._changes):
            if 0 <= change.offset < context.high_watermark:
                self._changes.remove(change)
                context.answer(change.asked_by, change.request)
            elif change.offset < 0:
                error, detail = self._refusal(change.request)
                if error is not ErrorCode.NONE:
                    self._changes.remove(change)
                    context.answer(change.asked_by, change.request, error, detail=detail)
                elif may_append(
                    change, context.log.voters, self.leadership, context.high_watermark, context.log.end_offset
                ):
                    change.offset = self.append([change.record]) - 1
                    context.log.flush()
                    context.out.trace("quorum_voters", None, voters=tuple(map(str, context.voters.keys)))
                    self._advance()

    def give_up_changes(self, now_ms: TimeMs) -> None:
        """Who has waited for too long is told."""
        for change in [change for change in self._changes if change.until_ms <= now_ms]:
            self._changes.remove(change)
            detail = f"not done within {WITHIN_MS / 1000:.0f} s"
            self._context.answer(change.asked_by, change.request, ErrorCode.REQUEST_TIMED_OUT, detail=detail)
        self._wait_for_changes()

    def _wait_for_changes(self) -> None:
        if self._changes:
            self._context.out.set_timer(CHANGE_TIMER, min(change.until_ms for change in self._changes))


def _told(keys: Sequence[ReplicaKey]) -> tuple[Voter, ...]:
    return tuple(Voter(voter_id=key.id, voter_uuid=key.uuid) for key in keys)
