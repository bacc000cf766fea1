"""The Unclean Recovery Manager: a node that queries replicas and reports to the controller which one to elect.

The active controller requests recoveries. Each is a task (`recovery/task.py`), whose queries go through the Broker
Request Sender (`recovery/sender.py`). When a task is decided the manager sends the result to the controller that
requested it, and again whenever the controller repeats the request. The manager keeps nothing durable and changes no
metadata. If it crashes or hangs, or one of its messages is lost, the controller's next request restores the task (F14).
A controller that becomes active requests recoveries of its own (F15), which replace those of the same partitions.

A task ends when the controller cancels it, or has not requested it for `LAPSES_AFTER` heartbeat intervals: the
cancellation was lost, or the controller has crashed. One timer wakes the node for whatever is due next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, RETRY_BACKOFF_MS, ClusterConfig
from protocol.contract import Effect, Outbox
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.node import LogInfoRequested
from protocol.ids import RECOVERY_MANAGER, NodeId, TimeMs, TopicIdPartition, is_broker, is_controller
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.recovery import (
    CancelRecoveries,
    GetReplicaLogInfoResponse,
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoverPartitions,
    RecoveryResults,
)
from protocol.nodes.refusals import refuse
from protocol.recovery.sender import Answered, Event, RequestSender
from protocol.recovery.task import RecoveryTask

WAKE_TIMER = "wake"
LAPSES_AFTER = 5
"""A task ends after this many `broker.heartbeat.interval.ms` without a request of the controller."""


class RecoveryManagerNode:
    """The running tasks by partition, and the timer that wakes the node for them."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_wake_ms"})

    def __init__(self, config: ClusterConfig) -> None:
        self.node_id = RECOVERY_MANAGER
        self._out = Outbox()
        self._sender = RequestSender(config.int_value(RETRY_BACKOFF_MS))
        self._lapse_ms = LAPSES_AFTER * config.int_value(BROKER_HEARTBEAT_INTERVAL_MS)
        self._tasks: dict[TopicIdPartition, RecoveryTask] = {}
        self._controller: NodeId = RECOVERY_MANAGER
        self._wake_ms: TimeMs | None = None

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    @property
    def answer_count(self) -> int:
        return sum(len(task.answers) for task in self._tasks.values())

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return self._out.drain()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, RecoverPartitions) and is_controller(sender):
            self._controller = sender
            self._report(now_ms, [self._begin_or_update(now_ms, recovery) for recovery in message.recoveries])
        elif isinstance(message, CancelRecoveries) and is_controller(sender):
            for cancelled in message.recoveries:
                self._cancel(TopicIdPartition(cancelled.topic_id, cancelled.partition_id), cancelled.recovery_id)
        elif isinstance(message, GetReplicaLogInfoResponse) and is_broker(sender):
            self._record_answers(now_ms, self._sender.answered(sender, message))
        elif isinstance(message, ShutdownCommand):
            self._out.exit()
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        self._send_queries(now_ms)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        if name != WAKE_TIMER:
            raise ProtocolInvariantError(f"the recovery manager has no timer {name!r}")
        self._wake_ms = None
        for task in [task for task in self._tasks.values() if task.requested_ms + self._lapse_ms <= now_ms]:
            self._cancel(task.key, task.recovery.recovery_id)
        self._record_answers(now_ms, self._sender.expire(now_ms))
        due = [task for task in self._tasks.values() if task.deadline_ms <= now_ms and not task.reported]
        self._report(now_ms, due)
        self._send_queries(now_ms)
        return self._out.drain()

    def _begin_or_update(self, now_ms: TimeMs, recovery: PartitionRecovery) -> RecoveryTask:
        key = TopicIdPartition(recovery.topic_id, recovery.partition_id)
        task = self._tasks.get(key)
        if task is None or task.recovery.recovery_id != recovery.recovery_id:
            self._sender.forget(key)
            task = self._tasks[key] = RecoveryTask.begin(recovery, now_ms)
        else:
            task.update(recovery, now_ms)
        for broker in task.unanswered():
            self._sender.query(broker, key)
        return task

    def _cancel(self, key: TopicIdPartition, recovery_id: int) -> None:
        task = self._tasks.get(key)
        if task is not None and task.recovery.recovery_id == recovery_id:
            del self._tasks[key]
            self._sender.forget(key)

    def _record_answers(self, now_ms: TimeMs, events: Iterable[Event]) -> None:
        """Gives answers to their tasks and reports those that are decided; queries again where no answer counts."""
        answered: dict[TopicIdPartition, RecoveryTask] = {}
        again: set[int] = set()
        brokers: set[int] = set()
        for event in events:
            brokers.add(event.broker)
            task = self._tasks.get(event.key)
            if task is None or event.broker not in task.unanswered():
                continue
            if isinstance(event, Answered) and task.record_answer(event.broker, event.broker_epoch, event.info):
                answered[event.key] = task
            else:
                again.add(event.broker)
                self._sender.query(event.broker, event.key)
        for broker in sorted(again):
            self._sender.back_off(broker, now_ms)
        for broker in sorted(brokers - again):
            self._sender.reset_backoff(broker)
        self._report(now_ms, answered.values())

    def _report(self, now_ms: TimeMs, tasks: Iterable[RecoveryTask]) -> None:
        results: list[PartitionRecoveryResult] = []
        for task in tasks:
            result = task.result(now_ms)
            task.reported = result is not None
            if result is not None:
                results.append(result)
        if results:
            self._out.send(self._controller, RecoveryResults(results=tuple(results)))

    def _send_queries(self, now_ms: TimeMs) -> None:
        """Sends the queries that are due, and sets the timer for the next query, deadline or end of a task."""
        for broker, request in self._sender.requests(now_ms):
            partitions = sum(len(topic.partitions) for topic in request.topic_partitions or ())
            self._out.trace(LogInfoRequested(broker, partitions))
            self._out.send(broker, request)
        times = [task.deadline_ms for task in self._tasks.values() if not task.reported and task.deadline_ms > now_ms]
        times += [task.requested_ms + self._lapse_ms for task in self._tasks.values()]
        waiting_ms = self._sender.next_due_ms()
        wake_ms = min(times if waiting_ms is None else [*times, max(waiting_ms, now_ms + 1)], default=None)
        if wake_ms == self._wake_ms:
            return
        self._wake_ms = wake_ms
        if wake_ms is None:
            self._out.cancel_timer(WAKE_TIMER)
        else:
            self._out.set_timer(WAKE_TIMER, wake_ms)
