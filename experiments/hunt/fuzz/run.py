"""Runs a plan: load and faults, convergence, and the check of the history.

Phase 1 is the plan's operations and faults, at their times. Phase 2 begins when the last fault has ended: the cluster
must converge by itself, and every command must have an outcome, both within `WHOLE_WITHIN_MS` of virtual time. Phase 3
reads every partition from its start and checks the history (`experiments/check/history.py`). Invariants are checked
after every event of all phases. The first violation ends the run. The same plan always gives the same events.

Which findings on the history are violations depends on what was promised. Only acks=all promises durability, and only
within the tolerance of a partition; only idempotent producers promise order and no duplicates. Replicas must be equal
and commands must have outcomes in any case.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from experiments.check.engine import CheckedEngine
from experiments.check.final_logs import final_partition
from experiments.check.history import (
    DuplicatedRecord,
    Ended,
    FailedRecordStored,
    FinalPartition,
    Finding,
    Invoked,
    ReorderedRecords,
    ReplicasDiffer,
    Seen,
    Unanswered,
    judge,
)
from experiments.check.history import Operation as HistoryOperation
from experiments.check.recording import RecordingWriter
from experiments.engines.admin_requests import create_topic, elect_leader
from experiments.engines.port import Violation
from experiments.engines.sim.memory import rare_collections
from experiments.engines.sim.network import NetworkModel
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.recorder import SimRecorder
from experiments.explorer.run import Run
from experiments.faults.controls import Controls
from experiments.faults.inject import Injector
from experiments.hunt.fuzz.coverage import Coverage
from experiments.hunt.fuzz.plan import Elect, Plan, PlanViolation, Read, Send
from experiments.hunt.workload import ranges_of, result_of
from experiments.scenarios.model import TopicModel
from experiments.story.render import Heading, render
from protocol.config import ENABLE_IDEMPOTENCE
from protocol.errors import ProtocolError
from protocol.ids import NO_LEADER, NO_OFFSET, BrokerId, Offset, TopicPartition
from protocol.messages.base import Message
from protocol.messages.commands import AdminCommand, ConsumeCommand, ConsumeOutcome, SendOutcome, SendRecords
from protocol.messages.data import EARLIEST
from protocol.messages.partitions import ElectionType

CREATE_AT_MS = 1_000
CREATE_AGAIN_MS = 100
CREATE_REFUSED_AGAIN_MS = 1_000
BEGIN_MS = 3_000
"""Operations and faults begin no earlier: the cluster is up, and its topics are created."""
WHOLE_WITHIN_MS = 300_000
LOOK_EVERY_MS = 500
MAX_EVENTS = 500_000
"""Many times the events of any plan of the swarm."""
FIRST_OWN_ID = 1_000_000
"""Ids of commands that are not operations of the plan."""
FINAL_READER = -1
STORY_LINES = 60

WHOLE, ANSWERED, HISTORY = "AllConverges", "EveryCommandIsAnswered", "History"
_BREAKS = (ProtocolError, LookupError, ArithmeticError, AssertionError, AttributeError, TypeError, ValueError)
"""What a defective node may raise."""
_Outcome = TypeVar("_Outcome", SendOutcome, ConsumeOutcome)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The result of a run: the number of events, the trace hash at the end, the violation or None, the story of the
    last steps (empty without a violation), and what the run has reached.
    """

    events: int
    trace_hash: str
    violation: PlanViolation | None
    story: tuple[str, ...]
    coverage: Coverage


