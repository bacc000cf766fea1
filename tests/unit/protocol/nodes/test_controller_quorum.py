"""One controller of three: refusals, snapshots, and records of its predecessor. Examples: `testdata/quorum`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from experiments.engines import admin_requests
from experiments.engines.sim.disk import formatted_disk
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.base import PartitionTrace, Trace
from protocol.ids import CLUSTER_ID, METADATA_LOG, RECOVERY_MANAGER
from protocol.messages.admin import InitProducerIdRequest, MetadataRequest, MetadataResponse
from protocol.messages.base import Message, Request, Response
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    RemoveVoterRecord,
    RemoveVoterRequest,
    VoteRequest,
    VoteResponse,
)
from protocol.messages.records import MetadataRecord
from protocol.messages.recovery import RecoveryResults
from protocol.messages.topics import DescribeTopicRequest, DescribeTopicResponse
from protocol.metadata.image import MetadataImage
from protocol.nodes.controller import ControllerNode
from protocol.quorum.context import ELECTION_TIMER
from protocol.quorum.log import Snapshot
from tests.unit.protocol.node_helpers import CLIENT, config_of, fencing, registrations, topic_records
from tests.unit.protocol.quorum.quorum_helpers import (
    KEYS,
    LEVELS,
    ME,
    NEXT,
    THIRD,
    VOTERS,
    Bench,
    leader_change,
    standing_by,
)

NOT_CONTROLLER = ErrorCode.NOT_CONTROLLER


# -- becoming active ---------------------------------------------------------------------------------------------------


def test_a_sole_controller_flushes_its_bootstrap_records_at_once() -> None:
    node = ControllerNode(ME, (ME,), config_of(), storage := formatted_disk(), Random(1))
    effects = node.start(0)
    log = storage.open_log(METADATA_LOG)
    assert log.flushed_offset == log.end_offset == node.replica.high_watermark == node.state.image.next_offset
    assert [e.kind for e in effects if isinstance(e, Trace)].count("controller_started") == 1


# -- ceasing to be active ----------------------------------------------------------------------------------------------


def test_a_new_leader_that_commits_its_own_removal_traces_what_it_has_committed() -> None:
    """Its predecessor had not committed the removal, nor what came before it. It resigns before it is active."""
    bench = standing_by()
    gone = RemoveVoterRecord(voter_id=ME, voter_uuid=KEYS[ME].uuid)
    bench.follow([fencing(2, 2, True)], [gone], committed=0).fire(ELECTION_TIMER)
    for _ in range(2):
        for voter, request in bench.sends(VoteRequest):
            number, epoch = request.correlation_id, request.candidate_epoch
            bench.receive(voter, VoteResponse(correlation_id=number, leader_epoch=epoch, vote_granted=True))
    bench.fetch(NEXT)
    bench.fetch(THIRD)
    assert [trace["reason"] for trace in bench.traces("quorum_resigned")] == ["no voter any more"]
    assert [(trace["broker"], trace["fenced"]) for trace in bench.traces("broker_registration")] == [(2, True)]
    assert bench.traces("controller_started") == []


def test_records_that_the_next_leader_lacks_are_truncated() -> None:
    bench = Bench().serve().register(3)
    end = bench.end
    bench.begin_epoch()
    fetch = bench.sent(QuorumFetchRequest)
    assert fetch.fetch_offset == end
    response = {"correlation_id": fetch.correlation_id, "leader_id": NEXT, "leader_epoch": 2}
    bench.receive(NEXT, QuorumFetchResponse(**(response | {"diverging_epoch": 1, "diverging_end_offset": end - 1})))
    assert bench.sent(QuorumFetchRequest).fetch_offset == end - 1
    bench.follow([leader_change(NEXT), *registrations((4,))], committed=1)
    assert (3 in bench.image.brokers, 4 in bench.image.brokers) == (False, True)


# -- standing by -------------------------------------------------------------------------------------------------------


WRITES: list[Request] = [
    BrokerRegistrationRequest(correlation_id=7, broker_id=5, incarnation_id="one"),
    BrokerHeartbeatRequest(correlation_id=7, broker_id=0, broker_epoch=0, current_metadata_offset=9),
    AlterPartitionRequest(correlation_id=7, broker_id=0, broker_epoch=0, partitions=()),
    InitProducerIdRequest(correlation_id=7),
    replace(admin_requests.delete_topic("t"), correlation_id=7),
    replace(admin_requests.alter_config("t", {"min.insync.replicas": 1}), correlation_id=7),
]


@pytest.mark.parametrize("request_", WRITES, ids=lambda request: type(request).__name__)
def test_a_standby_refuses_requests_that_change_metadata(request_: Request) -> None:
    bench = standing_by()
    before, end = bench.image.to_records(), bench.end
    answer = bench.receive(0, request_).sent(Response)
    assert (answer.correlation_id, answer.error) == (7, NOT_CONTROLLER)
    assert (bench.image.to_records(), bench.end) == (before, end)


def test_a_standby_answers_read_only_requests() -> None:
    bench = standing_by()
    [topic] = bench.receive(CLIENT, MetadataRequest(correlation_id=1, topic="t")).sent(MetadataResponse).topics
    assert [partition.leader for partition in topic.partitions] == [0]
    described = bench.receive(CLIENT, DescribeTopicRequest(correlation_id=2)).sent(DescribeTopicResponse)
    assert [found.name for found in described.topics] == ["t"]
    cluster = bench.receive(CLIENT, DescribeClusterRequest(correlation_id=3)).sent(DescribeClusterResponse)
    assert cluster.controller_id == NEXT


def test_only_the_active_controller_takes_results_of_recoveries() -> None:
    bench = standing_by()
    results = RecoveryResults(results=())
    bench.receive(RECOVERY_MANAGER, results)
    assert bench.sends(Message) == []
    assert bench.traces("refused") == [
        {"message": "RecoveryResults", "sender": RECOVERY_MANAGER, "error": "NOT_CONTROLLER"}
    ]


@pytest.mark.parametrize("knows", ["nothing", "what is gone by now"])
def test_a_standby_that_is_far_behind_loads_the_snapshot(knows: str) -> None:
    bench = Bench().begin_epoch() if knows == "nothing" else standing_by()
    image = MetadataImage(config_of())
    for record in (*LEVELS, *registrations((0, 1))):
        image.replay(record)
    response = {"leader_id": NEXT, "leader_epoch": 1, "snapshot_epoch": 1, "snapshot_end_offset": 50}
    number = bench.node.replica.pending_fetch_id
    bench.receive(NEXT, QuorumFetchResponse(**(response | {"correlation_id": number})))
    wanted = bench.sent(FetchSnapshotRequest)
    data = Snapshot(1, 50, VOTERS, pack_records(image.to_records())).encode()
    part = {"correlation_id": wanted.correlation_id, "size": len(data), "position": 0, "data": data}
    bench.receive(NEXT, FetchSnapshotResponse(**(response | part)))
    assert (bench.image.to_records(), bench.image.next_offset) == (image.to_records(), 50)
    assert (bench.node.first_record, list(bench.node.records)) == (50, [])
    bench.follow(registrations((3,)), committed=1)
    assert (bench.node.first_record, list(bench.node.records)) == (50, registrations((3,)))
    assert 3 in bench.image.brokers


# -- taking over -------------------------------------------------------------------------------------------------------


def test_a_controller_that_takes_over_traces_records_that_its_predecessor_may_not_have_traced() -> None:
    bench = standing_by()
    response, base = bench.image.next_offset, bench.end
    bench.follow(registrations((3,)), another_topic(), committed=0)
    assert bench.external_effects == []
    bench.elect()
    assert (bench.external_effects, bench.image.next_offset) == ([], response), "none of it is known to be committed"
    end = bench.end
    bench.fetch(THIRD)
    assert [(trace["base_offset"], trace["end_offset"]) for trace in bench.traces("committed")] == [
        (base, base + 2),
        (base + 2, base + 4),
        (base + 4, end),
    ]
    assert {trace["broker"] for trace in bench.traces("broker_registration")} == {3}
    assert [effect.partition.topic for effect in bench.external_effects if isinstance(effect, PartitionTrace)] == ["u"]
    assert bench.traces("controller_started") == [{"next_offset": end}]
    assert bench.node.is_active


def another_topic() -> list[MetadataRecord]:
    [topic, _, partition] = topic_records(1)
    renamed = {"topic_id": "U"}
    return [replace(topic, **({"name": "u"} | renamed)), replace(partition, **renamed)]


# -- the quorum itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sender", [0, CLIENT])
def test_votes_of_other_nodes_are_refused(sender: int) -> None:
    bench = Bench().serve()
    asked = VoteRequest(
        correlation_id=5,
        cluster_id=CLUSTER_ID,
        candidate_id=NEXT,
        candidate_uuid=KEYS[NEXT].uuid,
        candidate_epoch=9,
        voter_id=ME,
        voter_uuid=KEYS[ME].uuid,
        last_offset_epoch=9,
        last_offset=999,
    )
    bench.receive(sender, asked)
    assert (bench.sent(Response).correlation_id, bench.sent(Response).error) == (
        5,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
    assert (bench.node.is_active, bench.node.replica.epoch) == (True, 1)
    assert not bench.receive(NEXT, asked).node.is_active


@pytest.mark.parametrize(
    ("sender", "error"),
    [
        (THIRD, ErrorCode.VOTER_NOT_FOUND),
        (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (CLIENT, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_controllers_change_the_voters_without_an_access_control_entry(sender: int, error: ErrorCode) -> None:
    bench = Bench(config=config_of(authorizer_class_name="standard")).activate()
    bench.receive(sender, RemoveVoterRequest(correlation_id=5, voter_id=1009, voter_uuid="u"))
    assert bench.sent(Response).error is error


def test_an_unknown_timer_is_a_broken_invariant() -> None:
    with pytest.raises(ProtocolInvariantError, match="no-such-timer"):
        standing_by().fire("no-such-timer")
