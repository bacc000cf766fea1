"""The judge of recordings (`isray check`): it finds nothing where no violation, and fires on each thing that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from experiments.check import recording
from experiments.check.check_recording import ALL_SHOWN, HISTORY_FINDING, CheckResult, check
from experiments.check.engine import CheckedEngine
from experiments.check.history import Ended, FinalPartition, Operation
from experiments.check.invariants import INVARIANTS
from experiments.check.recording import HISTORY, MANIFEST, METADATA, TRACE, Header, Recording, RecordingWriter
from experiments.cli.main import run as run_command
from experiments.engines.port import ClusterSpec, TraceEvent, incarnation_ended
from experiments.hunt.fuzz.run import SERVED, run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.mutant import switched_off
from experiments.hunt.mutants.registry import all_mutants
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, run_recorded
from experiments.support.errors import InputError
from protocol.events.broker import BrokerStateChanged, RecordsAppended
from protocol.events.registry import decode, detail_of
from protocol.ids import FIRST_CONTROLLER, TopicPartition
from protocol.messages.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from tests.sim.scenario_helpers import SCENARIOS, shipped, spec_of
from tests.sim.seed_helpers import some

T0 = TopicPartition("t", 0)
FAILOVER = {
    "name": "failover",
    "cluster": {"brokers": 3, "generation": "kip-966"},
    "topics": [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}],
    "steps": [
        {"produce": {"topic": "t", "records": 5}},
        {"crash": {"broker": 0, "lose": "none"}},
        {"await": {"topic": "t", "leader": 1, "isr": [1, 2]}},
        {"produce": {"topic": "t", "records": 3}},
        {"start": {"broker": 0}},
        {"await": {"topic": "t", "isr": [0, 1, 2]}},
        {"produce": {"topic": "t", "records": 2}},
        {"expect": {"topic": "t", "visible": 10}},
    ],
}


@dataclass
class Tape:
    """The parts of a recording, to be doctored."""

    spec: ClusterSpec
    events: list[TraceEvent]
    records: list[MetadataRecord]
    operations: list[Operation]
    finals: list[FinalPartition]
    topic_id: str = field(init=False)

    def __post_init__(self) -> None:
        [self.topic_id] = [record.topic_id for record in self.records if isinstance(record, PartitionRecord)]

    def written(self, folder: Path, *, nothing_may_be_lost: bool = False) -> Path:
        writer = RecordingWriter(folder)
        for event in self.events:
            writer.event(event)
        for operation in self.operations:
            writer.operation(operation)
        records, finals = self.records, self.finals
        writer.metadata(records)
        writer.finish(Header.of("doctored", "sim", self.spec, nothing_may_be_lost=nothing_may_be_lost), finals)
        return folder

    def append(self, node: int, kind: str, partition: TopicPartition | None = T0, **detail: object) -> None:
        """Appends an event."""
        self.events.append(TraceEvent(self.events[-1].time_ms, node, decode(kind, partition, detail)))

    def change(self, node: int, kind: str, **detail: object) -> None:
        """Replaces fields of the last event of that kind and node."""
        index = max(at for at, it in enumerate(self.events) if (it.node, it.trace.kind) == (node, kind))
        event = self.events[index]
        trace = decode(kind, event.trace.about(), detail_of(event.trace) | detail)
        self.events[index] = TraceEvent(event.time_ms, node, trace)

    def commit(self, **fields: Any) -> None:
        """The controller commits one more change of the partition."""
        begin = len(self.records)
        self.records.append(PartitionChangeRecord(topic_id=self.topic_id, partition_id=0, **fields))
        self.append(FIRST_CONTROLLER, "committed", None, base_offset=begin, end_offset=begin + 1)


Damage = Callable[[Tape], None]


def appends(node: int, kind: str, partition: TopicPartition | None = T0, **detail: object) -> Damage:
    return lambda tape: tape.append(node, kind, partition, **detail)


def changes(node: int, kind: str, **detail: object) -> Damage:
    return lambda tape: tape.change(node, kind, **detail)


def commits(**fields: object) -> Damage:
    return lambda tape: tape.commit(**fields)


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    """A cluster of three, min ISR 2, whose first leader has crashed and come back; ten records acknowledged."""
    scenario = scenario_from(FAILOVER, "inline")
    spec = spec_of(scenario, 0)
    assert run_recorded(Runner(scenario, CheckedEngine(spec)), tmp_path / "whole").passed
    recording = Recording(tmp_path / "whole")
    finals = [
        replace(final, replicas={broker: list(runs) for broker, runs in final.replicas.items()})
        for final in recording.finals()
    ]
    return Tape(spec, list(recording.events()), list(recording.records), list(recording.operations()), finals)


def names(checked: CheckResult) -> set[str]:
    return {violation.invariant for violation in checked.violations}


def test_nothing_is_found_where_nothing_is_wrong_and_everything_is_looked_at(tape: Tape, tmp_path: Path) -> None:
    checked = check(Recording(tape.written(tmp_path / "again")))
    assert (checked.violations, checked.unjudged) == ([], [])
    assert checked.within_tolerance == {"t-0": True}
    assert set(checked.looked_at) == set(ALL_SHOWN)
    assert all(checked.looked_at.values())
    assert (checked.operations, checked.metadata_records) == (21, len(tape.records))


# -- each invariant fires ----------------------------------------------------------------------------------------------


def _replays_what_is_not_there(tape: Tape) -> None:
    tape.append(2, "metadata_published", None, broker=2, next_offset=len(tape.records) + 1)


def _runs_too_early(tape: Tape) -> None:
    begun = next(at for at, it in enumerate(tape.events) if (it.node, it.trace.kind) == (1, "life_began"))
    tape.events.insert(begun + 1, TraceEvent(0, 1, BrokerStateChanged(1, "running")))


def _takes_records_below_min_isr(tape: Tape) -> None:
    tape.change(1, "isr_committed", isr=(1,))
    tape.append(1, "appended", leader_epoch=1, log_end=11, acks=-1)


def _shows_records_below_min_isr(tape: Tape) -> None:
    tape.change(1, "isr_committed", isr=(1,))
    tape.append(1, "high_watermark", leader_epoch=1, high_watermark=10)


def _acknowledged_before_it_was_shown(tape: Tape) -> None:
    last = tape.operations.index(next(it for it in tape.operations[::-1] if isinstance(it, Ended)))
    tape.events = [it for it in tape.events if getattr(it.trace, "high_watermark", None) != 10]
    [final] = tape.finals
    tape.finals = [replace(final, settled=9)]
    assert isinstance(tape.operations[last], Ended)


def _a_record_is_lost(tape: Tape) -> None:
    [final] = tape.finals
    tape.finals = [replace(final, replicas={broker: list(runs)[:-1] for broker, runs in final.replicas.items()})]


def _replicas_differ(tape: Tape) -> None:
    [final] = tape.finals
    tape.finals = [replace(final, replicas={**final.replicas, 2: list(final.replicas[2])[1:]})]


def _a_fenced_broker_leads(tape: Tape) -> None:
    fenced = next(at for at, it in enumerate(tape.records) if getattr(it, "fenced", None) is True and at > 8)
    del tape.records[fenced + 1 :]
    tape.commit(leader=0, isr=(0, 1, 2))


def _an_epoch_comes_again(tape: Tape) -> None:
    first = next(record for record in tape.records if isinstance(record, PartitionRecord))
    tape.records.append(first)


def _elected_from_nowhere(tape: Tape) -> None:
    tape.commit(isr=(0, 1))
    tape.commit(isr=(2, 0), leader=2)


def _moved_below_min_isr(tape: Tape) -> None:
    tape.commit(adding_replicas=(2,))
    tape.commit(adding_replicas=(), isr=(1,))


FIRES: Sequence[tuple[str, str, Damage]] = (
    ("OneLeaderPerEpoch", "second_leader", appends(2, "became_leader", leader_epoch=1, log_end=10, high_watermark=10)),
    ("OneLeaderPerEpoch", "appends_in_an_epoch_of_another", appends(0, "appended", leader_epoch=1, log_end=11, acks=1)),
    ("MetadataLogMatching", "replays_what_is_not_there", _replays_what_is_not_there),
    ("MetadataLogMatching", "replays_backwards", appends(2, "metadata_published", None, broker=2, next_offset=3)),
    ("MetadataLogMatching", "controller_reports_another_state", changes(FIRST_CONTROLLER, "partition", isr=(1, 2))),
    ("EpochsRise", "controller_reports_an_epoch_again", changes(FIRST_CONTROLLER, "partition", partition_epoch=0)),
    ("MetadataLogMatching", "follows_another", changes(2, "became_follower", leader=0)),
    ("MetadataLogMatching", "adopts_another_isr", changes(1, "isr_committed", isr=(0, 1))),
    ("ValidBrokerState", "runs_too_early", _runs_too_early),
    ("ValidReplicaState", "mark_beyond_the_log", changes(1, "high_watermark", high_watermark=99)),
    ("ValidReplicaState", "log_shrinks_by_fetching", appends(2, "fetched", log_end=9, leader_epoch=1)),
    ("ValidReplicaState", "cuts_the_missing", appends(2, "truncated", to_offset=12, log_end=10, high_watermark=10)),
    ("ValidReplicaState", "goes_back_an_epoch", appends(2, "fetched", log_end=11, leader_epoch=0)),
    ("HighWatermarkMonotone", "mark_falls", appends(1, "high_watermark", high_watermark=7, leader_epoch=1)),
    ("LeaderCompleteness", "leader_lacks_what_was_shown", changes(1, "became_leader", log_end=4, high_watermark=4)),
    ("MinIsrRespected", "takes_records_below_min_isr", _takes_records_below_min_isr),
    ("MinIsrRespected", "shows_records_below_min_isr", _shows_records_below_min_isr),
    ("AcknowledgedIsCommitted", "acknowledged_before_it_was_shown", _acknowledged_before_it_was_shown),
    ("History.LostRecord", "a_record_is_lost", _a_record_is_lost),
    ("History.ReplicasDiffer", "replicas_differ", _replicas_differ),
    ("ValidControllerIsrAndElr", "member_of_isr_and_elr", commits(eligible_leader_replicas=(2,))),
    ("ValidControllerState", "a_fenced_broker_leads", _a_fenced_broker_leads),
    ("EpochsRise", "an_epoch_comes_again", _an_epoch_comes_again),
    ("RecoveryStateKept", "elected_from_nowhere", _elected_from_nowhere),
    (
        "UncleanElectionIsLastResort",
        "elected_uncleanly",
        commits(isr=(2,), leader=2, leader_recovery_state=1),
    ),
    ("RecoveringIsrIsOne", "grows_while_recovering", commits(isr=(1, 2), leader_recovery_state=1)),
    ("ReassignmentKeepsMinIsr", "moved_below_min_isr", _moved_below_min_isr),
    (
        "ReassignmentsEnd",
        "waits_for_what_it_withdrew",
        commits(adding_replicas=(2,), removing_replicas=(2,), isr=(0, 1)),
    ),
    ("LastKnownElrIsAssigned", "removed_leader", commits(isr=(), leader=-1, last_known_elr=(7,))),
    ("MinIsrRecoveryQuorum", "nobody_to_recover_from", commits(isr=(), leader=-1, last_known_elr=(1,))),
)


@pytest.mark.parametrize(("invariant", "what", "doctor"), FIRES, ids=lambda it: it if isinstance(it, str) else "")
def test_an_invariant_fires(tape: Tape, tmp_path: Path, invariant: str, what: str, doctor: Damage) -> None:
    doctor(tape)
    checked = check(Recording(tape.written(tmp_path / "doctored")))
    assert invariant in names(checked), checked.violations
    assert all("\n" not in violation.detail for violation in checked.violations)


def test_every_invariant_that_is_shown_has_been_made_to_fire() -> None:
    fired = {invariant.partition(".")[0] for invariant, _, _ in FIRES}
    assert fired == set(ALL_SHOWN)
    assert fired.isdisjoint({kind.__name__ for kind in INVARIANTS} - {*ALL_SHOWN})


# -- tolerance ---------------------------------------------------------------------------------------------------------


def test_beyond_tolerance_a_loss_is_no_violation(tape: Tape, tmp_path: Path) -> None:
    _a_record_is_lost(tape)
    for broker in (0, 1):
        tape.events.append(incarnation_ended(tape.events[-1].time_ms, broker, "unflushed", None))
    checked = check(Recording(tape.written(tmp_path / "doctored")))
    assert checked.within_tolerance == {"t-0": False}
    assert names(checked) == set()


def test_a_run_that_can_lose_nothing_is_held_to_that_beyond_tolerance_too(tape: Tape, tmp_path: Path) -> None:
    _a_record_is_lost(tape)
    for broker in (0, 1):
        tape.events.append(incarnation_ended(tape.events[-1].time_ms, broker, "unflushed", None))
    checked = check(Recording(tape.written(tmp_path / "doctored", nothing_may_be_lost=True)))
    assert checked.within_tolerance == {"t-0": False}
    assert "History.LostRecord" in names(checked)


def test_one_broker_at_a_time_may_lose_what_it_has(tape: Tape, tmp_path: Path) -> None:
    """The crash of broker 0 took its disk; it was in the ISR again before broker 2 lost something."""
    crash = next(at for at, it in enumerate(tape.events) if it.trace.kind == "life_ended")
    tape.events[crash] = incarnation_ended(tape.events[crash].time_ms, 0, "all", {T0: 5})
    tape.events.append(incarnation_ended(tape.events[-1].time_ms, 2, "unflushed", None))
    assert check(Recording(tape.written(tmp_path / "one"))).within_tolerance == {"t-0": True}
    tape.events.append(incarnation_ended(tape.events[-1].time_ms, 0, "unflushed", {T0: 1}))
    assert check(Recording(tape.written(tmp_path / "two"))).within_tolerance == {"t-0": False}


def test_metadata_that_came_after_the_last_word_of_a_broker_is_no_ground_for_a_finding(
    tape: Tape, tmp_path: Path
) -> None:
    """min ISR falls to 1; a broker that has replayed this, and has not reported it yet, may append records."""
    scenario = scenario_from(
        FAILOVER | {"steps": [*FAILOVER["steps"], {"configure": {"topic": "t", "config": {"min.insync.replicas": 1}}}]},  # type: ignore[misc]
        "inline",
    )
    run_recorded(Runner(scenario, CheckedEngine(tape.spec)), tmp_path / "lowered")
    recording = Recording(tmp_path / "lowered")
    tape.events, tape.records = list(recording.events()), list(recording.records)
    reported = max(at for at, it in enumerate(tape.events) if (it.node, it.trace.kind) == (1, "metadata_published"))
    took = RecordsAppended(T0, leader_epoch=1, log_end=11, acks=-1)
    tape.events.insert(reported, TraceEvent(0, 1, took))
    tape.change(1, "isr_committed", isr=(1,))
    moved = [it for it in tape.events if (it.node, it.trace.kind) == (1, "isr_committed")]
    tape.events.remove(moved[-1])
    tape.events.insert(reported - 1, moved[-1])
    assert "MinIsrRespected" not in names(check(Recording(tape.written(tmp_path / "doctored"))))


# -- simulations as recordings -----------------------------------------------------------------------------------------


VIOLATING = [path for path in SCENARIOS if shipped(path.stem).violates]
"""Shipped scenarios that violate invariants, under a rule of Kafka's code."""


