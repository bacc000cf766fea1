"""Runs a plan: load and faults, convergence, and the check of the history.

Phase 1 is the plan's operations and faults, at their times. Phase 2 begins when the last fault has ended: the cluster
must converge by itself, and every command must have an outcome. In phase 3 commands of all kinds must succeed. Then
every partition is read from its start, and the history is checked (`experiments/check/history.py`). In phase 4 answers
of administration are compared with what was asked for (`final_administration.py`). Invariants are checked after every
event of all phases. The first violation ends the run. The same plan always gives the same events.

Which findings on the history are violations depends on what was promised. Only acks=all promises durability, and only
within the tolerance of a partition; only idempotent producers promise order and no duplicates. Replicas must be equal
and commands must have outcomes in any case.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from experiments.check.client_history import ranges_of, result_of
from experiments.check.engine import CheckedEngine
from experiments.check.final_logs import final_partition
from experiments.check.history import FailedRecordStored, FinalPartition, Finding, breaks_promise, judge
from experiments.check.recording import Header, RecordingWriter
from experiments.engines.admin_requests import (
    alter_config,
    create_topic,
    delete_topic,
    elect_leader,
    grow_topic,
    reassign,
    remove_partitions,
)
from experiments.engines.port import Violation
from experiments.engines.sim.memory import rare_collections
from experiments.engines.sim.network import NetworkModel
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.recorder import SimRecorder
from experiments.explorer.run import Run
from experiments.faults.controls import Controls
from experiments.faults.inject import Injector
from experiments.hunt.fuzz.clients import PlanClients
from experiments.hunt.fuzz.coverage import MET, PLANS, Coverage, pair_name
from experiments.hunt.fuzz.final_administration import FinalAdministration, Judge
from experiments.hunt.fuzz.plan import Plan, PlanViolation, Send
from experiments.hunt.fuzz.topic_incarnations import TopicIncarnations
from experiments.scenarios.model import TopicModel
from experiments.story.render import Heading, render
from protocol.broker.lifecycle import LifecycleState
from protocol.config import DELIVERY_TIMEOUT_MS, MIN_INSYNC_REPLICAS
from protocol.errors import ErrorCode, ProtocolError
from protocol.ids import NO_LEADER, BrokerId, TopicPartition
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminOutcome, ProduceCommand, ProduceOutcome, SendOutcome
from protocol.messages.data import EARLIEST
from protocol.messages.partitions import ElectionType
from protocol.metadata.partition import PartitionState
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.broker import BrokerNode

CREATE_AT_MS = 1_000
CREATE_AGAIN_MS = 100
CREATE_REFUSED_AGAIN_MS = 1_000
BEGIN_MS = 3_000
"""Operations and faults begin no earlier: the cluster is up, and its topics are created."""
WHOLE_WITHIN_MS = 300_000
LOOK_EVERY_MS = 500
ANSWER_MARGIN_MS = 2_000
"""How much longer than `delivery.timeout.ms` a command may be open: batches linger, and reads wait."""
SERVED_WITHIN_MS = 5_000
STORE_SERVED_WITHIN_MS = 40_000
"""In `v3`, whose controller repeats a command without a response after 30 s (`protocol/v3/controller/term.py`)."""
SERVED_LOOK_MS = 50
FINAL_TOPIC = "after-all-faults"
ENCODED_ONE_IN = 10
"""In one of so many plans messages are encoded and decoded."""
MAX_EVENTS = 500_000
"""Many times the events of any plan of the swarm."""
FIRST_OWN_ID = 1_000_000
"""Ids of commands that are not operations of the plan."""
FINAL_READER = -1
STORY_LINES = 60

WHOLE, ANSWERED, SERVED, HISTORY = "AllConverges", "EveryCommandIsAnswered", "EveryCommandSucceeds", "History"
ANSWERS = "AnswersMatchTheCluster"
_BREAKS = (ProtocolError, LookupError, ArithmeticError, AssertionError, AttributeError, TypeError, ValueError)
"""What a defective node may raise."""


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
    """Ends a run at a violation: the invariant, the detail."""


def run_plan(
    plan: Plan, recording: Path | None = None, *, elide_idle: bool = True, paranoid: bool = False
) -> PlanResult:
    """Runs a plan to its end, or to the first violation. With a folder (new or empty) for a `recording`, one is written
    there; after a violation it has neither history nor final logs. With `paranoid`, and in one plan of ten, every
    message is encoded and decoded; without `elide_idle` timers fire that change nothing. Neither changes the trace.
    """
    run = _PlanRun(plan, elide_idle, paranoid or plan.seed % ENCODED_ONE_IN == 0)
    with rare_collections():
        if recording is None:
            return run.run()
        writer = RecordingWriter(recording)
        try:
            return run.recorded(writer)
        finally:
            writer.close()


def explore_plan(
    plan: Plan, title: str, facts: Sequence[tuple[str, str]] = (), kafka_rules: Sequence[str] = ()
) -> tuple[PlanResult, Run]:
    """Runs a plan as `run_plan` does, with these of Kafka's rules; also returns the run, for a page with `facts`."""
    run = _PlanRun(plan, rules=kafka_rules)
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
        run = _PlanRun(plan)
        run.stop_coverage()
        if not invariants:
            run.engine.suite.stop()
        run.load_and_converge()
        return run.engine.cluster.event_count, run.engine.cluster.trace_hash()


