"""One controller of three: what it emits before and after a commit, and how it becomes active and resigns."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from experiments.engines import admin_requests
from experiments.engines.sim.disk import formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import Generation
from protocol.contract import CancelTimer, Exit, SetTimer
from protocol.controller.recovery_requests import ELECTIONS_TIMER
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.base import PartitionTrace, Trace
from protocol.ids import CLUSTER_ID, METADATA_LOG, RECOVERY_MANAGER
from protocol.messages.admin import AdminResponse, MetadataRequest, MetadataResponse
from protocol.messages.base import Message, Request, Response
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.metadata_batch import pack_records
from protocol.messages.partitions import ElectionType, ElectLeadersResponse
from protocol.messages.producers import InitProducerIdRequest
from protocol.messages.quorum import (
    EndQuorumEpochRequest,
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
from protocol.messages.recovery import RecoverPartitions, RecoveryResults
from protocol.messages.topics import DescribeTopicRequest, DescribeTopicResponse
from protocol.metadata.image import MetadataImage
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from protocol.quorum.context import ELECTION_TIMER
from protocol.quorum.log import Snapshot
from tests.unit.protocol.node_helpers import CLIENT, config_of, fencing, registrations, topic_records
from tests.unit.protocol.quorum.quorum_helpers import (
    FORMATTED,
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


def test_a_leader_is_active_when_a_majority_has_the_first_record_of_its_epoch() -> None:
    bench = Bench().elect()
    assert (bench.node.is_active, bench.node.quorum.role, bench.end) == (False, "candidate", FORMATTED + 1)
    assert bench.register().sent(BrokerRegistrationResponse).error is NOT_CONTROLLER
    bench.fetch(offset=FORMATTED)
    assert not bench.node.is_active
    bench.fetch(offset=FORMATTED + 1)
    assert (bench.node.is_active, bench.node.active_epoch, bench.node.quorum.role) == (True, 1, "leader")


@pytest.mark.covers("C9")
def test_controller_started_is_traced_when_its_first_records_are_committed() -> None:
    """Brokers may replay what has been committed before it becomes active, so that is traced at once."""
    bench = Bench().elect().fetch()
    assert bench.image.feature_levels == Generation.KIP_966.feature_levels
    assert [trace["end_offset"] for trace in bench.traces("committed")] == [FORMATTED, FORMATTED + 1]
    assert bench.traces("controller_started") == []
    assert list(bench.node.records)[FORMATTED + 1 :] == [], "what is not committed is none of a checker's business"
    bench.fetch()
    assert [effect.kind for effect in bench.external_effects if isinstance(effect, Trace)].count(
        "controller_started"
    ) == 1
    assert list(bench.node.records)[FORMATTED + 1 :] == LEVELS


def test_a_sole_controller_flushes_its_bootstrap_records_at_once() -> None:
    node = ControllerNode(ME, (ME,), config_of(), storage := formatted_disk(), Random(1))
    effects = node.start(0)
    log = storage.open_log(METADATA_LOG)
    assert log.flushed_offset == log.end_offset == node.replica.high_watermark == node.state.image.next_offset
    assert [e.kind for e in effects if isinstance(e, Trace)].count("controller_started") == 1


# -- withholding -------------------------------------------------------------------------------------------------------


@pytest.mark.covers("N3")
def test_nothing_is_emitted_before_a_majority_has_the_records() -> None:
    bench = Bench().activate().register()
    assert 0 in bench.image.brokers
    assert bench.external_effects == []
    end = bench.end
    assert bench.fetch(THIRD, end - 1).external_effects == []
    assert [batch.next_offset for batch in bench.sent(QuorumFetchResponse).batches] == [end], "that is how it gets it"
    bench.fetch(THIRD, end)
    assert bench.sent(BrokerRegistrationResponse).broker_epoch == end - 1
    assert bench.traces("committed") == [{"base_offset": end - 1, "end_offset": end}]
    assert [trace["broker"] for trace in bench.traces("broker_registration")] == [0]
    assert bench.fetch(NEXT, end).external_effects == [], "it is emitted once"


def test_answers_are_sent_in_the_order_of_requests_and_not_before_their_records_are_committed() -> None:
    bench = Bench().activate().register(0).register(1)
    assert bench.end == bench.node.replica.high_watermark + 2
    bench.fetch(offset=bench.end - 1)
    assert [to for to, _ in bench.sends(BrokerRegistrationResponse)] == [0]
    bench.register(2).fetch()
    assert [to for to, _ in bench.sends(BrokerRegistrationResponse)] == [1, 2]


def test_reads_and_refusals_wait_for_the_records_that_they_have_seen() -> None:
    bench = Bench().serve()
    assert bench.receive(CLIENT, DescribeClusterRequest(correlation_id=1)).sends(Response) != []
    bench.receive(CLIENT, admin_requests.create_topic("u", ((0,),)))
    asking: list[Message] = [
        DescribeTopicRequest(correlation_id=11, topics=("u",)),
        MetadataRequest(correlation_id=12, topic="u"),
        replace(admin_requests.create_topic("u", ((0,),)), correlation_id=13),
    ]
    for message in asking:
        assert bench.receive(CLIENT, message).sends(Response) == []
    answers = [answer for to, answer in bench.fetch().sends(Response) if to == CLIENT]
    assert [answer.correlation_id for answer in answers] == [0, 11, 12, 13]
    assert isinstance(answers[-1], AdminResponse)
    assert answers[-1].failure()[0] is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.covers("E31")
def test_a_session_is_renewed_by_a_heartbeat_whose_answer_is_deferred() -> None:
    bench = Bench().activate().register().fetch().beat()
    assert bench.external_effects == []
    session = [e for e in bench.effects if isinstance(e, SetTimer) and e.name == f"{SESSION_PREFIX}0"]
    assert [timer.at_ms for timer in session] == [9_000]
    assert not bench.fetch().sent(BrokerHeartbeatResponse).is_fenced


def test_an_expired_session_is_traced_when_the_fencing_is_committed() -> None:
    bench = Bench().serve()
    bench.now_ms = 9_000
    bench.fire(f"{SESSION_PREFIX}0")
    assert (bench.image.brokers[0].fenced, bench.external_effects) == (True, [])
    bench.fetch()
    assert [trace["leader"] for trace in bench.traces("partition")] == [1]
    assert bench.traces("session_expired") == [{"broker": 0}]


@pytest.mark.covers("C9")
def test_a_broker_has_applied_what_it_knows_to_be_committed() -> None:
    bench = Bench().serve()
    for broker in (1, 2):
        bench.beat(broker)
    bench.beat(0, want_shut_down=True).fetch()
    for broker in (1, 2):
        known = metadata_fetch(bench.node, broker)
        ignorant = replace(known, high_watermark=known.high_watermark - 1)
        bench.receive(broker, ignorant)
        assert not bench.beat(0, want_shut_down=True).sent(BrokerHeartbeatResponse).should_shut_down
        bench.receive(broker, known)
    assert bench.beat(0, want_shut_down=True).fetch().sent(BrokerHeartbeatResponse).should_shut_down


# -- ceasing to be active ----------------------------------------------------------------------------------------------


def test_a_controller_that_resigns_refuses_deferred_requests_and_discards_their_records() -> None:
    bench = Bench().serve()
    before, end = bench.image.to_records(), bench.end
    asked = (bench.register(3).number, bench.register(4).number)
    bench.receive(CLIENT, MetadataRequest(correlation_id=77, topic="t"))
    assert {3, 4} <= set(bench.image.brokers)
    bench.begin_epoch()
    refused = bench.sends(BrokerRegistrationResponse)
    assert [(to, answer.correlation_id) for to, answer in refused] == [(3, asked[0]), (4, asked[1])]
    assert {answer.error for _, answer in refused} == {NOT_CONTROLLER}
    assert (bench.sent(MetadataResponse).correlation_id, bench.sent(MetadataResponse).error) == (77, NOT_CONTROLLER)
    assert bench.traces("controller_resigned") == [{"next_offset": end}]
    assert bench.traces("committed") == bench.traces("broker_registration") == []
    assert (bench.node.is_active, bench.node.active_epoch, bench.node.quorum.role) == (False, -1, "follower")
    assert (bench.image.to_records(), bench.image.next_offset) == (before, end)
    assert len(bench.node.records) == end < bench.end


def test_a_controller_that_resigns_emits_what_its_last_input_has_committed() -> None:
    """It removes itself from the voters, and resigns as soon as the other two have the removal."""
    bench = Bench().serve()
    number = bench.register(3).number
    bench.receive(CLIENT, RemoveVoterRequest(correlation_id=78, voter_id=ME, voter_uuid=KEYS[ME].uuid))
    end = bench.end
    late = bench.register(4).number
    assert bench.fetch(NEXT, end).external_effects == []
    bench.fetch(THIRD, end)
    assert not bench.node.is_active
    answers = {to: (answer.correlation_id, answer.error) for to, answer in bench.sends(BrokerRegistrationResponse)}
    assert answers == {3: (number, ErrorCode.NONE), 4: (late, NOT_CONTROLLER)}
    kinds = [effect.kind for effect in bench.effects if isinstance(effect, Trace)]
    assert kinds.index("broker_registration") < kinds.index("controller_resigned")
    assert [trace["broker"] for trace in bench.traces("broker_registration")] == [3]


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


def test_sessions_are_those_of_the_active_controller() -> None:
    bench = Bench().serve().begin_epoch()
    cancelled = [e.name for e in bench.effects if isinstance(e, CancelTimer) and e.name.startswith(SESSION_PREFIX)]
    assert cancelled == [f"{SESSION_PREFIX}{broker}" for broker in (0, 1, 2)]


def test_records_that_the_next_leader_commits_take_effect_although_their_request_was_refused() -> None:
    bench = Bench().serve().register(3)
    end = bench.end
    bench.begin_epoch().follow([leader_change(NEXT)], committed=1)
    assert (bench.image.next_offset, 3 in bench.image.brokers) == (end + 1, True)
    assert bench.external_effects == [], "the active controller traces it"


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


def test_a_leader_from_which_no_majority_fetches_resigns() -> None:
    bench = Bench().serve().register(3)
    bench.fire(f"quorum-voter/{NEXT}")
    assert bench.node.is_active
    bench.fire(f"quorum-voter/{THIRD}")
    assert not bench.node.is_active
    assert bench.sent(BrokerRegistrationResponse).error is NOT_CONTROLLER


def test_awaited_elections_are_refused_when_the_controller_resigns() -> None:
    bench = leaderless().receive(CLIENT, ELECT)
    assert bench.sends(RecoverPartitions) != [], "replicas are asked for their logs"
    assert bench.sends(ElectLeadersResponse) == []
    bench.begin_epoch()
    assert [(to, answer.error) for to, answer in bench.sends(ElectLeadersResponse)] == [(CLIENT, NOT_CONTROLLER)]
    assert CancelTimer(ELECTIONS_TIMER) in bench.effects


ELECT = admin_requests.elect_leader("t", 0, ElectionType.LONGEST_LOG_BALANCED)


def leaderless() -> Bench:
    """`t-0` is leaderless, and 1 and 2 of its last known ELR are active again; all of it is committed."""
    bench = Bench(config=config_of(unclean_recovery_strategy="manual")).serve()
    for broker in (0, 1, 2):
        bench.fire(f"{SESSION_PREFIX}{broker}").fetch()
    for broker in (1, 2):
        bench.register(broker, "two").fetch()
        bench.beat(broker).fetch()
    return bench


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


def test_a_standby_replays_exactly_the_committed_records() -> None:
    bench = standing_by()
    assert bench.external_effects == []
    end = bench.end
    bench.follow(registrations((3,)), committed=0)
    assert (bench.end, bench.image.next_offset, 3 in bench.image.brokers) == (end + 2, end, False)
    bench.follow(committed=0)
    assert (bench.image.next_offset, 3 in bench.image.brokers, bench.external_effects) == (end + 2, True, [])


def test_a_restarted_standby_replays_up_to_the_leaders_high_watermark() -> None:
    before = standing_by()
    bench = Bench(before.storage)
    assert (bench.image.next_offset, bench.node.quorum.role) == (0, "follower")
    bench.follow(committed=0)
    assert bench.image.to_records() == before.image.to_records()


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


@pytest.mark.covers("E31")
def test_a_controller_that_takes_over_gives_every_unfenced_broker_a_full_session() -> None:
    bench = standing_by()
    bench.now_ms = 50_000
    bench.elect().fetch()
    ends = {e.name: e.at_ms for e in bench.effects if isinstance(e, SetTimer) and e.name.startswith(SESSION_PREFIX)}
    assert ends == {f"{SESSION_PREFIX}{broker}": 59_000 for broker in (0, 1, 2)}
    assert bench.end == bench.node.replica.high_watermark, "it has nothing to begin with"


def test_a_controller_that_is_active_again_takes_request_numbers_from_the_beginning() -> None:
    bench = Bench().serve()
    bench.beat(0, correlation_id=99)
    bench.begin_epoch().follow([leader_change(NEXT)], committed=1)
    bench.elect().fetch()
    assert bench.node.active_epoch == 3
    assert bench.beat(0, correlation_id=1).sent(BrokerHeartbeatResponse).error is ErrorCode.NONE
    assert [e.name for e in bench.effects if isinstance(e, SetTimer)] == [f"{SESSION_PREFIX}0"], "it is no late one"


# -- the quorum itself -------------------------------------------------------------------------------------------------


def test_a_leader_that_shuts_down_ends_its_epoch_and_a_standby_just_exits() -> None:
    bench = Bench().serve().receive(CLIENT, ShutdownCommand())
    assert [to for to, _ in bench.sends(EndQuorumEpochRequest)] == [NEXT, THIRD]
    assert any(isinstance(effect, Exit) for effect in bench.effects)
    standby = standing_by().receive(CLIENT, ShutdownCommand())
    assert [type(effect) for effect in standby.effects] == [Exit]


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


def test_an_unknown_timer_is_a_broken_invariant() -> None:
    with pytest.raises(ProtocolInvariantError, match="no-such-timer"):
        standing_by().fire("no-such-timer")
