"""Plans in which an operator works while everything fails: what each operation does to the cluster, that it is taken
back, and that each operation has met each fault.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from experiments.check.engine import CheckedEngine
from experiments.check.history import FinalPartition, RecordRange
from experiments.engines.admin_requests import create_topic, delete_topic
from experiments.engines.port import ClusterSpec, Loss
from experiments.faults import recipes
from experiments.faults.controls import Controls
from experiments.faults.inject import Injector
from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.kinds.processes import Crash
from experiments.faults.schema import Fault
from experiments.hunt.fuzz.coverage import MET, missed, missing_faults, pairs
from experiments.hunt.fuzz.run import PlanResult, run_plan
from experiments.hunt.fuzz.swarm import V3_ONE_IN, V3_REMAINDER, draw, is_operated
from experiments.hunt.fuzz.topic_incarnations import TopicIncarnations
from experiments.hunt.mutants.mutant import Script
from experiments.scenarios.model import TopicModel
from protocol.config import ClusterConfig
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.controller import BrokerUnregistered, FeatureLevelChanged, TopicDeleted
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, NO_LEADER, RECOVERY_MANAGER, TopicPartition
from protocol.messages.records import FeatureLevelRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from protocol.metadata.image import MetadataImage
from tests.sim.cluster_helpers import broker_of
from tests.sim.test_fuzz import names, plan_of

PLANS = [seed for seed in range(400) if is_operated(seed)]
OF_V3 = [seed for seed in range(400) if seed % (3 * V3_ONE_IN) == V3_REMAINDER]
TOPIC = TopicModel(name="t", assignments=[[0, 1, 2]], config={"min.insync.replicas": 2})
ALLOWING = {"authorizer.class.name": "standard", "super.users": "User:operator", "allow.everyone.if.no.acl.found": True}


def lasting(kind: str, **fields: Any) -> Fault:
    """A fault of this kind, from 4 s to 7 s."""
    return FAULT_KINDS[kind].model_validate({"at_ms": 4_000, "duration_ms": 3_000, **fields})


class Cluster:
    """Three brokers with topic t on all of them, from 1 s on, and these faults."""

    def __init__(self, *faults: Fault, controllers: int = 1, **config: Any) -> None:
        self.engine = CheckedEngine(ClusterSpec(3, controllers, ClusterConfig.of(Generation.KIP_966, config)))
        self._number = 0
        self.controls = Controls(self.engine, {"t": TOPIC}, self._next)
        for node in self.engine.spec.node_ids:
            self.engine.start(node)
        self.engine.run_for(1_000)
        self.controls.administer(create_topic("t", TOPIC.assignments, TOPIC.config))
        Injector(self.controls).schedule(faults)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def image_at(self, at_ms: int) -> MetadataImage:
        """The active controller's image at that time."""
        self.engine.run_for(at_ms - self.engine.now_ms())
        active = self.engine.active_node()
        assert active is not None
        return active.state.image

    def traces(self, kind: type[Trace]) -> list[Trace]:
        return [event.trace for event in self.engine.traces() if isinstance(event.trace, kind)]


# -- plans -------------------------------------------------------------------------------------------------------------


def test_operated_plans_vary_in_size() -> None:
    plans = [draw(seed) for seed in PLANS]
    assert {plan.brokers for plan in plans} == {3, 4, 5, 6, 7, 9}
    assert {plan.controllers for plan in plans} == {1, 3, 5}
    assert {plan.racks for plan in plans} == {0, 2, 3}
    assert {len(plan.topics) for plan in plans} == {1, 2, 3}
    min_isrs = [[topic.config.get("min.insync.replicas") for topic in plan.topics] for plan in plans]
    assert any(len(set(of_plan)) == 3 for of_plan in min_isrs)
    assert {operation.topic for plan in plans for operation in plan.operations} == {"t", "u", "w"}


