"""The leader's state of one partition, and the rules of replication on it: follower progress, ISR, high watermark.

Sources: KIP-497 (B10-B24), KIP-966 (E1-E11), and the published TLA+ model of the latter.

- The *committed* ISR is the last one that the controller has stored. The controller may have stored a proposal in
  flight already, so the leader works with the union of both, the *maximal* ISR (B13).
- The high watermark is the smallest log end of the maximal ISR, and does not move while the committed ISR is
  smaller than min ISR (E1-E3; switchable).
- A follower may join when it has reached the high watermark and the start of this leader epoch, is active in the
  metadata, and fetches under the broker epoch that the metadata knows (N5, B6).
- A follower leaves when it has not been at the log end for `replica.lag.time.max.ms`. Kafka keeps a follower that has
  stopped fetching while its log end equals the leader's; here it leaves too (A47, M41), so that min ISR counts replicas
  that still fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from protocol.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset, TimeMs
from protocol.messages.data import FetchPartition
from protocol.metadata.partition import LeaderRecoveryState, PartitionState


@dataclass(slots=True)
class FollowerProgress:
    """The leader's view of a follower in this leader epoch (Kafka's `ReplicaState`). `end_offset` is the follower's log
    end, -1 before its first fetch, which fetcher number `fetcher` sent; `delayed_fetch` waits for news.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"last_caught_up_ms", "last_fetch_ms", "leader_end_at_last_fetch"})

    end_offset: Offset = NO_OFFSET
    broker_epoch: Epoch = NO_EPOCH
    last_caught_up_ms: TimeMs = 0
    last_fetch_ms: TimeMs = 0
    leader_end_at_last_fetch: Offset = 0
    delayed_fetch: FetchPartition | None = None
    fetcher: int = 0


