"""A broker as follower: fetches records from leaders and appends them (Kafka's `ReplicaFetcherThread`).

The partitions of one leader are spread over `num.replica.fetchers` fetchers, by a hash that assigns neighbours of a
topic to different fetchers. Each fetcher has a fetch session with each leader (KIP-227, `messages/data.py`).

Every followed partition has a *fetch state* (`Replica.fetch_state`), of which the follower sends each change; the
leader delays the fetch until there are records. Every `replica.fetch.wait.max.ms` the follower renews each session, or
begins a new one with all fetch states if a message was lost.

A result counts only if it matches the fetch state: same leader, leader epoch, offset, and epoch of the record before
that offset. After a truncation the log may reach the same offset again with other records, and a duplicate of the
response must not truncate the log twice. After an error the fetch is repeated with the next renewal or in a newer
leader epoch; after OFFSET_OUT_OF_RANGE with a log start offset, the log is emptied and starts at that offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final
from zlib import crc32

from protocol.broker.context import BrokerContext, Replica
from protocol.broker.flushing import Flusher
from protocol.config import NUM_REPLICA_FETCHERS, REPLICA_FETCH_WAIT_MAX_MS
from protocol.errors import CorruptLogError, ErrorCode
from protocol.events.broker import LogReset, LogTruncated, RecordsFetched
from protocol.ids import NO_EPOCH, BrokerId, Offset, TimeMs, TopicIdPartition, partition_key
from protocol.messages.batch import RecordBatch
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchRenewal, FetchRequest, FetchResponse

FETCH_PREFIX = "fetch/"
SESSIONS_PER_EPOCH = 2**24
"""Fetch sessions are numbered from the broker epoch times this on. So no incarnation of a broker takes an answer to a
former one, whose messages may still be under way, for one of its own. Kafka's connections end with the process.
"""
POSTPONED_BY = 4
"""By how many times `replica.fetch.wait.max.ms` requests may postpone the renewal that repeats a refused fetch."""
_NOT_SET: Final[TimeMs] = 2**62
"""The time of a renewal whose timer is not set yet."""


def fetcher_of(key: TopicIdPartition, fetchers: int) -> int:
    """The index, below `fetchers`, of the fetcher that a partition is assigned to."""
    return 0 if fetchers == 1 else (crc32(key.topic_id.encode()) + key.partition) % fetchers


@dataclass(slots=True)
class _Session:
    """A fetch session with one leader; one that `is_over` is replaced with the next request or renewal."""

    number: int
    requests: int = 0
    answers: int = 0
    is_over: bool = False


class Fetcher:
    """Fetches what a broker follows. `_changed`: fetch states not sent yet; `_refused`: whose last fetch got an error,
    since `_refused_ms` by leader; `_timed`: leaders with a renewal timer; `_unsettled`: leaders without a renewal since
    the broker follows them in a new epoch, with its time (a host may elide it).
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_refused_ms", "_timed", "_unsettled"})

    def __init__(self, context: BrokerContext, flusher: Flusher) -> None:
        self._context = context
        self._flusher = flusher
        self._wait_ms = context.config.int_value(REPLICA_FETCH_WAIT_MAX_MS)
        self._fetchers = context.config.int_value(NUM_REPLICA_FETCHERS)
        self._followed: dict[BrokerId, dict[TopicIdPartition, Replica]] = {}
        self._changed: dict[BrokerId, dict[TopicIdPartition, Replica]] = {}
        self._refused: dict[BrokerId, set[TopicIdPartition]] = {}
        self._refused_ms: dict[BrokerId, TimeMs] = {}
        self._timed: set[BrokerId] = set()
        self._unsettled: dict[BrokerId, TimeMs] = {}
        self._sessions: dict[tuple[BrokerId, int], _Session] = {}
        self._session_count = 0

    def session(self, leader: BrokerId, fetcher: int) -> tuple[int, int, int]:
        """Number, requests and answers of the session with a leader, for observers; all 0 before there is one."""
        session = self._sessions.get((leader, fetcher))
        return (0, 0, 0) if session is None else (session.number, session.requests, session.answers)

    def follow(self, replica: Replica) -> None:
        """Begins to fetch a partition from `replica.leader_id`; `send_changed_fetches` sends the request."""
        log = replica.log
        if self._context.image.features.truncates_to_high_watermark and log.high_watermark < log.end_offset:
            self._truncate(replica, log.high_watermark)
        self._followed.setdefault(replica.leader_id, {})[replica.key] = replica
        self._unsettled[replica.leader_id] = _NOT_SET
        self._change_fetch_state(replica)

    def unfollow(self, replica: Replica) -> None:
        """Stops fetching a partition and ends its session: records of its former leader are not appended (A26)."""
        replica.fetch_state = None
        self._end_session(replica)
        for table in (self._followed, self._changed):
            table.get(replica.leader_id, {}).pop(replica.key, None)
        self._refused.get(replica.leader_id, set()).discard(replica.key)
        if not self._followed.get(replica.leader_id):
            self._followed.pop(replica.leader_id, None)
            self._timed.discard(replica.leader_id)
            self._context.out.cancel_timer(f"{FETCH_PREFIX}{replica.leader_id}")

    def _end_session(self, replica: Replica) -> None:
        session = self._sessions.get((replica.leader_id, fetcher_of(replica.key, self._fetchers)))
        if session is not None:
            session.is_over = True

    def broker_epoch_changed(self) -> None:
        """Sends all fetch states again: leaders know them under the old broker epoch, which cannot join an ISR (B6)."""
        self._sessions.clear()
        for leader, replicas in self._followed.items():
            self._unsettled[leader] = _NOT_SET
            self._changes_of(leader).update(replicas)

    def send_changed_fetches(self, now_ms: TimeMs) -> None:
        """Sends the fetch states that changed. Only the first renewal in a new leader epoch is postponed by this: the
        leader may not know that epoch yet, and the renewal repeats the fetch. A fetch that was refused waits no longer
        than `POSTPONED_BY` renewals, also where requests for other partitions leave all the time.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for leader, replicas in changed.items():
            if self._unsettled.get(leader, _NOT_SET) < now_ms:
                del self._unsettled[leader]
            refused_ms = self._refused_ms[leader] if self._refused.get(leader) else now_ms
            may_postpone = leader in self._unsettled and now_ms - refused_ms < POSTPONED_BY * self._wait_ms
            if self._request(leader, replicas.values()) and (leader not in self._timed or may_postpone):
                self._set_timer(leader, now_ms)

    def _request(self, leader: BrokerId, replicas: Iterable[Replica]) -> set[int]:
        """Sends the fetch states of `replicas`, or all of a session that is over. Returns the fetchers that sent."""
        sent, by_fetcher = set(), self._by_fetcher(replicas)
        for fetcher in range(self._fetchers):
            fetches, session = by_fetcher.get(fetcher, []), self._sessions.get((leader, fetcher))
            if session is None and not fetches:
                continue
            if session is None or session.is_over:
                self._session_count += 1
                number = self._context.broker_epoch * SESSIONS_PER_EPOCH + self._session_count
                session = self._sessions[leader, fetcher] = _Session(number)
                fetches = self._by_fetcher(self._followed.get(leader, {}).values()).get(fetcher, [])
            if fetches:
                message = FetchRequest.unchecked(
                    replica_id=self._context.me,
                    replica_epoch=self._context.broker_epoch,
                    partitions=tuple(fetches),
                    fetcher=fetcher,
                    session=session.number,
                    number=session.requests,
                )
                session.requests += 1
                self._context.out.send(leader, message)
                sent.add(fetcher)
        return sent

    def _by_fetcher(self, replicas: Iterable[Replica]) -> dict[int, list[FetchPartition]]:
        found: dict[int, list[FetchPartition]] = {}
        for replica in replicas:
            if replica.fetch_state is not None:
                found.setdefault(fetcher_of(replica.key, self._fetchers), []).append(replica.fetch_state)
        return found

    def fire(self, now_ms: TimeMs, leader_id: str) -> None:
        """Renews the sessions with one leader and repeats the fetches that got an error."""
        leader = int(leader_id)
        self._timed.discard(leader)
        self._unsettled.pop(leader, None)
        followed = self._followed.get(leader, {})
        refused = [followed[key] for key in sorted(self._refused.pop(leader, ())) if key in followed]
        sent = self._request(leader, refused)
        for fetcher in range(self._fetchers):
            session = self._sessions.get((leader, fetcher))
            if session is not None and session.requests and fetcher not in sent:
                message = FetchRenewal.unchecked(
                    replica_id=self._context.me,
                    replica_epoch=self._context.broker_epoch,
                    fetcher=fetcher,
                    session=session.number,
                    requests=session.requests,
                    answers=session.answers,
                )
                self._context.out.send(leader, message)
        if any(replica.fetch_state is not None for replica in followed.values()):
            self._set_timer(leader, now_ms)

    def receive(self, now_ms: TimeMs, leader: BrokerId, response: FetchResponse) -> None:
        """Takes the results of a leader that match the fetch states. Raises StorageError where the disk fails."""
        self._count(leader, response)
        for result in response.partitions:
            replica = self._context.replicas.get(partition_key(result.topic_id, result.partition_id))
            if replica is not None and replica.leader_id == leader and answers_fetch_state(replica, result):
                try:
                    self._take(replica, result, now_ms)
                except CorruptLogError as error:  # the batch has not been stored: fetches it again
                    self._context.report_damage(replica, error)
                    self._change_fetch_state(replica)
                    del self._changed[leader][replica.key]
                    self._repeat_later(replica, now_ms)

    def _count(self, leader: BrokerId, response: FetchResponse) -> None:
        """Counts a response. Ends a session that the leader does not know, or of which responses were lost."""
        session = self._sessions.get((leader, response.fetcher))
        if session is None or session.number != response.session:
            return
        if response.error is not ErrorCode.NONE or response.number > session.answers:
            session.is_over = True
            self._changes_of(leader)
        elif response.partitions and response.number == session.answers:
            session.answers += 1

    def _repeat_later(self, replica: Replica, now_ms: TimeMs) -> None:
        refused = self._refused.setdefault(replica.leader_id, set())
        if not refused:
            self._refused_ms[replica.leader_id] = now_ms
        refused.add(replica.key)
        self._set_timer(replica.leader_id, now_ms)

    def _take(self, replica: Replica, result: FetchPartitionResult, now_ms: TimeMs) -> None:
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset >= 0:
            self._reset_log(replica, result.log_start_offset, now_ms)
            return
        if result.error is not ErrorCode.NONE:
            self._repeat_later(replica, now_ms)
            return
        log = replica.log
        if result.diverging_epoch is not None:
            self._truncate(replica, log.truncation_offset(result.diverging_epoch))
        elif result.batches:
            self._append(replica, result.batches, now_ms)
        moves_back = self._context.image.features.high_watermark_moves_back
        move = log.set_high_watermark if moves_back else log.advance_high_watermark
        if move(result.high_watermark):
            self._flusher.high_watermark_moved(now_ms)
        if result.log_start_offset > log.start_offset:
            log.delete_segments_before(result.log_start_offset)
        if result.batches or result.diverging_epoch is not None:
            self._change_fetch_state(replica)
        else:  # a high watermark alone: the fetch stays delayed at the leader, which knows the new one
            replica.fetch_state = self._fetch_state_of(replica)

    def _append(self, replica: Replica, batches: tuple[RecordBatch, ...], now_ms: TimeMs) -> None:
        """Appends fetched batches. The first one may begin before the log end: an empty log, truncated down to its
        start, is reset to that batch; where logs are compared by offsets only, they diverge there at the latest (M42):
        the log is truncated, and a new session begins, in which the leader accepts a lower offset than it knows.
        """
        log, base_offset = replica.log, batches[0].base_offset
        if base_offset < log.end_offset == log.start_offset:
            self._reset_log(replica, base_offset, now_ms)
        elif self._context.image.features.truncates_to_high_watermark and base_offset < log.end_offset:
            self._truncate(replica, base_offset)
            self._end_session(replica)
            if log.end_offset < base_offset:
                return
        log.append_as_follower(batches)
        self._context.out.trace(RecordsFetched(replica.name, log.end_offset, replica.leader_epoch))
        self._flusher.appended(replica, now_ms)

    def _truncate(self, replica: Replica, offset: Offset) -> None:
        log = replica.log
        self._context.out.trace(LogTruncated(replica.name, offset, log.end_offset, log.high_watermark))
        log.truncate(offset)

    def _reset_log(self, replica: Replica, start_offset: Offset, now_ms: TimeMs) -> None:
        """Empties the log, which then starts at the leader's `start_offset`."""
        log = replica.log
        self._context.out.trace(LogReset(replica.name, to_offset=start_offset, log_end=log.end_offset))
        log.reset(start_offset)
        self._flusher.high_watermark_moved(now_ms)
        self._change_fetch_state(replica)

    def _change_fetch_state(self, replica: Replica) -> None:
        replica.fetch_state = self._fetch_state_of(replica)
        self._changes_of(replica.leader_id)[replica.key] = replica

    def _changes_of(self, leader: BrokerId) -> dict[TopicIdPartition, Replica]:
        """The entry of `_changed` for a leader to which this input will send a request."""
        self._context.has_queued = True
        return self._changed.setdefault(leader, {})

    def _fetch_state_of(self, replica: Replica) -> FetchPartition:
        """Where the log has been truncated to the high watermark, the leader compares offsets only (N1)."""
        by_offset = self._context.image.features.truncates_to_high_watermark
        return FetchPartition.unchecked(
            topic_id=replica.key.topic_id,
            partition_id=replica.key.partition,
            current_leader_epoch=replica.leader_epoch,
            fetch_offset=replica.log.end_offset,
            last_fetched_epoch=NO_EPOCH if by_offset else replica.log.latest_epoch,
            high_watermark=replica.log.high_watermark,
        )

    def _set_timer(self, leader: BrokerId, now_ms: TimeMs) -> None:
        self._timed.add(leader)
        if leader in self._unsettled:
            self._unsettled[leader] = now_ms + self._wait_ms
        idle = None if self._refused.get(leader) else leader
        self._context.out.set_timer(f"{FETCH_PREFIX}{leader}", now_ms + self._wait_ms, idle_with=idle)


def answers_fetch_state(replica: Replica, result: FetchPartitionResult) -> bool:
    return replica.fetch_state is not None and result.answers(replica.fetch_state)
