"""The follower of the metadata log: it fetches, appends and flushes, then fetches again.

A replica without a leader sends its fetches to the voters and the bootstrap servers in turn, to discover one (D2). Any
response of the leader resets the fetch timeout. Batches are appended if they start at the log end; truncation and
snapshots are only accepted in the response to the newest request. A controller without a vote may ask for one
(`membership.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.quorum import QuorumLogTruncated, QuorumSnapshotLoaded
from protocol.ids import Epoch, NodeId, Offset, TimeMs
from protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumRequest,
    QuorumResponse,
)
from protocol.quorum.context import ELECTION_TIMER, FETCH_TIMER, JOIN_TIMER, QuorumContext
from protocol.quorum.election import FOLLOWER
from protocol.quorum.log import decode_snapshot
from protocol.quorum.membership import joining_request


@dataclass(slots=True)
class _Download:
    epoch: Epoch
    end_offset: Offset
    data: bytearray


class QuorumFollower:
    """`leaders_high_watermark` is the highest that a leader has reported, `pending_request_id` the newest request,
    `has_followed` whether it has followed a leader since its start.
    """

    def __init__(self, context: QuorumContext) -> None:
        self._context = context
        self.pending_request_id: int | None = None
        self._bootstrap_tries = 0
        self.has_followed = False
        self.leaders_high_watermark: Offset = 0
        self._download: _Download | None = None

    def reset(self) -> None:
        """Forgets the outstanding request and download; called when the role changes."""
        self.pending_request_id = self._download = None
        self._context.has_fetched = False

    def send_fetch(self, now_ms: TimeMs) -> None:
        """Fetches from the leader, or without one from the next bootstrap server; the fetch timer repeats that."""
        context = self._context
        is_following = context.role is FOLLOWER
        is_delayed = is_following and context.has_fetched and self._download is None
        self._set_fetch_timer(now_ms, context.leader if is_delayed else None)
        target = context.leader if is_following else self._next_bootstrap_server()
        if target is None:
            return
        self.pending_request_id = number = context.next_correlation_id()
        download = self._download if is_following else None
        request: QuorumRequest
        if download is not None:
            request = FetchSnapshotRequest(
                correlation_id=number,
                cluster_id=context.config.cluster_id,
                replica_id=context.node_id,
                replica_uuid=context.state.uuid,
                current_leader_epoch=context.epoch,
                snapshot_epoch=download.epoch,
                snapshot_end_offset=download.end_offset,
                position=len(download.data),
                max_bytes=context.config.snapshot_bytes,
            )
        else:
            request = QuorumFetchRequest.unchecked(
                correlation_id=number,
                cluster_id=context.config.cluster_id,
                replica_id=context.node_id,
                replica_uuid=context.state.uuid,
                current_leader_epoch=context.epoch,
                fetch_offset=context.log.end_offset,
                last_fetched_epoch=context.log.last_epoch,
                high_watermark=context.high_watermark,
                max_bytes=context.config.fetch_bytes,
            )
        context.out.send(target, request)

    def _set_fetch_timer(self, now_ms: TimeMs, idle_with: NodeId | None = None) -> None:
        context = self._context
        context.out.set_timer(FETCH_TIMER, now_ms + context.config.renewal_ms, idle_with=idle_with)

    def _next_bootstrap_server(self) -> NodeId | None:
        context = self._context
        servers = sorted({*context.config.bootstrap, *(key.id for key in context.voters.keys)} - {context.node_id})
        self._bootstrap_tries += 1
        return servers[self._bootstrap_tries % len(servers)] if servers else None

    def handle_fetch_response(self, now_ms: TimeMs, sender: NodeId, response: QuorumFetchResponse) -> None:
        """Appends, truncates or starts the download of a snapshot, and sends the next fetch. A response that is not
        from the leader of this epoch only ends the assumption that a fetch is delayed there.
        """
        context = self._context
        if not self._is_from_leader(sender, response):
            if sender == context.leader and context.has_fetched:
                context.forget_fetches()
                self._set_fetch_timer(now_ms)
            return
        self._record_leader_contact(now_ms)
        self.leaders_high_watermark = max(response.high_watermark, self.leaders_high_watermark)
        is_newest = response.correlation_id == self.pending_request_id
        before = (context.log.end_offset, context.high_watermark)
        if response.snapshot_end_offset < 0 and response.diverging_end_offset < 0:
            self._append(response)
        elif is_newest and response.snapshot_end_offset >= 0:
            self._download = _Download(response.snapshot_epoch, response.snapshot_end_offset, bytearray())
        elif is_newest:
            self._truncate(response.diverging_epoch, response.diverging_end_offset)
        if is_newest or before != (context.log.end_offset, context.high_watermark):
            self.send_fetch(now_ms)

    def _append(self, response: QuorumFetchResponse) -> None:
        """Appends batches that start at the log end, also those of an older fetch: a leader only appends."""
        context = self._context
        log, batches = context.log, response.batches
        if batches:
            if batches[0].base_offset != log.end_offset:
                return
            for batch in batches:
                log.append(batch)
            log.flush()
        context.high_watermark = max(context.high_watermark, min(response.high_watermark, log.end_offset))

    def handle_snapshot_response(self, now_ms: TimeMs, sender: NodeId, response: FetchSnapshotResponse) -> None:
        """Adds bytes to the download, which an error ends; installs a complete snapshot. CorruptLogError."""
        context, download = self._context, self._download
        if download is None or response.correlation_id != self.pending_request_id:
            return
        if not self._is_from_leader(sender, response):
            self._download = None  # the leader may have taken a newer snapshot
            self.send_fetch(now_ms)
            return
        self._record_leader_contact(now_ms)
        if response.position == len(download.data):
            download.data += response.data
        if len(download.data) >= response.size:
            self._download = None
            snapshot = decode_snapshot(bytes(download.data))
            if snapshot.end_offset > context.high_watermark:
                context.log.install_snapshot(snapshot)
                context.high_watermark = snapshot.end_offset
                context.out.trace(QuorumSnapshotLoaded(snapshot.end_offset, snapshot.epoch))
        self.send_fetch(now_ms)

    def _is_from_leader(self, sender: NodeId, response: QuorumResponse) -> bool:
        context = self._context
        if sender != context.leader or context.role is not FOLLOWER:
            return False
        return response.error is ErrorCode.NONE and response.leader_epoch == context.epoch

    def _record_leader_contact(self, now_ms: TimeMs) -> None:
        self._context.has_fetched = True
        self.reset_fetch_timeout(now_ms)

    def reset_fetch_timeout(self, now_ms: TimeMs) -> None:
        context = self._context
        self.has_followed = True
        context.out.set_timer(
            ELECTION_TIMER, now_ms + context.config.fetch_ms, idle_with=context.leader, echoes=FETCH_TIMER
        )

    def restart_joining(self, now_ms: TimeMs) -> None:
        """Begins the period after which a follower without a vote asks for one: as in Kafka a fetch timeout."""
        config = self._context.config
        if config.joins and self._context.can_vote and not config.is_static:
            self._context.out.set_timer(JOIN_TIMER, now_ms + config.fetch_ms)

    def join(self, now_ms: TimeMs) -> None:
        """Requests from the leader what is missing to be a voter, each request for the length of a period."""
        context = self._context
        if context.role is not FOLLOWER:
            return
        self.restart_joining(now_ms)
        number, cluster = context.next_correlation_id(), context.config.cluster_id
        request = joining_request(
            context.key,
            context.voters,
            correlation_id=number,
            cluster_id=cluster,
            timeout_ms=context.config.fetch_ms,
        )
        if request is not None:
            context.out.send(context.leader, request)

    def _truncate(self, epoch: Epoch, end_offset: Offset) -> None:
        """Truncates where the leader's log diverges: its largest epoch up to `epoch` ends at `end_offset` (KIP-595)."""
        context = self._context
        own = context.log.end_offset_for_epoch(epoch)
        target = min(own.end_offset, end_offset) if own.epoch == epoch else own.end_offset
        if target < context.high_watermark:
            raise ProtocolInvariantError(f"{context.key} truncates to {target}, below {context.high_watermark}")
        context.log.truncate(target)
        context.out.trace(QuorumLogTruncated(target, context.epoch))