@pytest.mark.slow
def test_a_change_that_a_killed_controller_never_reported_may_be_reported_late(tape: Tape, tmp_path: Path) -> None:
    reported = [it for it in tape.events if it.node == FIRST_CONTROLLER and it.trace.kind in ("committed", "partition")]
    changed = [it for it in reported if it.trace.kind == "partition"]
    assert len(changed) > 2
    tape.events.remove(changed[-2])
    tape.events += [replace(it, time_ms=tape.events[-1].time_ms) for it in reported]
    assert check(Recording(tape.written(tmp_path / "late"))).violations == []


@pytest.mark.parametrize("path", VIOLATING, ids=lambda path: path.stem)
def test_a_recording_of_a_rule_of_kafka_shows_the_violations_that_the_scenario_declares(
    path: Path, tmp_path: Path
) -> None:
    scenario = shipped(path.stem)
    assert run_recorded(Runner(scenario, CheckedEngine(spec_of(scenario, 0))), tmp_path / "recording").passed
    assert names(check(Recording(tmp_path / "recording"))) == set(scenario.violates)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in SCENARIOS if path not in VIOLATING], ids=lambda path: path.stem)
def test_a_shipped_scenario_is_found_clean(path: Path, tmp_path: Path) -> None:
    scenario = shipped(path.stem)
    engine = CheckedEngine(spec_of(scenario, 0))
    assert run_recorded(Runner(scenario, engine), tmp_path / "recording").passed
    checked = check(Recording(tmp_path / "recording"))
    assert (checked.violations, checked.unjudged) == ([], [])
    kept = {str(name): truth.tolerant for name, truth in engine.suite.truth.partitions.items()}
    assert checked.within_tolerance == kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(100, 108), first=4))