def test_one_default_plan_in_48_is_an_operated_one_of_v3() -> None:
    """With the operations that a controller with the store carries out, and every kind of fault of such a cluster."""
    plans = [draw(seed) for seed in OF_V3]
    assert {plan.generation for plan in plans} == {"v3"}
    assert {len(plan.topics) for plan in plans} == {1, 2, 3}
    possible = pairs(with_store=True)
    assert set(possible) == {"reassign", "recreate_topic", "add_partitions", "reassignment_storm"}
    kinds = {fault.kind for plan in (*plans, *(draw(seed, Generation.V3) for seed in PLANS)) for fault in plan.faults}
    assert kinds == {*possible, *possible["reassign"]}


@cache
def results() -> list[PlanResult]:
    """Of the twelve operated plans of the seeds 0 to 99."""
    return [run_plan(draw(seed)) for seed in PLANS if seed < 100]


@pytest.mark.proof
def test_operated_plans_are_clean() -> None:
    assert [result.violation for result in results()] == [None] * 12


@pytest.mark.proof
def test_nine_pairs_of_operation_and_fault_in_ten_meet_in_twelve_plans() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for result in results():
        counts.update(result.coverage.counts)
    possible = sum(len(faults) for faults in pairs().values())
    met = sum(count for _, count, _ in missing_faults(counts))
    assert possible == 140
    assert met >= 126
    assert len(missed(counts).get(MET, ())) == possible - met


@pytest.mark.proof
def test_operated_plans_of_v3_are_clean_and_their_operations_meet_faults() -> None:
    found = [run_plan(draw(seed, Generation.V3)) for seed in PLANS if seed < 100]
    assert [result.violation for result in found] == [None] * 12
    counts = sum((result.coverage.counts for result in found), Counter[tuple[str, str]]())
    met = {operation: count for operation, count, _ in missing_faults(counts)}
    assert all(met[operation] >= 11 for operation in pairs(with_store=True)), met


@pytest.mark.proof
@pytest.mark.parametrize("seed", [31, 71])
def test_an_operated_plan_gives_one_trace(seed: int) -> None:
    """Clocks drift in it, topics are created again and clients crash; without jitter, as with other plans."""
    plan = draw(seed).model_copy(update={"jitter_ms": 0})
    assert {"clock_drift", "client_crash"} <= {fault.kind for fault in plan.faults}
    plain, encoded, full = run_plan(plan), run_plan(plan, paranoid=True), run_plan(plan, elide_idle=False)
    assert plain.trace_hash == encoded.trace_hash == full.trace_hash


# -- operations --------------------------------------------------------------------------------------------------------


def test_a_topic_is_deleted_and_created_again_with_its_assignment() -> None:
    cluster = Cluster(lasting("recreate_topic", topic="t"))
    before = cluster.image_at(3_000).topic_ids["t"]
    assert "t" not in cluster.image_at(6_000).topic_ids
    topic = cluster.image_at(9_000).topic_named("t")
    assert topic is not None
    assert topic.topic_id != before
    assert [state.replicas for state in topic.partitions.values()] == [(0, 1, 2)]


def test_a_topic_is_created_again_although_the_controller_is_away_at_that_time() -> None:
    away = Crash(at_ms=6_900, duration_ms=2_000, node=FIRST_CONTROLLER)
    cluster = Cluster(lasting("recreate_topic", topic="t"), away)
    assert "t" in cluster.image_at(14_000).topic_ids
    assert cluster.controls.cluster_operator.is_settled()


def test_overlapping_deletions_end_with_the_last_one() -> None:
    longer = lasting("recreate_topic", topic="t", duration_ms=5_000)
    cluster = Cluster(lasting("recreate_topic", topic="t"), longer)
    assert "t" not in cluster.image_at(8_500).topic_ids
    assert "t" in cluster.image_at(11_000).topic_ids


def test_partitions_are_added_and_removed() -> None:
    cluster = Cluster(lasting("add_partitions", topic="t", count=2), lasting("add_partitions", topic="t", count=1))
    counts = []
    for at_ms in (3_000, 6_000, 9_000):
        topic = cluster.image_at(at_ms).topic_named("t")
        assert topic is not None
        counts.append(len(topic.partitions))
    assert counts == [1, 4, 1]


def test_features_are_lowered_and_raised_again() -> None:
    levels = {"metadata.version": 1, "unclean.recovery.enabled": 0}
    cluster = Cluster(lasting("feature_levels", levels=levels))
    assert cluster.image_at(6_000).feature_levels == levels
    assert cluster.image_at(9_000).feature_levels == {"metadata.version": 2, "unclean.recovery.enabled": 1}
    assert len(cluster.traces(FeatureLevelChanged)) >= 4


