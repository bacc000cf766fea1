"""Runs a scenario on an engine: steps one after another, each finished before the next.

The clients record what was acknowledged, so that `lost_acked` compares acknowledgements with logs and does not rely on
what the protocol reports. A step that fails ends the scenario; a violated invariant fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

from experiments.check.engine import CheckedEngine
from experiments.check.final_logs import final_logs
from experiments.check.losses import Losses
from experiments.check.recording import Header, RecordingWriter
from experiments.engines import admin_requests
from experiments.engines.port import Engine, Loss, Recovery, Violation
from experiments.faults.controls import Controls
from experiments.faults.inject import Injector
from experiments.scenarios import expectations, model
from experiments.scenarios.clients import ScenarioClients, ranges_of
from experiments.scenarios.expectation_model import Expectation
from experiments.scenarios.load import Load, LoadStep
from experiments.scenarios.model import LossName
from experiments.story.render import Heading
from experiments.support.fields import StrictModel
from protocol.controller.topics import CLUSTER_DEFAULT
from protocol.errors import ErrorCode
from protocol.ids import RECOVERY_MANAGER, STORE, TopicPartition, is_application, is_broker, is_client, is_controller
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import UpgradeType
from protocol.messages.partitions import ElectionType

START_WITHIN_MS = 60_000
SHUTDOWN_WITHIN_MS = 360_000
DATA_FIELDS = expectations.LOSS_FIELDS | {"high_watermark", "log_end_offset", "visible", "high_watermark_regressions"}


class StepFailedError(Exception):
    """A step has failed; the message describes what was found. `error` is the code of the response, NONE where the step
    failed without one.
    """

    def __init__(self, text: str, error: ErrorCode = ErrorCode.NONE) -> None:
        super().__init__(text)
        self.error = error


@dataclass(frozen=True, slots=True)
class StepResult:
    """`text` is the step as the file has it; `detail` what was found, or why it failed."""

    index: int
    kind: str
    text: str
    ok: bool
    detail: str


@dataclass(slots=True)
class ScenarioResult:
    """The JSON document of `isray scenario run`, which has the keys of `Losses.document` in the place of `losses`."""

    name: str
    engine: str
    seed: int
    passed: bool
    steps: list[StepResult]
    violations: list[Violation]
    partitions: list[dict[str, object]]
    recoveries: list[Recovery]
    losses: Losses
    trace_hash: str

    def document(self) -> dict[str, object]:
        fields = asdict(self)
        del fields["losses"]
        return fields | self.losses.document()


@dataclass(slots=True)
class Runner:
    """One run of one scenario. With `keeps_going` a failed step does not end the run: another generation or a mutant
    then goes through the same failures, whatever the steps expect.
    """

    scenario: model.Scenario
    engine: Engine
    keeps_going: bool = False
    clients: ScenarioClients = field(init=False)
    headings: list[Heading] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    _injector: Injector | None = None
    _former: int | None = None
    _restartable: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """Nodes that a fault which leaves them running may have restarted since they had this incarnation."""

    def __post_init__(self) -> None:
        self.clients = ScenarioClients(self.engine)

    def run(self) -> ScenarioResult:
        """Starts the cluster, creates the topics and runs the steps; the engine stays up."""
        steps: list[StepResult] = []
        try:
            self.set_up()
        except StepFailedError as error:
            steps.append(StepResult(-1, "set-up", "start the cluster and create the topics", False, str(error)))
        for index, step in enumerate(self.scenario.steps if not steps else ()):
            try:
                detail = self.carry_out(step)
                steps.append(StepResult(index, step.kind, step.text, True, detail))
            except StepFailedError as error:
                steps.append(StepResult(index, step.kind, step.text, False, str(error)))
                if not self.keeps_going:
                    break
        violations = list(self.engine.violations())
        violated = {violation.invariant for violation in violations}
        expected = {*self.scenario.violates} if self.engine.name == "sim" else set[str]()
        return ScenarioResult(
            name=self.scenario.name,
            engine=self.engine.name,
            seed=self.engine.spec.seed,
            passed=all(step.ok for step in steps) and violated == expected,
            steps=steps,
            violations=violations,
            partitions=expectations.describe_partitions(self.engine, self.clients),
            recoveries=list(self.engine.recoveries()),
            losses=self.clients.losses_everywhere(),
            trace_hash=self.engine.trace_hash(),
        )

    def set_up(self) -> None:
        """Starts the nodes that do not run and creates the topics. StepFailedError where a broker or a topic does not
        come up.
        """
        for node in self.engine.spec.node_ids:
            if not self.engine.is_running(node):
                self.engine.start(node)
        for broker in self.engine.spec.broker_ids:
            if not self.engine.run_until(partial(self._is_unfenced, broker), START_WITHIN_MS):
                lines = self.engine.last_lines(broker)
                within = f"broker {broker} was not unfenced within {START_WITHIN_MS // 1000} s"
                raise StepFailedError(f"{within}: {lines}" if lines else within)
        for topic in self.scenario.topics:
            self._create_topic(topic)

    def carry_out(self, step: model.Step) -> str:
        """Carries out a step under a heading of its own; returns what was found. StepFailedError where it fails. Calls
        the method of the step's kind (`model.STEPS`), `_produce` for `produce`, with the step's fields.
        """
        self.headings.append(Heading(step.text, len(self.engine.traces())))
        handle: Callable[[StrictModel | None], str | None] = getattr(self, f"_{step.kind}")
        found = handle(None if step.fields is None else self._with_ids(step.fields)) or ""
        self.collect()
        return found

    def collect(self) -> None:
        """Takes the outcomes of the clients in the background that have arrived."""
        for load in self.loads:
            load.collect()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _with_ids(self, fields: StrictModel) -> StrictModel:
        """The fields of a step with ids in the place of words for the active and the former controller."""
        if isinstance(fields, model.FaultStep):
            named = {name: self._id_of(value) for name, value in fields.targets.items()}
            return fields.model_copy(update={"fault": fields.fault.model_copy(update=named)}) if named else fields
        named = {name: getattr(fields, name, None) for name in ("controller", "between", "source", "target")}
        return fields.model_copy(update={name: self._id_of(it) for name, it in named.items() if it is not None})

    def _id_of(self, value: object) -> object:
        """A value, or the members of a list, with the id of a controller in the place of a word for it."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._id_of, value))
        if value in ("active", "active-controller"):
            self.engine.run_until(lambda: self.engine.active_controller() is not None, START_WITHIN_MS)
            self._former = self.engine.active_controller()
            if self._former is None:
                raise StepFailedError(f"no controller is active after {START_WITHIN_MS // 1000} s")
        return self._former if value in model.CONTROLLER_WORDS else value

    def _is_unfenced(self, broker: int) -> bool:
        return broker in self.engine.unfenced()

    def _crash(self, fields: model.CrashStep) -> None:
        self._require_running(fields.node, True)
        self.engine.crash(fields.node, _loss_of(fields.lose))

    def _lose_disk(self, fields: model.LoseDiskStep) -> None:
        self._require_running(fields.node, False)
        self.engine.crash(fields.node, _loss_of(fields.lose))

    def _shutdown(self, fields: model.NodeStep) -> None:
        self._require_running(fields.node, True)
        self.engine.terminate(fields.node)
        if not self.engine.run_until(lambda: not self.engine.is_running(fields.node), SHUTDOWN_WITHIN_MS):
            raise StepFailedError(f"node {fields.node} still runs after {SHUTDOWN_WITHIN_MS // 1000} s")

    def _start(self, fields: model.NodeStep) -> str | None:
        self._require_running(fields.node, False)
        known = self.clients.broker_epoch(fields.node)
        self.engine.start(fields.node)
        return self._await_start(fields.node, known)

    def _await_start(self, node: int, known: int | None) -> str | None:
        """Waits until a controller that has been started takes part in the quorum, or a broker is registered, in an
        epoch other than the `known` one, and unfenced; returns what has not happened in time.
        """
        if is_controller(node):
            up = self.engine.run_until(lambda: self._takes_part(node), START_WITHIN_MS)
            return None if up else "has not joined the quorum yet"
        if not is_broker(node):
            return None
        up = self.engine.run_until(
            lambda: self._is_unfenced(node) and self.clients.broker_epoch(node) != known, START_WITHIN_MS
        )
        return None if up else "not unfenced yet"

    def _takes_part(self, controller: int) -> bool:
        """Whether a controller leads the quorum or follows its leader, as a voter or an observer."""
        quorum = self.engine.quorum().get(controller)
        return quorum is not None and (quorum.is_active or self.engine.active_controller() is not None)

    def _pause(self, fields: model.NodeStep) -> None:
        self._require_running(fields.node, True)
        self.engine.pause(fields.node)

    def _resume(self, fields: model.NodeStep) -> None:
        self._require_running(fields.node, True)
        self.engine.resume(fields.node)

    def _set_clock(self, fields: model.SetClockStep) -> str | None:
        node, known = fields.node, self.clients.broker_epoch(fields.node)
        runs = self.engine.is_running(node)
        if runs:
            self.engine.crash(node, Loss())
        self.engine.set_clock(node, fields.ahead - fields.behind)
        if not runs:
            return "from its next start on"
        self.engine.start(node)
        return self._await_start(node, known)

    def _expire(self, fields: model.BrokerStep) -> None:
        self._require_running(STORE, True)
        self.engine.expire_sessions(fields.broker)

    def _flush(self, fields: model.BrokerStep) -> None:
        self._require_running(fields.broker, True)
        self.engine.flush(fields.broker)

    def _require_running(self, node: int, running: bool) -> None:
        if self.engine.is_running(node) != running:
            raise StepFailedError(f"node {node} {'is not running' if running else 'runs already'}")

    # -- links ---------------------------------------------------------------------------------------------------------

    def _cut(self, fields: model.LinkStep) -> None:
        self._set_links(fields, up=False)

    def _heal(self, fields: model.LinkStep | None) -> None:
        if fields is None:
            self.engine.heal_links()
        else:
            self._set_links(fields, up=True)

    def _set_links(self, fields: model.LinkStep, up: bool) -> None:
        first, second = fields.sides
        for source, target in product(self._members(first, second), self._members(second, first)):
            if source != target:
                self.engine.set_link(source, target, up)
                if fields.between is not None:
                    self.engine.set_link(target, source, up)

    def _members(self, side: model.Side, other: model.Side) -> Sequence[int]:
        match side:
            case int():
                return [side]
            case "controllers":
                return self.engine.spec.controller_ids
            case "urm":
                return [RECOVERY_MANAGER]
            case "store":
                return [STORE]
        others = self._members(other, other) if other != "rest" else ()
        return [node for node in self.engine.spec.node_ids if node not in others and not is_client(node)]

    def _fault(self, fields: model.FaultStep) -> str:
        """Begins a fault now, and waits for the nodes that it has restarted: what follows sees the state after it. The
        loader has refused the step for any engine but the simulator.
        """
        assert isinstance(self.engine, CheckedEngine)
        if self._injector is None:
            topics = {topic.name: self.as_placed(topic) for topic in self.scenario.topics}
            self._injector = Injector(Controls(self.engine, topics, self.clients.next_id, within_tolerance=False))
        fault = fields.fault.model_copy(update={"at_ms": self.engine.now_ms(), "duration_ms": fields.duration})
        self._restartable |= {node: self._incarnation(node) for node in fault.nodes if not is_application(node)}
        self._injector.inject(fault)
        self._await_restarts()
        for node in fault.nodes if fault.keeps_down else ():
            del self._restartable[node]
        return fault.words()

    def _incarnation(self, node: int) -> tuple[int, int | None]:
        """The incarnation of a node of the simulator, and its broker epoch if it is a registered broker."""
        assert isinstance(self.engine, CheckedEngine)
        return self.engine.cluster.incarnation_of(node), self.clients.broker_epoch(node)

    def _await_restarts(self) -> None:
        """Waits until the nodes take part again that faults have restarted, when they began or were healed."""
        for node, (incarnation, epoch) in self._restartable.items():
            if self.engine.is_running(node) and self._incarnation(node)[0] != incarnation:
                self._await_start(node, epoch)
                self._restartable[node] = self._incarnation(node)

    def as_placed(self, topic: model.TopicModel) -> model.TopicModel:
        """The topic with the replicas that the controller has placed, where the scenario does not assign them."""
        view = self.engine.published()
        placed = [
            [*state.replicas]
            for key, state in sorted({} if view is None else view.partitions.items())
            if key.topic == topic.name
        ]
        return topic if topic.assignments else topic.model_copy(update={"assignments": placed})

    # -- clients and administration ------------------------------------------------------------------------------------

    def _produce(self, fields: model.ProduceStep) -> str | None:
        expected = ErrorCode[fields.expect_error] if fields.expect_error else ErrorCode.NONE
        partition = TopicPartition(fields.topic, fields.partition)
        for number in range(fields.records):
            outcome = self.clients.produce(partition, fields.acks, expected)
            if outcome.error is not expected:
                unknown = " (it may or may not have been written)" if outcome.unknown else ""
                raise StepFailedError(
                    f"record {number + 1} of {fields.records}: found {outcome.error.name}{unknown}; "
                    f"expected {expected.name}",
                    outcome.error,
                )
        return None

    def _load(self, fields: LoadStep) -> None:
        """The loader has refused the step for any engine but the simulator."""
        assert isinstance(self.engine, CheckedEngine)
        place, now_ms = TopicPartition(fields.topic, fields.partition), self.engine.now_ms()
        load = Load(self.clients, place, fields.acks, fields.rate, now_ms, fields.duration)
        load.schedule(self.engine.cluster.call_at)
        self.loads.append(load)

    def _administer(self, request: AdminRequest, expect_error: str | None = None) -> str | None:
        """Makes a request; returns how it was refused, if that was expected, and None if it was carried out."""
        expected = ErrorCode[expect_error] if expect_error else ErrorCode.NONE
        outcome = self.clients.administer(request)
        found = outcome.error.name + (f" ({outcome.message})" if outcome.message else "")
        if outcome.error is not expected:
            raise StepFailedError(f"found {found}; expected {expected.name}", outcome.error)
        return None if outcome.error is ErrorCode.NONE else found

    def _create_topic(self, fields: model.TopicModel) -> str | None:
        expected = fields.expect_error if isinstance(fields, model.CreateTopicStep) else None
        count, factor = fields.partitions or CLUSTER_DEFAULT, fields.replication_factor or CLUSTER_DEFAULT
        request = admin_requests.create_topic(fields.name, fields.assignments, fields.config, count, factor)
        refusal = self._administer(request, expected)
        if refusal is None:
            self._await_topic(fields.name, fields.partition_count(self.engine.spec.config))
        return refusal

    def _await_topic(self, name: str, count: int) -> None:
        """Waits until the topic has `count` partitions, and the running replicas, which clients reach, have it."""

        def everywhere() -> bool:
            view = self.engine.view()
            states = {} if view is None else {key: it for key, it in view.partitions.items() if key.topic == name}
            places = [(broker, key) for key, state in states.items() for broker in state.isr]
            running = (place for place in places if self.engine.is_running(place[0]))
            return len(states) >= count and all(self.engine.replica(*place) is not None for place in running)

        self.engine.run_until(everywhere, START_WITHIN_MS)

    def _delete_topic(self, fields: model.TopicStep) -> str | None:
        refusal = self._administer(admin_requests.delete_topic(fields.name), fields.expect_error)
        if refusal is None:
            self.clients.forget_topic(fields.name)
        return refusal

    def _add_partitions(self, fields: model.AddPartitionsStep) -> str | None:
        view = self.engine.view()
        present = 0 if view is None else sum(partition.topic == fields.name for partition in view.partitions)
        request = admin_requests.add_partitions(fields.name, present, fields.assignments)
        refusal = self._administer(request, fields.expect_error)
        if refusal is None:
            self._await_topic(fields.name, present + len(fields.assignments))
        return refusal

    def _remove_partitions(self, fields: model.RemovePartitionsStep) -> str | None:
        """Waits until the running brokers have removed their replicas: later partitions of these names are others."""
        removed = [TopicPartition(fields.name, index) for index in fields.partitions]
        view = self.engine.view()
        states = {} if view is None else view.partitions
        held = [(broker, name) for name in removed if name in states for broker in states[name].isr]
        request = admin_requests.remove_partitions(fields.name, fields.partitions)
        refusal = self._administer(request, fields.expect_error)
        if refusal is None:
            self.clients.forget(removed)
            self.engine.run_until(lambda: all(self.engine.replica(*place) is None for place in held), START_WITHIN_MS)
        return refusal

    def _configure(self, fields: model.ConfigureStep) -> str | None:
        changes = {**fields.config, **dict.fromkeys(fields.delete)}
        return self._administer(admin_requests.alter_config(fields.topic, changes), fields.expect_error)

    def _update_feature(self, fields: model.UpdateFeatureStep) -> str | None:
        kind = UpgradeType.UPGRADE if fields.downgrade is None else UpgradeType[f"{fields.downgrade.upper()}_DOWNGRADE"]
        return self._administer(admin_requests.update_feature(fields.feature, fields.level, kind), fields.expect_error)

    def _unregister(self, fields: model.UnregisterStep) -> str | None:
        return self._administer(admin_requests.unregister_broker(fields.broker), fields.expect_error)

    def _unregister_controller(self, fields: model.ControllerStep) -> str | None:
        return self._administer(admin_requests.unregister_controller(fields.node), fields.expect_error)

    def _elect(self, fields: model.ElectStep) -> str | None:
        kind = ElectionType[fields.type.upper()]
        request = admin_requests.elect_leader(fields.topic, fields.partition, kind, fields.desired_leader)
        return self._administer(request, fields.expect_error)

    def _reassign(self, fields: model.ReassignStep) -> str | None:
        request = admin_requests.reassign(
            fields.topic, fields.partition, fields.replicas, fields.allow_replication_factor_change
        )
        return self._administer(request, fields.expect_error)

    def _add_voter(self, fields: model.AddVoterStep) -> str | None:
        self._require_running(fields.node, True)
        self.engine.run_until(lambda: fields.node in self.engine.quorum(), START_WITHIN_MS)
        uuid = self.engine.quorum()[fields.node].uuid
        request = admin_requests.add_voter(fields.node, uuid, ack_when_committed=fields.ack_when_committed)
        return self._administer(request, fields.expect_error)

    def _remove_voter(self, fields: model.ControllerStep) -> str | None:
        self.engine.run_until(lambda: self.engine.active_controller() is not None, START_WITHIN_MS)
        active = self.engine.active_controller()
        voters = () if active is None else self.engine.quorum()[active].voters
        uuid = next((key.uuid for key in voters if key.id == fields.node), "")
        return self._administer(admin_requests.remove_voter(fields.node, uuid), fields.expect_error)

    def _wait(self, fields: model.WaitStep) -> None:
        self.engine.run_for(fields.duration_ms)

    def _await(self, fields: model.AwaitStep) -> str | None:
        self._await_restarts()
        began_ms = self.engine.now_ms()

        def holds() -> bool:
            between = self.engine.unjudged()
            return (bool(between) and expectations.was_published(fields, between)) or not self._mismatch(fields)

        if not self.engine.run_until(holds, fields.within):
            raise StepFailedError(f"within {fields.within / 1000:g} s: {self._mismatch(fields)}")
        return f"after {(self.engine.now_ms() - began_ms) / 1000:.3f} s"

    def _expect(self, fields: Expectation) -> None:
        if DATA_FIELDS & fields.model_fields_set:
            expectations.await_leadership(fields, self.engine)
        if mismatch := self._mismatch(fields):
            raise StepFailedError(mismatch)

    def _mismatch(self, fields: Expectation) -> str:
        return expectations.mismatch(fields, self.engine, self.clients)


def _loss_of(lose: int | LossName) -> Loss:
    """What a step says a disk loses, as the engines take it."""
    return Loss("records", lose) if isinstance(lose, int) else Loss(lose)


def run_recorded(runner: Runner, folder: Path) -> ScenarioResult:
    """Runs a scenario and writes a recording to a new or empty folder. InputError for any other folder."""
    engine, writer = runner.engine, RecordingWriter(folder)
    try:
        writer.record(engine)
        result = runner.run()
        finals = final_logs(engine, ranges_of)
        for operation in runner.clients.operations:
            writer.operation(operation)
        writer.metadata(engine.metadata_log())
        writer.finish(Header.of(runner.scenario.name, engine.name, engine.spec), finals)
    finally:
        writer.close()
    return result
