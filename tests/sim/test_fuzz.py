"""The hunt: runs within tolerance are clean, each fault is done and healed, and what is broken is found, shrunk and
replayed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.check.engine import CheckedEngine
from experiments.faults.controls import grant_loss
from experiments.faults.draw import Rates, timeline
from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.kinds.administration import Reassign
from experiments.faults.kinds.links import Cut, Disturb, HeartbeatLoss, MessageKind
from experiments.faults.kinds.processes import Crash, PowerLoss, loss_of
from experiments.faults.quorum_operator import QuorumOperator
from experiments.faults.schema import Fault
from experiments.faults.targets import Targets
from experiments.hunt.fuzz import run as run_module
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.coverage import FROM_ELR, Coverage, answerable, codes_in, rows
from experiments.hunt.fuzz.plan import Plan, PlanViolation, load
from experiments.hunt.fuzz.release_themes import RELEASE_THEMES
from experiments.hunt.fuzz.run import PlanResult, run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.fuzz.themes import THEMES
from experiments.hunt.seeds import Hunt, hunt, hunt_seed
from protocol.broker.leadership import Leadership
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, TopicPartition
from protocol.messages.data import ProduceResponse
from protocol.messages.partitions import ElectLeadersResponse, PartitionResult
from tests.sim.command_helpers import leave
from tests.sim.scenario_helpers import running_engine
from tests.sim.seed_helpers import some

ROOT = Path(__file__).parents[2]
T0 = TopicPartition("t", 0)
result_of = cache(lambda seed: run_plan(draw(seed)))
TARGETS = Targets(range(3), (FIRST_CONTROLLER,), (3000,), {"t": 1}, 2)


def plan_of(*faults: Fault, generation: str = "kip-966", **changes: Any) -> Plan:
    """Three brokers, a topic on all of them, a send every 200 ms for 8 s, and these faults."""
    operations = [
        {"kind": "send", "at_ms": 3_000 + 200 * number, "id": number, "topic": "t", "partition": 0}
        for number in range(1, 41)
    ]
    base: dict[str, Any] = {
        "seed": 1,
        "brokers": 3,
        "generation": generation,
        "config": {"replica.lag.time.max.ms": 5_000},
        "topics": [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}],
        "operations": operations,
    }
    return Plan.model_validate(base | changes).model_copy(update={"faults": faults})


def violation_of(plan: Plan) -> PlanViolation:
    violation = run_plan(plan).violation
    assert violation is not None
    return violation


def names(result: PlanResult, group: str) -> dict[str, int]:
    return {name: count for found, name, count in rows(result.coverage.counts) if found == group and count}


# -- clean runs --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("L18")
@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(60), first=12))
def test_swarm_runs_within_tolerance_are_clean(seed: int) -> None:
    result = result_of(seed)
    assert result.violation is None
    assert result.story == ()


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES | RELEASE_THEMES)
def test_every_theme_is_clean_alone(theme: str) -> None:
    result = run_plan(draw(5, bias=Bias(themes=(theme,))))
    assert result.violation is None
    assert sum(names(result, "fault").values()) > 0


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_fault_is_done_and_healed(kind: str) -> None:
    rates = Rates(mean_between_ms=1_500, durations_ms=(300, 4_000), weights={kind: 1})
    faults = timeline(rates, TARGETS, Random(3), 3_500, 14_000)
    result = run_plan(plan_of(*faults))
    assert result.violation is None
    assert names(result, "fault") == {kind: len(faults)}
    assert names(result, "records")["acks all, acknowledged"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", some([5, 27], first=1))
def test_a_seed_gives_one_trace(seed: int) -> None:
    assert run_plan(draw(seed)).trace_hash == result_of(seed).trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("seed", some([1, 2, 6], first=1))
def test_the_trace_does_not_depend_on_encoding_or_on_idle_timers(seed: int) -> None:
    """Without jitter: otherwise a message, also an idle heartbeat, may delay the one behind it."""
    plan = draw(seed).model_copy(update={"jitter_ms": 0})
    plain, encoded, full = run_plan(plan), run_plan(plan, paranoid=True), run_plan(plan, elide_idle=False)
    assert plain.trace_hash == encoded.trace_hash == full.trace_hash
    assert plain.events < full.events


_HASH = "from experiments.hunt.seeds import *; print(run_plan(draw(41)).trace_hash)"


@pytest.mark.slow
def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _HASH],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4711")
    }
    assert len(found) == 1


# -- single faults -----------------------------------------------------------------------------------------------------


def test_a_broker_whose_heartbeats_are_lost_is_fenced_and_comes_back() -> None:
    fault = HeartbeatLoss(at_ms=4_000, duration_ms=15_000, node=1)
    assert names(run_plan(plan_of(fault)), "transition")["session expires"] == 1
    shorter = fault.model_copy(update={"duration_ms": 3_000})
    assert "session expires" not in names(run_plan(plan_of(shorter)), "transition")


@pytest.mark.covers("E29")
def test_leaders_come_from_the_elr_where_all_brokers_were_fenced() -> None:
    apart = Cut(at_ms=4_000, duration_ms=20_000, source=(FIRST_CONTROLLER,), target=(0, 1, 2))
    elected = names(run_plan(plan_of(apart)), "election")
    assert elected[FROM_ELR] >= 1
    assert "unclean" not in elected
    assert FROM_ELR not in names(run_plan(plan_of(apart, generation="kip-497")), "election")


def test_a_cluster_has_not_converged_while_a_broker_registers_its_next_incarnation() -> None:
    """The metadata have broker 3 in service to the end of its session, in the middle of the service."""
    moved = Reassign(at_ms=5_000, duration_ms=1_000, topic="t", partition=0, replicas=(1, 2, 0))
    restarted = Crash(at_ms=12_000, duration_ms=1_000, node=3, loses="nothing")
    plan = plan_of(
        moved,
        restarted,
        brokers=4,
        config={"broker.session.timeout.ms": 3_000},
        topics=[{"name": "t", "assignments": [[1, 2, 3]], "config": {"min.insync.replicas": 2}}],
    )
    assert run_plan(plan).violation is None


def test_a_removed_replica_that_stays_in_the_elr_is_no_obstacle_to_convergence() -> None:
    """Kafka's first phase moves it there where fewer replicas than min ISR are left."""
    smaller = Reassign(at_ms=5_000, duration_ms=1_000, topic="t", partition=0, replicas=(0, 1))
    topics = [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 3}}]
    for generation in ("kip-966-elr", "kip-966"):
        assert run_plan(plan_of(smaller, generation=generation, topics=topics, operations=[])).violation is None