def test_a_cluster_is_configured_for_a_time() -> None:
    cluster = Cluster(lasting("configure_cluster", config={"segment.bytes": 200}))
    found = [cluster.image_at(at_ms).config(None, "segment.bytes") for at_ms in (3_000, 6_000, 9_000)]
    assert found == [1_073_741_824, 200, 1_073_741_824]


def test_a_broker_is_unregistered_and_comes_back() -> None:
    cluster = Cluster(lasting("replace_broker", node=2, new_disk=True))
    assert 2 not in cluster.image_at(6_000).brokers
    assert cluster.image_at(12_000).is_active(2)
    assert len(cluster.traces(BrokerUnregistered)) == 1


def test_a_storm_of_reassignments_moves_and_cancels() -> None:
    storm = lasting("reassignment_storm", topic="t", partition=0, targets=((0, 1), (1, 2), ()), every_ms=30)
    cluster = Cluster(storm)
    cluster.image_at(9_000)
    replicas = [event.trace.replicas for event in cluster.engine.traces() if event.trace.kind == "partition"]
    assert {frozenset(found) for found in replicas} >= {frozenset({0, 1}), frozenset({1, 2})}


@pytest.mark.covers("G32")
@pytest.mark.parametrize("others", [False, True])
def test_the_client_is_denied_to_write_for_a_time(others: bool) -> None:
    """Sends fail while the entry is in force, and none of their records is stored."""
    denied = lasting("deny", operation="write", topic="t", others=others)
    plan = plan_of(denied).model_copy(update={"config": {**plan_of().config, **ALLOWING}})
    result = run_plan(plan)
    assert result.violation is None
    assert names(result, "error")["TOPIC_AUTHORIZATION_FAILED"] > 0
    records = names(result, "records")
    assert records["acks all, failed"] >= 10
    assert records["acks all, acknowledged"] >= 20


def test_a_client_that_crashes_leaves_its_commands_without_an_outcome() -> None:
    """Of the 40 sends, and the one after all faults."""
    cut = lasting("cut", source=(3_000,), target=(0, 1, 2), duration_ms=2_000)
    crash = lasting("client_crash", at_ms=5_000, duration_ms=1)
    with_crash, without = run_plan(plan_of(cut, crash)), run_plan(plan_of(cut))
    assert with_crash.violation is without.violation is None
    assert sum(names(with_crash, "records").values()) < sum(names(without, "records").values()) == 41


def test_a_disk_fails_one_write_and_its_broker_comes_back() -> None:
    result = run_plan(plan_of(lasting("disk_error", node=0)))
    assert result.violation is None
    assert names(result, "transition")["disk fails"] == 1


def test_a_clock_that_drifts_expires_sessions_early() -> None:
    """The controller's clock gains half a second per second: a session of 9 s ends 6 s after the last heartbeat."""
    drift = lasting("clock_drift", node=FIRST_CONTROLLER, drift=500, duration_ms=20_000)
    dead = Crash(at_ms=5_000, duration_ms=9_000, node=2)
    ends = []
    for faults in ((dead,), (drift, dead)):
        cluster = Cluster(*faults)
        cluster.image_at(14_500)
        [ended] = [event.time_ms for event in cluster.engine.traces() if event.trace.kind == "session_expired"] or [0]
        ends.append(ended)
    assert 12_000 < ends[0] <= 14_000
    assert 9_000 < ends[1] < 12_000


@pytest.mark.covers("F12")
@pytest.mark.parametrize("at_ms", [8_100, 8_500])
def test_a_recovery_waits_its_time_by_the_clock_of_the_manager(at_ms: int) -> None:
    """It jumps ahead while a recovery waits for brokers 0 and 1, which ends the wait."""
    down = (recipes.kill(2, 3_300, 8_000), recipes.kill(0, 5_500, 10_200), recipes.kill(1, 5_500, 10_400))
    jump = FAULT_KINDS["clock_drift"].model_validate(
        {"at_ms": at_ms, "duration_ms": 5_000, "node": RECOVERY_MANAGER, "jump_ms": 9_000, "drift": 0}
    )
    plan = Script(faults=(*down, jump), config={"unclean.recovery.strategy": "proactive"}).plan(0)
    result = run_plan(plan)
    assert result.violation is None
    assert names(result, "election")["unclean"] == 1


