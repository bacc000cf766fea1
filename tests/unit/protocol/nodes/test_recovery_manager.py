"""The recovery manager: from a requested recovery to its result, for all answers and failures of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS
from protocol.contract import CancelTimer, Effect, Send, SetTimer
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.node import LogInfoRequested
from protocol.ids import RECOVERY_MANAGER
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import BrokerState
from protocol.messages.recovery import (
    CancelledRecovery,
    CancelRecoveries,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoverPartitions,
    RecoveryMode,
    RecoveryResults,
    ReplicaLogInfo,
)
from protocol.nodes.recovery_manager import LAPSES_AFTER, WAKE_TIMER, RecoveryManagerNode
from protocol.recovery.sender import REQUEST_TIMEOUT_MS
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, config_of

BALANCED, PROACTIVE = RecoveryMode.BALANCED, RecoveryMode.PROACTIVE
LAPSE_MS = LAPSES_AFTER * config_of().int_value(BROKER_HEARTBEAT_INTERVAL_MS)
M = TypeVar("M", bound=Message)


def recovery(
    *replicas: int, mode: RecoveryMode = BALANCED, number: int = 1, partition: int = 0, epochs: int = 10
) -> PartitionRecovery:
    """All of the replicas are required in a balanced recovery; broker N is registered under epoch 10 + N."""
    return PartitionRecovery(
        recovery_id=number,
        topic_id="T",
        partition_id=partition,
        leader_epoch=4,
        mode=mode,
        replicas=tuple(BrokerState(broker_id=broker, broker_epoch=epochs + broker) for broker in replicas),
        holders=replicas,
        required=replicas if mode is BALANCED else (),
        timeout_ms=5_000,
    )


class Bench:
    """The node, and what its last input came to."""

    def __init__(self) -> None:
        self.node = RecoveryManagerNode(config_of())
        self.now_ms = 0
        self.effects: Sequence[Effect] = self.node.start(0)
        self.wakes_ms: int | None = None
        self.requests: dict[int, GetReplicaLogInfoRequest] = {}

    def receive(self, sender: int, message: Message) -> Bench:
        self.effects = self.node.receive(self.now_ms, sender, message)
        return self._note()

    def _note(self) -> Bench:
        for effect in self.effects:
            if isinstance(effect, SetTimer):
                self.wakes_ms = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.wakes_ms = None
            elif isinstance(effect, Send) and isinstance(effect.message, GetReplicaLogInfoRequest):
                self.requests[effect.to] = effect.message
        return self

    def wake(self) -> Bench:
        """Time passes until the node's timer is due."""
        assert self.wakes_ms is not None
        self.now_ms, self.wakes_ms = self.wakes_ms, None
        self.effects = self.node.fire(self.now_ms, WAKE_TIMER)
        return self._note()

    def state(self, *recoveries: PartitionRecovery) -> Bench:
        return self.receive(CONTROLLER, RecoverPartitions(recoveries=recoveries))

    def answer(self, broker: int, end: int = 5, broker_epoch: int | None = None, current: int = 4) -> Bench:
        """The broker answers the last request that it was sent, for all that it names."""
        request = self.requests[broker]
        assert request.topic_partitions is not None
        infos = [
            ReplicaLogInfo(
                topic_id=topic.topic_id,
                partition_id=index,
                last_written_leader_epoch=3,
                current_leader_epoch=current,
                log_end_offset=end,
            )
            for topic in request.topic_partitions
            for index in topic.partitions
        ]
        response = GetReplicaLogInfoResponse(
            correlation_id=request.correlation_id,
            broker_epoch=10 + broker if broker_epoch is None else broker_epoch,
            log_info_list=tuple(infos),
        )
        return self.receive(broker, response)

    def asked(self) -> list[int]:
        return [to for to, _ in self.sends(GetReplicaLogInfoRequest)]

    def results(self) -> list[PartitionRecoveryResult]:
        return [result for _, message in self.sends(RecoveryResults) for result in message.results]

    def sends(self, kind: type[M]) -> list[tuple[int, M]]:
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]


@pytest.mark.covers("F5", "F11", "F18", "M59")
def test_all_replicas_are_queried_and_the_longest_log_is_reported_once_all_have_answered() -> None:
    bench = Bench().state(recovery(0, 1))
    assert bench.asked() == [0, 1]
    assert bench.answer(0).results() == []
    [result] = bench.answer(1, end=9).results()
    assert (result.recovery_id, result.leader, len(result.answers)) == (1, 1, 2)
    assert [to for to, _ in bench.sends(RecoveryResults)] == [CONTROLLER]
    assert bench.wakes_ms == LAPSE_MS, "there is nothing more to do"


@pytest.mark.covers("F20", "M71")
def test_partitions_of_one_request_share_queries() -> None:
    bench = Bench().state(*(recovery(0, partition=number) for number in range(3)))
    [(_, request)] = bench.sends(GetReplicaLogInfoRequest)
    assert request.topic_partitions is not None
    assert request.topic_partitions[0].partitions == (0, 1, 2)
    [event] = [effect for effect in bench.effects if isinstance(effect, Trace)]
    assert event == LogInfoRequested(broker=0, partitions=3)
    assert len(bench.answer(0).results()) == 3