@pytest.mark.covers("E8")
def test_the_service_writes_where_a_reassignment_has_left_enough_replicas() -> None:
    """Two of them with min ISR 3 accept no write before KIP-966, and count as the whole ISR since."""
    smaller = Reassign(at_ms=5_000, duration_ms=1_000, topic="t", partition=0, replicas=(0, 1))
    topics = [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 3}}]
    for generation, written in (("kip-497", 0), ("kip-966", 1)):
        result = run_plan(plan_of(smaller, generation=generation, topics=topics, operations=[]))
        assert result.violation is None
        assert names(result, "records").get("acks all, acknowledged", 0) == written


def test_a_cancelled_reassignment_that_leaves_no_complete_replica_ends_the_promise() -> None:
    """Broker 3, which the reassignment adds, alone has a committed record; the topic is recovered proactively."""
    moved = Reassign(at_ms=14_201, duration_ms=5_799, topic="t", partition=0, replicas=(3, 1))
    ends = [(1, 13_639, 9_361), (3, 17_147, 2_990), (4, 14_839, 3_130), (2, 14_839, 8_161)]
    crashes = [Crash(at_ms=at_ms, duration_ms=lasts, node=node, loses="nothing") for node, at_ms, lasts in ends]
    config = {"min.insync.replicas": 1, "unclean.recovery.strategy": "proactive"}
    plan = plan_of(
        *crashes,
        moved,
        brokers=5,
        config={"broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 500},
        topics=[{"name": "t", "assignments": [[4, 2]], "config": config}],
        operations=[{"kind": "send", "at_ms": 16_961, "id": 1, "topic": "t", "partition": 0, "acks": 0}],
    )
    result = run_plan(plan)
    assert result.violation is None
    assert names(result, "tolerance")["partitions beyond it"] == 1


def test_power_loss_takes_no_more_than_a_partition_tolerates() -> None:
    everyone = PowerLoss(at_ms=6_000, duration_ms=2_000, rack=(0, 1, 2, FIRST_CONTROLLER))
    result = run_plan(plan_of(everyone))
    assert result.violation is None
    # Min ISR is 2, so one broker may lose what it has not flushed; the other two keep it.
    assert names(result, "tolerance")["losses withheld"] == 2
    before_elr = run_plan(plan_of(everyone, generation="kip-497"))
    assert names(before_elr, "tolerance")["losses withheld"] == 3


def test_a_loss_is_granted_where_the_disk_holds_no_records() -> None:
    engine = running_engine(2_000, plan_of(generation="kip-497").spec())
    truth, operator = engine.suite.truth, QuorumOperator(engine, lambda request: 0)
    unflushed, replaced = loss_of("unflushed"), loss_of("all")
    assert grant_loss(unflushed, 0, truth, operator) == unflushed
    assert grant_loss(replaced, 0, truth, operator) == replaced
    assert grant_loss(replaced, FIRST_CONTROLLER, truth, operator) == loss_of("nothing")


def test_what_a_deposed_leader_commits_with_its_isr_may_be_deleted() -> None:
    """No member of its ISR knows of the next leader: what all of them hold is committed."""
    sends = [
        {"kind": "send", "at_ms": at_ms, "id": number, "topic": "t", "partition": 0, "records": 20}
        for number, at_ms in enumerate((22_848, 23_022, 23_611), 1)
    ]
    apart = Cut(at_ms=16_003, duration_ms=12_000, source=(0, 1), target=(FIRST_CONTROLLER,))
    config = {"min.insync.replicas": 2, "segment.bytes": 1_000, "retention.bytes": 2_000}
    result = run_plan(
        plan_of(
            apart,
            generation="kip-966-elr",
            operations=sends,
            topics=[{"name": "t", "assignments": [[0, 1]], "config": config}],
            jitter_ms=0,
            config={
                "batch.size": 200,
                "linger.ms": 0,
                "enable.idempotence": False,
                "replica.fetch.wait.max.ms": 100,
                "log.retention.check.interval.ms": 2_000,
            },
        )
    )
    assert result.violation is None
    assert names(result, "transition")["retention deletes"] > 0


def test_a_record_that_failed_may_be_stored_where_sends_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends are refused for want of replicas until their time is over. Then there are enough, and copies arrive."""
    plan = plan_of(
        Crash(at_ms=3_100, duration_ms=5_200, node=1),
        Disturb(
            at_ms=7_000,
            duration_ms=1_000,
            source=(FIRST_CLIENT,),
            target=(0, 1),
            effect="duplicate",
            delay_ms=8_000,
            only="produce",
        ),
        operations=[
            {"kind": "send", "at_ms": 7_000 + 50 * number, "id": number, "topic": "t", "partition": 0}
            for number in range(1, 11)
        ],
        topics=[{"name": "t", "assignments": [[0, 1]], "config": {"min.insync.replicas": 2}}],
        config={"replica.lag.time.max.ms": 1_000, "delivery.timeout.ms": 1_000, "request.timeout.ms": 500},
    )
    result = run_plan(plan)
    assert result.violation is None
    assert names(result, "records")["acks all, failed"] == 10
    monkeypatch.setattr(Plan, "duplicates_sends", False)
    assert violation_of(plan).invariant == "History.FailedRecordStored"


def test_a_leader_may_end_recovering_and_a_reassignment_at_once() -> None:
    """Taken back moves end with the leader's proposal, which clears RECOVERING too: the leader epoch rises with it."""
    move = {"topic": "t", "partition": 0}
    result = run_plan(
        plan_of(
            Crash(at_ms=16_699, duration_ms=35_000, node=1),
            Crash(at_ms=20_775, duration_ms=32_225, node=2, loses="all"),
            Reassign(at_ms=40_237, duration_ms=1_000, replicas=(1, 0), **move),
            Reassign(at_ms=40_636, duration_ms=12_364, replicas=(1, 2), **move),
            operations=[],
            topics=[{"name": "t", "assignments": [[2, 1]], "config": {"min.insync.replicas": 1}}],
        )
    )
    assert result.violation is None
    assert names(result, "transition")["leader recovers"] == 1


def test_without_tolerance_disks_lose_what_the_fault_asks_for() -> None:
    everyone = PowerLoss(at_ms=6_000, duration_ms=2_000, rack=(0, 1, 2))
    result = run_plan(plan_of(everyone, within_tolerance=False))
    assert result.violation is None
    assert names(result, "tolerance") == {"partitions beyond it": 1}


def test_a_power_loss_also_hits_nodes_whose_process_has_ended() -> None:
    """Before ELR a partition leaves tolerance with the first loss."""
    before_elr: dict[str, Any] = {"generation": "kip-497", "within_tolerance": False}
    ended = Crash(at_ms=6_000, duration_ms=6_000, node=2)
    kept = run_plan(plan_of(ended, **before_elr))
    assert names(kept, "tolerance") == {"partitions within it": 1}
    lost = run_plan(plan_of(ended, PowerLoss(at_ms=8_000, duration_ms=500, rack=(2,)), **before_elr))
    assert lost.violation is None
    assert names(lost, "tolerance") == {"partitions beyond it": 1}


@pytest.mark.parametrize(
    ("only", "reached"), [("heartbeats", {"session expires"}), ("fetches", {"ISR shrinks"}), ("produce", set())]
)
def test_a_disturbance_may_concern_one_kind_of_message(only: MessageKind, reached: set[str]) -> None:
    lost = {"effect": "lose", "only": only, "source": (1,), "target": (0, 2, FIRST_CONTROLLER), "at_ms": 4_000}
    result = run_plan(plan_of(Disturb.model_validate(lost | {"duration_ms": 15_000})))
    assert result.violation is None
    found, quiet = names(result, "transition"), names(run_plan(plan_of()), "transition")
    assert reached <= set(found)
    assert bool(reached) == (found.get("ISR shrinks", 0) > quiet.get("ISR shrinks", 0))


# -- what is wrong is found --------------------------------------------------------------------------------------------


def test_a_fault_that_is_never_healed_violates_convergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crash, "heal", lambda self, controls, number: None)
    result = run_plan(plan_of(Crash(at_ms=4_000, duration_ms=500, node=1)))
    assert result.violation is not None
    assert result.violation.invariant == run_module.WHOLE
    assert "broker 1 is not in service" in result.violation.detail
    assert any("fault 0 begins for 500 ms: broker-1 crashes" in line for line in result.story)


