"""The coordinator of the groups whose shards this broker has: joins, assignments, signs of life, offset commits.

A member's requests wait for the others: JoinGroup until the rebalance is complete, SyncGroup until the leader's
assignment is in the log. Waiting is a `Signal` of the member; what happens to the group gives it. Deadlines (sessions,
rebalances) are calls at a time, which check that nothing has happened meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import TimeMs
from protocol.kafka.calls import Handler, Signal
from protocol.kafka.groups.group import (
    MAX_SESSION_TIMEOUT_MS,
    MIN_SESSION_TIMEOUT_MS,
    NO_GENERATION,
    Group,
    GroupState,
    Member,
    deadline_ms,
)
from protocol.kafka.groups.records import CommittedOffset, OffsetKey, group_record, offset_record
from protocol.kafka.groups.shards import Shard, Shards

INITIAL_REBALANCE_DELAY_MS = 3_000
"""The default of `group.initial.rebalance.delay.ms`."""
MAX_NAME = 1_000
"""The characters of a client's name that its member ids begin with."""
_S = GroupState


@dataclass(frozen=True, slots=True)
class Join:
    """The fields of a JoinGroup request; times in ms. `needs_id`: its version knows MEMBER_ID_REQUIRED."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_id: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a join. `members` are (id, instance id, subscription), for the leader."""

    error: ErrorCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync: the member's assignment."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class MemberOf:
    """Which member of which group sends a request, and the generation that it knows."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


class Coordinator:
    """The groups of one broker. Member ids are drawn from `view.rng`."""

    def __init__(self, shards: Shards, initial_delay_ms: int = INITIAL_REBALANCE_DELAY_MS) -> None:
        self.shards = shards
        self._view = shards.view
        self._tasks = shards.view.tasks
        self._initial_delay_ms = initial_delay_ms
        shards.on_loaded = self._begin_sessions

    def _begin_sessions(self, shard: Shard, now_ms: TimeMs) -> None:
        """The members of loaded groups have a whole session to show that they live."""
        for group in shard.groups.values():
            for member in group.members.values():
                self._live(shard, group, member, now_ms)

    def follow(self, now_ms: TimeMs) -> None:
        """After a change of the metadata."""
        for shard in self.shards.follow(now_ms):
            for group in shard.groups.values():
                group.state = _S.DEAD
                for member in list(group.members.values()):
                    self._release(member, ErrorCode.NOT_COORDINATOR)

    # -- joining -------------------------------------------------------------------------------------------------------

    def join(self, join: Join) -> Handler:
        """Handles JoinGroup; returns `Joined`, when the rebalance is complete."""
        shard = self._find(join.group)
        if isinstance(shard, ErrorCode):
            return Joined(shard, join.member_id)
        if not MIN_SESSION_TIMEOUT_MS <= join.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
            return Joined(ErrorCode.INVALID_SESSION_TIMEOUT, join.member_id)
        group = shard.groups.get(join.group) or Group(join.group)
        if join.member_id and group.group_id not in shard.groups:
            return Joined(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)
        if not group.accepts(join.protocol_type, [name for name, _ in join.protocols]):
            return Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join.member_id)
        shard.groups[join.group] = group
        now_ms = self._view.now_ms
        member = self._admit(shard, group, join, now_ms)
        if isinstance(member, Joined):
            return member
        signal = Signal(deadline_ms(now_ms, max(group.rebalance_timeout_ms, join.session_timeout_ms)))
        if member.join is not None:  # the client has sent the request again
            self._tasks.give(member.join, Joined(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        member.join = signal
        self._tasks.at(now_ms, partial(self._complete_if_all_joined, shard, group))
        joined = yield signal
        return joined or Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)

    def _admit(self, shard: Shard, group: Group, join: Join, now_ms: TimeMs) -> Member | Joined:
        """The member that waits for the rebalance, or the result of a join that need not wait."""
        if not join.member_id:
            if join.instance_id is None and join.needs_id:
                return self._give_id(shard, group, join, now_ms)
            return self._add(shard, group, join, self._new_id(join), now_ms)
        if join.instance_id is not None and group.static.get(join.instance_id, join.member_id) != join.member_id:
            return Joined(ErrorCode.FENCED_INSTANCE_ID, join.member_id)
        if join.member_id in group.pending:
            return self._add(shard, group, join, join.member_id, now_ms)
        member = group.members.get(join.member_id)
        if member is None:
            return Joined(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)
        is_same = member.protocols == join.protocols
        self._update(member, join)
        self._live(shard, group, member, now_ms)
        is_settled = group.state is _S.COMPLETING_REBALANCE and is_same
        is_settled |= group.state is _S.STABLE and is_same and group.leader != member.member_id
        if is_settled:
            return self._joined(group, member)
        self._begin_rebalance(shard, group, now_ms)
        return member

    def _give_id(self, shard: Shard, group: Group, join: Join, now_ms: TimeMs) -> Joined:
        member_id = self._new_id(join)
        group.pending.add(member_id)

        def expire(later_ms: TimeMs) -> None:
            if member_id in group.pending:
                self._forget_pending(shard, group, member_id, later_ms)

        self._tasks.at(now_ms + join.session_timeout_ms, expire)
        return Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _forget_pending(self, shard: Shard, group: Group, member_id: str, now_ms: TimeMs) -> None:
        """A member that was given an id does not join: the others need not wait for it."""
        group.pending.discard(member_id)
        self._complete_if_all_joined(shard, group, now_ms)
        if group.is_unused and shard.groups.get(group.group_id) is group:
            del shard.groups[group.group_id]

    def _new_id(self, join: Join) -> str:
        name = (join.instance_id or join.client_id)[:MAX_NAME]
        number = f"{self._view.rng.getrandbits(128):032x}"
        return f"{name}-{number[:8]}-{number[8:12]}-{number[12:16]}-{number[16:20]}-{number[20:]}"

    def _add(self, shard: Shard, group: Group, join: Join, member_id: str, now_ms: TimeMs) -> Member | Joined:
        """A new member, or a static one under a new id. If the latter's subscription is as before, a stable group does
        not rebalance: it gets the present generation, of which it does not count as the leader (KIP-345).
        """
        member = Member(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
        )
        if not group.members:
            group.protocol_type = join.protocol_type
        leader = group.leader
        former = group.replace_static(member)
        self._live(shard, group, member, now_ms)
        if former is not None:
            self._release(former, ErrorCode.FENCED_INSTANCE_ID)
            if group.state is _S.STABLE and former.protocols == member.protocols:
                member.assignment = former.assignment
                assignments = {item.member_id: item.assignment for item in group.members.values()}
                self._store(shard, group, assignments, now_ms)
                return replace(self._joined(group, member), leader=leader or "", members=())
        self._begin_rebalance(shard, group, now_ms)
        return member

    def _update(self, member: Member, join: Join) -> None:
        member.protocols = join.protocols
        member.session_timeout_ms, member.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        member.client_id, member.client_host = join.client_id, join.client_host

    def _begin_rebalance(self, shard: Shard, group: Group, now_ms: TimeMs) -> None:
        """Has all members join again."""
        if group.state is _S.PREPARING_REBALANCE:
            return
        is_first = group.state is _S.EMPTY
        if group.state is _S.COMPLETING_REBALANCE:
            for member in group.members.values():
                self._give_sync(member, Synced(ErrorCode.REBALANCE_IN_PROGRESS))
        group.state = _S.PREPARING_REBALANCE
        group.rebalance += 1
        self._await_joins(shard, group, now_ms, self._initial_delay_ms if is_first else group.rebalance_timeout_ms)

    def _await_joins(self, shard: Shard, group: Group, now_ms: TimeMs, wait_ms: int) -> None:
        number = group.rebalance

        def expire(later_ms: TimeMs) -> None:
            if group.rebalance == number and group.state is _S.PREPARING_REBALANCE:
                self._complete_join(shard, group, later_ms)

        self._tasks.at(now_ms + wait_ms, expire)

    def _complete_if_all_joined(self, shard: Shard, group: Group, now_ms: TimeMs) -> None:
        """Completes a rebalance that all members have joined; the first one of a group waits for newcomers."""
        is_first = group.generation == 0 or not group.protocol
        if group.state is _S.PREPARING_REBALANCE and group.have_all_joined and not is_first:
            self._complete_join(shard, group, now_ms)

    def _complete_join(self, shard: Shard, group: Group, now_ms: TimeMs) -> None:
        """Ends the wait: members that have not joined leave, unless they are static; the others get the generation."""
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                group.remove(member.member_id)
        joined = [member.member_id for member in group.members.values() if member.join is not None]
        if group.members and not joined:  # static members that have time until their sessions end
            self._await_joins(shard, group, now_ms, group.rebalance_timeout_ms)
            return
        if joined and group.leader not in joined:
            group.leader = joined[0]
        group.generation += 1
        if not group.members:
            group.state, group.protocol, group.leader = _S.EMPTY, None, None
            self._store(shard, group, {}, now_ms)
            return
        group.protocol = group.choose_protocol()
        group.state = _S.COMPLETING_REBALANCE
        number = group.rebalance
        for member in list(group.members.values()):
            signal, member.join = member.join, None
            self._live(shard, group, member, now_ms)
            if signal is not None:
                self._tasks.give(signal, self._joined(group, member))

        def expire(later_ms: TimeMs) -> None:
            """Members that never ask for their assignment leave."""
            if group.rebalance == number and group.state is _S.COMPLETING_REBALANCE:
                for member in [member for member in group.members.values() if member.sync is None]:
                    group.remove(member.member_id)
                self._begin_rebalance(shard, group, later_ms)
                self._complete_if_all_joined(shard, group, later_ms)

        self._tasks.at(now_ms + group.rebalance_timeout_ms, expire)

    def _joined(self, group: Group, member: Member) -> Joined:
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == group.leader:
            members = tuple(
                (item.member_id, item.instance_id, item.subscription(group.protocol)) for item in group.members.values()
            )
        return Joined(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader or "",
            members,
        )

    # -- assignments ---------------------------------------------------------------------------------------------------

    def sync(self, sender: MemberOf, assignments: dict[str, bytes]) -> Handler:
        """Handles SyncGroup; returns `Synced`, when the leader's assignments are committed."""
        found = self._member(sender)
        if isinstance(found, ErrorCode):
            return Synced(found)
        shard, group, member = found
        now_ms = self._view.now_ms
        self._live(shard, group, member, now_ms)
        if group.state is _S.PREPARING_REBALANCE:
            return Synced(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state is _S.STABLE:
            return Synced(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)
        signal = Signal(deadline_ms(now_ms, group.rebalance_timeout_ms))
        member.sync = signal
        if member.member_id == group.leader:
            self._tasks.at(now_ms, partial(self._assign, shard, group, group.generation, assignments))
        synced = yield signal
        return synced or Synced(ErrorCode.REBALANCE_IN_PROGRESS)

    def _assign(self, shard: Shard, group: Group, generation: int, assignments: dict[str, bytes], now_ms: int) -> None:
        def done(later_ms: TimeMs, error: Any) -> None:
            if group.generation != generation or group.state is not _S.COMPLETING_REBALANCE:
                return
            if error is not ErrorCode.NONE:
                for member in group.members.values():
                    self._give_sync(member, Synced(error))
                self._begin_rebalance(shard, group, later_ms)
                return
            group.state = _S.STABLE
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                result = Synced(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)
                self._give_sync(member, result)

        if group.generation != generation or group.state is not _S.COMPLETING_REBALANCE:
            return
        record = group_record(group.group_id, group.stored(assignments), now_ms)
        self._view.now_ms = now_ms
        self._tasks.run(now_ms, self.shards.append(shard, [record]), done)

    def _store(self, shard: Shard, group: Group, assignments: dict[str, bytes], now_ms: TimeMs) -> None:
        """Writes the present generation, without waiting for it."""
        record = group_record(group.group_id, group.stored(assignments), now_ms)
        self._tasks.run(now_ms, self.shards.append(shard, [record]), lambda *_: None)

    def _give_sync(self, member: Member, result: Synced) -> None:
        signal, member.sync = member.sync, None
        if signal is not None:
            self._tasks.give(signal, result)

    # -- signs of life -------------------------------------------------------------------------------------------------

    def heartbeat(self, sender: MemberOf) -> ErrorCode:
        """Without a check while the group is loading, as in Kafka (`GroupCoordinatorService`): clients know no such
        error of a heartbeat.
        """
        found = self._member(sender)
        if isinstance(found, ErrorCode):
            return ErrorCode.NONE if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else found
        shard, group, member = found
        self._live(shard, group, member, self._view.now_ms)
        is_preparing = group.state is _S.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def leave(self, group_id: str, leaving: list[tuple[str, str | None]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Members (id, instance id) leave; the error of the request, and that of each."""
        shard = self._find(group_id)
        if isinstance(shard, ErrorCode):
            return shard, []
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        return ErrorCode.NONE, [self._leave(shard, group, *member) for member in leaving]

    def _leave(self, shard: Shard, group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = group.static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id not in ("", known):
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = known
        if member_id in group.pending:
            self._forget_pending(shard, group, member_id, self._view.now_ms)
        elif member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        else:
            self._expel(shard, group, group.members[member_id], self._view.now_ms)
        return ErrorCode.NONE

    def _expel(self, shard: Shard, group: Group, member: Member, now_ms: TimeMs) -> None:
        """A member has left or its session is over: the others rebalance."""
        group.remove(member.member_id)
        self._release(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state in (_S.STABLE, _S.COMPLETING_REBALANCE):
            self._begin_rebalance(shard, group, now_ms)
        if group.state is _S.PREPARING_REBALANCE and (group.have_all_joined or not group.members):
            self._complete_join(shard, group, now_ms)

    def _live(self, shard: Shard, group: Group, member: Member, now_ms: TimeMs) -> None:
        """A sign of life: the session of the member begins again."""
        member.live_until_ms = now_ms + member.session_timeout_ms
        if not member.is_watched:
            member.is_watched = True
            self._tasks.at(member.live_until_ms, partial(self._watch, shard, group, member))

    def _watch(self, shard: Shard, group: Group, member: Member, now_ms: TimeMs) -> None:
        """Expels a member whose session is over, unless it waits for this coordinator."""
        member.is_watched = False
        if group.members.get(member.member_id) is not member or group.state is _S.DEAD:
            return
        if now_ms < member.live_until_ms:
            member.is_watched = True
            self._tasks.at(member.live_until_ms, partial(self._watch, shard, group, member))
        elif member.join is not None or member.sync is not None:
            self._live(shard, group, member, now_ms)
        else:
            self._expel(shard, group, member, now_ms)

    def _release(self, member: Member, error: ErrorCode) -> None:
        """Answers the waiting requests of a member that is none any more."""
        signal, member.join = member.join, None
        if signal is not None:
            self._tasks.give(signal, Joined(error, member.member_id))
        self._give_sync(member, Synced(error))

    # -- offsets -------------------------------------------------------------------------------------------------------

    def commit(self, sender: MemberOf, offsets: dict[tuple[str, int], CommittedOffset]) -> Handler:
        """Commits offsets; returns the error for all of them, NONE once they are in the log."""
        shard = self._find(sender.group)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(sender.group)
        if group is None:
            if sender.generation >= 0:
                return ErrorCode.ILLEGAL_GENERATION
            group = Group(sender.group)
        error = group.check_commit(sender.member_id, sender.instance_id, sender.generation)
        if error is not ErrorCode.NONE:
            return error
        member = group.members.get(sender.member_id)
        if member is not None:
            self._live(shard, group, member, self._view.now_ms)
        if not offsets:
            return ErrorCode.NONE
        records = [offset_record(OffsetKey(sender.group, *place), value) for place, value in offsets.items()]
        error = yield from self.shards.append(shard, records)
        if error is ErrorCode.NONE:
            shard.groups.setdefault(sender.group, group).offsets.update(offsets)
        return error

    def committed(self, group_id: str) -> dict[tuple[str, int], CommittedOffset] | ErrorCode:
        """The committed offsets of a group; none where it is unknown."""
        shard = self._find(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        return {} if group is None else group.offsets

    # -- administration ------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> Group | ErrorCode:
        """A group; a dead one where it is unknown."""
        shard = self._find(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.groups.get(group_id) or Group(group_id, GroupState.DEAD)

    def groups(self) -> list[Group]:
        return [group for shard in self.shards.owned.values() if shard.is_loaded for group in shard.groups.values()]

    def delete(self, group_id: str) -> Handler:
        """Deletes a group without members, with its offsets; returns the error."""
        shard = self._find(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.members:
            return ErrorCode.NON_EMPTY_GROUP
        records = [offset_record(OffsetKey(group_id, *place), None) for place in group.offsets]
        error = yield from self.shards.append(shard, [*records, group_record(group_id, None, self._view.now_ms)])
        if error is ErrorCode.NONE and shard.groups.get(group_id) is group:
            del shard.groups[group_id]
        return error

    # -- what all of them need -----------------------------------------------------------------------------------------

    def _find(self, group_id: str) -> Shard | ErrorCode:
        return self.shards.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    def _member(self, sender: MemberOf) -> tuple[Shard, Group, Member] | ErrorCode:
        shard = self._find(sender.group)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(sender.group)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check(sender.member_id, sender.instance_id, sender.generation)
        return (shard, group, group.members[sender.member_id]) if error is ErrorCode.NONE else error
