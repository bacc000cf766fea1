"""The course of a scenario in one world: how each step ended, and the state of the cluster when it had settled.

A step changes a cluster at once, and has effects for a while: a session expires, a leader removes a follower from its
ISR, a log is copied. Worlds agree about the effects and not about their times, so the state is read when it has
*settled*: in virtual time after it has stayed the same for `QUIET_MS`, which is longer than every timer that acts on
its own (`PACE`). A world in wall time follows the course of the simulator: its state is read as soon as it is the
simulator's and stays so for `STEADY_MS`; only one that does not become the same is waited for as long as the simulator
was. A state that goes on changing is compared as that (`UNSETTLED`). Steps that are followed by `await` or `expect` are
not waited for: these may be about a state that passes.

What is read of a partition: the controller's state of it, how often leader and partition epoch have risen since the
state that was read before (their numbers count what happened in a world, and worlds may begin with different ones), the
records of every log that a running, listening broker has, by the numbers of the commands that produced them, and in
virtual time the leader's high watermark. A broker that is paused is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.engines.port import ClusterView, Engine
from experiments.scenarios import model
from experiments.scenarios.clients import NoOutcomeError, ranges_of
from experiments.scenarios.expectation_model import Expectation
from experiments.scenarios.expectations import fields_of
from experiments.scenarios.model import Scenario, Step
from experiments.scenarios.runner import Runner, StepFailedError
from experiments.support.errors import InputError
from protocol.config import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    DELIVERY_TIMEOUT_MS,
    REPLICA_LAG_TIME_MAX_MS,
    REQUEST_TIMEOUT_MS,
)
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TopicPartition
from protocol.metadata.partition import PartitionState

PACE: Mapping[str, int] = {
    BROKER_SESSION_TIMEOUT_MS: 6_000,
    BROKER_HEARTBEAT_INTERVAL_MS: 1_000,
    REPLICA_LAG_TIME_MAX_MS: 8_000,
    REQUEST_TIMEOUT_MS: 4_000,
    DELIVERY_TIMEOUT_MS: 8_000,
}
"""Configs of every world, where the scenario does not set them: Kafka's rules at a pace that wall time can bear."""
QUIET_MS = 16_000
"""Longer than a session, and than the 1.5 `replica.lag.time.max.ms` after which a leader removes a follower."""
STEADY_MS = 500
LONGEST_MS = 120_000
"""How long a state may go on changing in virtual time until it counts as one that does not settle."""
LONGEST_IN_WALL_TIME_MS = 2 * QUIET_MS
SET_UP = -1
NOT_RUN = "not run, as the set-up failed"
EPOCHS = ("leader_epoch", "partition_epoch")
State = dict[str, dict[str, object]]
"""By subject (`t-0`, `brokers`, `cluster`), the fields of its state by name."""
UNSETTLED: State = {"cluster": {"controller": "the state goes on changing"}}


@dataclass(frozen=True, slots=True)
class Stage:
    """A step with its `verdict`, and the state after it; None where the step was not waited for."""

    index: int
    kind: str
    text: str
    verdict: str
    state: State | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """All stages of a run in the world `name`, in virtual or wall time."""

    name: str
    is_virtual: bool
    stages: tuple[Stage, ...]


def run_course(scenario: Scenario, engine: Engine, name: str, pace: Course | None = None) -> Course:
    """Runs all steps of a scenario on a new engine, whatever they expect. `pace` is the course of the simulator that a
    world in wall time follows; None for the simulator itself. Where only the set-up of a world in wall time fails, no
    step is run.
    """
    reader, stages = _Reader(Runner(scenario, engine, keeps_going=True), pace is None), []
    following = [*scenario.steps[1:], None]
    verdict = "ok"
    try:
        reader.runner.set_up()
    except (StepFailedError, NoOutcomeError) as error:
        verdict = _failure("set-up", error)
    text = "start the cluster and create the topics"
    stages.append(Stage(SET_UP, "set-up", text, verdict, reader.settled(_paced(pace, 0))))
    if pace is not None and verdict != pace.stages[0].verdict:
        steps = enumerate(scenario.steps)
        return Course(name, False, (*stages, *(Stage(index, it.kind, it.text, NOT_RUN) for index, it in steps)))
    for index, (step, after) in enumerate(zip(scenario.steps, following, strict=True)):
        paced = _paced(pace, index + 1)
        is_passing = after is not None and isinstance(after.fields, Expectation)
        verdict, state = "", None
        try:
            verdict = reader.carry_out(step, paced)
            state = None if is_passing else reader.settled(paced)
        except InputError as error:  # a process has ended by itself
            verdict = str(error)
        stages.append(Stage(index, step.kind, step.text, verdict, state))
    return Course(name, pace is None, tuple(stages))


def _paced(pace: Course | None, place: int) -> Stage | None:
    return None if pace is None else pace.stages[place]