def test_a_cluster_has_not_converged_while_a_broker_refuses_what_the_metadata_allow_again() -> None:
    """The record that grants access again is lost on its way to broker 0, which leads, until its next fetch."""
    denied = lasting("deny", operation="read", topic="t", others=False)
    lost = recipes.lose_metadata(0, 6_500, 7_020)
    assert run_plan(plan_of(denied, lost, config=ALLOWING, operations=[])).violation is None


@pytest.mark.covers("F29")
def test_the_operator_elects_where_a_change_of_levels_has_left_only_a_last_known_leader() -> None:
    """All replicas restart uncleanly without unclean recovery, and are unfenced when it is enabled again."""
    lowered = lasting("feature_levels", levels={"unclean.recovery.enabled": 0}, duration_ms=5_000)
    lost = lasting("power_loss", rack=(0, 1, 2), at_ms=6_000, duration_ms=2_996)
    cluster = Cluster(lowered, lost, **{"broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 500})
    [(_, waiting)] = cluster.image_at(9_060).partitions()
    assert (waiting.leader, waiting.elr, waiting.last_known_elr, waiting.last_known_leader) == (NO_LEADER, (), (), 0)
    [(_, elected)] = cluster.image_at(12_000).partitions()
    assert elected.leader == 0


def test_levels_count_from_their_commit_whether_or_not_a_controller_is_active() -> None:
    """A controller that resigns reports what it has committed last."""
    cluster = Cluster(controllers=3)
    cluster.image_at(3_000)
    truth = cluster.engine.suite.truth
    for controller in cluster.engine.spec.controller_ids:
        cluster.engine.crash(controller, Loss())
    committed = truth.latest_image()
    assert truth.features.elr
    assert committed is not None
    for name in ("unclean.recovery.enabled", "metadata.version"):
        committed.replay(FeatureLevelRecord(name=name, feature_level=int(name == "metadata.version")))
    cluster.engine.suite.replay(FIRST_CONTROLLER, FeatureLevelChanged("metadata.version", 1))
    assert not truth.features.elr


def test_the_operator_takes_back_what_is_carried_out_after_its_timeout() -> None:
    cluster = Cluster(lasting("recreate_topic", topic="t", duration_ms=500))
    assert "t" in cluster.image_at(6_000).topic_ids
    assert cluster.controls.cluster_operator.is_settled()
    cluster.controls.administer(delete_topic("t"))
    assert "t" not in cluster.image_at(6_100).topic_ids
    assert "t" in cluster.image_at(7_000).topic_ids


def test_the_operator_restores_a_config_whose_controller_was_away_for_longer_than_a_request_lasts() -> None:
    changed = lasting("configure", topic="t", config={"unclean.recovery.strategy": "manual", "min.insync.replicas": 3})
    cluster = Cluster(changed, Crash(at_ms=6_500, duration_ms=40_000, node=FIRST_CONTROLLER, loses="nothing"))
    image = cluster.image_at(6_000)
    topic_id = image.topic_ids["t"]
    assert image.configs[topic_id] == {"unclean.recovery.strategy": "manual", "min.insync.replicas": 3}
    assert cluster.image_at(50_000).configs[topic_id] == {"min.insync.replicas": 2}


# -- incarnations of topics --------------------------------------------------------------------------------------------


def test_a_deletion_that_a_new_controller_reports_again_is_none() -> None:
    """Only the first report ends the incarnation of a topic, so what the present one has committed is not forgotten."""
    deleted = lasting("recreate_topic", topic="t", duration_ms=500)
    cluster = Cluster(deleted)
    incarnations = TopicIncarnations(cluster.engine, ["t"], lambda topic: {1})
    cluster.image_at(7_500)
    truth = cluster.engine.suite.truth
    known = truth.of(TopicPartition("t", 0))
    assert known.identity is not None
    cluster.engine.suite.replay(FIRST_CONTROLLER, TopicDeleted("t"))
    assert truth.deletions["t"] == 1
    assert truth.of(TopicPartition("t", 0)) is known
    assert incarnations.are_settled()


def test_a_removed_partition_ends_no_incarnation_of_its_topic() -> None:
    """A new controller that reports an earlier deletion of the topic afterwards ends none either."""
    deleted = lasting("recreate_topic", topic="t", duration_ms=500)
    grown = lasting("add_partitions", topic="t", count=1, at_ms=8_000, duration_ms=500)
    cluster = Cluster(deleted, grown)
    acknowledged: set[int] = set()
    incarnations = TopicIncarnations(cluster.engine, ["t"], lambda topic: acknowledged)
    cluster.image_at(7_500)
    acknowledged.add(1)
    cluster.image_at(12_000)
    truth = cluster.engine.suite.truth
    assert TopicPartition("t", 1) not in truth.partitions
    assert truth.deletions["t"] == 1
    for observe in cluster.engine.cluster.trace_observers:
        observe(cluster.engine.now_ms(), FIRST_CONTROLLER, TopicDeleted("t"))
    final = FinalPartition(TopicPartition("t", 0), 0, {0: [RecordRange(0, 0, 1, 0, 1)]})
    assert list(incarnations.returned([final])) == []


def test_what_is_committed_to_a_deleted_topic_while_no_controller_runs_is_not_of_the_next_one() -> None:
    """The leader has not read of the deletion and goes on; the next topic of this name begins at offset 0."""
    apart = lasting("cut", source=(0, 1, 2), target=(FIRST_CONTROLLER,), at_ms=5_000, duration_ms=5_000)
    deleted = lasting("recreate_topic", topic="t", at_ms=5_500, duration_ms=2_000)
    down = lasting("crash", node=FIRST_CONTROLLER, at_ms=7_000, duration_ms=2_000, loses="nothing")
    assert run_plan(plan_of(apart, deleted, down)).violation is None


@pytest.mark.parametrize("is_created", [False, True])
def test_what_a_broker_does_before_it_applies_a_deletion_concerns_no_later_topic(is_created: bool) -> None:
    """Broker 0 leads the deleted topic. It has loaded, not applied, a snapshot without it, or with the next one."""
    apart = lasting("cut", source=(0,), target=(FIRST_CONTROLLER,), duration_ms=8_000)
    deleted = lasting("recreate_topic", topic="t", at_ms=4_100, duration_ms=1_000 if is_created else 2_500)
    cluster = Cluster(apart, deleted)
    topic_id = cluster.image_at(6_000).topic_ids.get("t")
    partition, suite = TopicPartition("t", 0), cluster.engine.suite
    image = broker_of(cluster.engine.cluster, 0).context.image
    image.replay(RemoveTopicRecord(topic_id=image.topic_ids["t"]))
    if topic_id is not None:
        image.replay(TopicRecord(name="t", topic_id=topic_id))
        image.replay(PartitionRecord(topic_id=topic_id, partition_id=0, replicas=(0, 1, 2), isr=(0, 1, 2), leader=0))
    assert is_created == (topic_id is not None)
    suite.replay(0, HighWatermarkAdvanced(partition, high_watermark=7, leader_epoch=0))
    cluster.image_at(8_000)
    suite.replay(1, BecameLeader(partition, leader_epoch=1, log_end=0, high_watermark=0))
    assert suite.violations == []


def test_a_record_that_was_acknowledged_before_the_deletion_must_not_return() -> None:
    cluster = Cluster(lasting("recreate_topic", topic="t"))
    incarnations = TopicIncarnations(cluster.engine, ["t"], lambda topic: {5})
    cluster.image_at(12_000)
    partition = TopicPartition("t", 0)

    def final(send: int) -> FinalPartition:
        return FinalPartition(partition, 0, {0: [RecordRange(0, 0, send, 0, 1)]})

    assert list(incarnations.returned([final(6)])) == []
    assert list(incarnations.returned([final(5)])) == [
        "t-0 has records of send 5, which ended before the topic was deleted"
    ]
    assert incarnations.precedes("t", 5_000)
    assert not incarnations.precedes("t", 11_000)
