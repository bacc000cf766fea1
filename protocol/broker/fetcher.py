"""The follower's side of replication.

The partitions of a leader are spread over `num.replica.fetchers` fetchers, by a hash that gives neighbours of a topic
to different ones. Each fetcher has messages of its own, and at the leader limits of its own (`fetch_streams.py`).

For every partition that this broker follows there is one open wish (`FetchPartition`): "my log ends here, in this
epoch; tell me when there is more". It goes to the leader at once when it changes, and all open wishes to one leader
are repeated every `replica.fetch.wait.max.ms` (`FetchRenewal`), which keeps the leader assured that the follower
lives and makes up for anything lost. An answer is taken only if it answers the wish that is open: same leader, same
leader epoch, same offset. An answer may carry records, a newer high watermark, a point to truncate to, or an error;
after an error the wish waits for the next repetition or for newer metadata. One error is different: where the leader
has deleted what the follower lacks, the follower's log begins anew at the leader's log start offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from protocol.broker.context import BrokerContext, Replica
from protocol.broker.flushing import Flusher
from protocol.config import NUM_REPLICA_FETCHERS, REPLICA_FETCH_WAIT_MAX_MS
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import BrokerId, Offset, TimeMs, TopicIdPartition
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
)

FETCH_PREFIX = "fetch/"


def fetcher_of(key: TopicIdPartition, fetchers: int) -> int:
    """The number of the fetcher that a partition belongs to, of `fetchers` in all."""
    return (crc32(key.topic_id.encode()) + key.partition) % fetchers


class Fetcher:
    """Fetches all followed partitions of one broker from their leaders."""

    def __init__(self, context: BrokerContext, flusher: Flusher) -> None:
        self._context = context
        self._flusher = flusher
        self._wait_ms = context.config.int_value(REPLICA_FETCH_WAIT_MAX_MS)
        self._fetchers = context.config.int_value(NUM_REPLICA_FETCHERS)
        self._followed: dict[BrokerId, dict[TopicIdPartition, Replica]] = {}
        self._changed: dict[BrokerId, dict[TopicIdPartition, Replica]] = {}
        self._refused: dict[BrokerId, set[TopicIdPartition]] = {}
        self._timed: set[BrokerId] = set()
        self._unsettled: set[BrokerId] = set()

    def follow(self, replica: Replica) -> None:
        """Starts fetching a partition whose `leader_id` and `leader_epoch` have been set; sent with the next
        `flush_wishes`.
        """
        self._followed.setdefault(replica.leader_id, {})[replica.key] = replica
        self._unsettled.add(replica.leader_id)
        self._renew(replica)

    def unfollow(self, replica: Replica) -> None:
        """Stops fetching a partition; nothing more from its old leader will be appended (A26)."""
        replica.wish = None
        for table in (self._followed, self._changed):
            partitions = table.get(replica.leader_id)
            if partitions is not None:
                partitions.pop(replica.key, None)
        self._refused.get(replica.leader_id, set()).discard(replica.key)
        if not self._followed.get(replica.leader_id):
            self._followed.pop(replica.leader_id, None)
            self._timed.discard(replica.leader_id)
            self._context.out.cancel_timer(f"{FETCH_PREFIX}{replica.leader_id}")

    def broker_epoch_changed(self) -> None:
        """Leaders hold the open wishes under the old epoch, under which this broker cannot join an ISR."""
        for leader, replicas in self._followed.items():
            self._unsettled.add(leader)
            self._changed.setdefault(leader, {}).update(replicas)

    def flush_wishes(self, now_ms: TimeMs) -> None:
        """Sends the wishes that changed, one message per leader and fetcher; call at the end of every input.

        A repetition that is due stays due: it is for the open wishes that did not change, and may have been lost.
        Only the first wish for a new leader epoch puts it off; the leader may not know of that epoch yet, so the
        repetition is then more than a renewal.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for leader, replicas in changed.items():
            if self._send(leader, replicas.values(), FetchRequest) and (
                leader not in self._timed or leader in self._unsettled
            ):
                self._set_timer(leader, now_ms)

    def _send(self, leader: BrokerId, replicas: Iterable[Replica], kind: type[FetchRequest]) -> bool:
        """Sends the open wishes of the replicas; whether there are any."""
        streams: dict[int, list[FetchPartition]] = {}
        for replica in replicas:
            if replica.wish is not None:
                streams.setdefault(fetcher_of(replica.key, self._fetchers), []).append(replica.wish)
        for fetcher, wishes in sorted(streams.items()):
            message = kind(
                replica_id=self._context.me,
                replica_epoch=self._context.broker_epoch,
                partitions=tuple(wishes),
                fetcher=fetcher,
            )
            self._context.out.send(leader, message)
        return bool(streams)

    def fire(self, name: str, now_ms: TimeMs) -> None:
        """Repeats the open wishes to one leader."""
        leader = int(name.removeprefix(FETCH_PREFIX))
        self._timed.discard(leader)
        self._unsettled.discard(leader)
        if self._send(leader, self._followed.get(leader, {}).values(), FetchRenewal):
            self._refused.pop(leader, None)
            self._set_timer(leader, now_ms)

    def receive(self, leader: BrokerId, response: FetchResponse, now_ms: TimeMs) -> None:
        """Takes the leader's answers."""
        for result in response.partitions:
            replica = self._context.replicas.get(TopicIdPartition(result.topic_id, result.partition_id))
            if replica is None or replica.wish is None or replica.leader_id != leader:
                continue
            if (result.leader_epoch, result.fetch_offset) == (replica.leader_epoch, replica.wish.fetch_offset):
                try:
                    self._take(replica, result, now_ms)
                except CorruptLogError as error:
                    self._not_stored(replica, error, now_ms)

    def _not_stored(self, replica: Replica, error: CorruptLogError, now_ms: TimeMs) -> None:
        """A batch came damaged and was not stored; the next repetition asks for it again."""
        self._context.damage_found(replica, error)
        self._renew(replica)
        del self._changed[replica.leader_id][replica.key]
        self._refused.setdefault(replica.leader_id, set()).add(replica.key)
        self._set_timer(replica.leader_id, now_ms)

    def _take(self, replica: Replica, result: FetchPartitionResult, now_ms: TimeMs) -> None:
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset >= 0:
            self._begin_anew(replica, result.log_start_offset, now_ms)
            return
        if result.error is not ErrorCode.NONE:
            self._refused.setdefault(replica.leader_id, set()).add(replica.key)
            self._set_timer(replica.leader_id, now_ms)
            return
        log = replica.log
        if result.diverging_epoch is not None:
            offset = log.truncation_offset(result.diverging_epoch)
            self._context.out.trace(
                "truncated", replica.name, to_offset=offset, log_end=log.end_offset, high_watermark=log.high_watermark
            )
            log.truncate(offset)
        elif result.batches:
            log.append_as_follower(result.batches)
            self._context.out.trace("fetched", replica.name, log_end=log.end_offset, leader_epoch=replica.leader_epoch)
            self._flusher.appended(replica, now_ms)
        moved = log.advance_high_watermark(result.high_watermark)
        if result.log_start_offset > log.start_offset:
            log.delete_segments_before(result.log_start_offset)
        if moved:
            self._flusher.high_watermark_moved(now_ms)
        if result.batches or result.diverging_epoch is not None:
            self._renew(replica)
        else:  # the leader is not told what it has just said: the wish is still open there
            replica.wish = self._wish(replica)

    def _begin_anew(self, replica: Replica, start_offset: Offset, now_ms: TimeMs) -> None:
        """The leader has deleted what this log lacks; no gap is filled, the log begins where the leader's does."""
        log = replica.log
        self._context.out.trace("reset", replica.name, to_offset=start_offset, log_end=log.end_offset)
        log.reset(start_offset)
        self._flusher.high_watermark_moved(now_ms)
        self._renew(replica)

    def _renew(self, replica: Replica) -> None:
        replica.wish = self._wish(replica)
        self._changed.setdefault(replica.leader_id, {})[replica.key] = replica

    def _wish(self, replica: Replica) -> FetchPartition:
        return FetchPartition(
            topic_id=replica.key.topic_id,
            partition_id=replica.key.partition,
            current_leader_epoch=replica.leader_epoch,
            fetch_offset=replica.log.end_offset,
            last_fetched_epoch=replica.log.latest_epoch,
            high_watermark=replica.log.high_watermark,
        )

    def _set_timer(self, leader: BrokerId, now_ms: TimeMs) -> None:
        self._timed.add(leader)
        idle = None if self._refused.get(leader) or leader in self._unsettled else leader
        self._context.out.set_timer(f"{FETCH_PREFIX}{leader}", now_ms + self._wait_ms, idle_with=idle)
