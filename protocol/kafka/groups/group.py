"""A group of consumers: its members, its state, and what decides on both.

- Empty: no members; offsets may be committed without a generation. PreparingRebalance follows when a member joins.
- PreparingRebalance: waits until all known members have joined, at most for the longest rebalance timeout.
  CompletingRebalance follows, or Empty if none has joined.
- CompletingRebalance: the members have the new generation, and the leader computes the assignment. Stable follows when
  it comes, PreparingRebalance when a member joins, leaves or expires.
- Stable: all members have their assignments. PreparingRebalance follows when a member joins, leaves or expires.
- Dead: the broker does not coordinate the group any more.

A member without an id gets one and must join again with it (KIP-394), unless it is static (KIP-345): a static member
that comes back takes over the place of its former self, whose id is fenced. The first rebalance of an empty group waits
for `group.initial.rebalance.delay.ms`, so that members that start together share one. The protocol is the one that most
members prefer among those that all support; the leader is the first that joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from protocol.errors import ErrorCode
from protocol.ids import TimeMs
from protocol.kafka.calls import Signal
from protocol.kafka.groups.records import CommittedOffset, StoredGroup, StoredMember

NO_GENERATION = -1
MIN_SESSION_TIMEOUT_MS = 6_000
MAX_SESSION_TIMEOUT_MS = 1_800_000
"""The defaults of `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""


class GroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(eq=False, slots=True)
class Member:
    """A member. `protocols` are the names with the subscriptions, in order of preference. `join` and `sync` are what
    its waiting requests wait for. Its session lasts until `live_until_ms`; `is_watched`: its end will be noticed.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join: Signal | None = None
    sync: Signal | None = None
    live_until_ms: TimeMs = 0
    is_watched: bool = False

    def subscription(self, protocol: str | None) -> bytes:
        return dict(self.protocols).get(protocol or "", b"")


@dataclass(eq=False, slots=True)
class Group:
    """A group. `pending` are member ids that were given out and have not joined yet; `rebalance` counts rebalances."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)
    rebalance: int = 0

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        self.leader = self.leader or member.member_id
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        self.pending.discard(member_id)
        if member is not None and self.static.get(member.instance_id or "") == member_id:
            del self.static[member.instance_id or ""]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, member: Member) -> Member | None:
        """Adds a member; returns its former self, if it is a static member that comes back under a new id."""
        former_id = None if member.instance_id is None else self.static.get(member.instance_id)
        former = None if former_id is None else self.members.pop(former_id, None)
        is_leader = former_id is not None and self.leader == former_id
        self.add(member)
        if is_leader:
            self.leader = member.member_id
        return former

    @property
    def is_unused(self) -> bool:
        """Whether nothing of the group has to be kept."""
        return not (self.members or self.pending or self.offsets or self.generation)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and all(member.join is not None for member in self.members.values())

    def accepts(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member with these protocols may join: the type is the group's, and all members share a protocol."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and bool(self.common_protocols() & set(protocols))

    def common_protocols(self) -> set[str]:
        names = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*names) if names else set()

    def choose_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; most votes win, then the first vote."""
        common = self.common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """NONE, or why a request of a member is refused."""
        if instance_id is not None and instance_id in self.static and self.static[instance_id] != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """NONE, or why an offset commit is refused. A client that is no member (no generation) may commit only while
        the group is empty.
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            error = self.check(member_id, instance_id, generation)
            if error is not ErrorCode.NONE:
                return error
        elif self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_computing = self.state is GroupState.COMPLETING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_computing else ErrorCode.NONE

    def stored(self, assignments: dict[str, bytes]) -> StoredGroup:
        """The present generation with these assignments."""
        members = tuple(
            StoredMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.subscription(self.protocol),
                assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        return StoredGroup(self.protocol_type, self.generation, self.protocol, self.leader, members)


def restored(group: Group, stored: StoredGroup) -> None:
    """Takes over a generation that the log has; its members have yet to show that they live."""
    group.protocol_type, group.generation = stored.protocol_type, stored.generation
    group.protocol, group.leader = stored.protocol, stored.leader
    group.members.clear()
    group.static.clear()
    for item in stored.members:
        member = Member(
            item.member_id,
            item.instance_id,
            item.client_id,
            item.client_host,
            item.session_timeout_ms,
            item.rebalance_timeout_ms,
            ((stored.protocol or "", item.subscription),),
            item.assignment,
        )
        group.add(member)
    group.leader = stored.leader
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY


def deadline_ms(now_ms: TimeMs, timeout_ms: int) -> TimeMs:
    """A deadline that a request waits for, with room for the timers of the group to act first."""
    return now_ms + timeout_ms + 60_000