@dataclass(slots=True)
class Leadership:
    """A leader's state of one partition in one leader epoch, which began at `epoch_start_offset`. `proposed_isr` is in
    flight; `data_loss_handled`: the routine after an unclean election is over (KIP-704).
    """

    leader_epoch: Epoch
    partition_epoch: Epoch
    epoch_start_offset: Offset
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    recovery_state: LeaderRecoveryState
    data_loss_handled: bool = False
    proposed_isr: tuple[BrokerId, ...] | None = None
    followers: dict[BrokerId, FollowerProgress] = field(default_factory=dict)

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Committed ISR and proposal in flight together (B13, B14)."""
        if self.proposed_isr is None:
            return self.isr
        return (*self.isr, *(broker for broker in self.proposed_isr if broker not in self.isr))

    @property
    def proposed_recovery_state(self) -> LeaderRecoveryState:
        """The recovery state in proposals: RECOVERED once the data-loss routine is over (C6, C8)."""
        return LeaderRecoveryState.RECOVERED if self.data_loss_handled else self.recovery_state


def begin(state: PartitionState, me: BrokerId, log_end: Offset, now_ms: TimeMs) -> Leadership:
    """The leadership of a new leader epoch: ISR members count as caught up at `now_ms`, the others at 0."""
    leadership = Leadership(
        state.leader_epoch, state.partition_epoch, log_end, state.replicas, state.isr, state.leader_recovery_state
    )
    for broker in state.replicas:
        if broker != me:
            leadership.followers[broker] = FollowerProgress(last_caught_up_ms=now_ms if broker in state.isr else 0)
    return leadership


def adopt(leadership: Leadership, state: PartitionState, me: BrokerId) -> bool:
    """Takes over a newer committed state of this leader epoch, which voids a proposal in flight (B18); else False."""
    if state.partition_epoch <= leadership.partition_epoch:
        return False
    leadership.partition_epoch = state.partition_epoch
    leadership.isr = state.isr
    leadership.proposed_isr = None
    leadership.recovery_state = state.leader_recovery_state
    leadership.replicas = state.replicas
    for broker in state.replicas:
        if broker != me and broker not in leadership.followers:
            leadership.followers[broker] = FollowerProgress()
    for broker in [broker for broker in leadership.followers if broker not in state.replicas]:
        del leadership.followers[broker]
    return True


def record_fetch(
    progress: FollowerProgress, fetch_offset: Offset, broker_epoch: Epoch, leader_end: Offset, now_ms: TimeMs
) -> None:
    """Records that the follower's log ends at `fetch_offset` (Kafka's `updateFetchStateOrThrow`). The follower is
    caught up now if that is `leader_end`; as of its previous fetch if it has reached the leader's end of then.
    """
    if fetch_offset >= leader_end:
        progress.last_caught_up_ms = now_ms
    elif fetch_offset >= progress.leader_end_at_last_fetch:
        progress.last_caught_up_ms = max(progress.last_caught_up_ms, progress.last_fetch_ms)
    progress.end_offset = fetch_offset
    progress.broker_epoch = broker_epoch
    progress.last_fetch_ms = now_ms
    progress.leader_end_at_last_fetch = leader_end


def is_stale_fetch(progress: FollowerProgress, fetch_offset: Offset, broker_epoch: Epoch) -> bool:
    """Whether the same incarnation has fetched from a higher offset before, in an epoch in which its log only grows."""
    return broker_epoch == progress.broker_epoch and fetch_offset < progress.end_offset


def high_watermark_target(
    leadership: Leadership, me: BrokerId, log_end: Offset, min_isr: int, needs_min_isr: bool
) -> Offset:
    """The smallest log end of the maximal ISR; -1 while `needs_min_isr` and the ISR is below `min_isr` (E1-E3)."""
    if needs_min_isr and len(leadership.isr) < min_isr:
        return NO_OFFSET
    followers = leadership.followers
    ends = [log_end if broker == me else followers[broker].end_offset for broker in leadership.maximal_isr]
    return min(ends) if ends else NO_OFFSET


def may_propose(leadership: Leadership) -> bool:
    """Whether the leader may propose an ISR: one proposal may be in flight at a time (B21)."""
    return leadership.proposed_isr is None


def may_join(
    leadership: Leadership, broker: BrokerId, high_watermark: Offset, is_eligible: Callable[[BrokerId, Epoch], bool]
) -> bool:
    """Whether to propose adding a follower: caught up, eligible, no proposal, not RECOVERING (N5, B6, B21, C11)."""
    if not may_propose(leadership) or broker in leadership.isr:
        return False
    if leadership.recovery_state is LeaderRecoveryState.RECOVERING:
        return False
    progress = leadership.followers[broker]
    has_caught_up = progress.end_offset >= max(high_watermark, leadership.epoch_start_offset)
    return has_caught_up and is_eligible(broker, progress.broker_epoch)


def may_join_lagging(leadership: Leadership, broker: BrokerId, log_end: Offset, min_lag: int) -> bool:
    """Whether to propose adding a follower by S1's rule (A45, N5): it has fetched, and its log end is less than
    `min_lag` records ahead of the smallest log end in the ISR; also below the high watermark.
    """
    if not may_propose(leadership) or broker in leadership.isr:
        return False
    ends = [follower.end_offset for member, follower in leadership.followers.items() if member in leadership.isr]
    end = leadership.followers[broker].end_offset
    return end >= 0 and end - min([log_end, *ends]) < min_lag


def out_of_sync_replicas(
    leadership: Leadership, silent: Iterable[BrokerId], now_ms: TimeMs, lag_time_max_ms: int
) -> list[BrokerId]:
    """The ISR members to remove (Kafka's `getOutOfSyncReplicas`): those in `silent`, and those without a delayed fetch
    that were last caught up at least `lag_time_max_ms` ago (A44). None while a proposal is in flight.
    """
    if not may_propose(leadership):
        return []
    late_ms, result = now_ms - lag_time_max_ms, []
    for broker in leadership.isr:
        progress = leadership.followers.get(broker)
        if progress is not None:
            is_late = progress.delayed_fetch is None and progress.last_caught_up_ms <= late_ms
            if is_late or broker in silent:
                result.append(broker)
    return result
