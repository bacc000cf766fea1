"""The broker node of generation `v3` as it takes commands: which it obeys, and in which order it changes roles."""

from __future__ import annotations

from random import Random

import pytest

from experiments.engines.sim.disk import SimStorage
from protocol.config import ClusterConfig, Generation
from protocol.contract import Effect, Send
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.base import Trace
from protocol.ids import FIRST_CLIENT, NO_EPOCH, STORE
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import FetchPartition, FetchRequest, FetchResponse, ProduceRequest
from protocol.messages.store import OpenSession
from protocol.messages.topics import DescribeTopicRequest
from protocol.messages.v3 import (
    CommandResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
)
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.settings import StoreSettings

ME, CONTROLLER = 0, 1


def part(index: int = 0, **fields: object) -> LeaderAndIsrPartition:
    state: dict[str, object] = {
        "topic": "t",
        "topic_id": "T",
        "leader": ME,
        "leader_epoch": 0,
        "isr": (0, 1),
        "version": 0,
        "replicas": (0, 1),
        "controller_id": CONTROLLER,
        "controller_epoch": 1,
    }
    return LeaderAndIsrPartition(partition_id=index, **state | fields)  # type: ignore[arg-type]


class Broker:
    """A broker that has been started; `sent` and `traces` are the effects of the last input."""

    def __init__(self) -> None:
        config = ClusterConfig.of(Generation.V3)
        self.storage = SimStorage()
        self.node = V3BrokerNode(ME, config, StoreSettings(), self.storage, Random(1))
        self.number = 0
        self._split(self.node.start(0))

    def _split(self, effects: list[Effect]) -> None:
        self.sent = [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]
        self.traces = [effect for effect in effects if isinstance(effect, Trace)]

    def receive(self, sender: int, message: Message) -> list[tuple[int, Message]]:
        self._split(self.node.receive(10, sender, message))
        return self.sent

    def command(
        self, *parts: LeaderAndIsrPartition, init: bool = False, epoch: int = 1, number: int | None = None
    ) -> CommandResponse | None:
        self.number = self.number + 1 if number is None else number
        request = LeaderAndIsrRequest(
            correlation_id=self.number,
            controller_id=CONTROLLER,
            controller_epoch=epoch,
            ack_timeout_ms=1_000,
            is_init=init,
            partitions=parts,
        )
        return self._response(request)

    def stop(self, leader_epoch: int, topic_id: str = "T") -> CommandResponse | None:
        self.number += 1
        stopped = StopReplicaPartition(topic="t", topic_id=topic_id, partition_id=0, leader_epoch=leader_epoch)
        request = StopReplicaRequest(
            correlation_id=self.number,
            controller_id=CONTROLLER,
            controller_epoch=1,
            ack_timeout_ms=1_000,
            partitions=(stopped,),
        )
        return self._response(request)

    def _response(self, request: LeaderAndIsrRequest | StopReplicaRequest) -> CommandResponse | None:
        sent = self.receive(CONTROLLER, request)
        return next((message for _, message in sent if isinstance(message, CommandResponse)), None)

    @property
    def replicas(self) -> dict[int, tuple[bool, int]]:
        """By partition: whether the broker leads, and the leader epoch."""
        return {
            key.partition: (replica.leadership is not None, replica.leader_epoch)
            for key, replica in self.node.context.replicas.items()
        }


def errors_of(response: CommandResponse | None) -> list[ErrorCode]:
    assert response is not None
    return [result.error for result in response.partitions]


def test_a_broker_that_starts_opens_a_session() -> None:
    assert [(to, type(message)) for to, message in Broker().sent] == [(STORE, OpenSession)]


@pytest.mark.covers("A23", "A24", "A26", "A28")
def test_init_starts_what_it_names_and_deletes_everything_else() -> None:
    broker = Broker()
    broker.storage.open_log("U/3")
    broker.command(part(0), part(1, leader=1), init=True)
    assert broker.replicas == {0: (True, 0), 1: (False, 0)}
    assert broker.storage.log_names() == ["T/0", "T/1"]
    broker.command(part(1, leader=1), init=True)
    assert broker.replicas == {1: (False, 0)}
    assert broker.storage.log_names() == ["T/1"]


def test_a_command_without_init_deletes_nothing() -> None:
    broker = Broker()
    broker.command(part(0), init=True)
    broker.command(part(1))
    assert sorted(broker.replicas) == [0, 1]


@pytest.mark.covers("A35", "M34")
def test_a_command_of_a_deposed_controller_is_refused_and_changes_nothing() -> None:
    broker = Broker()
    broker.command(part(leader_epoch=5), init=True, epoch=2)
    response = broker.command(part(leader=1, leader_epoch=6), init=True, epoch=1, number=99)
    assert response is not None
    assert response.error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert broker.replicas == {0: (True, 5)}


