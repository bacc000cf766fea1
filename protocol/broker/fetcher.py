"""The follower's side of replication.

The partitions of a leader are spread over `num.replica.fetchers` fetchers, by a hash that gives neighbours of a topic
to different ones. Each fetcher has messages of its own, and at the leader limits of its own (`fetch_streams.py`).

For every partition that this broker follows there is one open wish (`FetchPartition`): "my log ends here, in this
epoch; tell me when there is more". It goes to the leader at once when it changes. Every `replica.fetch.wait.max.ms`
each session (`messages/data.py`) is renewed, or, where something of it was lost, begun anew with all open wishes. An
answer is taken only if it answers the wish that is open: same leader, same leader epoch, same offset, same epoch of the
record before it. (A log that was told where to truncate may reach the same offset again, with the leader's records; it
must not be cut a second time when the answer comes twice.) An answer may carry records, a newer high watermark, a point
to truncate to, or an error; after an error the wish waits for the next renewal, when it is repeated, or for newer
metadata. One error is different: where the leader has deleted what the follower lacks, the follower's log begins anew
at the leader's log start offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from protocol.broker.context import BrokerContext, Replica
from protocol.broker.flushing import Flusher
from protocol.config import NUM_REPLICA_FETCHERS, REPLICA_FETCH_WAIT_MAX_MS
from protocol.errors import CorruptLogError, ErrorCode
from protocol.ids import BrokerId, Offset, TimeMs, TopicIdPartition, partition_key
from protocol.messages.data import (
    FetchPartition,
    FetchPartitionResult,
    FetchRenewal,
    FetchRequest,
    FetchResponse,
)
from protocol.messages.trusted import trusted

_REQUEST: Final = trusted(FetchRequest)
_RENEWAL: Final = trusted(FetchRenewal)
_FETCH_PARTITION: Final = trusted(FetchPartition)
FETCH_PREFIX = "fetch/"


def fetcher_of(key: TopicIdPartition, fetchers: int) -> int:
    """The number of the fetcher that a partition belongs to, of `fetchers` in all."""
    return (crc32(key.topic_id.encode()) + key.partition) % fetchers


@dataclass(slots=True)
class _Session:
    """What has been said to a leader through one fetcher: requests sent, answers taken. One that is over is followed by
    another with the next request or renewal.
    """

    number: int
    requests: int = 0
    answers: int = 0
    is_over: bool = False


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
        self._sessions: dict[tuple[BrokerId, int], _Session] = {}
        self._session_count = 0

    def follow(self, replica: Replica) -> None:
        """Starts fetching a partition whose `leader_id` and `leader_epoch` have been set; sent with the next
        `send_changed_fetches`.
        """
        self._followed.setdefault(replica.leader_id, {})[replica.key] = replica
        self._unsettled.add(replica.leader_id)
        self._renew(replica)

    def unfollow(self, replica: Replica) -> None:
        """Stops fetching a partition; nothing more from its old leader will be appended (A26). The session that knows
        of it is over, which the leader learns with the next renewal.
        """
        replica.fetch_state = None
        session = self._sessions.get((replica.leader_id, fetcher_of(replica.key, self._fetchers)))
        if session is not None:
            session.is_over = True
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
        self._sessions.clear()
        for leader, replicas in self._followed.items():
            self._unsettled.add(leader)
            self._changed.setdefault(leader, {}).update(replicas)

    def send_changed_fetches(self, now_ms: TimeMs) -> None:
        """Sends the wishes that changed, one message per leader and fetcher; call at the end of every input.

        A renewal that is due stays due: it is for the open wishes that did not change, and may have been lost. Only the
        first wish for a new leader epoch puts it off; the leader may not know of that epoch yet, so the renewal is then
        more than that.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for leader, replicas in changed.items():
            if self._request(leader, replicas.values()) and (leader not in self._timed or leader in self._unsettled):
                self._set_timer(leader, now_ms)

    def _request(self, leader: BrokerId, replicas: Iterable[Replica]) -> set[int]:
        """Sends the open wishes of the replicas, or all where a session is over; by which fetchers."""
        streams: dict[int, list[FetchPartition]] = {}
        for replica in replicas:
            if replica.fetch_state is not None:
                streams.setdefault(fetcher_of(replica.key, self._fetchers), []).append(replica.fetch_state)
        asked = set()
        for fetcher in range(self._fetchers):
            fetches, session = streams.get(fetcher, []), self._sessions.get((leader, fetcher))
            if session is None and not fetches:
                continue
            if session is None or session.is_over:
                session, fetches = self._begin_session(leader, fetcher), self._fetch_states(leader, fetcher)
            if fetches:
                self._send(leader, fetcher, session, fetches)
                asked.add(fetcher)
        return asked

    def _begin_session(self, leader: BrokerId, fetcher: int) -> _Session:
        self._session_count += 1
        session = self._sessions[leader, fetcher] = _Session(self._session_count)
        return session

    def _fetch_states(self, leader: BrokerId, fetcher: int) -> list[FetchPartition]:
        return [
            replica.fetch_state
            for replica in self._followed.get(leader, {}).values()
            if replica.fetch_state is not None and fetcher_of(replica.key, self._fetchers) == fetcher
        ]

    def _send(self, leader: BrokerId, fetcher: int, session: _Session, fetches: list[FetchPartition]) -> None:
        message = _REQUEST(
            replica_id=self._context.me,
            replica_epoch=self._context.broker_epoch,
            partitions=tuple(fetches),
            fetcher=fetcher,
            session=session.number,
            number=session.requests,
        )
        session.requests += 1
        self._context.out.send(leader, message)

    def fire(self, name: str, now_ms: TimeMs) -> None:
        """Renews the sessions with one leader, and repeats what it refused."""
        leader = int(name.removeprefix(FETCH_PREFIX))
        self._timed.discard(leader)
        self._unsettled.discard(leader)
        followed = self._followed.get(leader, {})
        refused = [followed[key] for key in sorted(self._refused.pop(leader, ())) if key in followed]
        asked = self._request(leader, refused)
        for fetcher in range(self._fetchers):
            session = self._sessions.get((leader, fetcher))
            if session is not None and session.requests and fetcher not in asked:
                self._renew_session(leader, fetcher, session)
        if any(replica.fetch_state is not None for replica in followed.values()):
            self._set_timer(leader, now_ms)

    def _renew_session(self, leader: BrokerId, fetcher: int, session: _Session) -> None:
        message = _RENEWAL(
            replica_id=self._context.me,
            replica_epoch=self._context.broker_epoch,
            fetcher=fetcher,
            session=session.number,
            requests=session.requests,
            answers=session.answers,
        )
        self._context.out.send(leader, message)

    def receive(self, leader: BrokerId, response: FetchResponse, now_ms: TimeMs) -> None:
        """Takes the leader's answers."""
        self._count(leader, response)
        for result in response.partitions:
            replica = self._context.replicas.get(partition_key(result.topic_id, result.partition_id))
            if replica is not None and replica.leader_id == leader and answers_fetch_state(replica, result):
                try:
                    self._take(replica, result, now_ms)
                except CorruptLogError as error:
                    self._not_stored(replica, error, now_ms)

    def _count(self, leader: BrokerId, response: FetchResponse) -> None:
        """Ends a session that the leader does not know, or of which answers were lost: all wishes are stated anew."""
        session = self._sessions.get((leader, response.fetcher))
        if session is None or session.number != response.session:
            return
        if response.error is not ErrorCode.NONE or response.number > session.answers:
            session.is_over = True
            self._changed.setdefault(leader, {})
        elif response.partitions and response.number == session.answers:
            session.answers += 1

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
            replica.fetch_state = self._fetch_state_of(replica)

    def _begin_anew(self, replica: Replica, start_offset: Offset, now_ms: TimeMs) -> None:
        """The leader has deleted what this log lacks; no gap is filled, the log begins where the leader's does."""
        log = replica.log
        self._context.out.trace("reset", replica.name, to_offset=start_offset, log_end=log.end_offset)
        log.reset(start_offset)
        self._flusher.high_watermark_moved(now_ms)
        self._renew(replica)

    def _renew(self, replica: Replica) -> None:
        replica.fetch_state = self._fetch_state_of(replica)
        self._changed.setdefault(replica.leader_id, {})[replica.key] = replica

    def _fetch_state_of(self, replica: Replica) -> FetchPartition:
        return _FETCH_PARTITION(
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


def answers_fetch_state(replica: Replica, result: FetchPartitionResult) -> bool:
    """Whether the result is an answer to what the follower wishes for at present."""
    return replica.fetch_state is not None and result.answers(replica.fetch_state)