class _Violated(Exception):
    """Ends a run at a violation."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(detail)
        self.invariant, self.detail = invariant, detail


def run_plan(
    plan: Plan, recording: Path | None = None, *, elide_idle: bool = True, paranoid: bool = False
) -> PlanResult:
    """Runs a plan to its end, or to the first violation. With a folder (new or empty) for a `recording`, one is written
    there; after a violation it has neither history nor final logs. With `paranoid` every message is encoded and
    decoded; without `elide_idle` timers fire that change nothing. Neither changes the trace.
    """
    run = _PlanRun(plan, elide_idle, paranoid)
    with rare_collections():
        if recording is None:
            return run.run()
        writer = RecordingWriter(recording)
        try:
            return run.recorded(writer)
        finally:
            writer.close()


def explore_plan(plan: Plan, title: str, facts: Sequence[tuple[str, str]] = ()) -> tuple[PlanResult, Run]:
    """Runs a plan as `run_plan` does, and returns the run to explore besides, under this title. `facts` are added to
    what the page says about the run.
    """
    run = _PlanRun(plan)
    recorder = SimRecorder(run.engine.cluster, run.controls.headings, run.violations)
    with rare_collections():
        result = run.run()
    said = [*facts, ("generation", plan.generation), ("seed", str(plan.seed)), ("trace", result.trace_hash)]
    engine = run.engine
    return result, run_of_journal(recorder.journal(), title, said, engine.spec, engine.metadata_log())


def simulate_plan(plan: Plan, *, invariants: bool) -> tuple[int, str]:
    """Runs the first two phases of a plan, for benchmarks, with or without invariants. Returns the number of events and
    the trace hash. Without invariants outstanding losses are not tracked, so some crashes may lose more than in a run.
    """
    with rare_collections():
        return _PlanRun(plan).simulate(invariants)


@dataclass(slots=True)
class _Clients:
    """The commands of clients: sends, reads with their readers, the latest read of each reader and partition."""

    sends: dict[int, Send] = field(default_factory=dict)
    reads: dict[int, tuple[int, TopicPartition]] = field(default_factory=dict)
    latest: dict[tuple[int, TopicPartition], int] = field(default_factory=dict)
    commands: list[int] = field(default_factory=list)


class _PlanRun:
    def __init__(self, plan: Plan, elide_idle: bool = True, paranoid: bool = False) -> None:
        self._plan = plan
        model = NetworkModel(jitter_ms=plan.jitter_ms)
        self.engine = CheckedEngine(plan.spec(), model, elide_idle=elide_idle, paranoid=paranoid)
        self._cluster = self.engine.cluster
        self._coverage = Coverage()
        self._cluster.trace_observers.append(self._coverage.observe)
        self._cluster.on_message = self._coverage.message
        self._own_id = FIRST_OWN_ID
        self.violations: list[Violation] = []
        self._clients = _Clients()
        configs = {topic.name: topic.config for topic in plan.topics}
        self.controls = Controls(self.engine, configs, self._next_id, plan.within_tolerance)
        self._injector = Injector(self.controls)

    def _next_id(self) -> int:
        self._own_id += 1
        return self._own_id

    def recorded(self, writer: RecordingWriter) -> PlanResult:
        """Runs the plan and writes a recording of it."""
        self.engine.record_to(writer.event)
        result = self.run()
        finals: list[FinalPartition] = []
        if result.violation is None:
            for operation in self._history():
                writer.operation(operation)
            finals = [self._final(partition) for partition in self._partitions()]
        engine = self.engine
        writer.finish(f"plan {self._plan.seed}", engine.name, engine.spec, engine.metadata_log(), finals)
        return result

    def run(self) -> PlanResult:
        violation: PlanViolation | None = None
        try:
            self._phases()
        except _Violated as found:
            violation = self._violation(found.invariant, found.detail)
        except _BREAKS as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{error} ({place.filename.rpartition('/')[2]}, {place.name})"
            violation = self._violation(type(error).__name__, detail)
        self._count_faults()
        story = () if violation is None else self._story(violation)
        return PlanResult(self._cluster.event_count, self._cluster.trace_hash(), violation, story, self._coverage)

    def _violation(self, invariant: str, detail: str) -> PlanViolation:
        text, now_ms = " ".join(detail.split()), self._cluster.now_ms
        self.violations.append(Violation(invariant, now_ms, text))
        return PlanViolation(invariant=invariant, step=self._cluster.event_count, time_ms=now_ms, detail=text)

    def simulate(self, invariants: bool) -> tuple[int, str]:
        """Runs the first two phases (`simulate_plan`)."""
        self._cluster.trace_observers.remove(self._coverage.observe)
        self._cluster.on_message = None
        if not invariants:
            self.engine.suite.stop()
        self._begin()
        self._pass_until(self._plan.end_ms)
        self._converge()
        return self._cluster.event_count, self._cluster.trace_hash()

    def _phases(self) -> None:
        self._begin()
        self._pass_until(self._plan.end_ms)
        self._add_heading("all faults have ended, all operations have begun")
        self._converge()
        self._read_to_the_end()
        self._judge()

    # -- phase 1 -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for node in self.engine.spec.node_ids:
            self.engine.start(node)
        self._cluster.call_at(CREATE_AT_MS, self._create_topics)
        for operation in self._plan.operations:
            self._cluster.call_at(operation.at_ms, partial(self._operate, operation))
        self._injector.schedule(self._plan.faults)

    def _create_topics(self) -> None:
        """Creates the topics as soon as all brokers are unfenced."""
        if not self.engine.unfenced().issuperset(self.engine.spec.broker_ids):
            self._cluster.call_at(self._cluster.now_ms + CREATE_AGAIN_MS, self._create_topics)
            return
        for topic in self._plan.topics:
            self._create(topic)

    def _create(self, topic: TopicModel) -> None:
        """Creates a topic; in `v3` again until it exists, since a broker that is not alive gets no replica (A53)."""
        number, view = self._next_id(), self.engine.view()
        if view is not None and TopicPartition(topic.name, 0) in view.partitions:
            return
        request = create_topic(topic.name, topic.assignments, topic.config)
        self.engine.submit(AdminCommand(command_id=number, request=request))
        if self.engine.spec.has_store_metadata:
            self._cluster.call_at(self._cluster.now_ms + CREATE_REFUSED_AGAIN_MS, partial(self._create, topic))

    def _pass_until(self, until_ms: int) -> None:
        """Lets time pass; raises on a violation."""
        cluster, violations = self._cluster, self.engine.suite.violations
        while cluster.step(until_ms):
            if violations:
                raise _Violated(violations[0].invariant, violations[0].detail)
            if cluster.event_count > MAX_EVENTS:
                raise _Violated(WHOLE, f"the cluster does not come to rest: {MAX_EVENTS} events")

    def _operate(self, operation: Send | Read | Elect) -> None:
        if isinstance(operation, Send):
            self._clients.sends[operation.id] = operation
            self._clients.commands.append(operation.id)
            self.engine.submit(
                SendRecords(
                    command_id=operation.id,
                    topic=operation.topic,
                    partition=operation.partition,
                    acks=operation.acks,
                    record_count=operation.records,
                    record_bytes=operation.record_bytes,
                )
            )
        elif isinstance(operation, Read):
            self._read(operation)
        else:
            election = ElectionType.UNCLEAN if operation.unclean else ElectionType.PREFERRED
            request = elect_leader(operation.topic, operation.partition, election)
            self._clients.commands.append(operation.id)
            self.engine.submit(AdminCommand(command_id=operation.id, request=request))

    def _read(self, read: Read) -> None:
        key = (read.reader, read.place)
        offset: Offset = EARLIEST
        latest = self._clients.latest.get(key)
        if latest is not None:
            outcome = self.engine.outcome(latest)
            if not isinstance(outcome, ConsumeOutcome):
                return
            if not read.from_start and outcome.next_offset != NO_OFFSET:
                offset = outcome.next_offset
        self._consume(read.id, read.reader, read.place, offset, read.max_wait_ms)

    def _consume(self, command_id: int, reader: int, partition: TopicPartition, offset: Offset, wait_ms: int) -> None:
        clients = self._clients
        clients.latest[reader, partition] = command_id
        clients.reads[command_id] = (reader, partition)
        clients.commands.append(command_id)
        self.engine.submit(
            ConsumeCommand(
                command_id=command_id,
                topic=partition.topic,
                partition=partition.partition,
                offset=offset,
                max_wait_ms=wait_ms,
            )
        )

    # -- phase 2 -------------------------------------------------------------------------------------------------------

    def _converge(self) -> None:
        deadline_ms = self._cluster.now_ms + WHOLE_WITHIN_MS
        while (found := next(self._unconverged(), None)) is not None:
            if self._cluster.now_ms >= deadline_ms:
                raise _Violated(found[0], f"{WHOLE_WITHIN_MS} ms after the last fault {found[1]}")
            self._pass_until(self._cluster.now_ms + LOOK_EVERY_MS)

    def _unconverged(self) -> Iterator[tuple[str, str]]:
        """What has not converged yet: the name of the rule, and the reason in words."""
        view = self.engine.view()
        if view is None:
            yield WHOLE, "there is no controller"
            return
        for broker in self.engine.spec.broker_ids:
            registration = view.brokers.get(broker)
            if registration is None or registration.fenced or registration.in_controlled_shutdown:
                yield WHOLE, f"broker {broker} is not in service"
        for partition in self._partitions():
            state = view.partitions.get(partition)
            if state is None:
                yield WHOLE, f"{partition} does not exist"
            elif state.leader == NO_LEADER or sorted(state.isr) != sorted(state.replicas) or state.elr:
                sets = f"ISR {state.isr}, ELR {state.elr} of {state.replicas}"
                yield WHOLE, f"{partition} has leader {state.leader}, {sets}"
            elif state.adding_replicas or state.removing_replicas or state.leader_recovery_state:
                yield WHOLE, f"{partition} is still being moved or recovered"
            else:
                yield from self._differing_logs(partition, state.replicas)
        if self.engine.spec.controller_ids and not self.controls.operator.is_settled():
            yield WHOLE, "the quorum of the controllers has not converged"
        open_commands = [number for number in self._clients.commands if self.engine.outcome(number) is None]
        if open_commands:
            yield ANSWERED, f"commands {open_commands[:10]} have no outcome"

    def _differing_logs(self, partition: TopicPartition, replicas: tuple[BrokerId, ...]) -> Iterator[tuple[str, str]]:
        views = {broker: self.engine.replica(broker, partition) for broker in replicas}
        ends = {broker: None if view is None else view.log_end_offset for broker, view in views.items()}
        marks = {view.high_watermark for view in views.values() if view is not None and view.leads}
        if None in ends.values() or set(ends.values()) != marks:
            yield WHOLE, f"the logs of {partition} end at {ends}, the leader's high watermark is {sorted(marks)}"

    def _partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, index) for topic in self._plan.topics for index in range(len(topic.assignments))
        ]

    # -- phase 3 -------------------------------------------------------------------------------------------------------

    def _read_to_the_end(self) -> None:
        for partition in self._partitions():
            self._consume(self._next_id(), FINAL_READER, partition, EARLIEST, 0)
        self._converge()
        self.engine.suite.check_everything()
        if self.engine.suite.violations:
            found = self.engine.suite.violations[0]
            raise _Violated(found.invariant, found.detail)

    def _judge(self) -> None:
        finals = [self._final(partition) for partition in self._partitions()]
        for finding in judge(self._history(), finals):
            if self._is_violation(finding):
                raise _Violated(f"{HISTORY}.{type(finding).__name__}", finding.text)

    def _final(self, partition: TopicPartition) -> FinalPartition:
        view = self.engine.view()
        assert view is not None
        state = view.partitions[partition]
        return final_partition(self.engine, partition, state.leader, state.isr, ranges_of)

    def _history(self) -> Iterator[HistoryOperation]:
        """The history of the clients. Each send without idempotence counts as a producer of its own, since such sends
        promise no order; an acknowledgement by fewer replicas than all counts as unknown, since it promises nothing.
        """
        for number, send in self._clients.sends.items():
            idempotent = self._is_idempotent(number)
            yield Invoked(number, 0 if idempotent else number, send.place, send.records, idempotent)
        for number, send in self._clients.sends.items():
            for part in _outcome(self.engine.outcome(number), SendOutcome).ranges:
                result = result_of(part)
                if result == "acknowledged" and send.acks != -1:
                    result = "unknown"
                yield Ended(number, part.first, part.count, result, part.base_offset)
        for number, (reader, partition) in self._clients.reads.items():
            read = _outcome(self.engine.outcome(number), ConsumeOutcome)
            runs = tuple(run for batch in read.batches for run in ranges_of(batch))
            if runs:
                yield Seen(reader, partition, runs, read.high_watermark)

    def _is_idempotent(self, send: int) -> bool:
        return self._clients.sends[send].acks == -1 and bool(self.engine.spec.config.values[ENABLE_IDEMPOTENCE])

    @property
    def _replicas_must_agree(self) -> bool:
        """Beyond tolerance the replicas of `v3` may hold different records at equal offsets (M42)."""
        return not self.engine.spec.has_store_metadata

    def _is_violation(self, finding: Finding) -> bool:
        """Whether the finding is a violation in this run."""
        if isinstance(finding, Unanswered) or (isinstance(finding, ReplicasDiffer) and self._replicas_must_agree):
            return True
        if isinstance(finding, DuplicatedRecord | ReorderedRecords) and not self._is_idempotent(finding.record.send):
            return False
        if isinstance(finding, FailedRecordStored) and self._plan.duplicates_sends:
            return False
        return self.engine.suite.truth.of(finding.partition).tolerant

    # -- the story -----------------------------------------------------------------------------------------------------

    def _add_heading(self, text: str) -> None:
        self.controls.headings.append(Heading(text, len(self._cluster.traces)))

    def _story(self, violation: PlanViolation) -> tuple[str, ...]:
        found = Heading(f"violated: {violation.invariant}: {violation.detail}", len(self._cluster.traces))
        lines = render(self._cluster.traces, [*self.controls.headings, found], self.engine.metadata_log())
        return tuple(lines[-STORY_LINES:])

    def _count_faults(self) -> None:
        """Adds faults and outcomes to the coverage table."""
        for kind, count in sorted(self._injector.begun.items()):
            self._coverage.add("fault", kind, count)
        kept = [of.tolerant for of in self.engine.suite.truth.partitions.values()]
        self._coverage.add("tolerance", "losses withheld", self.controls.withheld)
        self._coverage.add("tolerance", "partitions within it", sum(kept))
        self._coverage.add("tolerance", "partitions beyond it", len(kept) - sum(kept))
        for number, send in self._clients.sends.items():
            outcome = self.engine.outcome(number)
            if isinstance(outcome, SendOutcome):
                for part in outcome.ranges:
                    acks = "all" if send.acks == -1 else str(send.acks)
                    self._coverage.add("records", f"acks {acks}, {result_of(part)}", part.count)


def _outcome(outcome: Message | None, kind: type[_Outcome]) -> _Outcome:
    assert isinstance(outcome, kind), outcome
    return outcome
