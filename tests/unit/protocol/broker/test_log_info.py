"""GetReplicaLogInfo on brokers."""

from __future__ import annotations

import pytest

from protocol.broker.log_info import replica_log_info
from protocol.contract import LogStorage
from protocol.errors import ErrorCode, StorageError
from protocol.ids import RECOVERY_MANAGER
from protocol.messages.records import PartitionChangeRecord, PartitionRecord
from protocol.messages.recovery import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
)
from tests.unit.protocol.node_helpers import CLIENT, T0, BrokerBench, config_of, topic_records


def request_for(*partitions: int, broker: int = 0, topic: str = "T") -> GetReplicaLogInfoRequest:
    named = (ReplicaLogInfoTopic(topic_id=topic, partitions=partitions),)
    return GetReplicaLogInfoRequest(correlation_id=9, broker_id=broker, topic_partitions=named)


def response_of(bench: BrokerBench, request: GetReplicaLogInfoRequest) -> GetReplicaLogInfoResponse:
    return bench.receive(RECOVERY_MANAGER, request).sent(GetReplicaLogInfoResponse)


def errors(response: GetReplicaLogInfoResponse) -> list[ErrorCode]:
    return [info.error for info in response.log_info_list]


@pytest.mark.covers("F7", "G29", "G30")
def test_the_response_has_the_log_end_and_both_epochs() -> None:
    bench = BrokerBench().run(*topic_records(leader=0, leader_epoch=4))
    bench.produce(count=3)
    bench.publish(PartitionChangeRecord(topic_id="T", partition_id=0, leader=-1))
    info = ReplicaLogInfo(
        topic_id="T", partition_id=0, last_written_leader_epoch=4, current_leader_epoch=5, log_end_offset=3
    )
    assert response_of(bench, request_for(0)) == GetReplicaLogInfoResponse(
        correlation_id=9, broker_epoch=0, log_info_list=(info,)
    )


def test_an_empty_log_has_no_epoch() -> None:
    [info] = response_of(BrokerBench().run(*topic_records()), request_for(0)).log_info_list
    assert (info.error, info.last_written_leader_epoch, info.log_end_offset) == (ErrorCode.NONE, -1, 0)


@pytest.mark.covers("N22")
def test_each_partition_has_an_error_of_its_own() -> None:
    elsewhere = PartitionRecord(topic_id="T", partition_id=1, replicas=(1, 2), isr=(1, 2), leader=1)
    bench = BrokerBench().run(*topic_records(), elsewhere)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(response_of(bench, request_for(2, 0, 1))) == [unknown, ErrorCode.NONE, unknown]
    assert errors(response_of(bench, request_for(0, topic="U"))) == [unknown]


@pytest.mark.covers("N22")
def test_a_replica_that_is_not_open_is_not_leader_or_follower() -> None:
    bench = BrokerBench().run(*topic_records())
    del bench.node.context.replicas[T0]
    assert errors(response_of(bench, request_for(0))) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


class BrokenLog:
    """A log of a disk that has failed."""

    def __init__(self, storage: LogStorage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> object:
        if name == "end_offset":
            raise StorageError("the disk has failed")
        return getattr(self._storage, name)


@pytest.mark.covers("N22")
def test_a_failed_disk_is_reported_per_partition() -> None:
    second = PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0)
    bench = BrokerBench().run(*topic_records(), second)
    bench.replica.log.storage = BrokenLog(bench.replica.log.storage)  # type: ignore[assignment]
    assert errors(response_of(bench, request_for(0, 1))) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


@pytest.mark.covers("G31", "M86", "N22")
def test_too_many_partitions_or_another_broker_are_refused_as_a_whole() -> None:
    bench = BrokerBench().run(*topic_records())
    at_limit = response_of(bench, request_for(*range(2_000)))
    assert (at_limit.error, len(at_limit.log_info_list)) == (ErrorCode.NONE, 2_000)
    for request in (request_for(*range(2_001)), request_for(0, broker=1)):
        refused = response_of(bench, request)
        assert (refused.error, refused.log_info_list) == (ErrorCode.INVALID_REQUEST, ())


@pytest.mark.covers("N22")
def test_no_partitions_means_all_replicas_of_the_broker() -> None:
    second = PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0)
    bench = BrokerBench().run(*topic_records(), second)
    everything = GetReplicaLogInfoRequest(correlation_id=1, broker_id=0, topic_partitions=None)
    assert [info.partition_id for info in replica_log_info(bench.node.context, everything).log_info_list] == [0, 1]


@pytest.mark.covers("G29")
def test_a_client_needs_cluster_action() -> None:
    bench = BrokerBench(config=config_of(authorizer_class_name="standard")).run(*topic_records())
    refused = bench.receive(CLIENT, request_for(0)).sent(GetReplicaLogInfoResponse)
    assert refused.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
