"""A checker that never fires proves nothing: each invariant fires on a state that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from experiments.check.client_history import ranges_of
from experiments.check.engine import CheckedEngine
from experiments.check.final_logs import final_logs
from experiments.check.invariants import INVARIANTS
from experiments.engines.admin_requests import alter_config, create_topic
from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimLog
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.clients import ScenarioClients
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner
from protocol.broker.context import Replica
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.broker import BecameLeader, RecordsAppended
from protocol.events.registry import KINDS, decode, detail_names
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, TopicIdPartition, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import AdminCommand
from protocol.messages.records import ConfigRecord, RemoveTopicRecord
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from protocol.nodes.controller_log import partition_changed
from tests.sim.cluster_helpers import broker_of, controller_of, replica_of
from tests.sim.partition_helpers import image_of
from tests.sim.scenario_helpers import ClusterSpec, running_engine, spec_of

PARTITION = TopicPartition("t", 0)
QUIET = {
    "name": "quiet",
    "cluster": {"brokers": 3, "generation": "kip-966"},
    "topics": [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}],
    "steps": [{"produce": {"topic": "t", "records": 7}}, {"wait": "10s"}],
}


PRUNED_TOPIC = {"segment.bytes": 120, "retention.bytes": 120}
"""Of the records in t-0, with two in a segment, only the last three or four are kept."""


@pytest.fixture(params=[False, True], ids=["whole", "pruned"])
def engine(request: pytest.FixtureRequest) -> CheckedEngine:
    """A healthy cluster with seven committed records in t-0, led by broker 0; of a pruned one retention has deleted
    the first ones on all replicas.
    """
    text: dict[str, Any] = deepcopy(QUIET)
    if request.param:
        text["cluster"]["config"] = {"log.retention.check.interval.ms": 1_000}
        text["topics"][0]["config"] |= PRUNED_TOPIC
    scenario = scenario_from(text, "inline")
    spec: ClusterSpec = spec_of(scenario, 0)
    engine = CheckedEngine(spec)
    assert Runner(scenario, engine).run().passed
    assert {bool(_log(engine, broker).start_offset) for broker in range(3)} == {request.param}
    return engine


def _log(engine: CheckedEngine, broker: int) -> SimLog:
    replica = replica_of(engine.cluster, broker)
    assert isinstance(replica.log.storage, SimLog)
    return replica.log.storage


def _set_state(image: MetadataImage, **changes: object) -> None:
    topic = image.topic_named("t")
    assert topic is not None
    topic.partitions[0] = replace(topic.partitions[0], **changes)


def _forge(log: SimLog) -> None:
    """Replaces the last record by another one."""
    last = log.read(log.end_offset - 1, 1)[0]
    log.truncate(last.base_offset)
    log.append(replace(last, payload=b"forged"))


def _second_leader(engine: CheckedEngine) -> None:
    for observer in engine.cluster.trace_observers:
        observer(engine.now_ms(), 1, BecameLeader(PARTITION, leader_epoch=0, log_end=7, high_watermark=7))


def _all_logs_lose_a_record(engine: CheckedEngine) -> None:
    for broker in range(3):
        _log(engine, broker).truncate(6)


def _follower_differs(engine: CheckedEngine) -> None:
    _forge(_log(engine, 2))
    engine.crash(2, Loss())
    engine.start(2)
    engine.run_for(20_000)


def _next_leader_differs(engine: CheckedEngine) -> None:
    _forge(_log(engine, 1))
    engine.crash(0, Loss())
    engine.run_for(20_000)


def _high_watermark_regresses(engine: CheckedEngine) -> None:
    for observer in engine.cluster.trace_observers:
        observer(engine.now_ms(), 0, BecameLeader(PARTITION, leader_epoch=0, log_end=6, high_watermark=6))


def _leader_drops_a_member(engine: CheckedEngine) -> None:
    replica = replica_of(engine.cluster, 0)
    assert replica.leadership is not None
    replica.leadership.isr = (0, 1)


def _commits(engine: CheckedEngine, **changes: object) -> None:
    """The controller commits a state of the partition that differs by this."""
    _set_state(image_of(engine), **changes)
    state = engine.suite.truth.controller_state(PARTITION)
    assert state is not None
    for observer in engine.cluster.trace_observers:
        observer(engine.now_ms(), FIRST_CONTROLLER, partition_changed(PARTITION, state, min_isr=2))


def _fenced_isr_member(engine: CheckedEngine) -> None:
    registrations = image_of(engine).brokers
    registrations[1] = replace(registrations[1], fenced=True)


def _unclean_leader_is_not_recovering(engine: CheckedEngine) -> None:
    _commits(engine, leader=-1, isr=(), last_known_elr=(0, 1, 2), leader_epoch=1, partition_epoch=1)
    _commits(engine, leader=2, isr=(2,), last_known_elr=(0, 1), leader_epoch=2, partition_epoch=2)


def _move_ends_below_min_isr(engine: CheckedEngine) -> None:
    _commits(engine, adding_replicas=(2,), partition_epoch=1)
    _commits(engine, adding_replicas=(), isr=(0,), elr=(1,), partition_epoch=2)


def _move_waits_for_nothing(engine: CheckedEngine) -> None:
    """Broker 2 is withdrawn, and all others are in sync."""
    _commits(engine, adding_replicas=(2,), partition_epoch=1)
    _commits(engine, isr=(0, 1), removing_replicas=(2,), partition_epoch=2)


def _runs_under_a_future_epoch(engine: CheckedEngine) -> None:
    broker_of(engine.cluster, 1).context.broker_epoch = 1_000_000


def _replica(engine: CheckedEngine, broker: int) -> Replica:
    replica = replica_of(engine.cluster, broker)
    return replica


def _high_watermark_beyond_the_end(engine: CheckedEngine) -> None:
    _replica(engine, 2).log.high_watermark = 8


def _follower_does_not_fetch(engine: CheckedEngine) -> None:
    _replica(engine, 2).fetch_state = None


def _report_recovery(engine: CheckedEngine, kind: str, **changed: object) -> None:
    """The controller reports a balanced recovery that differs from a correct one by these fields."""
    image = image_of(engine)
    answers = tuple((broker, image.broker_epoch(broker), 0, 7) for broker in range(3))
    detail: dict[str, object] = {"recovery_id": 1, "mode": "balanced", "leader_epoch": 1, "leader": 1}
    detail |= {"asked": (0, 1, 2), "required": (1, 2), "answers": answers, "silent": (), "reason": "", "absent": ()}
    fields = {name: (detail | changed)[name] for name in detail_names(KINDS[kind])}
    trace = decode(kind, PARTITION, fields)
    for observer in engine.cluster.trace_observers:
        observer(engine.now_ms(), FIRST_CONTROLLER, trace)


def _report_outcome(engine: CheckedEngine, known: tuple[int, ...] = (1, 2), **changed: object) -> None:
    """ISR and ELR are empty, the last known ELR is `known`, and all replicas are active; the controller is about to
    record the outcome of a recovery.
    """
    _commits(engine, isr=(), elr=(), last_known_elr=known, leader=-1, leader_epoch=1, partition_epoch=1)
    _report_recovery(engine, "recovery", **changed)


def _response_of_another_incarnation(engine: CheckedEngine) -> None:
    image = image_of(engine)
    first = ((0, image.broker_epoch(0), 0, 7), (1, 0, 0, 7), (2, image.broker_epoch(2), 0, 7))
    _report_outcome(engine, answers=first)


def _response_with_a_wrong_log_end(engine: CheckedEngine) -> None:
    image = image_of(engine)
    _report_outcome(engine, answers=tuple((broker, image.broker_epoch(broker), 0, 6) for broker in range(3)))


def _leader_with_a_shorter_log(engine: CheckedEngine) -> None:
    image = image_of(engine)
    _report_outcome(
        engine, answers=tuple((broker, image.broker_epoch(broker), broker, 7 - broker) for broker in range(3))
    )


def _required_response_is_missing(engine: CheckedEngine) -> None:
    image = image_of(engine)
    _report_outcome(engine, answers=tuple((broker, image.broker_epoch(broker), 0, 7) for broker in (0, 1)))


def _only_an_adding_replica_responds(engine: CheckedEngine) -> None:
    _commits(engine, adding_replicas=(2,), partition_epoch=1)
    first = (2, image_of(engine).broker_epoch(2), 0, 7)
    _report_outcome(engine, mode="proactive", required=(), leader=2, answers=(first,), known=(0, 1))


def _follower_joins_while_recovering(engine: CheckedEngine) -> None:
    _commits(engine, leader_recovery_state=LeaderRecoveryState.RECOVERING, partition_epoch=1)


def _recovering_leader_has_followers_in_its_isr(engine: CheckedEngine) -> None:
    replica = _replica(engine, 0)
    assert replica.leadership is not None
    replica.leadership.recovery_state = LeaderRecoveryState.RECOVERING


def _recovery_begins_twice(engine: CheckedEngine) -> None:
    for _ in range(2):
        _report_recovery(engine, "recovery_began")


def _second_copy(engine: CheckedEngine, **changes: int) -> None:
    log = _log(engine, 0)
    copy = log.read(log.end_offset - 1, 1)[0]
    assert copy.base_sequence >= 0
    log.append(replace(copy, base_offset=log.end_offset, **changes))


def _keeps_a_log_of_a_deleted_topic(engine: CheckedEngine) -> None:
    engine.cluster.disks[1].open_log("t.0/0")
    engine.submit(AdminCommand(command_id=99, request=alter_config("t", {"flush.ms": 1_000})))
    engine.run_for(1_000)


def _appends_without_a_right(engine: CheckedEngine) -> None:
    defaults = ClusterConfig.of(Generation.KIP_966, {"authorizer.class.name": "standard"})
    broker_of(engine.cluster, 0).context.image.defaults = defaults
    for observer in engine.cluster.trace_observers:
        observer(engine.now_ms(), 0, RecordsAppended(PARTITION, log_end=7, leader_epoch=0, acks=-1))


def _counts_too_much(engine: CheckedEngine) -> None:
    leadership = _replica(engine, 0).leadership
    assert leadership is not None
    leadership.followers[2].end_offset = 8


def _has_more_requests_than_were_sent(engine: CheckedEngine) -> None:
    broker_of(engine.cluster, 0).fetch_sessions._session((2, 0)).requests += 1


def _counts_a_partition_with_a_leader_as_offline(engine: CheckedEngine) -> None:
    node = controller_of(engine.cluster)
    key = TopicIdPartition(node.state.image.topic_ids["t"], 0)
    counted = node.gauges()["kafka.controller.offline_partitions_count"]
    assert isinstance(counted, set)
    counted.add(key)


def _counts_an_election_that_was_none(engine: CheckedEngine) -> None:
    controller_of(engine.cluster)._log.metrics._unclean_elections += 1


def _an_active_replica_is_not_queried(engine: CheckedEngine) -> None:
    _report_recovery(engine, "recovery_began")
    answers = tuple((broker, image_of(engine).broker_epoch(broker), 0, 7) for broker in (0, 1))
    _report_outcome(engine, answers=answers, silent=())


BROKEN: dict[str, Callable[[CheckedEngine], None]] = {
    "OneLeaderPerEpoch": _second_leader,
    "LeaderCompleteness": lambda engine: _log(engine, 0).truncate(6),
    "LeaderCandidateCompleteness": lambda engine: _log(engine, 2).truncate(6),
    "NoCommittedRecordLostGlobally": _all_logs_lose_a_record,
    "LogMatching": _follower_differs,
    "ConsistentRead": _next_leader_differs,
    "HighWatermarkMonotone": _high_watermark_regresses,
    "ReplicationQuorumSuperset": _leader_drops_a_member,
    "MinIsrRecoveryQuorum": lambda engine: _set_state(image_of(engine), isr=(), elr=(), last_known_elr=(1,), leader=-1),
    "ValidControllerIsrAndElr": lambda engine: _set_state(image_of(engine), elr=(1,)),
    "MetadataLogMatching": lambda engine: _set_state(broker_of(engine.cluster, 1).context.image, leader_epoch=7),
    "ValidControllerState": _fenced_isr_member,
    "EpochsRise": lambda engine: _commits(engine, isr=(0, 1)),
    "RecoveryStateKept": _unclean_leader_is_not_recovering,
    "RecoveringIsrIsOne": _follower_joins_while_recovering,
    "RecoveringLeaderIsAlone": _recovering_leader_has_followers_in_its_isr,
    "ReassignmentKeepsMinIsr": _move_ends_below_min_isr,
    "ReassignmentsEnd": _move_waits_for_nothing,
    "LastKnownElrIsAssigned": lambda engine: _set_state(
        image_of(engine), isr=(), elr=(1,), last_known_elr=(7,), leader=-1
    ),
    "RecoveryElectsRespondent": _response_of_another_incarnation,
    "RecoveryResponsesAreCurrent": _response_with_a_wrong_log_end,
    "RecoveryElectsLongestLog": _leader_with_a_shorter_log,
    "RecoveryHasRequiredResponses": _required_response_is_missing,
    "RecoveryHearsHolder": _only_an_adding_replica_responds,
    "RecoveryOnlyWithoutCleanCandidate": lambda engine: _report_recovery(engine, "recovery"),
    "RecoveryIdsAreUnique": _recovery_begins_twice,
    "RecoveryLeavesNothingReachable": _an_active_replica_is_not_queried,
    "ValidBrokerState": _runs_under_a_future_epoch,
    "ValidReplicaState": _high_watermark_beyond_the_end,
    "ValidFetcherState": _follower_does_not_fetch,
    "OneCopyPerSequence": _second_copy,
    "ProducerEpochsRise": lambda engine: _second_copy(engine, producer_epoch=-1),
    "OnlyAssignedLogs": _keeps_a_log_of_a_deleted_topic,
    "WritesAreAuthorized": _appends_without_a_right,
    "LeadersCountWhatFollowersHold": _counts_too_much,
    "FetchSessionsAgree": _has_more_requests_than_were_sent,
    "GaugesMatchTheirDefinitions": _counts_a_partition_with_a_leader_as_offline,
    "CountersMatchTheirDefinitions": _counts_an_election_that_was_none,
}


def test_every_invariant_has_a_case_that_violates_it() -> None:
    assert set(BROKEN) == {invariant.__name__ for invariant in INVARIANTS}


def test_a_healthy_cluster_violates_no_invariant(engine: CheckedEngine) -> None:
    engine.suite.check_everything()
    assert engine.violations() == []


@pytest.mark.covers("F11", "F12")
def test_a_recovery_that_does_not_wait_is_a_violation(engine: CheckedEngine) -> None:
    _report_recovery(engine, "recovery_began")
    _report_outcome(engine, silent=(0,))
    assert "RecoveryHasRequiredResponses" in {violation.invariant for violation in engine.violations()}


@pytest.mark.covers("F12")
@pytest.mark.parametrize(("mode", "is_wrong"), [("proactive", True), ("balanced", False)])
def test_a_proactive_recovery_that_does_not_wait_for_a_fenced_replica_is_a_violation(
    mode: str, is_wrong: bool, engine: CheckedEngine
) -> None:
    answers = tuple((broker, image_of(engine).broker_epoch(broker), 0, 7) for broker in (1, 2))
    registrations = image_of(engine).brokers
    registrations[0] = replace(registrations[0], fenced=True)
    _commits(engine, isr=(), elr=(), last_known_elr=(1, 2), leader=-1, leader_epoch=1, partition_epoch=1)
    _report_recovery(engine, "recovery_began", mode=mode)
    _report_outcome(engine, mode=mode, answers=answers)
    wrong = [found.detail for found in engine.violations() if found.invariant == "RecoveryHasRequiredResponses"]
    assert [detail.endswith("[0] are not waited for") for detail in wrong] == [True] * is_wrong


@pytest.mark.covers("F12")
@pytest.mark.parametrize(("returns_after_ms", "lacks", "is_wrong"), [(0, 1, True), (0, 0, False), (6_000, 1, False)])
def test_a_recovery_that_is_decided_before_a_fuller_replica_is_back_in_time_is_a_violation(
    returns_after_ms: int, lacks: int, is_wrong: bool, engine: CheckedEngine
) -> None:
    """Broker 0 is fenced; broker 1, whose disk lacks the last record or nothing, is elected at once."""
    answers = tuple((broker, image_of(engine).broker_epoch(broker), 0, 7 - lacks) for broker in (1, 2))
    registrations = image_of(engine).brokers
    registered = registrations[0]
    registrations[0] = replace(registered, fenced=True)
    _commits(engine, isr=(), elr=(), last_known_elr=(0, 1), leader=-1, leader_epoch=1, partition_epoch=1)
    _report_recovery(engine, "recovery_began", mode="proactive")
    if lacks:
        _log(engine, 1).truncate(6)
    _report_outcome(engine, mode="proactive", answers=answers)
    engine.cluster.now_ms += returns_after_ms
    registrations[0] = registered
    engine.suite.check_everything()
    wrong = [found.detail for found in engine.violations() if found.invariant == "RecoveryLeavesNothingReachable"]
    assert wrong == ["t-0: broker 0 is back in time with records at [6], which leader 1 lacks"] * is_wrong


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_the_invariant_fires(name: str, engine: CheckedEngine) -> None:
    BROKEN[name](engine)
    engine.suite.check_everything()
    assert name in {violation.invariant for violation in engine.violations()}


def test_a_leader_counts_no_members_by_a_min_isr_that_it_does_not_know_yet(engine: CheckedEngine) -> None:
    """The controller has lowered min ISR to 2; the leader, whose maximal ISR lacks a member, still has 3."""
    _leader_drops_a_member(engine)
    image = broker_of(engine.cluster, 0).context.image
    image.replay(ConfigRecord(topic_id=image.topic_ids["t"], name="min.insync.replicas", value="3"))
    engine.suite.check_everything()
    assert "ReplicationQuorumSuperset" not in {violation.invariant for violation in engine.violations()}


def test_a_log_is_not_missed_by_metadata_that_the_broker_has_not_applied_yet(engine: CheckedEngine) -> None:
    """A broker that lags replays its metadata before it applies them to its replicas."""
    image = broker_of(engine.cluster, 1).context.image
    topic_id = image.topic_ids["t"]
    image.replay(RemoveTopicRecord(topic_id=topic_id))
    engine.suite.check_everything()
    assert "OnlyAssignedLogs" not in {violation.invariant for violation in engine.violations()}
    image.take_delta()
    engine.suite.check_everything()
    assert "OnlyAssignedLogs" in {violation.invariant for violation in engine.violations()}


@pytest.mark.parametrize(("broker", "name"), [(0, "LeaderCompleteness"), (2, "LeaderCandidateCompleteness")])
def test_a_log_must_not_begin_after_the_committed_end(broker: int, name: str, engine: CheckedEngine) -> None:
    _log(engine, broker).reset(8)
    engine.suite.check_everything()
    assert name in {violation.invariant for violation in engine.violations()}


def test_logs_emptied_by_retention_violate_no_invariant(engine: CheckedEngine) -> None:
    for broker in range(3):
        log = _log(engine, broker)
        log.roll()
        log.delete_segments_before(log.end_offset)
        assert log.start_offset == log.end_offset == 7
    engine.suite.check_everything()
    engine.crash(2, Loss())
    engine.start(2)
    engine.run_for(20_000)
    engine.suite.check_everything()
    engine.crash(1, Loss("all"))
    engine.suite.check_everything()
    assert engine.violations() == []
    assert engine.suite.truth.of(PARTITION).lossy == set(), "there was nothing to lose"


def test_a_replica_emptied_by_retention_does_not_differ(engine: CheckedEngine) -> None:
    log = _log(engine, 2)
    log.roll()
    log.delete_segments_before(log.end_offset)
    [final] = final_logs(engine, ranges_of)
    assert (final.start, final.replicas) == (7, {0: [], 1: [], 2: []})


def test_losses_without_a_running_controller_count(engine: CheckedEngine) -> None:
    engine.crash(FIRST_CONTROLLER, Loss())
    truth = engine.suite.truth.of(PARTITION)
    engine.crash(1, Loss("all"))
    assert (truth.lossy, truth.tolerant) == ({1}, True)
    engine.crash(2, Loss("all"))
    assert (truth.lossy, truth.tolerant) == ({1, 2}, False)


@pytest.mark.covers("E14", "M7")
@pytest.mark.parametrize(("generation", "elr"), [(Generation.KIP_966_ELR, (0,)), (Generation.KIP_966, ())])
def test_a_stale_elr_after_a_lower_min_isr_promises_nothing(generation: Generation, elr: tuple[int, ...]) -> None:
    """Both replicas are fenced, min ISR is lowered to 1, and the one that returns first leads alone."""
    engine = running_engine(2_000, ClusterSpec(3, 1, ClusterConfig.of(generation), 0), NetworkModel(1, 0))
    engine.submit(AdminCommand(command_id=1, request=create_topic("t", ((0, 1),), {"min.insync.replicas": 2})))
    engine.run_for(1_000)
    for broker in (0, 1):
        engine.set_link(broker, FIRST_CONTROLLER, False)
        engine.run_for(20_000)
    engine.submit(AdminCommand(command_id=2, request=alter_config("t", {"min.insync.replicas": 1})))
    engine.run_for(1_000)
    engine.set_link(1, FIRST_CONTROLLER, True)
    engine.run_for(20_000)
    state = engine.suite.truth.controller_state(PARTITION)
    assert state is not None
    assert (state.leader, state.elr) == (1, elr)
    assert engine.suite.truth.of(PARTITION).tolerant is (not elr)


def test_deleted_records_are_not_lost(engine: CheckedEngine) -> None:
    history = ScenarioClients(engine, _next_id=100)
    for offset in range(9):
        outcome = history.produce(PARTITION, "all", ErrorCode.NONE)
        assert outcome.base_offset == 7 + offset
        engine.run_for(2_000)
    log = _log(engine, 0)
    deleted = max(0, log.start_offset - 7)
    assert history.losses(PARTITION).words() == (f"0, deleted by retention: {deleted}" if deleted else "0")
    log.truncate(log.end_offset - 1)
    assert history.losses(PARTITION).lost_acked == 1
    log.roll()
    log.delete_segments_before(log.end_offset)
    assert history.losses(PARTITION).words() == "1, deleted by retention: 8", "all before the end of an empty log"


def test_records_are_values() -> None:
    """What the corruptions above rely on: batches and states are replaced, never changed in place."""
    batch = RecordBatch(record_count=1, payload=b"x")
    with pytest.raises(FrozenInstanceError):
        batch.payload = b"y"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        PartitionState((0,), (0,)).leader = 1  # type: ignore[misc]
