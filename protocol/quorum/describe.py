"""DescribeQuorum: the leader's view of the replicas of the metadata log (D29, J16); the quorum's gauges (D34); and the
role of one controller, for operators and experiments.

The voter set in use separates voters from observers. An observer can become a voter if it has a uuid and, with static
voters, the id of one of them. A voter from which nothing has come for the fetch timeout is not promotable: it is down.
A voter key without a uuid is described with the uuid of the disk that fetched last. As in Kafka, the leader omits an
observer whose last fetch is not delayed there and is older than `OBSERVER_MS`. It also omits a replaced disk once
another disk of the same node fetches and the replaced one has not fetched for the fetch timeout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET, Epoch, NodeId, Offset, TimeMs
from protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse, Endpoint, ReplicaState
from protocol.quorum.election import Role
from protocol.quorum.leader_state import LeaderState, Progress
from protocol.quorum.membership import leader_text
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey, matches_voter

OBSERVER_MS = 300_000
"""Milliseconds after its last fetch for which the leader describes an observer (Kafka: five minutes)."""


def describe_quorum(replica: QuorumReplica, now_ms: TimeMs, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """The response at `now_ms` by this replica's clock; NOT_CONTROLLER with the known leader if it does not lead."""
    number = request.correlation_id
    leader_state = replica.leader_state
    if leader_state is None:
        return DescribeQuorumResponse(
            correlation_id=number,
            error=ErrorCode.NOT_CONTROLLER,
            message=leader_text(replica.leader, replica.epoch),
            leader_id=replica.leader,
            leader_epoch=replica.epoch,
        )
    state = partial(_state, leader_state, replica.log.end_offset, now_ms)
    silent, voters, is_static = leader_state.inactive_voters(replica.voters), replica.voters, replica.config.is_static
    return DescribeQuorumResponse(
        correlation_id=number,
        cluster_id=replica.config.cluster_id,
        leader_id=replica.key.id,
        leader_uuid=replica.key.uuid,
        leader_epoch=replica.epoch,
        high_watermark=replica.high_watermark,
        now_ms=now_ms,
        voters=tuple(
            state(leader_state.resolve_key(voter), voter not in silent, endpoints)
            for voter, endpoints in voters.endpoints.items()
        ),
        observers=tuple(
            state(key, key.uuid != NO_UUID and not (is_static and voters.key_of(key.id) is None))
            for key in _fetching_observers(replica, leader_state, now_ms)
        ),
    )


def quorum_gauges(replica: QuorumReplica, now_ms: TimeMs) -> tuple[int, int, int, int]:
    """Numbers of voters, of observers that fetch from this leader (0 on other replicas), of uncommitted voter changes
    (0 or 1), and of static voters that are not in the voter set of the log (D34).
    """
    voters, leader_state = replica.voters, replica.leader_state
    observers = 0 if leader_state is None else len(_fetching_observers(replica, leader_state, now_ms))
    ignored = sum(voters.key_of(voter) is None for voter in replica.config.voters)
    return len(voters), observers, int(replica.log.voters.last_change >= replica.high_watermark), ignored


def _fetching_observers(replica: QuorumReplica, leader_state: LeaderState, now_ms: TimeMs) -> list[ReplicaKey]:
    """The keys of replicas that fetch and are not voters, including a leader whose removal is not committed yet."""
    newest_ms: dict[NodeId, TimeMs] = {leader_state.local.id: now_ms}
    for key, progress in leader_state.progress.items():
        newest_ms[key.id] = max(newest_ms.get(key.id, -1), progress.fetched_ms)
    fetching = {leader_state.local}
    for key, progress in leader_state.progress.items():
        idle_ms = now_ms - progress.fetched_ms
        is_there = progress.has_delayed_fetch or idle_ms < OBSERVER_MS
        if is_there and (progress.fetched_ms == newest_ms[key.id] or idle_ms < replica.config.fetch_ms):
            fetching.add(key)
    return sorted(key for key in fetching if not any(matches_voter(voter, key) for voter in replica.voters.keys))


def _state(
    leader_state: LeaderState,
    log_end: Offset,
    now_ms: TimeMs,
    key: ReplicaKey,
    is_promotable: bool,
    endpoints: tuple[Endpoint, ...] = (),
) -> ReplicaState:
    progress = leader_state.progress.get(key, Progress(NO_OFFSET, -1))
    if key == leader_state.local:
        progress = Progress(log_end, now_ms, log_end, now_ms)
    return ReplicaState(
        replica_id=key.id,
        replica_uuid=key.uuid,
        endpoints=endpoints,
        log_end_offset=progress.end_offset,
        lag=log_end - max(progress.end_offset, 0),
        last_fetch_ms=progress.fetched_ms,
        last_caught_up_ms=progress.caught_up_ms,
        is_promotable=is_promotable,
    )


@dataclass(frozen=True, slots=True)
class QuorumView:
    """A controller's own view: `role` is `leader` for the active controller, `observer` for one without a vote, else
    its replica's; `uuid` is that of its disk; `voters` is the latest set in its log.
    """

    role: str
    uuid: str
    epoch: Epoch
    is_active: bool
    voters: tuple[ReplicaKey, ...]


def quorum_view(replica: QuorumReplica, is_active: bool) -> QuorumView:
    """The view of a controller with this replica; a leader that is not active yet is shown as `candidate`."""
    role = replica.role.value if replica.is_voter else "observer"
    if replica.is_leader:
        role = Role.LEADER.value if is_active else Role.CANDIDATE.value
    return QuorumView(role, replica.key.uuid, replica.epoch, is_active, replica.voters.keys)
