"""The Unclean Recovery Manager: a node of its own, which finds out for the controller whom to elect.

The active controller states recoveries; each one is a task here (`recovery/task.py`), whose questions go out through
the Broker Request Sender (`recovery/sender.py`). Once a task can say whom to elect it tells the controller that stated
it, and it says so again whenever the controller states the recovery again: the controller alone decides whether that
still holds, and records it. The manager keeps nothing durable and changes nothing. If it dies or hangs, or if one of
its messages is lost, the controller's next statement brings it to where it was (F14); a controller that has just become
active states recoveries of its own (F15), which take the place of those of the same partitions.

A task ends when the controller cancels it, or has not stated it for `LAPSES_AFTER` of the intervals in which it states
what it wants: the cancellation was lost, or its controller is gone. Otherwise brokers would be asked for ever for what
nobody wants to know. One timer wakes the node when the next question, deadline, silence or end of a task is due.
"""

from __future__ import annotations

from collections.abc import Iterable

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
"""After so many of `broker.heartbeat.interval.ms` without a word of the controller a task ends."""


class RecoveryManagerNode:
    """See the module docstring."""

    def __init__(self, config: ClusterConfig) -> None:
        self.node_id = RECOVERY_MANAGER
        self._out = Outbox()
        self._sender = RequestSender(config.int_value(RETRY_BACKOFF_MS))
        self._lapse_ms = LAPSES_AFTER * config.int_value(BROKER_HEARTBEAT_INTERVAL_MS)
        self._tasks: dict[TopicIdPartition, RecoveryTask] = {}
        self._controller: NodeId = RECOVERY_MANAGER
        self._wakes_ms: TimeMs | None = None

    @property
    def task_count(self) -> int:
        """How many recoveries are under way, for observers."""
        return len(self._tasks)

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return self._out.drain()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, RecoverPartitions) and is_controller(sender):
            self._controller = sender
            self._recover(now_ms, message)
        elif isinstance(message, CancelRecoveries) and is_controller(sender):
            for cancelled in message.recoveries:
                self._cancel(TopicIdPartition(cancelled.topic_id, cancelled.partition_id), cancelled.recovery_id)
        elif isinstance(message, GetReplicaLogInfoResponse) and is_broker(sender):
            self._take(now_ms, self._sender.answered(sender, message))
        elif isinstance(message, ShutdownCommand):
            self._out.exit()
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        self._go_on(now_ms)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        if name != WAKE_TIMER:
            raise ProtocolInvariantError(f"the recovery manager has no timer {name!r}")
        self._wakes_ms = None
        self._lapse(now_ms)
        self._take(now_ms, self._sender.given_up(now_ms))
        self._tell(now_ms, [task for task in self._tasks.values() if task.deadline_ms <= now_ms and not task.told])
        self._go_on(now_ms)
        return self._out.drain()

    # -- recoveries ----------------------------------------------------------------------------------------------------

    def _recover(self, now_ms: TimeMs, message: RecoverPartitions) -> None:
        stated = [self._state(now_ms, recovery) for recovery in message.recoveries]
        self._tell(now_ms, stated)

    def _state(self, now_ms: TimeMs, recovery: PartitionRecovery) -> RecoveryTask:
        key = TopicIdPartition(recovery.topic_id, recovery.partition_id)
        task = self._tasks.get(key)
        if task is None or task.recovery.recovery_id != recovery.recovery_id:
            self._sender.forget(key)
            task = self._tasks[key] = RecoveryTask.begin(recovery, now_ms)
        else:
            task.restate(recovery, now_ms)
        for broker in task.unheard():
            self._sender.ask(broker, key)
        return task

    def _cancel(self, key: TopicIdPartition, recovery_id: int) -> None:
        task = self._tasks.get(key)
        if task is not None and task.recovery.recovery_id == recovery_id:
            del self._tasks[key]
            self._sender.forget(key)

    def _lapse(self, now_ms: TimeMs) -> None:
        """Ends the tasks that nobody has stated for long."""
        for task in [task for task in self._tasks.values() if task.stated_ms + self._lapse_ms <= now_ms]:
            self._cancel(task.key, task.recovery.recovery_id)

    def _take(self, now_ms: TimeMs, events: Iterable[Event]) -> None:
        """What brokers have said, and not said: answers that count may decide recoveries, all else is asked again."""
        heard: dict[TopicIdPartition, RecoveryTask] = {}
        again: set[int] = set()
        brokers: set[int] = set()
        for event in events:
            brokers.add(event.broker)
            task = self._tasks.get(event.key)
            if task is None or event.broker not in task.unheard():
                continue
            if isinstance(event, Answered) and task.take(event.broker, event.broker_epoch, event.info):
                heard[event.key] = task
            else:
                again.add(event.broker)
                self._sender.ask(event.broker, event.key)
        for broker in sorted(brokers):
            if broker in again:
                self._sender.backs_off(broker, now_ms)
            else:
                self._sender.does_well(broker)
        self._tell(now_ms, heard.values())

    def _tell(self, now_ms: TimeMs, tasks: Iterable[RecoveryTask]) -> None:
        """Says of these tasks whom to elect, as far as they know."""
        results: list[PartitionRecoveryResult] = []
        for task in tasks:
            result = task.result(now_ms)
            task.told = result is not None
            if result is not None:
                results.append(result)
        if results:
            self._out.send(self._controller, RecoveryResults(results=tuple(results)))

    def _go_on(self, now_ms: TimeMs) -> None:
        """Sends what may be sent, and has the node woken when there is more to do."""
        for broker, request in self._sender.requests(now_ms):
            asked = sum(len(topic.partitions) for topic in request.topic_partitions or ())
            self._out.trace(LogInfoRequested(broker, asked))
            self._out.send(broker, request)
        times = [task.deadline_ms for task in self._tasks.values() if not task.told and task.deadline_ms > now_ms]
        times += [task.stated_ms + self._lapse_ms for task in self._tasks.values()]
        waiting_ms = self._sender.next_ms()
        wake_ms = min(times if waiting_ms is None else [*times, max(waiting_ms, now_ms + 1)], default=None)
        if wake_ms == self._wakes_ms:
            return
        self._wakes_ms = wake_ms
        if wake_ms is None:
            self._out.cancel_timer(WAKE_TIMER)
        else:
            self._out.set_timer(WAKE_TIMER, wake_ms)