class _PlanRun:
    def __init__(self, plan: Plan, elide_idle: bool = True, paranoid: bool = False, rules: Sequence[str] = ()) -> None:
        self._plan = plan
        model = NetworkModel(jitter_ms=plan.jitter_ms)
        self.engine = CheckedEngine(plan.spec(rules), model, elide_idle=elide_idle, paranoid=paranoid)
        self._cluster = self.engine.cluster
        self._coverage = Coverage()
        self._cluster.trace_observers.append(self._coverage.observe)
        self._cluster.on_message = self._coverage.message
        self._next_id = count(FIRST_OWN_ID + 1).__next__
        self.violations: list[Violation] = []
        self._clients = PlanClients(self.engine)
        topics = {topic.name: topic for topic in plan.topics}
        self.controls = Controls(self.engine, topics, self._next_id, plan.within_tolerance)
        self.controls.on_client_death = self._clients.die
        self._incarnations = TopicIncarnations(self.engine, topics, self._clients.acknowledged_sends)
        self._injector = Injector(self.controls)

    def recorded(self, writer: RecordingWriter) -> PlanResult:
        writer.record(self.engine)
        result = self.run()
        finals: list[FinalPartition] = []
        if result.violation is None:
            for operation in self._clients.history(self._incarnations.precedes):
                writer.operation(operation)
            finals = self._finals()
        engine = self.engine
        writer.metadata(engine.metadata_log())
        writer.finish(Header.of(f"plan {self._plan.seed}", engine.name, engine.spec), finals)
        return result

    def run(self) -> PlanResult:
        violation: PlanViolation | None = None
        try:
            self._phases()
        except _Violated as found:
            violation = self._violation(*found.args)
        except _BREAKS as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{error} ({place.filename.rpartition('/')[2]}, {place.name})"
            violation = self._violation(type(error).__name__, detail)
        self._count_faults()
        story: tuple[str, ...] = ()
        if violation is not None:
            found_at = Heading(f"violated: {violation.invariant}: {violation.detail}", len(self._cluster.traces))
            lines = render(self._cluster.traces, [*self.controls.headings, found_at], self.engine.metadata_log())
            story = tuple(lines[-STORY_LINES:])
        return PlanResult(self._cluster.event_count, self._cluster.trace_hash(), violation, story, self._coverage)

    def _violation(self, invariant: str, detail: str) -> PlanViolation:
        text, now_ms = " ".join(detail.split()), self._cluster.now_ms
        self.violations.append(Violation(invariant, now_ms, text))
        return PlanViolation(invariant=invariant, step=self._cluster.event_count, time_ms=now_ms, detail=text)

    def stop_coverage(self) -> None:
        self._cluster.trace_observers.remove(self._coverage.observe)
        self._cluster.on_message = None

    def load_and_converge(self) -> None:
        """Phases 1 and 2."""
        for node in self.engine.spec.node_ids:
            self.engine.start(node)
        self._cluster.call_at(CREATE_AT_MS, self._create_topics)
        for operation in self._plan.operations:
            self._cluster.call_at(operation.at_ms, partial(self._clients.operate, operation))
        self._injector.schedule(self._plan.faults)
        self._pass_until(self._plan.end_ms)
        over = Heading("all faults have ended, all operations have begun", len(self._cluster.traces))
        self.controls.headings.append(over)
        self._converge()

    def _phases(self) -> None:
        self.load_and_converge()
        self._serve()
        self._judge()
        if self.engine.spec.controller_ids:
            self.controls.cluster_operator.stop()
            for step in FinalAdministration(self.engine).steps():
                self._ask(*step)

    # -- phase 1 -------------------------------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        """Creates the topics as soon as all brokers are unfenced."""
        if not self.engine.unfenced().issuperset(self.engine.spec.broker_ids):
            self._cluster.call_at(self._cluster.now_ms + CREATE_AGAIN_MS, self._create_topics)
            return
        for topic in self._plan.topics:
            self._create(topic)

    def _create(self, topic: TopicModel) -> None:
        """Creates a topic; in `v3` again until it exists, since a broker that is not alive gets no replica (A53)."""
        view = self.engine.view()
        if view is not None and TopicPartition(topic.name, 0) in view.partitions:
            return
        self.controls.administer(create_topic(topic.name, topic.assignments, topic.config))
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

    # -- phase 2 -------------------------------------------------------------------------------------------------------

    def _converge(self) -> None:
        began_ms = self._cluster.now_ms
        answered_ms = self.engine.spec.config.int_value(DELIVERY_TIMEOUT_MS) + ANSWER_MARGIN_MS
        while (found := next(self._unconverged(), None)) is not None:
            waited_ms = self._cluster.now_ms - began_ms
            if waited_ms >= answered_ms and (left := self._clients.open_commands()):
                raise _Violated(ANSWERED, f"{waited_ms} ms after the last fault commands {left[:10]} have no outcome")
            if waited_ms >= WHOLE_WITHIN_MS:
                raise _Violated(found[0], f"{waited_ms} ms after the last fault {found[1]}")
            self._pass_until(self._cluster.now_ms + LOOK_EVERY_MS)

    def _unconverged(self) -> Iterator[tuple[str, str]]:
        """What has not converged yet: the name of the rule, and the reason in words."""
        view = self.engine.view()
        if view is None:
            yield WHOLE, "there is no controller"
            return
        for broker in self.engine.spec.broker_ids:
            registration = view.brokers.get(broker)
            is_active = registration is not None and not registration.fenced and not registration.in_controlled_shutdown
            # Until the session of a killed broker ends, the metadata have it in service while it registers again.
            node = self._cluster.nodes.get(broker)
            is_running = isinstance(node, BaseBroker) and node.state is LifecycleState.RUNNING
            if not is_active or not is_running:
                yield WHOLE, f"broker {broker} is not in service"
            elif self._lags(broker):
                yield WHOLE, f"broker {broker} has not applied what the controllers have committed"
        for partition in self._partitions():
            state = view.partitions.get(partition)
            if state is None:
                yield WHOLE, f"{partition} does not exist"
            elif state.leader == NO_LEADER or sorted(state.isr) != sorted(state.replicas) or self._eligible(state):
                sets = f"ISR {state.isr}, ELR {state.elr} of {state.replicas}"
                yield WHOLE, f"{partition} has leader {state.leader}, {sets}"
            elif state.adding_replicas or state.removing_replicas or state.leader_recovery_state:
                yield WHOLE, f"{partition} is still being moved or recovered"
            else:
                yield from self._differing_logs(partition, state.replicas)
        if self.engine.spec.controller_ids and not self.controls.operator.is_settled():
            yield WHOLE, "the quorum of the controllers has not converged"
        if not self.controls.cluster_operator.is_settled() or not self._incarnations.are_settled():
            yield WHOLE, "topics, levels, configs or access are not as they were before the operations"
        if open_commands := self._clients.open_commands():
            yield ANSWERED, f"commands {open_commands[:10]} have no outcome"

    def _eligible(self, state: PartitionState) -> set[BrokerId]:
        """The ELR; in Kafka's first phase without brokers that a reassignment has removed, which stay in it there."""
        trims = self.engine.spec.config.generation.features.track_last_known_leader
        return set(state.elr) if trims else set(state.elr).intersection(state.replicas)

    def _lags(self, broker: BrokerId) -> bool:
        """Whether the broker has not applied all committed metadata, such as access that has been granted again."""
        node, committed = self._cluster.nodes.get(broker), self.engine.suite.truth.controller_image()
        if not isinstance(node, BrokerNode) or committed is None:
            return False
        return node.context.image.taken_offset < committed.next_offset

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

    def _serve(self) -> None:
        """The cluster serves commands of all kinds in time; then each partition is read from its start, in any time."""
        last, now_ms = max((operation.id for operation in self._plan.operations), default=0), self._cluster.now_ms
        sends = dict(enumerate(filter(self._is_writable, self._partitions()), last + 1))
        for number, place in sends.items():
            self._clients.operate(Send(at_ms=now_ms, id=number, topic=place.topic, partition=place.partition))
        self._await_success(list(sends))
        self._await_success([self._read_back(number, place) for number, place in sends.items()])
        for request in self._administration():
            self._await_success([self.controls.administer(request)])
        for partition in self._partitions():
            self._clients.consume(self._next_id(), FINAL_READER, partition, EARLIEST, 0)
        self._converge()
        self.engine.suite.check_everything()
        for found in self.engine.suite.violations:
            raise _Violated(found.invariant, found.detail)

    def _is_writable(self, partition: TopicPartition) -> bool:
        """Whether the partition accepts writes with acks=all while all its replicas are in the ISR: before KIP-966 a
        reassignment may leave fewer of them than min ISR (E8).
        """
        spec, view = self.engine.spec, self.engine.view()
        state = None if view is None else view.partitions.get(partition)
        topic = next(topic for topic in self._plan.topics if topic.name == partition.topic)
        min_isr = int(topic.config.get(MIN_INSYNC_REPLICAS, spec.config.int_value(MIN_INSYNC_REPLICAS)))
        return state is None or spec.config.generation.features.effective_min_isr or len(state.replicas) >= min_isr

    def _read_back(self, send: int, place: TopicPartition) -> int:
        """Reads from the record of a send on; returns the number of the command."""
        outcome, number = self.engine.outcome(send), self._next_id()
        assert isinstance(outcome, SendOutcome)
        self._clients.consume(number, FINAL_READER, place, outcome.ranges[0].base_offset, 0)
        return number

    def _administration(self) -> Iterator[AdminRequest]:
        """A request of each kind; the cluster is in the end as it was before them."""
        first = self._plan.topics[0]
        if self.engine.spec.has_store_metadata:
            return  # The controller of v3 refuses what concerns a broker whose session has just ended (A53).
        yield create_topic(FINAL_TOPIC, first.assignments[:1])
        yield grow_topic(FINAL_TOPIC, 2)
        yield reassign(FINAL_TOPIC, 0, first.assignments[0][::-1])
        yield elect_leader(FINAL_TOPIC, 0, ElectionType.PREFERRED)
        yield alter_config(FINAL_TOPIC, {MIN_INSYNC_REPLICAS: 1})
        yield remove_partitions(FINAL_TOPIC, (1,))
        yield delete_topic(FINAL_TOPIC)

    def _await_success(self, numbers: Sequence[int]) -> None:
        """Lets time pass until these commands have an outcome; raises unless all of them succeed in time."""
        within_ms = STORE_SERVED_WITHIN_MS if self.engine.spec.has_store_metadata else SERVED_WITHIN_MS
        deadline_ms, outcome = self._cluster.now_ms + within_ms, self.engine.outcome
        while any(outcome(number) is None for number in numbers) and self._cluster.now_ms < deadline_ms:
            self._pass_until(min(self._cluster.now_ms + SERVED_LOOK_MS, deadline_ms))
        for number in numbers:
            error = getattr(outcome(number), "error", None)
            if error not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                found = "no outcome" if error is None else error.name
                raise _Violated(SERVED, f"command {number} has {found} {within_ms} ms after it began")

    def _judge(self) -> None:
        finals = self._finals()
        if not self._plan.delays_sends:
            for detail in self._incarnations.returned(finals):
                raise _Violated(f"{HISTORY}.DeletedRecordReturned", detail)
        for finding in judge(self._clients.history(self._incarnations.precedes), finals):
            if self._is_violation(finding):
                raise _Violated(f"{HISTORY}.{type(finding).__name__}", finding.text)

    def _finals(self) -> list[FinalPartition]:
        view = self.engine.view()
        assert view is not None
        states = [(partition, view.partitions[partition]) for partition in self._partitions()]
        return [final_partition(self.engine, place, state.leader, state.isr, ranges_of) for place, state in states]

    def _is_violation(self, finding: Finding) -> bool:
        if isinstance(finding, FailedRecordStored) and self._plan.duplicates_sends:
            return False
        tolerant = self.engine.suite.truth.of(finding.partition).tolerant
        return breaks_promise(finding, tolerant, has_store_metadata=self.engine.spec.has_store_metadata)

    # -- phase 4 -------------------------------------------------------------------------------------------------------

    def _ask(self, request: AdminRequest | ProduceCommand, wrong_with: Judge) -> None:
        """Waits until the outcome is as it must be; repeats questions and writes meanwhile, as metadata may lag."""
        is_repeated = isinstance(request, ProduceCommand) or request.READ_ONLY
        deadline_ms = self._cluster.now_ms + SERVED_WITHIN_MS
        number = self.controls.ask(request)
        while True:
            self._pass_until(min(self._cluster.now_ms + SERVED_LOOK_MS, deadline_ms))
            outcome = self.engine.outcome(number)
            wrong = wrong_with(outcome) if isinstance(outcome, AdminOutcome | ProduceOutcome) else "no outcome"
            if not wrong:
                return
            if self._cluster.now_ms >= deadline_ms or (outcome is not None and not is_repeated):
                raise _Violated(ANSWERS, f"{type(request).__name__}: {wrong}")
            if outcome is not None:
                number = self.controls.ask(request)

    def _count_faults(self) -> None:
        """Adds the generation, faults and outcomes to the coverage table."""
        counts = self._coverage.counts
        counts[PLANS, self._plan.generation] += 1
        counts.update({("fault", kind): times for kind, times in sorted(self._injector.begun.items())})
        counts.update({(MET, pair_name(*pair)): times for pair, times in sorted(self._injector.met.items())})
        for error in self._clients.read_errors():
            counts["read", error.name] += 1
        kept = [of.tolerant for of in self.engine.suite.truth.partitions.values()]
        counts["tolerance", "losses withheld"] += self.controls.withheld
        counts["tolerance", "partitions within it"] += sum(kept)
        counts["tolerance", "partitions beyond it"] += len(kept) - sum(kept)
        for number, send in self._clients.sends.items():
            outcome = self.engine.outcome(number)
            for part in outcome.ranges if isinstance(outcome, SendOutcome) else ():
                counts["records", f"acks {'all' if send.acks == -1 else send.acks}, {result_of(part)}"] += part.count
