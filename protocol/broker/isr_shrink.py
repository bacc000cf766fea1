"""When a leader proposes to remove a follower from the ISR (Kafka's `maybeShrinkIsr`; A44, A47, M41).

Two timers watch each follower N, for all partitions at once:

- `silent/N` is set again with every fetch or renewal of N. When it fires, N has not been heard of for
  `replica.lag.time.max.ms` and is removed from the ISRs of the partitions for which it had fetched. Where it has not
  fetched yet, it may have been a follower for a shorter time; there it counts from the beginning of the leader epoch.
- `lag/N` is set when a fetch of N is answered with records. When it fires, N is removed from the ISRs of partitions
  whose answered fetch was not followed by another one for `replica.lag.time.max.ms`.
"""

from __future__ import annotations

from typing import ClassVar

from protocol.broker import leadership as rules
from protocol.broker.context import BrokerContext, Replica
from protocol.broker.fetch_sessions import FetchSessions
from protocol.broker.fetcher import FETCH_PREFIX
from protocol.broker.isr_manager import IsrManager
from protocol.broker.leadership import Leadership
from protocol.config import REPLICA_LAG_TIME_MAX_MS
from protocol.ids import NO_OFFSET, BrokerId, TimeMs

SILENT_PREFIX = "silent/"
LAG_PREFIX = "lag/"


class IsrShrink:
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_lag_timers"})

    def __init__(self, context: BrokerContext, isr_manager: IsrManager, fetch_sessions: FetchSessions) -> None:
        self._context = context
        self._isr = isr_manager
        self._fetch_sessions = fetch_sessions
        self._lag_ms = context.config.int_value(REPLICA_LAG_TIME_MAX_MS)
        self._lag_timers: set[BrokerId] = set()

    def watch_lag(self, follower: BrokerId, now_ms: TimeMs) -> None:
        self._set_lag_timer(follower, now_ms + self._lag_ms)

    def restart_silence(self, follower: BrokerId, now_ms: TimeMs) -> None:
        """The follower has fetched or renewed: its `silent/N` timer starts again."""
        name, renewal = f"{SILENT_PREFIX}{follower}", f"{FETCH_PREFIX}{self._context.me}"
        self._context.out.set_timer(name, now_ms + self._lag_ms, idle_with=follower, renewed_by=renewal)

    def fire_silent(self, now_ms: TimeMs, follower: str) -> None:
        """Drops the delayed fetches of a silent follower and proposes its removal from every ISR."""
        broker, is_in_isr = int(follower), False
        self._fetch_sessions.forget(broker)
        for replica in self._context.replicas.values():
            leadership = replica.leadership
            if leadership is not None and broker in leadership.followers:
                progress = leadership.followers[broker]
                progress.delayed_fetch = None
                self._shrink(replica, leadership, () if progress.end_offset == NO_OFFSET else (broker,), now_ms)
                is_in_isr = is_in_isr or broker in leadership.maximal_isr
        if is_in_isr:
            self._set_lag_timer(broker, now_ms + self._lag_ms // 2)

    def fire_lag(self, now_ms: TimeMs, follower: str) -> None:
        """Proposes removals where the follower is out of sync, again while one of its fetches is not followed up."""
        broker = int(follower)
        self._lag_timers.discard(broker)
        due: list[TimeMs] = []
        for replica in self._context.replicas.values():
            leadership = replica.leadership
            if leadership is None or broker not in leadership.maximal_isr or broker not in leadership.followers:
                continue
            progress = leadership.followers[broker]
            self._shrink(replica, leadership, (), now_ms)
            if progress.delayed_fetch is None:
                due.append(max(progress.last_caught_up_ms + self._lag_ms, now_ms + self._lag_ms // 2))
        if due:
            self._set_lag_timer(broker, min(due))

    def _shrink(self, replica: Replica, leadership: Leadership, silent: tuple[BrokerId, ...], now_ms: TimeMs) -> None:
        removed = rules.out_of_sync_replicas(leadership, silent, now_ms, self._lag_ms)
        if removed:
            self._isr.propose(replica, tuple(broker for broker in leadership.isr if broker not in removed))

    def _set_lag_timer(self, broker: BrokerId, at_ms: TimeMs) -> None:
        if broker not in self._lag_timers:
            self._lag_timers.add(broker)
            self._context.out.set_timer(f"{LAG_PREFIX}{broker}", at_ms)
