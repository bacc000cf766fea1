"""The recoveries that the active controller requests from the recovery manager, as `recovery_decisions.py` decides, and
the records that follow from their results.

The requests are in memory only; a new active controller sends its own (F15). After every event the controller
reconsiders the partitions that the event may concern (N27). It sends a request again under the same id where the active
replicas or the holders have changed (F13) or a broker has registered a new incarnation. It cancels a recovery that the
metadata do not call for any more. A recovery in another leader epoch or mode is another recovery with its own id.

A valid result becomes a partition change record, elected as a designation is. A clean election is never late: a replica
that becomes electable is elected in the record that makes it so; the partition has a leader then, and the result is
void (F16).

As long as recoveries run they are requested again every `broker.heartbeat.interval.ms`, so that a manager that has
crashed, hung or missed a message continues (F14). KIP-966 does this when heartbeats are handled; here it has a timer of
its own, since a host may omit heartbeats that repeat what is known.

ElectLeaders requests of the types LONGEST_LOG_PROACTIVE and LONGEST_LOG_BALANCED wait for recoveries (J4, F22). Such a
request is answered when each of its partitions has a leader, by whichever election came first, or cannot get one, or at
its timeout; a recovery whose request has timed out ends, unless the topic's strategy calls for one. Two requests for
the same partition share a recovery, in the mode of the first. A controller that becomes active has no such request, and
the client sends it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, UNCLEAN_RECOVERY_TIMEOUT_MS
from protocol.contract import Outbox
from protocol.controller.context import ControllerState
from protocol.controller.partition_change import Election
from protocol.controller.recovery_decisions import RecoveryQuery, is_result_valid, query_for, strategy_query
from protocol.errors import ErrorCode
from protocol.events.controller import RecoveryBegan, RecoveryCancelled, RecoveryDecided
from protocol.ids import NO_LEADER, RECOVERY_MANAGER, NodeId, TimeMs, TopicIdPartition
from protocol.messages.partitions import ElectLeadersResponse
from protocol.messages.records import MetadataRecord
from protocol.messages.recovery import (
    CancelledRecovery,
    CancelRecoveries,
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoverPartitions,
    RecoveryMode,
    RecoveryResults,
)
from protocol.metadata.image import MetadataDelta

ELECTIONS_TIMER = "elections"


@dataclass(frozen=True, slots=True)
class Awaited:
    """Partitions that wait for a recovery in `mode`, for `timeout_ms`, each with the index of its result."""

    mode: RecoveryMode
    timeout_ms: int
    places: Mapping[TopicIdPartition, int]


@dataclass(slots=True)
class _Request:
    """A request that waits until all partitions of `open` are done: `response` goes to `client` then."""

    client: NodeId
    response: ElectLeadersResponse
    mode: RecoveryMode
    open: dict[TopicIdPartition, int]
    deadline_ms: TimeMs


class AwaitedElections:
    def __init__(self, state: ControllerState, out: Outbox) -> None:
        self._state = state
        self._out = out
        self._requests: list[_Request] = []

    def mode_of(self, key: TopicIdPartition) -> RecoveryMode | None:
        """The mode in which a user has requested a recovery of the partition; None where no user has."""
        return next((request.mode for request in self._requests if key in request.open), None)

    def add(self, now_ms: TimeMs, client: NodeId, response: ElectLeadersResponse, awaited: Awaited) -> None:
        """Keeps a response until its elections are over."""
        deadline_ms = now_ms + awaited.timeout_ms
        self._requests.append(_Request(client, response, awaited.mode, dict(awaited.places), deadline_ms))
        self._set_timer()

    def settle(self, now_ms: TimeMs, changed: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
        """Answers requests that are done, by partitions in `changed`, or late. Returns those that wait no longer."""
        over: list[TopicIdPartition] = []
        for request in self._requests:
            late = request.deadline_ms <= now_ms
            for key in [key for key in request.open if late or key in changed]:
                error, message = self._outcome(key, request.mode, late)
                if error is not None:
                    place, results = request.open.pop(key), list(request.response.partitions)
                    results[place] = replace(results[place], error=error, message=message)
                    request.response = replace(request.response, partitions=tuple(results))
                    over.append(key)
        done = [request for request in self._requests if not request.open]
        if done:
            self._requests = [request for request in self._requests if request.open]
            self._set_timer()
        for request in done:
            self._out.send(request.client, request.response)
        return over

    def abandon(self) -> set[tuple[NodeId, int]]:
        """Answers all with NOT_CONTROLLER, when the controller resigns. Returns client and correlation id of each."""
        requests = [(request.client, request.response.correlation_id) for request in self._requests]
        self._requests = []
        for client, number in requests:
            self._out.send(client, ElectLeadersResponse(correlation_id=number, error=ErrorCode.NOT_CONTROLLER))
        self._set_timer()
        return set(requests)

    def _outcome(self, key: TopicIdPartition, mode: RecoveryMode, late: bool) -> tuple[ErrorCode | None, str]:
        """The error (NONE for a leader) and message with which an election has ended; None while it goes on."""
        image = self._state.image
        partition = image.partition(key)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition was deleted"
        if partition.leader != NO_LEADER:
            return ErrorCode.NONE, ""
        if not image.features.unclean_recovery:
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "unclean recovery has been disabled"
        if query_for(image, partition, mode) is None:
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_REPLICAS_TO_QUERY[mode]
        return (ErrorCode.REQUEST_TIMED_OUT, "the replicas have not answered in time") if late else (None, "")

    def _set_timer(self) -> None:
        if self._requests:
            self._out.set_timer(ELECTIONS_TIMER, min(request.deadline_ms for request in self._requests))
        else:
            self._out.cancel_timer(ELECTIONS_TIMER)


NO_REPLICAS_TO_QUERY = {
    RecoveryMode.PROACTIVE: "no replica is active, or only ones that a reassignment adds",
    RecoveryMode.BALANCED: "not all members of ISR, ELR and last known ELR are active, or there are none",
}
"""Why a recovery in that mode cannot begin."""


RECOVERY_TIMER = "recoveries"
TIMERS = (RECOVERY_TIMER, ELECTIONS_TIMER)
_ID_BITS = 31


class RecoveryRequests:
    """The running recoveries; the node calls `replayed` for every record, and `settle` at the end of every event."""

    def __init__(self, state: ControllerState, out: Outbox) -> None:
        self._state = state
        self._out = out
        self._awaited = AwaitedElections(state, out)
        self._running: dict[TopicIdPartition, PartitionRecovery] = {}
        self._changed: dict[TopicIdPartition, None] = {}
        self._all_changed = False
        self._incarnation: int | None = None
        self._begun = 0

    @property
    def running(self) -> Sequence[TopicIdPartition]:
        return tuple(self._running)

    def replayed(self, delta: MetadataDelta) -> None:
        """Marks the partitions that a record may concern; `delta` is what its replay has changed."""
        self._changed.update(delta.partitions)
        if removed := delta.removed():
            self._changed.update(dict.fromkeys(removed))
        self._all_changed = self._all_changed or bool(delta.brokers or delta.configs or delta.features)

    def settle(self, now_ms: TimeMs) -> None:
        """Requests and cancels recoveries of marked partitions, and answers the elections that are over."""
        if not self._changed and not self._all_changed:
            return
        if self._all_changed:
            self._changed.update(dict.fromkeys(self._state.leaderless()))
            self._changed.update(dict.fromkeys(self._running))
        changed, self._changed, self._all_changed = self._changed, {}, False
        self._awaited.settle(now_ms, changed)
        self._reconcile(now_ms, sorted(changed))

    def fire(self, now_ms: TimeMs, name: str) -> None:
        if name == ELECTIONS_TIMER:
            self._reconcile(now_ms, sorted(self._awaited.settle(now_ms, ())))
        elif self._running:
            self._out.send(RECOVERY_MANAGER, RecoverPartitions(recoveries=tuple(self._running.values())))
            self._set_timer(now_ms)

    def await_elections(self, now_ms: TimeMs, client: NodeId, response: ElectLeadersResponse, awaited: Awaited) -> None:
        """Starts the recoveries that a user's elections need; `response` is sent to `client` when they are over."""
        self._awaited.add(now_ms, client, response, awaited)
        self._changed.update(dict.fromkeys(awaited.places))

    def abandon(self) -> set[tuple[NodeId, int]]:
        """Drops all on resignation (F15). Returns client and correlation id of each ElectLeaders request answered."""
        self._out.cancel_timer(RECOVERY_TIMER)
        return self._awaited.abandon()

    def _reconcile(self, now_ms: TimeMs, keys: Sequence[TopicIdPartition]) -> None:
        requested: list[PartitionRecovery] = []
        cancelled: list[CancelledRecovery] = []
        idle = not self._running
        for key in keys:
            query, running = self._query(key), self._running.get(key)
            if query is None:
                if running is not None:
                    del self._running[key]
                    cancelled.append(_cancelled(running))
                    partition = self._state.image.partition(key)
                    if partition is not None and partition.leader == NO_LEADER:
                        self._out.trace(RecoveryCancelled(self._state.image.name_of(key)))
                continue
            recovery = self._requested(key, query, running)
            if recovery != running:
                self._running[key] = recovery
                requested.append(recovery)
                if running is None or running.recovery_id != recovery.recovery_id:
                    began = RecoveryBegan(
                        self._state.image.name_of(key),
                        recovery_id=recovery.recovery_id,
                        mode=recovery.mode.name.lower(),
                        leader_epoch=recovery.leader_epoch,
                        asked=tuple(replica.broker_id for replica in recovery.replicas),
                        required=recovery.required,
                    )
                    self._out.trace(began)
        if cancelled:
            self._out.send(RECOVERY_MANAGER, CancelRecoveries(recoveries=tuple(cancelled)))
        if requested:
            self._out.send(RECOVERY_MANAGER, RecoverPartitions(recoveries=tuple(requested)))
        if self._running and idle:
            self._set_timer(now_ms)
        elif not self._running and not idle:
            self._out.cancel_timer(RECOVERY_TIMER)

    def _query(self, key: TopicIdPartition) -> RecoveryQuery | None:
        image = self._state.image
        partition, mode = image.partition(key), self._awaited.mode_of(key)
        if partition is None or partition.leader != NO_LEADER:
            return None
        if mode is not None and image.features.unclean_recovery:
            return query_for(image, partition, mode)
        return strategy_query(image, key, partition)

    def _requested(
        self, key: TopicIdPartition, query: RecoveryQuery, running: PartitionRecovery | None
    ) -> PartitionRecovery:
        image = self._state.image
        leader_epoch = image.topics[key.topic_id].partitions[key.partition].leader_epoch
        if running is not None and (running.leader_epoch, running.mode) != (leader_epoch, query.mode):
            running = None
        return PartitionRecovery(
            recovery_id=self._next_id() if running is None else running.recovery_id,
            topic_id=key.topic_id,
            partition_id=key.partition,
            leader_epoch=leader_epoch,
            mode=query.mode,
            replicas=query.replicas,
            holders=query.holders,
            required=query.required,
            timeout_ms=image.int_config(key.topic_id, UNCLEAN_RECOVERY_TIMEOUT_MS),
        )

    def _next_id(self) -> int:
        """An id that no other recovery has, of this or of another incarnation of the controller."""
        if self._incarnation is None:
            self._incarnation = self._state.rng.getrandbits(_ID_BITS)
        self._begun += 1
        return (self._incarnation << _ID_BITS) | self._begun

    def _set_timer(self, now_ms: TimeMs) -> None:
        self._out.set_timer(RECOVERY_TIMER, now_ms + self._state.config.int_value(BROKER_HEARTBEAT_INTERVAL_MS))

    def take(self, message: RecoveryResults) -> list[MetadataRecord]:
        """The records that elect the winners of valid results. Recoveries that do not run here are cancelled."""
        records: list[MetadataRecord] = []
        void: list[CancelledRecovery] = []
        for result in message.results:
            key = TopicIdPartition(result.topic_id, result.partition_id)
            running, partition = self._running.get(key), self._state.image.partition(key)
            if running is None or partition is None or running.recovery_id != result.recovery_id:
                void.append(_cancelled(result))
            elif is_result_valid(self._state.image, partition, running, result):
                record = self._state.change(key, Election.ONLINE, designated_leader=result.leader)
                if record is not None and record.leader == result.leader:
                    self._trace_elected(key, running, result)
                    records.append(record)
        if void:
            self._out.send(RECOVERY_MANAGER, CancelRecoveries(recoveries=tuple(void)))
        return records

    def _trace_elected(
        self, key: TopicIdPartition, recovery: PartitionRecovery, result: PartitionRecoveryResult
    ) -> None:
        asked = {*result.silent, *(answer.broker_id for answer in result.answers)}
        replicas = self._state.image.topics[key.topic_id].partitions[key.partition].replicas
        self._out.trace(
            RecoveryDecided(
                self._state.image.name_of(key),
                recovery_id=result.recovery_id,
                mode=recovery.mode.name.lower(),
                leader_epoch=result.leader_epoch,
                leader=result.leader,
                reason=result.reason,
                required=recovery.required,
                answers=tuple(
                    (answer.broker_id, answer.broker_epoch, answer.last_written_leader_epoch, answer.log_end_offset)
                    for answer in result.answers
                ),
                silent=result.silent,
                absent=tuple(broker for broker in replicas if broker not in asked),
            )
        )


def _cancelled(recovery: PartitionRecovery | PartitionRecoveryResult) -> CancelledRecovery:
    return CancelledRecovery(
        recovery_id=recovery.recovery_id, topic_id=recovery.topic_id, partition_id=recovery.partition_id
    )
