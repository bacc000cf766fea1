"""What a leader of the metadata log tells an operator of its replicas (D29, J16), and what is measured of them (D34).

Voters and observers are told apart by the newest set of voters. An observer could become a voter where it has a uuid,
and, where the voters are static, an id that is one of theirs. A voter that is known by its id alone is described with
the uuid of the disk that fetched last. Observers whose fetch does not wait, and that have not fetched for
`OBSERVER_MS`, are forgotten, as Kafka's leaders forget them; so is a disk in whose place another fetches, as soon as it
has been silent for as long as a follower bears with a leader.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET, NodeId, Offset, TimeMs
from protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse, Endpoint, ReplicaState
from protocol.quorum.leadership import Leadership
from protocol.quorum.membership import leader_text
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import NO_UUID, ReplicaKey, is_meant

OBSERVER_MS = 300_000


class QuorumGauges(NamedTuple):
    """Numbers of voters and observers (those that fetch from this leader; 0 elsewhere), of changes of the voters that
    are not committed (0 or 1), and of static voters that the log does without.
    """

    voters: int
    observers: int
    uncommitted_voter_change: int
    ignored_static_voters: int


def describe_quorum(replica: QuorumReplica, now_ms: TimeMs, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """The leader's description; NOT_CONTROLLER and the leader to ask from any other replica."""
    number = request.correlation_id
    leadership = replica.leadership
    if leadership is None:
        return DescribeQuorumResponse(
            correlation_id=number,
            error=ErrorCode.NOT_CONTROLLER,
            message=leader_text(replica.leader, replica.epoch),
            leader_id=replica.leader,
            leader_epoch=replica.epoch,
        )
    log_end = replica.log.end_offset
    return DescribeQuorumResponse(
        correlation_id=number,
        cluster_id=replica.config.cluster_id,
        leader_id=replica.key.id,
        leader_uuid=replica.key.uuid,
        leader_epoch=replica.epoch,
        high_watermark=replica.high_watermark,
        now_ms=now_ms,
        voters=tuple(
            _state(leadership, log_end, now_ms, leadership.disk_of(voter), endpoints=endpoints, is_promotable=True)
            for voter, endpoints in replica.voters.endpoints.items()
        ),
        observers=tuple(
            _state(leadership, log_end, now_ms, observer, is_promotable=_is_promotable(replica, observer))
            for observer in _observers(replica, leadership, now_ms)
        ),
    )


def quorum_gauges(replica: QuorumReplica, now_ms: TimeMs) -> QuorumGauges:
    """What a replica measures of the quorum; see the class."""
    voters, leadership = replica.voters, replica.leadership
    return QuorumGauges(
        voters=len(voters),
        observers=0 if leadership is None else len(_observers(replica, leadership, now_ms)),
        uncommitted_voter_change=int(replica.log.voters.last_change >= replica.high_watermark),
        ignored_static_voters=sum(voters.key_of(voter) is None for voter in replica.config.voters),
    )


def _observers(replica: QuorumReplica, leadership: Leadership, now_ms: TimeMs) -> list[ReplicaKey]:
    """Who fetches and is no voter; the leader itself, where it leads until its removal is committed."""
    newest_ms: dict[NodeId, TimeMs] = {leadership.me.id: now_ms}
    for key, shown in leadership.progress.items():
        newest_ms[key.id] = max(newest_ms.get(key.id, -1), shown.fetched_ms)
    fetching = {leadership.me}
    for key, shown in leadership.progress.items():
        silent_ms = now_ms - shown.fetched_ms
        is_there = shown.is_waiting or silent_ms < OBSERVER_MS
        if is_there and (shown.fetched_ms == newest_ms[key.id] or silent_ms < replica.config.fetch_ms):
            fetching.add(key)
    return sorted(key for key in fetching if not any(is_meant(voter, key) for voter in replica.voters.keys))


def _is_promotable(replica: QuorumReplica, observer: ReplicaKey) -> bool:
    if replica.config.is_static and replica.voters.key_of(observer.id) is None:
        return False
    return observer.uuid != NO_UUID


def _state(
    leadership: Leadership,
    log_end: Offset,
    now_ms: TimeMs,
    key: ReplicaKey,
    *,
    endpoints: tuple[Endpoint, ...] = (),
    is_promotable: bool,
) -> ReplicaState:
    progress = leadership.progress.get(key)
    end, fetched_ms = (NO_OFFSET, -1) if progress is None else (progress.end_offset, progress.fetched_ms)
    if key == leadership.me:
        end, fetched_ms = log_end, now_ms
    return ReplicaState(
        replica_id=key.id,
        replica_uuid=key.uuid,
        endpoints=endpoints,
        log_end_offset=end,
        lag=log_end - max(end, 0),
        last_fetch_ms=fetched_ms,
        is_promotable=is_promotable,
    )
