"""The follower's side of the metadata log: it asks for what is next, and has it on its disk before it asks again.

Who has no leader to follow asks those who may know it, in turn: the voters, and the servers that the configuration
names (D2). An answer shows that its leader lives. Its records are taken if they follow on the log; what else it says
counts if it answers the newest question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import Epoch, NodeId, Offset, TimeMs
from protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumRequest,
    QuorumResponse,
)
from protocol.messages.trusted import trusted
from protocol.quorum.context import ELECTION_TIMER, FETCH_TIMER, QuorumContext
from protocol.quorum.election import Role
from protocol.quorum.log import decode_snapshot

_FETCH: Final = trusted(QuorumFetchRequest)


@dataclass(slots=True)
class _Download:
    """The part of a snapshot that has come."""

    epoch: Epoch
    end_offset: Offset
    data: bytearray


class FollowerSide:
    """See the module docstring. `leaders_high_watermark` is what the leader has told last."""

    def __init__(self, context: QuorumContext) -> None:
        self._context = context
        self._asked: int | None = None
        self._probed = 0
        self.leaders_high_watermark: Offset = 0
        self._download: _Download | None = None

    @property
    def awaited(self) -> int | None:
        """The correlation id of the newest question."""
        return self._asked

    def forget(self) -> None:
        """The role has changed: nothing that is under way counts any more."""
        self._asked = self._download = None
        self._context.has_fetched = False

    def ask(self, now_ms: TimeMs) -> None:
        """Asks the leader, or somebody who may know it, for what is next; again after a while if nothing comes."""
        context = self._context
        is_following = context.role is Role.FOLLOWER
        is_parked = is_following and context.has_fetched and self._download is None
        self._ask_again(now_ms, context.leader if is_parked else None)
        target = context.leader if is_following else self._next_server()
        if target is None:
            return
        self._asked = context.next_correlation_id()
        common: dict[str, Any] = {
            "correlation_id": self._asked,
            "cluster_id": context.config.cluster_id,
            "replica_id": context.key.id,
            "replica_uuid": context.key.uuid,
            "current_leader_epoch": context.epoch,
        }
        download = self._download if context.role is Role.FOLLOWER else None
        request: QuorumRequest
        if download is not None:
            request = FetchSnapshotRequest(
                **common,
                snapshot_epoch=download.epoch,
                snapshot_end_offset=download.end_offset,
                position=len(download.data),
            )
        else:
            request = _FETCH(
                **common,
                fetch_offset=context.log.end_offset,
                last_fetched_epoch=context.log.last_epoch,
                high_watermark=context.high_watermark,
            )
        context.out.send(target, request)

    def _ask_again(self, now_ms: TimeMs, idle_with: NodeId | None = None) -> None:
        context = self._context
        context.out.set_timer(FETCH_TIMER, now_ms + context.config.renewal_ms, idle_with=idle_with)

    def _next_server(self) -> NodeId | None:
        """Somebody who may know the leader, in turn."""
        context = self._context
        servers = sorted({*context.config.bootstrap, *(key.id for key in context.voters.keys)} - {context.node_id})
        self._probed += 1
        return servers[self._probed % len(servers)] if servers else None

    def fetched(self, now_ms: TimeMs, sender: NodeId, response: QuorumFetchResponse) -> None:
        context = self._context
        if not self._is_of_the_leader(sender, response):
            if sender == context.leader and context.has_fetched:
                context.has_fetched = False  # it leads no more: nothing that was asked of it is waiting there
                self._ask_again(now_ms)
            return
        self._heard(now_ms)
        self.leaders_high_watermark = max(response.high_watermark, self.leaders_high_watermark)
        is_newest = response.correlation_id == self._asked
        before = (context.log.end_offset, context.high_watermark)
        if response.snapshot_end_offset < 0 and response.diverging_end_offset < 0:
            self._append(response)
        elif is_newest and response.snapshot_end_offset >= 0:
            self._download = _Download(response.snapshot_epoch, response.snapshot_end_offset, bytearray())
        elif is_newest:
            self._truncate(response.diverging_epoch, response.diverging_end_offset)
        if is_newest or before != (context.log.end_offset, context.high_watermark):
            self.ask(now_ms)

    def _append(self, response: QuorumFetchResponse) -> None:
        """Takes batches that follow on the log. An answer to an older question will do: this leader's log only grows,
        and had all that was here when that was asked.
        """
        context = self._context
        if response.batches and response.batches[0].base_offset != context.log.end_offset:
            return
        for batch in response.batches:
            context.log.append(batch)
        context.log.flush()
        reached = min(response.high_watermark, context.log.end_offset)
        context.high_watermark = max(context.high_watermark, reached)

    def snapshot_fetched(self, now_ms: TimeMs, sender: NodeId, response: FetchSnapshotResponse) -> None:
        context, download = self._context, self._download
        if download is None or response.correlation_id != self._asked:
            return
        if not self._is_of_the_leader(sender, response):
            self._download = None  # there may be a newer one
            self.ask(now_ms)
            return
        self._heard(now_ms)
        if response.position == len(download.data):
            download.data += response.data
        if len(download.data) >= response.size:
            self._download = None
            snapshot = decode_snapshot(bytes(download.data))
            if snapshot.end_offset > context.high_watermark:
                context.log.install(snapshot)
                context.high_watermark = snapshot.end_offset
                context.out.trace("quorum_snapshot", None, end_offset=snapshot.end_offset, epoch=snapshot.epoch)
        self.ask(now_ms)

    def _is_of_the_leader(self, sender: NodeId, response: QuorumResponse) -> bool:
        context = self._context
        if sender != context.leader or context.role is not Role.FOLLOWER:
            return False
        return response.error is ErrorCode.NONE and response.leader_epoch == context.epoch

    def _heard(self, now_ms: TimeMs) -> None:
        self._context.has_fetched = True
        self.expect_the_leader(now_ms)

    def expect_the_leader(self, now_ms: TimeMs) -> None:
        """If nothing is heard of it for a while there may be an election."""
        context = self._context
        context.out.set_timer(
            ELECTION_TIMER, now_ms + context.config.fetch_ms, idle_with=context.leader, echoes=FETCH_TIMER
        )

    def _truncate(self, epoch: Epoch, end_offset: Offset) -> None:
        """The leader's part of `epoch`, or of the one before it, ends there: what is behind it here goes."""
        context = self._context
        own = context.log.end_of_epoch(epoch)
        target = min(own.end_offset, end_offset) if own.epoch == epoch else own.end_offset
        if target < context.high_watermark:
            raise ProtocolInvariantError(f"{context.key} is to cut its log at {target}, below {context.high_watermark}")
        context.log.truncate(target)
        context.out.trace("quorum_truncated", None, end_offset=target, epoch=context.epoch)