def test_a_command_without_outcome_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CheckedEngine.outcome
    monkeypatch.setattr(CheckedEngine, "outcome", lambda self, number: None if number == 7 else whole(self, number))
    violation = violation_of(plan_of())
    assert violation.invariant == run_module.ANSWERED
    assert "[7]" in violation.detail


def test_a_lost_record_in_the_history_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CheckedEngine.log
    monkeypatch.setattr(CheckedEngine, "log", lambda self, broker, partition: whole(self, broker, partition)[:-1])
    assert violation_of(plan_of()).invariant == "History.LostRecord"


def test_an_exception_in_a_node_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Leadership) -> tuple[int, ...]:
        raise KeyError("broken")

    monkeypatch.setattr(Leadership, "maximal_isr", property(fail))
    violation = violation_of(plan_of())
    assert violation.invariant == "KeyError"
    assert "broken" in violation.detail


@pytest.fixture
def without_maximal_isr(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Leaders count with the ISR that is recorded, not with the one that they have proposed."""
    monkeypatch.setattr(Leadership, "maximal_isr", property(lambda self: self.isr))
    return monkeypatch


@pytest.mark.slow
def test_a_broken_guard_is_found_shrunk_and_replayed(
    without_maximal_isr: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = hunt(Hunt(range(2), Generation.KIP_966), tmp_path)
    assert result.violations
    _, file, path = result.violations[0]
    assert file.violation is not None
    assert file.violation.invariant == "ReplicationQuorumSuperset"
    assert file.after.faults + file.after.operations <= 3 < file.before.faults + file.before.operations
    assert file.story[-1].startswith("-- violated: ReplicationQuorumSuperset")
    assert load(path) == file
    assert leave(without_maximal_isr, "replay", str(path), "--story") == 0
    assert "the same trace" in capsys.readouterr().out
    without_maximal_isr.undo()
    assert leave(without_maximal_isr, "replay", str(path), "--json") == 1
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["same"], replayed["violation"]) == (False, None)
    assert replayed["trace_hash"] != replayed["saved_trace_hash"] == file.trace_hash


@pytest.mark.slow
def test_a_guard_is_switched_off_by_name_and_the_file_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = hunt(Hunt(range(1), Generation.KIP_966, mutant="maximal-isr-not-used"), tmp_path)
    ((_, file, path),) = found.violations
    assert file.mutant == "maximal-isr-not-used"
    assert leave(monkeypatch, "replay", str(path)) == 0
    assert "the same trace" in capsys.readouterr().out
    assert hunt_seed(0, Generation.KIP_966).file is None


# -- coverage ----------------------------------------------------------------------------------------------------------


def test_errors_are_counted_in_answers_and_in_their_parts() -> None:
    coverage = Coverage()
    part = PartitionResult(topic="t", partition_index=0, error=ErrorCode.ELECTION_NOT_NEEDED)
    coverage.message(1000, 3000, ElectLeadersResponse(correlation_id=1, partitions=(part, part)))
    coverage.message(0, 3000, ProduceResponse(correlation_id=1, error=ErrorCode.NOT_ENOUGH_REPLICAS))
    coverage.message(0, 3000, ProduceResponse(correlation_id=2))
    assert coverage.counts == {("error", "ELECTION_NOT_NEEDED"): 2, ("error", "NOT_ENOUGH_REPLICAS"): 1}


def test_codes_that_are_only_compared_with_do_not_count_as_reachable() -> None:
    source = """
LATER = frozenset({ErrorCode.INVALID_REQUEST})
def answer(error):
    if error is ErrorCode.INELIGIBLE_REPLICA or error in (ErrorCode.NOT_CONTROLLER,):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
"""
    assert codes_in(source) == {"NOT_LEADER_OR_FOLLOWER"}


def test_reachable_error_codes_are_read_from_the_source() -> None:
    found = answerable()
    assert {"FENCED_LEADER_EPOCH", "INELIGIBLE_REPLICA", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"} <= set(found)
    assert "FEATURE_UPDATE_FAILED" not in found
    assert "NONE" not in found


@pytest.mark.slow
def test_a_violation_leaves_with_one(
    without_maximal_isr: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = next(seed for seed in range(20) if run_plan(draw(seed, Generation.KIP_966)).violation)
    arguments = ["--seeds", str(seed), "--generation", "kip-966", "--out", str(tmp_path), "--json"]
    assert leave(without_maximal_isr, "fuzz", *arguments) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert set(violation) == {"seed", "invariant", "step", "detail", "file"}
    assert Path(violation["file"]).is_file()