@pytest.mark.covers("A25", "G3")
@pytest.mark.parametrize(("epoch", "version"), [(4, 9), (5, 2)])
def test_an_older_decision_on_a_partition_is_not_obeyed(epoch: int, version: int) -> None:
    broker = Broker()
    broker.command(part(leader_epoch=5, version=3), init=True)
    response = broker.command(part(leader=1, leader_epoch=epoch, version=version), part(1))
    assert response is not None
    assert [(result.topic, result.partition_id) for result in response.partitions] == [("t", 0), ("t", 1)]
    assert errors_of(response) == [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NONE]
    assert broker.replicas == {0: (True, 5), 1: (True, 0)}


def test_a_copy_of_a_command_is_answered_again_and_an_older_one_is_dropped() -> None:
    broker = Broker()
    first = broker.command(part(0), init=True)
    assert broker.command(part(0), init=True, number=1) == first
    broker.command(part(1), number=2)
    assert broker.command(part(0), init=True, number=1) is None
    assert sorted(broker.replicas) == [0, 1], "the late copy of INIT deletes nothing"


@pytest.mark.covers("A28", "G3", "N11")
def test_stop_replica_deletes_the_log_unless_a_newer_decision_is_known() -> None:
    broker = Broker()
    broker.command(part(leader_epoch=5), init=True)
    assert errors_of(broker.stop(4)) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert errors_of(broker.stop(9, topic_id="another")) == [ErrorCode.NONE]
    assert broker.replicas == {0: (True, 5)}
    assert errors_of(broker.stop(5)) == [ErrorCode.NONE]
    assert broker.replicas == {}
    assert broker.storage.log_names() == []


FETCHES = {
    "from the leader": (0, 0, ErrorCode.NONE, [b"one"], 0),
    "from a follower": (1, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, [], -1),
    "behind the log end": (0, 5, ErrorCode.OFFSET_OUT_OF_RANGE, [], -1),
}


@pytest.mark.covers("G5")
@pytest.mark.parametrize(("index", "offset", "error", "payloads", "high_watermark"), FETCHES.values(), ids=FETCHES)
def test_a_fetch_names_partition_replica_and_offset_and_brings_records_and_the_high_watermark(
    index: int, offset: int, error: ErrorCode, payloads: list[bytes], high_watermark: int
) -> None:
    broker = Broker()
    broker.command(part(0), part(1, leader=1), init=True)
    record = RecordBatch(record_count=1, payload=b"one")
    broker.receive(FIRST_CLIENT, ProduceRequest(correlation_id=1, topic="t", partition=0, acks=1, batch=record))
    wanted = FetchPartition(
        topic_id="T", partition_id=index, current_leader_epoch=0, fetch_offset=offset, last_fetched_epoch=NO_EPOCH
    )
    sent = broker.receive(1, FetchRequest(replica_id=1, replica_epoch=1, partitions=(wanted,)))
    [response] = [message for to, message in sent if to == 1 and isinstance(message, FetchResponse)]
    [result] = response.partitions
    assert (result.error, result.high_watermark) == (error, high_watermark)
    assert [batch.payload for batch in result.batches] == payloads


@pytest.mark.covers("N11")
def test_a_topic_that_was_created_again_begins_with_an_empty_log() -> None:
    broker = Broker()
    broker.command(part(leader_epoch=5), init=True)
    request = ProduceRequest(
        correlation_id=1, topic="t", partition=0, acks=1, batch=RecordBatch(record_count=1, payload=b"old")
    )
    broker.receive(FIRST_CLIENT, request)
    broker.command(part(topic_id="V", leader_epoch=0))
    [replica] = broker.node.context.replicas.values()
    assert (replica.key.topic_id, replica.log.end_offset) == ("V", 0)
    assert broker.storage.log_names() == ["V/0"]


@pytest.mark.covers("A15")
def test_a_partition_without_a_leader_is_neither_led_nor_followed() -> None:
    broker = Broker()
    broker.command(part(), init=True)
    broker.command(part(leader=-1, leader_epoch=1, version=1))
    [replica] = broker.node.context.replicas.values()
    assert (replica.leadership, replica.fetch_state) == (None, None)


@pytest.mark.covers("B9", "G8")
def test_commands_and_fetches_of_clients_are_refused() -> None:
    broker = Broker()
    request = LeaderAndIsrRequest(
        correlation_id=1, controller_id=1, controller_epoch=1, ack_timeout_ms=1, is_init=True, partitions=(part(),)
    )
    [(_, response)] = broker.receive(FIRST_CLIENT, request)
    assert isinstance(response, CommandResponse)
    assert response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert broker.replicas == {}
    fetch = FetchRequest(replica_id=1, replica_epoch=1, partitions=(), fetcher=0, session=1, number=0)
    broker.receive(FIRST_CLIENT, fetch)
    assert [trace.kind for trace in broker.traces] == ["refused"]


def test_a_broker_that_is_not_the_controller_says_so() -> None:
    [(_, response)] = Broker().receive(FIRST_CLIENT, DescribeTopicRequest(correlation_id=4))
    assert response.error is ErrorCode.NOT_CONTROLLER  # type: ignore[attr-defined]


def test_an_unknown_timer_is_a_defect() -> None:
    with pytest.raises(ProtocolInvariantError, match="has no timer"):
        Broker().node.fire(1, "nothing")
