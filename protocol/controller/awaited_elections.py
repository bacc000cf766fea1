"""ElectLeaders requests that wait for recoveries: types LONGEST_LOG_PROACTIVE and LONGEST_LOG_BALANCED (J4, F22).

A request is answered when all its partitions are done. The result of a partition is

- NONE where it has a leader, by whichever election came first;
- ELIGIBLE_LEADERS_NOT_AVAILABLE where no replica is active any more that decides a recovery, a replica is not that a
  balanced recovery requires, or recovery was disabled meanwhile;
- UNKNOWN_TOPIC_OR_PARTITION where it was deleted;
- REQUEST_TIMED_OUT where it is not done by the timeout of the request. Its recovery then ends, unless the topic's
  strategy calls for one.

Two requests for the same partition share a recovery, in the mode of the first. Nothing of this is in the metadata log:
a controller that becomes active has no such request, and the client sends it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from protocol.contract import Outbox
from protocol.controller.context import ControllerState
from protocol.controller.recovery_decisions import query_for
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NodeId, TimeMs, TopicIdPartition
from protocol.messages.partitions import ElectLeadersResponse
from protocol.messages.recovery import RecoveryMode

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
    """The waiting requests, in the order of their arrival."""

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
                    self._close(request, key, error, message)
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
        requests, self._requests = self._requests, []
        for request in requests:
            number = request.response.correlation_id
            response = ElectLeadersResponse(correlation_id=number, error=ErrorCode.NOT_CONTROLLER)
            self._out.send(request.client, response)
        self._set_timer()
        return {(request.client, request.response.correlation_id) for request in requests}

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

    def _close(self, request: _Request, key: TopicIdPartition, error: ErrorCode, message: str) -> None:
        place = request.open.pop(key)
        results = list(request.response.partitions)
        results[place] = replace(results[place], error=error, message=message)
        request.response = replace(request.response, partitions=tuple(results))

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
