"""The follower's side of replication.

For every partition that this broker follows there is one open wish (`FetchPartition`): "my log ends here, in this
epoch; tell me when there is more". It goes to the leader at once when it changes, and all open wishes to one leader
are repeated every `replica.fetch.wait.max.ms` (`FetchRenewal`), which keeps the leader assured that the follower
lives and makes up for anything lost. An answer is taken only if it answers the wish that is open: same leader, same
leader epoch, same offset. An answer may carry records, a newer high watermark, a point to truncate to, or an error;
after an error the wish waits for the next repetition or for newer metadata.
"""

from __future__ import annotations

from protocol.broker.context import BrokerContext, Replica
from protocol.broker.flushing import Flusher
from protocol.config import REPLICA_FETCH_WAIT_MAX_MS
from protocol.errors import ErrorCode
from protocol.ids import BrokerId, TimeMs, TopicIdPartition
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
)

FETCH_PREFIX = "fetch/"


class Fetcher:
    """Fetches all followed partitions of one broker from their leaders."""

    def __init__(self, context: BrokerContext, flusher: Flusher) -> None:
        self._context = context
        self._flusher = flusher
        self._wait_ms = context.config.int_value(REPLICA_FETCH_WAIT_MAX_MS)
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
        """Sends the wishes that changed, one message per leader; call at the end of every input.

        A repetition that is due stays due: it is for the open wishes that did not change, and may have been lost.
        Only the first wish for a new leader epoch puts it off; the leader may not know of that epoch yet, so the
        repetition is then more than a renewal.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for leader, replicas in changed.items():
            wishes = tuple(replica.wish for replica in replicas.values() if replica.wish is not None)
            if wishes:
                self._context.out.send(
                    leader,
                    FetchRequest(
                        replica_id=self._context.me, replica_epoch=self._context.broker_epoch, partitions=wishes
                    ),
                )
                if leader not in self._timed or leader in self._unsettled:
                    self._set_timer(leader, now_ms)

    def fire(self, name: str, now_ms: TimeMs) -> None:
        """Repeats the open wishes to one leader."""
        leader = int(name.removeprefix(FETCH_PREFIX))
        self._timed.discard(leader)
        self._unsettled.discard(leader)
        wishes = tuple(r.wish for r in self._followed.get(leader, {}).values() if r.wish is not None)
        if not wishes:
            return
        self._refused.pop(leader, None)
        self._context.out.send(
            leader,
            FetchRenewal(replica_id=self._context.me, replica_epoch=self._context.broker_epoch, partitions=wishes),
        )
        self._set_timer(leader, now_ms)

    def receive(self, leader: BrokerId, response: FetchResponse, now_ms: TimeMs) -> None:
        """Takes the leader's answers."""
        for result in response.partitions:
            replica = self._context.replicas.get(TopicIdPartition(result.topic_id, result.partition_id))
            if replica is None or replica.wish is None or replica.leader_id != leader:
                continue
            if (result.leader_epoch, result.fetch_offset) == (replica.leader_epoch, replica.wish.fetch_offset):
                self._take(replica, result, now_ms)

    def _take(self, replica: Replica, result: FetchPartitionResult, now_ms: TimeMs) -> None:
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
        if log.advance_high_watermark(result.high_watermark):
            self._flusher.high_watermark_moved(now_ms)
        elif not result.batches and result.diverging_epoch is None:
            return  # an answer to a repetition of a wish that had been answered already
        self._renew(replica)

    def _renew(self, replica: Replica) -> None:
        replica.wish = FetchPartition(
            topic_id=replica.key.topic_id,
            partition_id=replica.key.partition,
            current_leader_epoch=replica.leader_epoch,
            fetch_offset=replica.log.end_offset,
            last_fetched_epoch=replica.log.latest_epoch,
            high_watermark=replica.log.high_watermark,
        )
        self._changed.setdefault(replica.leader_id, {})[replica.key] = replica

    def _set_timer(self, leader: BrokerId, now_ms: TimeMs) -> None:
        self._timed.add(leader)
        idle = None if self._refused.get(leader) or leader in self._unsettled else leader
        self._context.out.set_timer(f"{FETCH_PREFIX}{leader}", now_ms + self._wait_ms, idle_with=idle)
