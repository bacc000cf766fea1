"""The follower's side of the metadata log: it asks for what is next, and has it on its disk before it asks again.

Who has no leader to follow asks those who may know it, in turn: the voters, and the servers that the configuration
names (D2). An answer counts if it is the leader's own, to the newest question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from protocol.quorum.context import ELECTION_TIMER, QuorumContext
from protocol.quorum.election import Role
from protocol.quorum.log import decode_snapshot

FETCH_TIMER = "quorum-fetch"


@dataclass(slots=True)
class _Download:
    """The part of a snapshot that has come."""

    epoch: Epoch
    end_offset: Offset
    data: bytearray


class FollowerSide:
    """See the module docstring."""

    def __init__(self, context: QuorumContext) -> None:
        self._context = context
        self._asked: int | None = None
        self._probed = 0
        self._download: _Download | None = None

    def forget(self) -> None:
        """The role has changed: nothing that is under way counts any more."""
        self._asked = self._download = None
        self._context.has_fetched = False

    def ask(self, now_ms: TimeMs) -> None:
        """Asks the leader, or somebody who may know it, for what is next; again after a while if nothing comes."""
        context = self._context
        context.out.set_timer(FETCH_TIMER, now_ms + context.config.renewal_ms)
        target = context.leader if context.role is Role.FOLLOWER else self._next_server()
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
            request = QuorumFetchRequest(
                **common,
                fetch_offset=context.log.end_offset,
                last_fetched_epoch=context.log.last_epoch,
                high_watermark=context.high_watermark,
            )
        context.out.send(target, request)

    def _next_server(self) -> NodeId | None:
        """Somebody who may know the leader, in turn."""
        context = self._context
        servers = sorted({*context.config.bootstrap, *(key.id for key in context.voters.keys)} - {context.node_id})
        self._probed += 1
        return servers[self._probed % len(servers)] if servers else None

    def fetched(self, now_ms: TimeMs, sender: NodeId, response: QuorumFetchResponse) -> None:
        context = self._context
        if not self._is_awaited(sender, response):
            return
        self._heard(now_ms)
        if response.snapshot_end_offset >= 0:
            self._download = _Download(response.snapshot_epoch, response.snapshot_end_offset, bytearray())
        elif response.diverging_end_offset >= 0:
            self._truncate(response.diverging_epoch, response.diverging_end_offset)
        else:
            for batch in response.batches:
                if batch.base_offset == context.log.end_offset:
                    context.log.append(batch)
            context.log.flush()
            reached = min(response.high_watermark, context.log.end_offset)
            context.high_watermark = max(context.high_watermark, reached)
        self.ask(now_ms)

    def snapshot_fetched(self, now_ms: TimeMs, sender: NodeId, response: FetchSnapshotResponse) -> None:
        context, download = self._context, self._download
        if download is None or response.correlation_id != self._asked:
            return
        if not self._is_awaited(sender, response):
            self._download = None
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

    def _is_awaited(self, sender: NodeId, response: QuorumResponse) -> bool:
        context = self._context
        if response.correlation_id != self._asked or sender != context.leader or context.role is not Role.FOLLOWER:
            return False
        return response.error is ErrorCode.NONE and response.leader_epoch == context.epoch

    def _heard(self, now_ms: TimeMs) -> None:
        self._context.has_fetched = True
        self._context.out.set_timer(ELECTION_TIMER, now_ms + self._context.config.fetch_ms)

    def _truncate(self, epoch: Epoch, end_offset: Offset) -> None:
        """The leader's part of `epoch`, or of the one before it, ends there: what is behind it here goes."""
        context = self._context
        own = context.log.end_of_epoch(epoch)
        target = min(own.end_offset, end_offset) if own.epoch == epoch else own.end_offset
        if target < context.high_watermark:
            raise ProtocolInvariantError(f"{context.key} is to cut its log at {target}, below {context.high_watermark}")
        context.log.truncate(target)
        context.out.trace("quorum_truncated", None, end_offset=target, epoch=context.epoch)
