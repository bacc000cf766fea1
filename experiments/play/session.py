"""`SimWorld`: a simulated cluster in virtual time, steered by a page, in free play or in a lesson.

Every action is a step of a scenario, which the runner of scenarios carries out. An action that the state does not allow
is refused with the reason, and leaves the state as it was: before an action that would take time to fail, by a look at
the state; otherwise by replaying the steps before it. A request that is answered by an error code did happen, so it is
carried out again as a step that expects this error: a scenario file that is saved passes.

The cluster is a function of its steps and its seed. Waiting in parts is the same as waiting once, as the simulator has
no event of its own between two of the cluster's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import yaml

from experiments.check.engine import CheckedEngine
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.page import columns
from experiments.explorer.recorder import AcknowledgedLosses, SimRecorder
from experiments.play.lessons.model import answer_of, lesson_named, lessons, progress
from experiments.play.rules import Explainer, answer_text
from experiments.play.steps import EXPECTING, foreseen_error, joined, partition_of, reading, step_text, with_error
from experiments.play.views import node_views, obstacle, partition_views, situation_of, stored_min_isr
from experiments.play.world import RawStep, RefusedError
from experiments.scenarios.clients import NoOutcomeError
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario, Step
from experiments.scenarios.runner import Runner, StepFailedError
from experiments.support.durations import format_duration, parse_duration_ms
from experiments.support.errors import InputError
from experiments.support.yaml_input import parse_yaml_mapping
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import NO_LEADER, NodeId, TopicPartition, node_name
from protocol.messages.base import Message
from protocol.messages.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.messages.data import FetchRenewal, FetchRequest, FetchResponse
from protocol.messages.quorum import QuorumFetchRequest, QuorumFetchResponse

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
LOOK_EVERY_MS = 200
"""How often the goals of a lesson are looked at while time passes."""


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
    """A simulated cluster: the scenario `base` without its steps, which are `ahead`. InputError for a wrong one. Of a
    lesson, `given` steps are done before it begins, and `reached` of its goals are.
    """

    base: RawStep
    ahead: list[RawStep] = field(default_factory=list)
    seed: int = 0
    source: str = "play"
    lesson_name: str = ""
    done: list[Done] = field(default_factory=list)
    reached: int = 0
    given: int = 0
    _engine: CheckedEngine = field(init=False)
    _runner: Runner = field(init=False)
    _recorder: SimRecorder = field(init=False)
    _explainer: Explainer = field(init=False)
    _known: list[dict[str, object]] = field(default_factory=list)
    """The partitions when a controller was active last."""

    def __post_init__(self) -> None:
        self._replay([])

    @classmethod
    def of(cls, raw: RawStep, seed: int = 0, source: str = "play") -> SimWorld:
        """The world of a scenario, with all of its steps ahead. InputError for a wrong one."""
        scenario_from(dict(raw), source)
        steps = cast("list[RawStep]", raw["steps"])
        return cls({name: value for name, value in raw.items() if name != "steps"}, [*steps], seed, source)

    @classmethod
    def of_lesson(cls, name: str, seed: int = 0) -> SimWorld:
        """The world at the beginning of a lesson. InputError for a name that no lesson has."""
        given = lesson_named(name, "--lesson").given
        base, steps = answer_of(name)
        world = cls(base, [], seed, name, name)
        for raw in steps[:given]:
            world._perform(raw)
        world.given, world.reached = len(world.done), 0
        return world

    @property
    def unavailable(self) -> Mapping[str, str]:
        return {}

    @property
    def is_live(self) -> bool:
        return False

    def follow(self, seen: Callable[[], None]) -> None:
        """Nothing to call: time passes in actions only."""

    # -- steering ------------------------------------------------------------------------------------------------------

    def act(self, step: RawStep) -> str:
        if {*step} == {"consume"}:
            self._checked(reading(step))
            found = self._consume(*partition_of(step))
        else:
            checked = self._checked(step)
            if why := obstacle(step, checked, self._engine, self._paused()):
                raise RefusedError(why)
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
            last = self.done[-1].wait_ms if len(self.done) > self.given else 0
            part = min(duration_ms, LONGEST_WAIT_MS - last if 0 < last < LONGEST_WAIT_MS else LONGEST_WAIT_MS)
            self._pass(part)
            if 0 < last < LONGEST_WAIT_MS:
                self.done.pop()
            else:
                last = 0
            raw = {"wait": format_duration(last + part)}
            self.done.append(Done(raw, self._scenario([raw]).steps[0]))
            duration_ms -= part

    def _pass(self, duration_ms: int) -> None:
        """Lets time pass. In a lesson the goals are looked at every LOOK_EVERY_MS of virtual time, however it is cut
        into waits, so that a replay reaches the same ones.
        """
        end_ms = self._engine.now_ms() + duration_ms
        while (left_ms := end_ms - self._engine.now_ms()) > 0:
            until_look_ms = LOOK_EVERY_MS - self._engine.now_ms() % LOOK_EVERY_MS
            self._engine.run_for(min(left_ms, until_look_ms) if self.lesson_name else left_ms)
            if left_ms >= until_look_ms:
                self._look(None)

    def _look(self, step: RawStep | None) -> None:
        """Counts the goals that are reached now, after a step or while time passes."""
        if not self.lesson_name:
            return
        goals = lessons()[self.lesson_name].goals
        if self.reached < len(goals):
            self.reached = progress(goals, self.reached, situation_of(self._facts(), step))

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
        count = max(count, self.given)
        self.ahead = [*(it.raw for it in self.done[count:]), *self.ahead]
        self._replay(self.done[:count])

    def back(self) -> None:
        if len(self.done) == self.given:
            raise RefusedError(f"this is the start{' of the lesson' if self.given else ', before the first step'}")
        self.rewind(len(self.done) - 1)

    def load(self, text: str, seed: int) -> SimWorld:
        try:
            return SimWorld.of(parse_yaml_mapping(text, "the file", "a scenario file"), seed, "the file")
        except InputError as error:
            raise RefusedError(str(error)) from error

    def lesson(self, name: str) -> SimWorld:
        if not name:
            return SimWorld(DEFAULT, seed=self.seed)
        try:
            return SimWorld.of_lesson(name, self.seed)
        except InputError as error:
            raise RefusedError(str(error)) from error

    def answer(self) -> None:
        if not self.lesson_name:
            raise RefusedError("this is no lesson, so that there is no answer")
        _, steps = answer_of(self.lesson_name)
        self._replay(self.done[: self.given])
        self.ahead = steps[lessons()[self.lesson_name].given :]

    def has_steps_ahead(self) -> bool:
        return bool(self.ahead)

    def scenario(self) -> str:
        if not self.done:
            raise RefusedError("nothing has been done yet, and a scenario has one step or more")
        document = {**self.base, "steps": list(joined((it.raw, it.wait_ms) for it in self.done))}
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
        [kind] = step
        foreseen = foreseen_error(step, self._partition(*partition_of(step)))
        try:
            self._perform(with_error(step, foreseen) if foreseen else step)
        except _AnsweredError as answer:
            found = "" if answer.error == "NONE" else answer.error
            if kind not in EXPECTING or found == foreseen:
                raise
            foreseen = found
            self._perform(with_error(step, foreseen))
        return answer_text(foreseen)

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
        self._look(raw)
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
        self.reached = 0
        for number, done in enumerate(steps):
            if self.lesson_name and done.wait_ms and number >= self.given:
                self._pass(done.wait_ms)
                continue
            self._runner.carry_out(done.step)
            if number >= self.given:
                self._look(done.raw)
        self.done = list(steps)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        engine = self._engine
        journal = self._recorder.journal()
        run = run_of_journal(journal, str(self.base["name"]), (), engine.spec, engine.metadata_log())
        return self._facts() | {
            "kind": "play",
            "unavailable": {},
            "ended": "",
            "title": str(self.base["name"]),
            "description": str(self.base.get("description", "")),
            "seed": self.seed,
            "now_ms": engine.now_ms(),
            "cuts": [[node_name(source), node_name(target)] for source, target in engine.cluster.network.cuts()],
            "loads": [load.words() for load in self._runner.loads],
            "done": [{"text": it.step.text, "detail": it.detail} for it in self.done],
            "given": self.given,
            "ahead": [step_text(raw) for raw in self.ahead],
            "sentences": [it.document() for it in self._explainer.sentences],
            "violations": [f"{it.invariant}: {it.detail}" for it in engine.suite.violations],
            "diagram": {"runs": [columns(run)], "differences": []},
            "lessons": [{"name": name, "title": it.title} for name, it in lessons().items()],
            "lesson": self._lesson(),
        }

    def _facts(self) -> dict[str, object]:
        """Nodes, partitions and voters: what the goals of lessons are about."""
        view = self._engine.published()
        if view is not None:
            self._runner.collect()
            self._known = partition_views(self._engine, self._runner.clients, self._min_isr())
        return {
            "nodes": node_views(self._engine, self._paused(), view),
            "partitions": self._known,
            "is_current": view is not None,
            "voters": [] if view is None else sorted(view.voters),
        }

    def _lesson(self) -> dict[str, object] | None:
        if not self.lesson_name:
            return None
        lesson = lessons()[self.lesson_name]
        goals = [{"text": goal.text, "reached": place < self.reached} for place, goal in enumerate(lesson.goals)]
        texts = lesson.model_dump(include={"title", "text", "task", "hints", "conclusion"})
        return texts | {"name": self.lesson_name, "goals": goals}

    def _paused(self) -> list[NodeId]:
        engine = self._engine
        return [node for node in engine.spec.node_ids if engine.is_running(node) and engine.is_paused(node)]

    def _min_isr(self) -> dict[TopicPartition, int | None]:
        if self._engine.spec.has_store_metadata:
            return stored_min_isr(self._engine)
        node = self._engine.active_node()
        if node is None:
            return {}
        image = node.state.image
        return {
            image.name_of(key): image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
            for key, state in image.partitions()
        }

    def _partition(self, topic: str, partition: int) -> dict[str, object] | None:
        if self._engine.published() is None:
            return None
        wanted, found = f"{topic}-{partition}", partition_views(self._engine, self._runner.clients, self._min_isr())
        return next((it for it in found if it["name"] == wanted), None)


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
