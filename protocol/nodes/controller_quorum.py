"""A controller's part in the quorum of the metadata log: its messages, whether it is the active controller, and the
effects that it defers until a majority of the quorum has the records that they follow from.

The leader of the metadata log becomes active when the first record of its epoch is committed, and with it every record
before, and stays active until its epoch ends. All other controllers stand by: they replay what is committed, so that
they can take over at once. A controller that resigns builds its state again from the committed records; the requests
whose records are not committed by then are refused with NOT_CONTROLLER, though a later leader may commit them. Those
that the last input before the end of the epoch has committed are answered: a leader that removes itself from the voters
commits the removal and resigns at once. A new leader that finds its own removal in the log does the same before it is
active; what it has committed is traced nevertheless.

Answers and trace events are deferred in their order, each until the log is committed up to the offset that the state
had reached. Timers and the end of the node concern the node alone, and are emitted at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from protocol.contract import CancelTimer, Effect, Exit, Outbox, SetTimer
from protocol.controller.features import bootstrap_records
from protocol.errors import ErrorCode
from protocol.events.controller import ControllerResigned, ControllerStarted
from protocol.ids import NO_EPOCH, NO_NODE, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.quorum import DescribeQuorumRequest, QuorumFetchRequest
from protocol.nodes.broker_control import BrokerControl
from protocol.nodes.broker_sessions import BrokerSessions
from protocol.nodes.controller_log import ControllerLog
from protocol.nodes.leader_rebalance import LeaderRebalance
from protocol.nodes.refusals import refuse
from protocol.quorum.describe import describe_quorum
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import replica_key

_IMMEDIATE = (SetTimer, CancelTimer, Exit)


@dataclass(frozen=True, slots=True)
class _Deferred:
    """The effects of one input, released when `offset` is committed; `request` is None where it was no message."""

    offset: Offset
    effects: list[Effect]
    sender: NodeId
    request: Message | None


class DeferredEffects:
    def __init__(self) -> None:
        self._queue: deque[_Deferred] = deque()

    def release(
        self, effects: list[Effect], offset: Offset, high_watermark: Offset, sender: NodeId, request: Message | None
    ) -> list[Effect]:
        """Takes the `effects` of an input, replayed up to `offset`; returns those committed by `high_watermark`."""
        if not self._queue and offset <= high_watermark:
            return effects
        released: list[Effect] = [effect for effect in effects if isinstance(effect, _IMMEDIATE)]
        rest: list[Effect] = [effect for effect in effects if not isinstance(effect, _IMMEDIATE)]
        if rest:
            self._queue.append(_Deferred(offset, rest, sender, request))
        while self._queue and self._queue[0].offset <= high_watermark:
            released += self._queue.popleft().effects
        return released

    def discard(self, high_watermark: Offset) -> Iterator[tuple[NodeId, Message]]:
        """Removes what is not committed by `high_watermark`; yields the unanswered requests with their senders."""
        discarded = [item for item in self._queue if item.offset > high_watermark]
        self._queue = deque(item for item in self._queue if item.offset <= high_watermark)
        yield from ((item.sender, item.request) for item in discarded if item.request is not None)


@dataclass(eq=False)
class ControllerQuorum:
    """Brings the log to the state of the replica's role. `_is_sole`: no predecessor can have left records.
    `_inactive_epoch`: the epoch in which the replica leads or has led while this controller was never active.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_replica"})

    _replica: QuorumReplica
    _log: ControllerLog
    _brokers: BrokerControl
    _sessions: BrokerSessions
    _rebalance: LeaderRebalance
    _deferred: DeferredEffects
    _out: Outbox
    _is_sole: bool
    active_epoch: Epoch = NO_EPOCH
    _inactive_epoch: Epoch = NO_EPOCH

    @property
    def is_active(self) -> bool:
        return self.active_epoch != NO_EPOCH

    def receive_fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        """Gives a fetch to the replica. If the log accepts it, its broker has applied what it knows to be committed."""
        self._replica.receive(now_ms, sender, request)
        broker = request.replica_id
        if self.active_epoch == NO_EPOCH or broker not in self._log.state.image.brokers:
            return
        if request.fetch_offset <= self._replica.fetched_end_offset(replica_key(broker, request.replica_uuid)):
            applied = min(request.fetch_offset, request.high_watermark)
            self._log.incarnations.observe_applied(broker, applied)

    def describe(self, now_ms: TimeMs, sender: NodeId, request: DescribeQuorumRequest) -> None:
        self._out.send(sender, describe_quorum(self._replica, now_ms, request))

    def follow(self, now_ms: TimeMs) -> list[Effect]:
        """Becomes active or resigns as the replica's role demands, and replays the records that the role sees: on the
        active controller also those that are not committed. Returns the effects that follow from committed ones alone.
        """
        replica = self._replica
        if self.active_epoch != NO_EPOCH:
            if replica.is_leader and replica.epoch == self.active_epoch:
                self._log.replay_log(replica.log.end_offset, traced=True)
                return []
            self._resign()
        leader_state = replica.leader_state
        if leader_state is not None:
            self._inactive_epoch = replica.epoch
        traced = self._inactive_epoch == replica.epoch and not self._is_sole
        self._log.replay_log(replica.high_watermark, traced=traced)
        if leader_state is None or replica.high_watermark <= leader_state.start_offset:
            return []
        end_offset = self._log.state.image.next_offset
        committed = self._deferred.release(self._out.drain(), end_offset, replica.high_watermark, NO_NODE, None)
        self._log.replay_log(replica.log.end_offset, traced=traced)
        self._become_active(now_ms)
        return committed

    def _become_active(self, now_ms: TimeMs) -> None:
        self.active_epoch = self._replica.epoch
        self._inactive_epoch = NO_EPOCH
        image = self._log.state.image
        if not image.is_bootstrapped:
            self._log.append(bootstrap_records(self._log.state))
            self._replica.settle(now_ms)
        self._log.metrics.begin(now_ms)
        self._brokers.open_sessions(now_ms)
        self._rebalance.begin(now_ms)
        self._out.trace(ControllerStarted(image.next_offset))

    def _resign(self) -> None:
        self.active_epoch = NO_EPOCH
        self._sessions.cancel_timers()
        self._rebalance.end()
        answered = self._log.recoveries.abandon()
        for sender, request in self._deferred.discard(self._replica.high_watermark):
            if (sender, getattr(request, "correlation_id", None)) not in answered:
                refuse(self._out, sender, request, ErrorCode.NOT_CONTROLLER)
        self._out.trace(ControllerResigned(self._replica.high_watermark))
        self._log.reset()
