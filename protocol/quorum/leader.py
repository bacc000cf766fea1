"""The leader's side of the metadata log: fetches and their answers, the high watermark, changes of the voters.

A fetch that finds nothing new is parked until there is: more records, or a higher high watermark. A second one of the
same replica takes its place, and the first is answered with nothing, so that followers hear from their leader as often
as they ask. Those that wait when the epoch ends are told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET, NodeId, Offset, TimeMs
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
from protocol.messages.trusted import trusted
from protocol.quorum.context import FETCH_TIMER, QuorumContext
from protocol.quorum.leadership import Leadership
from protocol.quorum.log import Snapshot
from protocol.quorum.membership import Change, VoterRequest, not_leader, obstacle, refusal, response_to
from protocol.quorum.voters import ReplicaKey, VoterSet, is_meant

_FETCHED: Final = trusted(QuorumFetchResponse)

SILENT_PREFIX = "quorum-silent/"
"""Timers of a voter, whose id follows: it has not fetched for too long."""
BEGIN_TIMER = "quorum-begin"
CHANGE_TIMER = "quorum-change"
CHUNK_BYTES = 1_048_576
"""How much of a snapshot travels in one answer."""


@dataclass(slots=True)
class _Parked:
    """A fetch that waits for news."""

    sender: NodeId
    request: QuorumFetchRequest
    offset: Offset
    high_watermark: Offset


class LeaderSide:
    """One epoch of a leader; its first record is appended as it begins."""

    def __init__(self, context: QuorumContext, now_ms: TimeMs) -> None:
        self._context = context
        self.leadership = Leadership(context.epoch, context.log.end_offset, now_ms, context.key)
        self._parked: dict[ReplicaKey, _Parked] = {}
        self._changes: list[Change] = []
        self._watched = VoterSet()
        self._settled = (NO_OFFSET, NO_OFFSET)
        voters = _told(context.voters.keys)
        first = LeaderChangeRecord(leader_id=context.node_id, leader_uuid=context.state.uuid, voters=voters)
        self.append([first])
        self._watch_voters(now_ms)

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
        log.append(batch, records)
        return batch.next_offset

    def settle(self, now_ms: TimeMs) -> None:
        """What has been flushed counts, and who waits for it is told."""
        context = self._context
        self._advance()
        if self._changes:
            self._make_changes()
        if self._watched is not context.voters:
            self._watch_voters(now_ms)
        settled = (context.log.end_offset, context.high_watermark)
        if settled == self._settled:
            return
        self._settled = settled
        for replica, parked in sorted(self._parked.items()):
            if self._has_news_for(parked):
                self._answer_fetch(replica, parked)

    def end(self) -> None:
        """The epoch is over for this leader."""
        context = self._context
        self._watch(VoterSet(), 0)
        for timer in (BEGIN_TIMER, CHANGE_TIMER):
            context.out.cancel_timer(timer)
        for change in self._changes:
            answer = not_leader(change.request, context.leader, context.epoch)
            context.out.send(change.asked_by, answer)
        for _, parked in sorted(self._parked.items()):
            context.answer(parked.sender, parked.request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- the others ----------------------------------------------------------------------------------------------------

    def announce(self, now_ms: TimeMs) -> None:
        """Tells voters that do not fetch who leads, and goes on telling them."""
        context = self._context
        unheard = self.leadership.unheard(context.voters)
        for voter in unheard:
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
        if unheard:
            context.out.set_timer(BEGIN_TIMER, now_ms + context.config.fetch_ms // 2)

    def voter_is_silent(self, now_ms: TimeMs, name: str) -> bool:
        """The timer of a voter is due; whether a majority of the voters fetches still."""
        self.leadership.silent.add(int(name.removeprefix(SILENT_PREFIX)))
        self.announce(now_ms)
        return self.leadership.has_majority(self._context.voters)

    def _watch_voters(self, now_ms: TimeMs) -> None:
        """Other voters count from now on."""
        self._watch(self._context.voters, now_ms)
        self.announce(now_ms)

    def _watch(self, voters: VoterSet, now_ms: TimeMs) -> None:
        """Sets the timers of voters that have become it, and cancels those of voters that are it no more. Those that
        are silent get another chance: who made up the majority with this leader may be gone.
        """
        before, after = (
            {key.id for key in watched.keys} - {self._context.node_id} for watched in (self._watched, voters)
        )
        self._watched = voters
        for node in sorted(before - after):
            self.leadership.silent.discard(node)
            self._context.out.cancel_timer(f"{SILENT_PREFIX}{node}")
        for node in sorted(after - (before - self.leadership.silent)):
            self._heard_of(node, now_ms)

    def _heard_of(self, voter: NodeId, now_ms: TimeMs) -> None:
        self.leadership.silent.discard(voter)
        name = f"{SILENT_PREFIX}{voter}"
        self._context.out.set_timer(name, now_ms + self._patience_ms, idle_with=voter, renewed_by=FETCH_TIMER)

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
        if request.fetch_offset < 0:
            context.answer(sender, request, ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        lacking = log.lacks(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(lacking, Snapshot):
            context.answer(
                sender,
                request,
                high_watermark=context.high_watermark,
                snapshot_epoch=lacking.epoch,
                snapshot_end_offset=lacking.end_offset,
            )
        elif lacking is not None:
            context.answer(sender, request, diverging_epoch=lacking.epoch, diverging_end_offset=lacking.end_offset)
        else:
            self._park(now_ms, sender, request)

    def _park(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        replica = ReplicaKey(request.replica_id, request.replica_uuid)
        self.leadership.fetched(replica, request.fetch_offset, now_ms)
        voter = self._watched.key_of(replica.id)
        if voter is not None and is_meant(voter, replica) and replica.id != self._context.node_id:
            self._heard_of(replica.id, now_ms)
        former = self._parked.get(replica)
        if former is not None:
            self._answer_fetch(replica, former, ())
        parked = self._parked[replica] = _Parked(sender, request, request.fetch_offset, request.high_watermark)
        self.leadership.progress[replica].is_waiting = True
        if self._has_news_for(parked):
            self._settled = (NO_OFFSET, NO_OFFSET)

    def _has_news_for(self, parked: _Parked) -> bool:
        context = self._context
        return parked.offset < context.log.end_offset or parked.high_watermark < context.high_watermark

    def _answer_fetch(self, replica: ReplicaKey, parked: _Parked, batches: Sequence[RecordBatch] | None = None) -> None:
        del self._parked[replica]
        self.leadership.progress[replica].is_waiting = False
        context = self._context
        response = _FETCHED(
            correlation_id=parked.request.correlation_id,
            leader_id=context.node_id,
            leader_epoch=context.epoch,
            high_watermark=context.high_watermark,
            batches=tuple(context.log.read(parked.offset) if batches is None else batches),
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
        error, message = self._refusal(request)
        if error is not ErrorCode.NONE:
            self._context.out.send(sender, response_to(request, error, message))
            return
        self._changes.append(Change(sender, request, now_ms + request.timeout_ms))
        self._wait_for_changes()

    def _refusal(self, request: VoterRequest) -> tuple[ErrorCode, str]:
        return refusal(request, self._context.voters, static=self._context.config.is_static)

    def _obstacle(self, change: Change) -> str:
        context = self._context
        return obstacle(change, context.log.voters, self.leadership, context.high_watermark, context.log.end_offset)

    def _make_changes(self) -> None:
        """Answers what is committed, and appends what may be; a change that another has overtaken is refused."""
        for change in list(self._changes):
            if change.offset < 0:
                self._begin_change(change)
            if 0 <= change.offset < self._context.high_watermark:
                self._end_change(change)

    def _begin_change(self, change: Change) -> None:
        context = self._context
        error, message = self._refusal(change.request)
        if error is not ErrorCode.NONE:
            self._end_change(change, error, message)
        elif not self.is_superseded and not self._obstacle(change):
            change.offset = self.append([change.record(context.voters)]) - 1
            context.log.flush()
            context.out.trace("quorum_voters", None, voters=tuple(map(str, context.voters.keys)))
            self._advance()

    def _end_change(self, change: Change, error: ErrorCode = ErrorCode.NONE, message: str = "") -> None:
        self._changes.remove(change)
        self._context.out.send(change.asked_by, response_to(change.request, error, message))

    def give_up_changes(self, now_ms: TimeMs) -> None:
        """Who has waited for too long is told."""
        for change in [change for change in self._changes if change.until_ms <= now_ms]:
            why = self._obstacle(change) if change.offset < 0 else "appended, not committed; it may still be"
            message = f"not done within {change.request.timeout_ms} ms: {why}"
            self._end_change(change, ErrorCode.REQUEST_TIMED_OUT, message)
        self._wait_for_changes()

    def _wait_for_changes(self) -> None:
        if self._changes:
            self._context.out.set_timer(CHANGE_TIMER, min(change.until_ms for change in self._changes))


def _told(keys: Sequence[ReplicaKey]) -> tuple[Voter, ...]:
    return tuple(Voter(voter_id=key.id, voter_uuid=key.uuid) for key in keys)