@pytest.mark.covers("F8", "F9", "F10", "M65", "M67")
@pytest.mark.parametrize("wrong", [{"broker_epoch": 9}, {"current": 3}])
def test_a_replica_whose_answer_does_not_count_is_queried_again_after_a_backoff(wrong: dict[str, int]) -> None:
    bench = Bench().state(recovery(0)).answer(0, **wrong)
    assert (bench.results(), bench.asked()) == ([], [])
    bench.wake()
    assert (bench.now_ms, bench.asked()) == (100, [0])
    assert len(bench.answer(0).results()) == 1


@pytest.mark.covers("F21", "M69")
def test_a_silent_broker_is_queried_again() -> None:
    bench = Bench().state(recovery(0)).wake()
    assert bench.now_ms == REQUEST_TIMEOUT_MS
    assert bench.wake().asked() == [0]


@pytest.mark.covers("F12", "M62")
def test_a_proactive_recovery_ranks_the_answers_at_the_deadline() -> None:
    bench = Bench().state(recovery(0, 1, mode=PROACTIVE)).answer(1)
    assert bench.results() == []
    while bench.now_ms < 5_000:
        assert bench.results() == []
        bench.wake()
    assert (bench.now_ms, [result.leader for result in bench.results()]) == (5_000, [1])


@pytest.mark.covers("F12", "M62")
def test_the_first_answer_after_the_deadline_wins_at_once() -> None:
    bench = Bench().state(recovery(0, 1, mode=PROACTIVE))
    while bench.now_ms <= 6_000:
        bench.wake()
    assert [result.leader for result in bench.answer(1).results()] == [1]


@pytest.mark.covers("F14", "M70")
def test_a_result_is_sent_again_when_the_recovery_is_requested_again() -> None:
    bench = Bench().state(recovery(0)).answer(0)
    [first] = bench.results()
    bench.state(recovery(0))
    assert (bench.results(), bench.asked()) == ([first], [])


@pytest.mark.covers("F8", "F13", "M65")
def test_a_restarted_broker_is_queried_again() -> None:
    bench = Bench().state(recovery(0, 1)).answer(0)
    reborn = recovery(1, 0).model_copy(
        update={"replicas": (BrokerState(broker_id=1, broker_epoch=11), BrokerState(broker_id=0, broker_epoch=77))}
    )
    bench.state(reborn)
    assert bench.asked() == [0]
    bench.answer(1)
    assert bench.results() == []
    [result] = bench.answer(0, broker_epoch=77).results()
    assert [answer.broker_epoch for answer in result.answers] == [11, 77]


@pytest.mark.covers("F15", "M68")
def test_another_recovery_of_the_partition_begins_anew() -> None:
    bench = Bench().state(recovery(0, 1)).answer(0).state(recovery(0, 1, number=2))
    assert bench.node.task_count == 1
    assert bench.answer(1).results() == []
    [result] = bench.answer(0).results()
    assert result.recovery_id == 2


def cancelled(number: int) -> CancelRecoveries:
    return CancelRecoveries(recoveries=(CancelledRecovery(recovery_id=number, topic_id="T", partition_id=0),))


@pytest.mark.covers("F16", "M72")
def test_a_cancelled_recovery_has_no_result() -> None:
    bench = Bench().state(recovery(0)).receive(CONTROLLER, cancelled(7))
    assert bench.node.task_count == 1, "another one was cancelled"
    bench.receive(CONTROLLER, cancelled(1))
    assert bench.node.task_count == 0
    assert bench.answer(0).results() == []


@pytest.mark.covers("F14", "M70")
def test_a_recovery_that_is_no_longer_requested_ends_without_further_queries() -> None:
    bench = Bench().state(recovery(0, 1))
    requested_ms = bench.now_ms = 1_500
    bench.state(recovery(0, 1)).answer(0)
    while bench.wakes_ms is not None:
        assert bench.node.task_count == 1
        bench.wake()
    assert (bench.node.task_count, bench.now_ms) == (0, requested_ms + LAPSE_MS)
    assert bench.answer(1).results() == []


def test_only_controllers_request_recoveries_and_only_brokers_answer() -> None:
    bench = Bench()
    for sender, message in (
        (CLIENT, RecoverPartitions(recoveries=(recovery(0),))),
        (0, cancelled(1)),
        (CLIENT, GetReplicaLogInfoResponse(correlation_id=1)),
    ):
        bench.receive(sender, message)
        assert [effect.kind for effect in bench.effects if isinstance(effect, Trace)] == ["refused"]
    assert bench.node.task_count == 0


def test_a_refused_request_is_made_again() -> None:
    bench = Bench().state(recovery(0))
    refusal = GetReplicaLogInfoResponse(
        correlation_id=bench.requests[0].correlation_id, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )
    assert bench.receive(0, refusal).results() == []
    assert bench.wake().asked() == [0]


def test_a_shutdown_command_ends_the_manager() -> None:
    bench = Bench().receive(9000, ShutdownCommand())
    assert (bench.node.node_id, len(bench.effects)) == (RECOVERY_MANAGER, 1)
