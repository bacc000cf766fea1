"""Random runs of generation `v3`: within its tolerance nothing is violated, and what a seed gives never changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import create_topic, elect_leader
from experiments.engines.port import ClusterSpec, Loss
from experiments.hunt.fuzz import coverage
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from protocol.config import ISR_UPDATES, ClusterConfig
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced, LogTruncated
from protocol.events.store import CommandCarriedOut, ControllerElected, StoreChanged, StoreSessionEnded
from protocol.features import Generation
from protocol.ids import STORE, NodeId, TopicPartition
from protocol.messages.commands import AdminCommand
from protocol.messages.control import AlterPartitionRequest
from protocol.messages.partitions import ElectionType
from protocol.messages.store import SetData, StoreWrite
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.node import StoreNode
from protocol.v3.store.records import LeaderAndIsr
from tests.sim.cluster_helpers import replica_of
from tests.sim.v3_cluster_helpers import KEEP, V3Bench

pytestmark = pytest.mark.slow


result_of = cache(lambda seed: run_plan(draw(seed, Generation.V3)))


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_is_clean(seed: int) -> None:
    result = result_of(seed)
    assert result.violation is None, result.violation


@pytest.mark.parametrize("seed", [0, 3])
def test_a_seed_gives_one_trace_with_idle_timers_and_with_encoded_messages(seed: int) -> None:
    plan = draw(seed, Generation.V3)
    expected = result_of(seed).trace_hash
    assert run_plan(plan).trace_hash == expected
    assert run_plan(plan, elide_idle=False).trace_hash == expected
    assert run_plan(plan, paranoid=True).trace_hash == expected


@pytest.mark.covers("K12")
def test_plans_have_a_store_no_controllers_and_either_writer_of_isrs() -> None:
    plans = [draw(seed, Generation.V3) for seed in range(40)]
    assert {plan.config[ISR_UPDATES] for plan in plans} == {"leader", "controller"}
    assert all(plan.spec().controller_ids == () and plan.spec().store_ids == (STORE,) for plan in plans)
    assert {fault.kind for plan in plans for fault in plan.faults} >= {"expire", "crash", "pause", "cut", "disturb"}


@pytest.mark.covers("A46")
def test_a_leader_uses_an_isr_whose_write_was_answered_after_the_proposal_was_repeated() -> None:
    """The store is away while a follower leaves: the leader repeats its proposal, and the first one is written."""
    bench = V3Bench(config={"replica.lag.time.max.ms": 1_000, "request.timeout.ms": 1_000})
    silent = next(broker for broker in range(3) if broker not in (bench.state.leader, bench.controller))
    bench.run_for(1_000)
    bench.cluster.crash(STORE, Loss("none"))
    bench.cluster.crash(silent, KEEP)
    bench.run_for(4_000)
    bench.cluster.start(STORE)
    bench.run_for(1_000)
    leader = bench.replica(bench.state.leader).leadership
    assert leader is not None
    assert silent not in bench.state.isr
    assert (leader.proposed_isr, leader.partition_epoch) == (None, bench.state.partition_epoch)
    bench.cluster.start(silent)
    bench.run_for(20_000)
    assert sorted(bench.state.isr) == [0, 1, 2]


@pytest.mark.parametrize("seed", [53, 178, 648])
def test_a_seed_with_logs_that_diverge_is_clean_within_tolerance(seed: int) -> None:
    """Logs that diverge at equal offsets (M42) have batches with different ends; a leader that has not heard of its new
    epoch counts a follower that has truncated since.
    """
    result = result_of(seed)
    assert result.violation is None, result.violation


T0 = TopicPartition("t", 0)
FEW_SEEDS = 24


def published(version: int = 0, **changes: object) -> tuple[NodeId, Trace]:
    """The store reports a state of t-0."""
    state = LeaderAndIsr(leader=0, leader_epoch=0, isr=(0, 1), controller=0, controller_epoch=0)
    data = state.model_copy(update=changes).encode().decode()
    return STORE, StoreChanged("/brokers/topics/t/0/leaderAndISR", version, data)


def carried_out(controller: int, epoch: int) -> tuple[NodeId, Trace]:
    return 1, CommandCarriedOut("LeaderAndIsrRequest", controller, epoch, False, (), "NONE")


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("VersionsGrow", [published(), published(2)]),
        ("OneControllerPerEpoch", [(0, ControllerElected(0)), (1, ControllerElected(0))]),
        ("DecisionsAreFenced", [published(controller_epoch=3)]),
        ("LeaderEpochsRise", [published(), published(1, leader_epoch=2)]),
        ("LeaderEpochsRise", [published(), published(1, leader=1)]),
        ("ElectionAddsNoMember", [published(), published(1, leader_epoch=1, isr=(0, 1, 2))]),
        ("LeaderInIsr", [published(isr=(1, 2))]),
        ("CommandsInOrder", [(0, ControllerElected(0)), carried_out(1, 0)]),
        ("OneLeaderPerEpoch", [published(), (1, BecameLeader(T0, 0, 0, 0))]),
        (
            "LeaderCompleteness",
            [
                published(),
                (0, HighWatermarkAdvanced(T0, 10, leader_epoch=0)),
                published(1, leader=1, leader_epoch=1, isr=(1,)),
                (1, BecameLeader(T0, 1, log_end=9, high_watermark=9)),
            ],
        ),
    ],
)
def test_a_rule_fires_on_events_that_break_it(rule: str, events: list[tuple[NodeId, Trace]]) -> None:
    engine = CheckedEngine(draw(0, Generation.V3).spec())
    for node, trace in events:
        observe(engine, node, trace)
    assert rule in {found.invariant for found in engine.suite.violations}


def observe(engine: CheckedEngine, node: NodeId, trace: Trace) -> None:
    for observer in engine.cluster.trace_observers:
        observer(engine.now_ms(), node, trace)


@pytest.mark.parametrize(
    "allowed",
    [
        [(1, LogTruncated(T0, to_offset=8, log_end=12, high_watermark=8))],
        [published(1, isr=(0, 1, 2))],
    ],
    ids=["truncated to its high watermark", "admitted below what was committed"],
)
def test_a_leader_that_lacks_what_v3_does_not_promise_ends_tolerance(allowed: list[tuple[NodeId, Trace]]) -> None:
    """M42, N5: the same election as the one that LeaderCompleteness forbids, of a replica that V3 lets be short."""
    engine = CheckedEngine(draw(0, Generation.V3).spec())
    elected = 2 if isinstance(allowed[0][1], StoreChanged) else 1
    state = {"leader": elected, "leader_epoch": 1, "isr": (elected,)}
    events = [published(), (0, HighWatermarkAdvanced(T0, 10, leader_epoch=0)), *allowed]
    events += [published(2, **state), (elected, BecameLeader(T0, 1, log_end=9, high_watermark=9))]
    for node, trace in events:
        observe(engine, node, trace)
    assert "LeaderCompleteness" not in {found.invariant for found in engine.suite.violations}
    assert not engine.suite.truth.of(T0).tolerant


@pytest.fixture
def running() -> CheckedEngine:
    """A cluster of `v3` whose first plan has been carried out until its topic exists."""
    engine = CheckedEngine(ClusterSpec(3, 0, ClusterConfig.of(Generation.V3)))
    for node in engine.spec.node_ids:
        engine.start(node)
    engine.run_for(3_000)
    engine.submit(AdminCommand(command_id=1, request=create_topic("t", [(0, 1, 2)], {})))
    engine.run_for(3_000)
    assert not engine.suite.violations
    return engine


@pytest.mark.covers("A5")
def test_an_ephemeral_node_without_a_session_is_noticed(running: CheckedEngine) -> None:
    store = running.cluster.nodes[STORE]
    assert isinstance(store, StoreNode)
    session = next(found for found in store.state.sessions.values() if found.owner == 1)
    del store.state.sessions[session.session_id]
    observe(running, STORE, StoreSessionEnded(session.session_id, 1, expired=True, ephemerals=()))
    assert [found.invariant for found in running.suite.violations] == ["EphemeralsHaveSessions"]


@pytest.mark.covers("A25")
def test_a_broker_that_goes_back_to_an_older_state_is_noticed(running: CheckedEngine) -> None:
    node = running.cluster.nodes[1]
    assert isinstance(node, V3BrokerNode)
    running.suite.check_everything()
    topic = node.context.image.topic_named("t")
    assert topic is not None
    topic.partitions[0] = replace(topic.partitions[0], partition_epoch=-1)
    running.suite.check_everything()
    assert [found.invariant for found in running.suite.violations] == ["BrokerStatesRise"]


@pytest.mark.covers("A46", "A48")
def test_a_deposed_leader_with_an_isr_of_its_own_is_noticed(running: CheckedEngine) -> None:
    state = running.store_view().partitions[T0]
    replica = replica_of(running.cluster, state.leader)
    assert replica.leadership is not None
    successor = next(broker for broker in range(3) if broker != state.leader)
    observe(running, *published(state.partition_epoch + 1, leader=successor, leader_epoch=1, controller_epoch=1))
    running.suite.check_everything()
    assert not running.suite.violations
    replica.leadership.isr = (state.leader,)
    running.suite.check_everything()
    assert [found.invariant for found in running.suite.violations] == ["LeaderUsesStoredIsr"]


def test_a_leader_of_a_removed_partition_is_not_compared_with_one_that_was_added_again(running: CheckedEngine) -> None:
    """The versions of the later one begin at 0 again, and its leader epochs are higher."""
    state = running.store_view().partitions[T0]
    observe(running, STORE, StoreChanged("/brokers/topics/t/0/leaderAndISR", -1, ""))
    observe(running, *published(0, leader=state.leader, leader_epoch=state.leader_epoch + 1, controller_epoch=1))
    running.suite.check_everything()
    assert not running.suite.violations
    replica = replica_of(running.cluster, state.leader)
    assert replica.leadership is not None
    replica.leadership.leader_epoch += 1
    replica.leadership.isr = (state.leader,)
    running.suite.check_everything()
    assert "LeaderUsesStoredIsr" in {found.invariant for found in running.suite.violations}


@pytest.mark.covers("K12", "K13", "B2")
def test_a_bump_changes_who_writes_the_isrs_of_a_broker_from_its_next_start_on() -> None:
    """The controller accepts ISRs that leaders write and those that they ask for, while the cluster is mixed."""
    controller = V3Bench().controller
    bumped, follower = (broker for broker in range(3) if broker != controller)
    replicas = ((bumped, controller, follower), (controller, bumped, follower))
    bench = V3Bench(replicas=replicas, config={"replica.lag.time.max.ms": 2_000})
    assert bench.controller == controller
    asked: set[NodeId] = set()
    written: set[NodeId] = set()

    def note(source: NodeId, target: NodeId, message: object) -> None:
        if isinstance(message, AlterPartitionRequest):
            asked.add(source)
        elif isinstance(message, StoreWrite) and any(isinstance(part, SetData) for part in message.operations):
            written.add(source)

    bench.cluster.on_message = note
    bench.cluster.configure(bumped, {ISR_UPDATES: "controller"})
    leave_and_join(bench, follower)
    assert (asked, written) == (set(), {bumped, controller})
    bench.cluster.crash(bumped, KEEP)
    bench.run_for(10_000)
    bench.cluster.start(bumped)
    bench.run_for(10_000)
    bench.administer(elect_leader("t", 0, ElectionType.PREFERRED))
    bench.run_for(2_000)
    assert bench.state.leader == bumped
    asked.clear()
    written.clear()
    leave_and_join(bench, follower)
    assert (asked, written) == ({bumped}, {controller})


def leave_and_join(bench: V3Bench, follower: int) -> None:
    """The follower leaves both ISRs and joins them again."""
    for up in (False, True):
        for leader in range(3):
            if leader != follower:
                bench.cut(follower, leader, up=up)
        bench.run_for(6_000)
        assert {follower in bench.state_of(partition).isr for partition in range(2)} == {up}


REACHED = {
    "decision": {"first leader", "leader from the ISR", "leader outside the ISR (unclean)", "ISR without dead members"},
    "ISR": {"shrinks", "grows", "unclean flag is cleared", "written by the leader", "written by the controller"},
    "controller": {"first election", "failover", "race is lost", "deposed"},
    "command": {"LeaderAndIsr", "LeaderAndIsr with INIT", "StopReplica", "refused"},
    "reassignment": {"requested", "begins", "completes", "leader moves"},
    "conflict": {"of a leader's ISR", "of a decision"},
    "watch": {"/controller", "/brokers/ids", "/brokers/topics", "/admin/partitions_reassigned"},
    "store": {"session begins", "session is closed", "session expires", "watches are set again"},
    "fault": {"bump", "crash", "cut", "disturb", "expire", "pause", "reassign", "restart"},
    "error": {"STALE_CONTROLLER_EPOCH", "FENCED_LEADER_EPOCH", "NOT_ENOUGH_REPLICAS", "NOT_CONTROLLER"},
}
"""What the first seeds reach, by group of the coverage table."""


def test_a_few_seeds_reach_the_decisions_faults_and_conflicts_of_v3() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(FEW_SEEDS):
        counts += result_of(seed).coverage.counts
    missing = {group: names - {name for found, name in counts if found == group} for group, names in REACHED.items()}
    assert not any(missing.values()), missing
    document = coverage.document(counts)
    reached = document["reached"]
    assert isinstance(reached, dict)
    assert set(coverage.KNOWN_IN_V3) <= set(reached)
    assert set(reached).isdisjoint({"election"}), "groups of the other generations are not there"
    assert reached["plans"] == {"v3": FEW_SEEDS}
