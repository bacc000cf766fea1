"""What a page steers. `World` is what it asks for; `SimWorld` is a simulated cluster in virtual time.

Every action is a step of a scenario, which the runner of scenarios carries out. An action that the state does not allow
is refused with the reason, and leaves the state as it was: before an action that would take time to fail, by a look at
the state; otherwise by replaying the steps before it. A request that is answered by an error code did happen, so it is
carried out again as a step that expects this error: a scenario file that is saved passes.

The cluster is a function of its steps and its seed. Waiting in parts is the same as waiting once, as the simulator has
no event of its own between two of the cluster's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import yaml

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterView
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.page import columns
from experiments.explorer.recorder import AcknowledgedLosses, SimRecorder
from experiments.play.rules import ERRORS, Explainer
from experiments.scenarios.clients import NoOutcomeError
from experiments.scenarios.expectations import describe_partitions
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario, Step
from experiments.scenarios.runner import Runner, StepFailedError
from experiments.support.durations import format_duration, parse_duration_ms
from experiments.support.errors import InputError
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.errors import ErrorCode
from protocol.ids import (
    NO_LEADER,
    RECOVERY_MANAGER,
    STORE,
    NodeId,
    TopicPartition,
    is_broker,
    is_client,
    is_controller,
    node_name,
)
from protocol.messages.base import Message
from protocol.messages.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.messages.data import FetchRenewal, FetchRequest, FetchResponse
from protocol.messages.quorum import QuorumFetchRequest, QuorumFetchResponse

RawStep = Mapping[str, object]
SHOWN_EVENTS = 1_200
LONGEST_WAIT_MS = 5_000
"""Time that passes is kept in steps of at most this length, to which a page can rewind."""
STEP_MS = 1_000
DEFAULT: dict[str, object] = {
    "name": "play",
    "description": "Played by hand.",
    "cluster": {"brokers": 3, "controllers": 3, "generation": "kip-966"},
    "topics": [{"name": "t", "assignments": [[0, 1, 2], [1, 2, 0]], "config": {"min.insync.replicas": 2}}],
}
"""The cluster that is played with when no scenario file is given."""
_EXPECTING = ("produce", "elect", "reassign", "configure", "create_topic", "delete_topic", "unregister")
"""The kinds of steps that can expect an error."""


class RefusedError(Exception):
    """An action that the state does not allow; the message says why. Nothing was done."""


class World(Protocol):
    """A cluster that a page steers. Steps are mappings with one key, as in scenario files."""

    def act(self, step: RawStep) -> str:
        """Carries out an action; returns what was answered. RefusedError where the state does not allow it."""

    def advance(self, duration_ms: int) -> None:
        """Lets time pass."""

    def step(self) -> str:
        """Carries out the next step that is ahead, or lets a second pass. RefusedError where the step fails."""

    def rewind(self, count: int) -> None:
        """Back to the state after the first `count` steps; those behind are ahead then."""

    def back(self) -> None:
        """Back to the state before the last step. RefusedError at the start."""

    def scenario(self) -> str:
        """What was done as a scenario file. RefusedError while nothing was done."""

    def has_steps_ahead(self) -> bool:
        """Whether `step` carries out a step rather than letting time pass."""

    def state(self) -> dict[str, object]:
        """The state as JSON has it."""


@dataclass(slots=True)
class Done:
    """A step that was carried out, and what it found."""

    raw: RawStep
    step: Step
    detail: str = ""

    @property
    def wait_ms(self) -> int:
        """The length of a `wait`, else 0."""
        return parse_duration_ms(self.raw["wait"]) if "wait" in self.raw else 0


@dataclass(slots=True)
class SimWorld:
    """A simulated cluster: the scenario `base` without its steps, which are `ahead`. InputError for a wrong one."""

    base: RawStep
    ahead: list[RawStep] = field(default_factory=list)
    seed: int = 0
    source: str = "play"
    done: list[Done] = field(default_factory=list)
    _engine: CheckedEngine = field(init=False)
    _runner: Runner = field(init=False)
    _recorder: SimRecorder = field(init=False)
    _explainer: Explainer = field(init=False)
    _known: list[dict[str, object]] = field(default_factory=list)
    """The partitions when a controller was active last."""

    def __post_init__(self) -> None:
        self._scenario([*self.ahead] or [{"wait": "1ms"}])
        self._replay(())

    @classmethod
    def of(cls, raw: RawStep, seed: int = 0, source: str = "play") -> SimWorld:
        """The world of a scenario, with all of its steps ahead. InputError for a wrong one."""
        scenario_from(dict(raw), source)
        steps = cast("list[RawStep]", raw["steps"])
        return cls({name: value for name, value in raw.items() if name != "steps"}, [*steps], seed, source)

    # -- steering ------------------------------------------------------------------------------------------------------

    def act(self, step: RawStep) -> str:
        consumed = step.get("consume")
        if isinstance(consumed, dict) and len(step) == 1:
            found = self._consume(str(consumed.get("topic")), int(consumed.get("partition", 0)))
        else:
            checked = self._checked(step)
            if obstacle := _obstacle(step, checked, self._engine):
                raise RefusedError(obstacle)
            found = self._expecting(step)
        self.ahead.clear()
        return found

    def _consume(self, topic: str, partition: int) -> str:
        """Reads a partition from its start, as the step `expect` with what is found."""
        name, state = TopicPartition(topic, partition), self._partition(topic, partition)
        if state is None or state["leader"] == NO_LEADER:
            raise RefusedError(f"{name} has no leader, so that no consumer can read it")
        found = self._runner.clients.visible(name)
        self._replay(self.done)
        if found is None:
            raise RefusedError(f"no consumer can read {name} now: its leader does not answer")
        self._perform({"expect": {"topic": topic, "partition": partition, "visible": found}})
        return f"a consumer reads {found} records of {name}: those below the high watermark"

    def advance(self, duration_ms: int) -> None:
        while duration_ms > 0:
            last = self.done[-1].wait_ms if self.done else 0
            part = min(duration_ms, LONGEST_WAIT_MS - last if 0 < last < LONGEST_WAIT_MS else LONGEST_WAIT_MS)
            self._engine.run_for(part)
            if 0 < last < LONGEST_WAIT_MS:
                self.done.pop()
            else:
                last = 0
            raw = {"wait": format_duration(last + part)}
            self.done.append(Done(raw, self._scenario([raw]).steps[0]))
            duration_ms -= part

    def step(self) -> str:
        if not self.ahead:
            self.advance(STEP_MS)
            return ""
        raw, *rest = self.ahead
        found = self._perform(raw)
        self.ahead = rest
        return found

    def rewind(self, count: int) -> None:
        if not 0 <= count <= len(self.done):
            raise RefusedError(f"found step {count}; allowed: 0 to {len(self.done)}")
        self.ahead = [*(it.raw for it in self.done[count:]), *self.ahead]
        self._replay(self.done[:count])

    def back(self) -> None:
        if not self.done:
            raise RefusedError("this is the start, before the first step")
        self.rewind(len(self.done) - 1)

    def has_steps_ahead(self) -> bool:
        return bool(self.ahead)

    def scenario(self) -> str:
        if not self.done:
            raise RefusedError("nothing has been done yet, and a scenario has one step or more")
        document = {**self.base, "steps": list(_joined(self.done))}
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)

    def trace_hash(self) -> str:
        return self._engine.trace_hash()

    # -- carrying out --------------------------------------------------------------------------------------------------

    def _scenario(self, steps: Sequence[RawStep]) -> Scenario:
        return scenario_from({**self.base, "steps": [dict(step) for step in steps]}, self.source)

    def _checked(self, step: RawStep) -> Step:
        """The step, if it is one and what it names exists after those before it. RefusedError if not."""
        before = [it.raw for it in self.done if not it.wait_ms]
        try:
            return self._scenario([*before, step]).steps[-1]
        except InputError as error:
            raise RefusedError(f"found {error.found}; allowed: {error.allowed}") from error

    def _expecting(self, step: RawStep) -> str:
        """Carries out a step; where an error code answers it, as a step that expects the error."""
        [(kind, fields)] = step.items()
        foreseen = self._foreseen(kind, fields)
        try:
            self._perform(_with_error(step, foreseen) if foreseen else step)
        except _AnsweredError as answer:
            if kind not in _EXPECTING or answer.error in ("NONE", foreseen):
                raise
            foreseen = answer.error
            self._perform(_with_error(step, foreseen))
        return f"{foreseen}: {ERRORS.get(foreseen, 'the cluster has refused it')}" if foreseen else ""

    def _foreseen(self, kind: str, fields: object) -> str:
        """The error that a produce request meets at once, which a client without it would retry for 30 s."""
        if kind != "produce" or not isinstance(fields, dict) or fields.get("acks", "all") != "all":
            return ""
        state = self._partition(str(fields["topic"]), int(fields.get("partition", 0)))
        if state is None or len(cast("list[int]", state["isr"])) >= cast(int, state["min_isr"]):
            return ""
        return ErrorCode.NOT_ENOUGH_REPLICAS.name

    def _perform(self, raw: RawStep) -> str:
        """Carries out a step and keeps it. RefusedError where it fails, and the state is the one before it."""
        step = self._checked(raw)
        try:
            detail = self._runner.carry_out(step)
        except (StepFailedError, NoOutcomeError) as error:
            self._replay(self.done)
            code = error.error.name if isinstance(error, StepFailedError) else "NONE"
            raise _AnsweredError(str(error), code) from error
        self.done.append(Done(raw, step, detail))
        return detail

    def _replay(self, steps: Sequence[Done]) -> None:
        """A new cluster, after these steps."""
        scenario = self._scenario([{"wait": "1ms"}])
        self._engine = CheckedEngine(scenario.cluster.spec(self.seed))
        self._runner = Runner(scenario, self._engine)
        self._recorder = SimRecorder(
            self._engine.cluster,
            self._runner.headings,
            self._engine.suite.violations,
            SHOWN_EVENTS,
            AcknowledgedLosses(),
            is_quiet,
        )
        self._explainer, self._known = Explainer(), []
        self._engine.record_to(self._explainer.add)
        try:
            self._runner.set_up()
        except StepFailedError as error:
            raise InputError(self.source, "", str(error), "a cluster that starts") from error
        for done in steps:
            self._runner.carry_out(done.step)
        self.done = list(steps)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        engine, view = self._engine, self._engine.published()
        if view is not None:
            self._known = self._partitions()
        journal = self._recorder.journal()
        run = run_of_journal(journal, str(self.base["name"]), (), engine.spec, engine.metadata_log())
        return {
            "title": str(self.base["name"]),
            "description": str(self.base.get("description", "")),
            "seed": self.seed,
            "now_ms": engine.now_ms(),
            "nodes": [_node(node, engine, view) for node in engine.spec.node_ids],
            "cuts": [[node_name(source), node_name(target)] for source, target in engine.cluster.network.cuts()],
            "partitions": self._known,
            "is_current": view is not None,
            "done": [{"text": it.step.text, "detail": it.detail} for it in self.done],
            "ahead": [_text(raw) for raw in self.ahead],
            "sentences": [it.document() for it in self._explainer.sentences],
            "violations": [f"{it.invariant}: {it.detail}" for it in engine.suite.violations],
            "diagram": {"runs": [columns(run)], "differences": []},
        }

    def _partitions(self) -> list[dict[str, object]]:
        """The partitions as the result of a scenario has them, with their min ISR and acknowledged records."""
        node, found = self._engine.active_node(), {}
        if node is not None:
            image = node.state.image
            for key, state in image.partitions():
                found[str(image.name_of(key))] = image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
        acknowledged = {str(key): len(records) for key, records in self._runner.clients.acknowledged.items()}
        described = describe_partitions(self._engine, self._runner.clients)
        names = [f"{it['topic']}-{it['partition']}" for it in described]
        return [
            {**it, "name": name, "min_isr": found.get(name, 1), "acknowledged": acknowledged.get(name, 0)}
            for name, it in zip(names, described, strict=True)
        ]

    def _partition(self, topic: str, partition: int) -> dict[str, object] | None:
        if self._engine.published() is None:
            return None
        wanted = f"{topic}-{partition}"
        return next((it for it in self._partitions() if it["name"] == wanted), None)


class _AnsweredError(RefusedError):
    """A step that failed; `error` is the name of the error code of the answer, NONE where there was none."""

    def __init__(self, text: str, error: str) -> None:
        super().__init__(text)
        self.error = error


def is_quiet(message: Message) -> bool:
    """Whether a message repeats what everybody knows: heartbeats, and fetches that bring nothing new."""
    if isinstance(message, FetchResponse):
        return message.can_wait
    repeating = BrokerHeartbeatRequest | BrokerHeartbeatResponse | FetchRequest | FetchRenewal | QuorumFetchRequest
    return isinstance(message, repeating | QuorumFetchResponse)


def _with_error(step: RawStep, error: str) -> RawStep:
    [(kind, fields)] = step.items()
    assert isinstance(fields, dict)
    return {kind: {**fields, "expect_error": error}}


def _text(raw: RawStep) -> str:
    [(kind, fields)] = raw.items()
    text = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=10_000)
    return f"{kind}: {text.removesuffix('...' + chr(10)).strip()}"


def _joined(done: Sequence[Done]) -> Iterator[dict[str, object]]:
    """The steps as a file has them: waits that follow each other are one."""
    waited = 0
    for it in done:
        if it.wait_ms:
            waited += it.wait_ms
            continue
        if waited:
            yield {"wait": format_duration(waited)}
        waited = 0
        yield dict(it.raw)
    if waited:
        yield {"wait": format_duration(waited)}


def _obstacle(raw: RawStep, step: Step, engine: CheckedEngine) -> str:
    """Why the state does not allow a step, empty if it does; of what would fail only after some time, or break."""
    [(kind, fields)] = raw.items()
    if kind == "produce" and isinstance(fields, dict):
        view, name = engine.published(), f"{fields['topic']}-{fields.get('partition', 0)}"
        states = {} if view is None else {str(key): state for key, state in view.partitions.items()}
        if name not in states or states[name].leader == NO_LEADER:
            why = "no controller is active" if view is None else f"{name} has no leader, to which a producer could send"
            return f"nothing can be produced: {why}"
    node = getattr(step.fields, "node", None) if kind in ("crash", "shutdown", "start", "pause", "resume") else None
    if isinstance(node, int):
        return _obstacle_of_node(kind, node, engine)
    if kind in ("elect", "reassign", "configure", "unregister") and engine.active_controller() is None:
        return f"{kind}: no controller is active that could do it"
    return ""


def _obstacle_of_node(kind: str, node: NodeId, engine: CheckedEngine) -> str:
    runs, name = engine.is_running(node), node_name(node)
    if runs == (kind == "start"):
        return f"{name} {'runs already' if runs else 'does not run'}"
    is_paused = runs and engine.is_paused(node)
    if kind == "resume" and not is_paused:
        return f"{name} is not paused"
    if kind in ("pause", "shutdown") and is_paused:
        return f"{name} is paused: resume it first"
    return ""


def _node(node: NodeId, engine: CheckedEngine, view: ClusterView | None) -> dict[str, object]:
    """What a page shows of a node: `state` in a word, and in which role it is."""
    kinds = {"broker": is_broker, "controller": is_controller, "client": is_client}
    kind = next((name for name, is_kind in kinds.items() if is_kind(node)), "manager")
    state, role = "down", ""
    if engine.is_running(node):
        state = "paused" if engine.is_paused(node) else "up"
        if is_broker(node) and view is not None:
            found = view.brokers.get(node)
            role = "not registered" if found is None else "fenced" if found.fenced else "unfenced"
        elif is_controller(node):
            quorum = engine.quorum()[node]
            role = f"{'active' if quorum.is_active else quorum.role}, epoch {quorum.epoch}"
    fields: dict[int, dict[str, object]] = {RECOVERY_MANAGER: {"urm": True}, STORE: {"store": True}}
    step = None if kind == "client" else fields.get(node, {kind: node})
    return {"id": node, "name": node_name(node), "kind": kind, "state": state, "role": role, "step": step}
