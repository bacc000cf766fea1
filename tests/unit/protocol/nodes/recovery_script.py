"""The commands of transcripts about the recovery manager: requests of the controller, answers of brokers, and time.

A command prints which brokers are queried (`query 0: t-0,t-1`), results (`recovery 1: leader 1, answers 0@10,1@11`),
and refused messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS
from protocol.contract import CancelTimer, Effect, Exit, Send, SetTimer
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.node import LogInfoRequested
from protocol.ids import RECOVERY_MANAGER
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import BrokerState
from protocol.messages.recovery import (
    CancelledRecovery,
    CancelRecoveries,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionRecovery,
    RecoverPartitions,
    RecoveryMode,
    RecoveryResults,
    ReplicaLogInfo,
)
from protocol.nodes.recovery_manager import LAPSES_AFTER, WAKE_TIMER, RecoveryManagerNode
from tests.unit.protocol.node_helpers import CONTROLLER, config_of
from tests.unit.protocol.transcripts import Command, Script, listed, numbers

NO_REQUEST = GetReplicaLogInfoRequest(correlation_id=1, broker_id=0, topic_partitions=None)
LAPSE_MS = LAPSES_AFTER * config_of().int_value(BROKER_HEARTBEAT_INTERVAL_MS)


class RecoveryManagerScript(Script):
    """The recovery manager; broker N is registered under epoch 10 + N, the leader epoch of partitions is 4."""

    def __init__(self) -> None:
        self.node = RecoveryManagerNode(config_of())
        assert self.node.node_id == RECOVERY_MANAGER
        self.now_ms = 0
        self.effects: list[Effect] = self.node.start(0)
        self.wakes_ms: int | None = None
        self.requests: dict[int, GetReplicaLogInfoRequest] = {}

    def run(self, text: str) -> list[str]:
        self.effects = []
        printed = super().run(text)
        effects, self.effects = self.effects, []
        line = [said for effect in effects for said in self.said(effect)]
        return [*printed, " | ".join(line)] if line else printed

    def receive(self, sender: int, message: object) -> None:
        self.take(self.node.receive(self.now_ms, sender, message))  # type: ignore[arg-type]

    def take(self, effects: list[Effect]) -> None:
        self.effects = effects
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.wakes_ms = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.wakes_ms = None

    def said(self, effect: Effect) -> Iterator[str]:
        match effect:
            case Send(to, GetReplicaLogInfoRequest() as message):
                self.requests[to] = message
                assert message.topic_partitions is not None
                yield f"query {to}: " + listed(f"t-{i}" for topic in message.topic_partitions for i in topic.partitions)
            case Send(to, RecoveryResults() as message):
                assert to == CONTROLLER
                for found in message.results:
                    answers = listed(f"{answer.broker_id}@{answer.broker_epoch}" for answer in found.answers)
                    yield f"recovery {found.recovery_id}: leader {found.leader}, answers {answers}"
            case LogInfoRequested():
                yield f"traced: {effect.partitions} partitions of {effect.broker}"
            case Trace() if effect.kind == "refused":
                yield "refused"
            case Exit():
                yield "exit"

    def do_request(self, command: Command) -> None:
        """`request 0,1@77 proactive id=2 partitions=0-2 by=3000`: recoveries, all replicas required if balanced."""
        members = [word.partition("@") for word in command.next().split(",")]
        mode = RecoveryMode.PROACTIVE if command.flag("proactive") else RecoveryMode.BALANCED
        replicas = tuple(int(broker) for broker, _, _ in members)
        number = command.number("id", 1)
        recoveries = tuple(
            PartitionRecovery(
                recovery_id=number,
                topic_id="T",
                partition_id=partition,
                leader_epoch=4,
                mode=mode,
                replicas=tuple(
                    BrokerState(broker_id=int(broker), broker_epoch=int(epoch or 10 + int(broker)))
                    for broker, _, epoch in members
                ),
                holders=replicas,
                required=replicas if mode is RecoveryMode.BALANCED else (),
                timeout_ms=5_000,
            )
            for partition in numbers(command.get("partitions", "0"))
        )
        self.receive(command.number("by", CONTROLLER), RecoverPartitions(recoveries=recoveries))

    def do_cancel(self, command: Command) -> None:
        """`cancel 1 by=0`: the recovery with this id."""
        gone = CancelledRecovery(recovery_id=int(command.next()), topic_id="T", partition_id=0)
        self.receive(command.number("by", CONTROLLER), CancelRecoveries(recoveries=(gone,)))

    def do_shutdown(self, command: Command) -> None:
        self.receive(9000, ShutdownCommand())

    def do_answer(self, command: Command) -> None:
        """`answer 0 end=9 epoch=77 leader_epoch=3`: of the last request to broker 0; or with `error=`."""
        broker = int(command.next())
        request = self.requests.get(broker) or NO_REQUEST
        error, end, leader_epoch = command.get("error"), command.number("end", 5), command.number("leader_epoch", 4)
        infos = tuple(
            ReplicaLogInfo(
                topic_id=topic.topic_id,
                partition_id=index,
                last_written_leader_epoch=3,
                current_leader_epoch=leader_epoch,
                log_end_offset=end,
            )
            for topic in request.topic_partitions or ()
            for index in topic.partitions
        )
        response = GetReplicaLogInfoResponse(
            correlation_id=request.correlation_id,
            error=ErrorCode[error or "NONE"],
            broker_epoch=command.number("epoch", 10 + broker),
            log_info_list=() if error else infos,
        )
        self.receive(command.number("by", broker), response)

    def do_wake(self, command: Command) -> Iterator[str]:
        """The time goes on to the node's timer; `wake until 5000`: as often as it is due by then; `wake to the end`."""
        words = command.words()
        end = int(words[1]) if words[:1] == ["until"] else 10**9 if words else self.wakes_ms
        effects = list[Effect]()
        while self.wakes_ms is not None and end is not None and self.wakes_ms <= end:
            self.now_ms, self.wakes_ms = self.wakes_ms, None
            self.take(self.node.fire(self.now_ms, WAKE_TIMER))
            effects += self.effects
            if not words:
                break
        self.effects = effects
        yield f"at {self.now_ms}"

    def do_at(self, command: Command) -> None:
        self.now_ms = int(command.next())

    def do_show(self, command: Command) -> Iterator[str]:
        """How many recoveries run, and when the node's timer is due."""
        when = f"lapses {LAPSE_MS} ms after the request" if self.wakes_ms == LAPSE_MS else f"wakes at {self.wakes_ms}"
        yield f"{self.node.task_count} recoveries, {when}"