@dataclass(slots=True)
class _Reader:
    """Reads the states of one run. `before` are the epochs of the partitions when they were read last."""

    runner: Runner
    is_virtual: bool
    before: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    paused: set[NodeId] = field(default_factory=set)
    former: dict[NodeId, int | None] = field(default_factory=dict)
    """The broker epochs that the brokers had before they were started."""

    def carry_out(self, step: Step, paced: Stage | None) -> str:
        """The verdict on a step. One that does not hold in the simulator is not waited for longer than a state is."""
        fields = step.fields
        if isinstance(fields, model.AwaitStep) and paced is not None and paced.verdict != "holds":
            within = min(fields.within, QUIET_MS)
            step = step.model_copy(update={"fields": fields.model_copy(update={"within": within})})
        if step.kind == "start" and isinstance(fields, model.NodeStep) and isinstance(fields.broker, int):
            self.former[fields.broker] = self.runner.clients.broker_epoch(fields.broker)
        try:
            self.runner.carry_out(step)
        except (StepFailedError, NoOutcomeError) as error:
            return _failure(step.kind, error)
        if isinstance(fields, model.NodeStep):
            self._note(step.kind, fields)
        return "holds" if isinstance(fields, Expectation) else "ok"

    def _note(self, kind: str, fields: model.NodeStep) -> None:
        if isinstance(fields.broker, int):
            change = self.paused.add if kind == "pause" else self.paused.discard
            change(fields.broker)

    def settled(self, paced: Stage | None) -> State:
        """The state when it has settled; it is the one before for what is read next."""
        engine = self.runner.engine
        if paced is None or paced.state is None:
            found = self._unchanged(QUIET_MS, LONGEST_MS)
        elif paced.state == UNSETTLED:
            found = self._unchanged(QUIET_MS, LONGEST_IN_WALL_TIME_MS)
        else:
            decided, wanted = _decided(paced.state), relaxed(paced.state)
            engine.run_until(
                lambda: _decided(self._metadata(engine.published())) == decided and relaxed(self.state()) == wanted,
                QUIET_MS,
            )
            found = self._unchanged(STEADY_MS, LONGEST_IN_WALL_TIME_MS)
        view = engine.published()
        if view is not None:
            self.before = dict(view.partitions)
        return found

    def _unchanged(self, duration_ms: int, longest_ms: int) -> State:
        """The state that stays the same for so long; `UNSETTLED` where there is none after `longest_ms`."""
        engine, found = self.runner.engine, self.state()
        deadline_ms = engine.now_ms() + longest_ms
        while engine.now_ms() < deadline_ms:
            engine.run_for(duration_ms)
            later = self.state()
            if later == found:
                return found
            found = later
        return UNSETTLED

    def state(self) -> State:
        """The present state."""
        view = self.runner.engine.published()
        found = self._metadata(view)
        for partition, state in {} if view is None else sorted(view.partitions.items()):
            found[str(partition)] |= self._data(partition, state)
        return found

    def _metadata(self, view: ClusterView | None) -> State:
        """The part of the present state that the controllers have decided, which costs no node anything to read."""
        if view is None:
            return {"cluster": {"controller": "none is active"}}
        found: State = {"cluster": {"controller": "active", "voters": sorted(view.voters)}, "brokers": _brokers(view)}
        for partition, state in sorted(view.partitions.items()):
            fields, before = fields_of(state), self.before.get(partition)
            fields |= {name: sorted(getattr(state, name)) for name in ("adding_replicas", "removing_replicas")}
            fields |= {name: getattr(state, name) - (getattr(before, name) if before else 0) for name in EPOCHS}
            found[str(partition)] = fields
        return found

    def _data(self, partition: TopicPartition, state: PartitionState) -> dict[str, object]:
        engine = self.runner.engine
        listening = [broker for broker in state.replicas if engine.is_running(broker) and self._listens(broker)]
        logs = {broker: self._log(broker, partition) for broker in listening if engine.holds(broker, partition)}
        leads = self.is_virtual and state.leader in logs
        leader = engine.replica(state.leader, partition) if leads else None
        return {"logs": logs, "high_watermark": leader.high_watermark if leader is not None and leader.leads else None}

    def _listens(self, broker: NodeId) -> bool:
        """Whether a broker is not paused, and registered since its last start: before that it opens no log."""
        is_registered = broker not in self.former or self.runner.clients.broker_epoch(broker) != self.former[broker]
        return is_registered and broker not in self.paused

    def _log(self, broker: NodeId, partition: TopicPartition) -> str:
        batches = self.runner.engine.log(broker, partition)
        return numbers(sorted(run.send for batch in batches for run in ranges_of(batch)))


def _brokers(view: ClusterView) -> dict[str, object]:
    """The registrations of the brokers; those in a controlled shutdown are fenced soon, or end."""
    return {str(broker): "fenced" if found.fenced else "unfenced" for broker, found in sorted(view.brokers.items())}


def relaxed(state: State) -> State:
    """A state as worlds in wall time are compared: of the partition's epoch only whether it has risen, and nothing of
    the high watermark. Each change of the partition raises its epoch by one, and processes race: two brokers may leave
    an ISR in one change or in two. The high watermark with which a killed broker begins is its last checkpoint,
    written every few seconds; where the ISR is large enough it is the end of the logs, which are compared.
    """
    return {subject: {name: _relaxed(name, it) for name, it in fields.items()} for subject, fields in state.items()}


def _decided(state: State) -> State:
    """The part of a state that the controllers have decided, as it is compared in wall time."""
    data = ("logs", "high_watermark")
    return {
        subject: {name: it for name, it in fields.items() if name not in data}
        for subject, fields in relaxed(state).items()
    }


def _relaxed(name: str, value: object) -> object:
    if name == "partition_epoch":
        return bool(value)
    return None if name == "high_watermark" else value


def _failure(kind: str, error: StepFailedError | NoOutcomeError) -> str:
    """Why a step failed, without times and without what depends on the library of a client: a record that is not
    acknowledged in time has the error of the last attempt, or of the time that is over.
    """
    if isinstance(error, NoOutcomeError):
        return "no outcome"
    if kind in ("await", "expect"):
        return "does not hold"
    if kind == "produce":
        return "not acknowledged"
    return str(error) if error.error is ErrorCode.NONE else f"refused: {error.error.name}"


def numbers(found: Sequence[int]) -> str:
    """Ascending numbers as ranges: `1-3,5`."""
    ranges: list[list[int]] = []
    for number in found:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