def test_a_recording_is_judged_as_the_run_was(seed: int, tmp_path: Path) -> None:
    plan = draw(seed)
    result = run_plan(plan, tmp_path / "recording")
    assert result.trace_hash == run_plan(plan).trace_hash
    checked = check(Recording(tmp_path / "recording"))
    assert (result.violation, checked.violations) == (None, [])
    assert bool(checked.unjudged) is any(fault.kind == "recreate_topic" for fault in plan.faults)
    assert checked.looked_at[HISTORY_FINDING] == len(list(Recording(tmp_path / "recording").operations()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        "fenced-broker-stays-in-isr",
        "fenced-replica-elected",
        "leader-epoch-not-raised",
        "partition-epoch-not-raised",
        "elected-outside-isr-and-elr",
    ],
)
def test_a_recording_shows_what_the_run_has_shown(mutant: str, tmp_path: Path) -> None:
    """The first seed that breaks an invariant without the guard; that commands succeed is no matter of recordings."""
    for seed in range(40):
        with switched_off(all_mutants()[mutant]):
            violation = run_plan(draw(seed), tmp_path / str(seed)).violation
        if violation is not None and violation.invariant != SERVED:
            break
    assert violation is not None
    assert violation.invariant in names(check(Recording(tmp_path / str(seed))))


def test_a_recording_shows_a_high_watermark_that_moves_below_min_isr(tmp_path: Path) -> None:
    with switched_off(all_mutants()["high-watermark-below-min-isr"]):
        run_plan(draw(4), tmp_path / "recording")
    assert "MinIsrRespected" in names(check(Recording(tmp_path / "recording")))


# -- wrong input -------------------------------------------------------------------------------------------------------


def _unfinished(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def _torn(folder: Path) -> None:
    (folder / TRACE).write_bytes((folder / TRACE).read_bytes()[:-7])


def _gone(folder: Path) -> None:
    (folder / "logs" / "t-0.broker-1").unlink()


def _no_json(folder: Path) -> None:
    (folder / MANIFEST).write_text("{", encoding="utf-8")


def _edited(**fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        (folder / MANIFEST).write_text(json.dumps(document | fields), encoding="utf-8")

    return edit


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_unfinished, f"{MANIFEST}: found No such file"),
        (_torn, f"{TRACE}: found a damaged file"),
        (_gone, "t-0.broker-1: found no file"),
        (_no_json, f"{MANIFEST}: found no JSON"),
        (_edited(version=2), f"{MANIFEST}: version: found 2"),
        (_edited(generation="kip-1"), f"{MANIFEST}: config: found 'kip-1'"),
        (_edited(digests={}), f"{MANIFEST}: digests: found"),
        (_edited(colour="red"), f"{MANIFEST}: colour"),
    ],
    ids=["unfinished", "torn", "gone", "no JSON", "version", "generation", "digests", "unknown field"],
)
def test_an_incomplete_recording_is_wrong_input(
    tape: Tape, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    folder = tape.written(tmp_path / "damaged")
    damage(folder)
    with pytest.raises(InputError) as raised:
        check(Recording(folder))
    assert said in str(raised.value)


def test_files_that_contradict_each_other_are_wrong_input(tape: Tape, tmp_path: Path) -> None:
    whole = list(tape.operations)
    tape.operations = [*whole, Ended(999, 0, 1, "failed")]
    with pytest.raises(InputError, match=f"{HISTORY}: found send 999 ended and was not invoked"):
        check(Recording(tape.written(tmp_path / "history")))
    tape.operations = whole
    tape.records.insert(0, tape.records[-1])
    with pytest.raises(InputError, match=METADATA):
        check(Recording(tape.written(tmp_path / "metadata")))


def test_a_folder_is_not_written_over(tape: Tape, tmp_path: Path) -> None:
    tape.written(tmp_path / "once")
    with pytest.raises(InputError):
        RecordingWriter(tmp_path / "once")


@pytest.mark.parametrize(("damage", "code"), [(None, 0), (_a_record_is_lost, 1)], ids=["whole", "lost"])
def test_the_exit_code_of_check_is_its_verdict(
    tape: Tape,
    tmp_path: Path,
    damage: Damage | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if damage is not None:
        damage(tape)
    folder = tape.written(tmp_path / "recording")
    monkeypatch.setattr("sys.argv", ["isray", "check", str(folder), "--json"])
    with pytest.raises(SystemExit) as raised:
        run_command()
    assert raised.value.code == code
    document = json.loads(capsys.readouterr().out)
    assert bool(document["violations"]) is bool(code)
    keys = {"what", "engine", "generation", "kafka_release", "seed", "events", "operations", "looked_at"}
    assert keys | {"within_tolerance"} <= set(document)


def test_the_command_answers_wrong_input_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["isray", "check", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as raised:
        run_command()
    captured = capsys.readouterr()
    assert (raised.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)


def test_a_compiled_build_reads_no_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "is_compiled", lambda: True)
    with pytest.raises(InputError, match="found compiled; allowed: the interpreted sources"):
        Recording(tmp_path)
