"""`LiveWorld`: a running cluster of `isray up`, steered by a page in real time.

Actions are the steps of scenarios, carried out by the runner of scenarios on the attached engine
(`experiments/engines/ray/attached.py`), except that a start and a stop are only begun: the page shows how they go on.
What others do to the cluster shows too: states come from the nodes, changes from their trace events.

Of records only those are counted that this page has sent. None of them is lost while its leader stays, so the leader's
log is read once after each change of the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import yaml
from ray.exceptions import RayError

from experiments.engines.clusters.node_commands import NodeState
from experiments.engines.port import ClusterView, Engine, TraceEvent
from experiments.engines.ray.attached import ActionRefusedError, AttachedEngine
from experiments.engines.ray.engine import NODE_FAILURES
from experiments.explorer.assemble import run_of_journal
from experiments.explorer.page import columns
from experiments.explorer.recorder import TraceCollector
from experiments.play.rules import Explainer, answer_text
from experiments.play.steps import (
    EXPECTING,
    first_record,
    foreseen_error,
    joined,
    partition_of,
    reading,
    step_text,
    with_error,
)
from experiments.play.views import node_views, obstacle, stored_min_isr
from experiments.play.world import RawStep, RefusedError, World
from experiments.scenarios.clients import NoOutcomeError
from experiments.scenarios.expectations import describe_partition
from experiments.scenarios.load import Load, LoadStep
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import NodeStep, Scenario, Step
from experiments.scenarios.runner import Runner, StepFailedError
from experiments.support.errors import InputError
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.errors import ErrorCode
from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, NodeId, TopicPartition, node_name
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.messages.records import MetadataRecord
from protocol.messages.topics import DescribeTopicRequest, DescribeTopicResponse
from protocol.nodes.controller_log import partition_changed

SHOWN_EVENTS, SHOWN_PARTITIONS = 1_200, 100
LOOK_EVERY_MS = 200
"""How often a page sees the cluster while an action waits."""
SUPERVISOR_EVERY_MS, DESCRIBE_EVERY_MS = 1_000, 3_000
"""How often the supervisor is asked for nodes and links, and the cluster for min ISR."""
_TIME = "A running cluster has its own time: it cannot be stopped, stepped or taken back."
_FILES = "Scenario files and lessons need a simulated cluster: isray play."
UNAVAILABLE = dict.fromkeys(("run", "pause", "speed", "step", "back", "rewind"), _TIME) | dict.fromkeys(
    ("load", "lesson", "answer"), _FILES
)
_GONE = (InputError, RayError, *NODE_FAILURES)


class LiveDone(NamedTuple):
    """A step that was carried out, when, and what it found."""

    raw: RawStep
    time_ms: int
    detail: str


class _Watched:
    """The engine for the runner: `look` is called within every condition that it waits for."""

    def __init__(self, engine: AttachedEngine, look: Callable[[], None]) -> None:
        self._engine, self._look = engine, look

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        def seen() -> bool:
            self._look()
            return condition()

        return self._engine.run_until(seen, within_ms)


class LiveWorld:
    """The cluster of an attached engine, which the caller closes. `state` is what was seen last (`advance`). `leave` is
    called once, with the reason, when the cluster has ended; the engine is not used any more.
    """

    def __init__(self, engine: AttachedEngine, name: str, leave: Callable[[str], None]) -> None:
        self._engine, self._name, self._leave = engine, name, leave
        self.ended = ""
        self.done: list[LiveDone] = []
        self._is_current = True
        self._paused: list[NodeId] = []
        self._cuts: list[list[str]] = []
        self._nodes: list[dict[str, object]] = []
        self._view = engine.published()
        self._known: dict[TopicPartition, dict[str, object]] = {}
        self._min_isr: dict[TopicPartition, int | None] = {}
        self._lost: dict[TopicPartition, tuple[int, int]] = {}
        self._loads: list[Load] = []
        self._asked_ms = -SUPERVISOR_EVERY_MS
        self._describing, self._described_ms = 0, engine.now_ms()
        self._seen: Callable[[], None] = lambda: None
        self._seen_ms = engine.now_ms()
        self._runner = Runner(self._scenario({"wait": "1ms"}), cast(Engine, _Watched(engine, self._look_meanwhile)))
        with suppress(NoOutcomeError):  # no node answers, and the page shows why
            self._keep_min_isr(self._runner.clients.administer(DescribeTopicRequest(correlation_id=0)))
        self._look()
        self._base = self._document()
        self._records = _metadata_log(engine)
        self._explainer = Explainer(states=_published(self._view, self._min_isr))
        self._collector = TraceCollector(self._runner.headings, limit=SHOWN_EVENTS)
        engine.record_to(self._explainer.add)
        self._diagram: tuple[int, dict[str, object]] = (-1, {})
        self._events = 0
        engine.record_to(self._record)

    def _record(self, event: TraceEvent) -> None:
        self._collector.add(event)
        self._events += 1

    @property
    def unavailable(self) -> Mapping[str, str]:
        return UNAVAILABLE

    @property
    def is_live(self) -> bool:
        return True

    # -- actions -------------------------------------------------------------------------------------------------------

    def act(self, step: RawStep) -> str:
        if self.ended:
            raise RefusedError(f"the cluster is gone: {self.ended}")
        if {*step} == {"consume"}:
            self._checked(reading(step))
            return self._consume(*partition_of(step))
        checked = self._checked(step)
        try:
            if why := obstacle(step, checked, self._engine, self._paused):
                raise RefusedError(why)
            found = self._carry_out(step, checked)
        except _GONE as error:
            raise RefusedError(str(error)) from error
        finally:
            self._asked_ms = -SUPERVISOR_EVERY_MS
            self.advance(0)
        return found

    def _checked(self, step: RawStep) -> Step:
        """The step, if it is one and what it names exists. RefusedError if not."""
        try:
            return self._scenario(step).steps[-1]
        except InputError as error:
            raise RefusedError(f"found {error.found}; allowed: {error.allowed}") from error

    def _carry_out(self, raw: RawStep, step: Step) -> str:
        """Carries out a step, and keeps it; one that is answered by an error code as a step that expects it."""
        began_ms, [kind] = self._engine.now_ms(), raw
        if kind in ("fault", "set_clock", "expire", "lose_disk"):
            raise RefusedError(f"{kind} is for the simulator, or for isray scenario run")
        name = TopicPartition(*partition_of(raw))
        foreseen = foreseen_error(raw, self._known.get(name))
        expecting = with_error(raw, foreseen)
        detail = written = ""
        try:
            if isinstance(step.fields, LoadStep):
                self._begin_load(step.fields)
            elif isinstance(step.fields, NodeStep) and kind in ("start", "shutdown"):
                act = self._engine.start if kind == "start" else self._engine.terminate
                act(self._node_of(step.fields))
            else:
                detail = self._runner.carry_out(self._checked(expecting))
        except ActionRefusedError as error:
            raise RefusedError(str(error)) from error
        except NoOutcomeError as error:
            raise RefusedError(f"{error}; it may have been carried out") from error
        except StepFailedError as error:
            if kind not in EXPECTING or error.error.name == (foreseen or "NONE"):
                raise RefusedError(str(error)) from error
            if foreseen and error.error is ErrorCode.NONE:
                raw, written = first_record(raw), "one record is written: the ISR has grown meanwhile"
            foreseen = "" if error.error is ErrorCode.NONE else error.error.name
        self.done.append(LiveDone(with_error(raw, foreseen), began_ms, detail))
        return answer_text(foreseen) or written

    def _node_of(self, fields: NodeStep) -> NodeId:
        if fields.controller == "active" and (active := self._engine.active_controller()) is not None:
            return active
        return fields.node

    def _begin_load(self, fields: LoadStep) -> None:
        place, now_ms = TopicPartition(fields.topic, fields.partition), self._engine.now_ms()
        self._loads.append(Load(self._runner.clients, place, fields.acks, fields.rate, now_ms, fields.duration))

    def _consume(self, topic: str, partition: int) -> str:
        name = TopicPartition(topic, partition)
        state = self._known.get(name)
        if state is None or state["leader"] == NO_LEADER:
            raise RefusedError(f"{name} has no leader, so that no consumer can read it")
        try:
            outcome = self._runner.clients.consume(name)
        except (NoOutcomeError, *_GONE) as error:
            raise RefusedError(f"{name} is not read: {error}") from error
        if outcome.error is not ErrorCode.NONE:
            raise RefusedError(f"no consumer can read {name} now: {outcome.error.name}")
        found = sum(batch.record_count for batch in outcome.batches)
        return f"a consumer reads {found} records of {name}: those below the high watermark"

    def follow(self, seen: Callable[[], None]) -> None:
        self._seen = seen

    def _look_meanwhile(self) -> None:
        """What a page sees while a step waits for its outcome."""
        if self._engine.now_ms() - self._seen_ms >= LOOK_EVERY_MS:
            self._send_loads()
            self._see()
            self._seen()
            self._seen_ms = self._engine.now_ms()

    # -- looking -------------------------------------------------------------------------------------------------------

    def advance(self, duration_ms: int) -> None:
        """Looks at the cluster, and sends what the clients in the background have to send by now."""
        if self.ended:
            return
        try:
            self._send_loads()
            self._look()
            self._count_losses()
        except ActionRefusedError:
            return  # a node is silent; the next look asks again
        except _GONE as error:
            self.ended = str(error.found if isinstance(error, InputError) else error)
            self._seen()
            self._leave(self.ended)

    def _send_loads(self) -> None:
        for load in self._loads:
            load.send_due(self._engine.now_ms())

    def _look(self) -> None:
        """Sees nodes and partitions as one poll of the nodes finds them."""
        now_ms = self._engine.now_ms()
        if now_ms - self._asked_ms >= SUPERVISOR_EVERY_MS:
            self._asked_ms = now_ms
            with suppress(ActionRefusedError):  # a supervisor that is silent is asked again
                rows, links = self._engine.cluster.rows(), sorted(self._engine.cluster.links().items())
                self._paused = [node for node, row in rows.items() if row.state is NodeState.PAUSED]
                self._cuts = [[node_name(a), node_name(b)] for (a, b), delay_ms in links if delay_ms is None]
        self._engine.run_until(self._see, 0)
        self._describe(now_ms)

    def _see(self) -> bool:
        view = self._engine.published()
        self._is_current, self._view = view is not None, view or self._view
        self._nodes = node_views(self._engine, self._paused, view)
        if view is not None:
            if self._engine.spec.has_store_metadata:
                self._min_isr = stored_min_isr(self._engine)
            self._known = {name: self._partition(name, view) for name in _shown(view)}
        return True

    def _partition(self, name: TopicPartition, view: ClusterView) -> dict[str, object]:
        found = describe_partition(self._engine, name, view.partitions[name])
        return found | {"name": str(name), "min_isr": self._min_isr.get(name)}

    def _describe(self, now_ms: int) -> None:
        """Asks for min ISR from time to time, and takes the answer when it is there."""
        if self._engine.spec.has_store_metadata:
            return
        if self._describing and isinstance(outcome := self._engine.outcome(self._describing), AdminOutcome):
            self._describing = 0
            self._keep_min_isr(outcome)
        if not self._describing and now_ms - self._described_ms >= DESCRIBE_EVERY_MS:
            self._described_ms, self._describing = now_ms, self._runner.clients.next_id()
            self._engine.submit(
                AdminCommand(command_id=self._describing, request=DescribeTopicRequest(correlation_id=0))
            )

    def _keep_min_isr(self, outcome: AdminOutcome) -> None:
        if isinstance(outcome.response, DescribeTopicResponse):
            for topic in outcome.response.topics:
                for it in topic.partitions:
                    self._min_isr[TopicPartition(topic.name, it.partition_index)] = it.min_insync_replicas

    def _count_losses(self) -> None:
        """Compares what this page's clients know as acknowledged with the log of each new leader."""
        for name in sorted(self._runner.clients.acknowledged):
            state = self._known.get(name)
            if state is None or state["leader"] == NO_LEADER or state["leader"] in self._paused:
                continue
            epoch = cast(int, state["leader_epoch"])
            if self._lost.get(name, (-1, 0))[0] != epoch:
                found = self._runner.clients.losses(name)
                if not found.reasons:
                    self._lost[name] = (epoch, cast(int, found.document()["lost_acked"]))

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        found = None if self._view is None else len(self._view.partitions)
        shown = [self._counted(name, it) for name, it in sorted(self._known.items())]
        only = f" {len(shown)} of {found} partitions are shown, those that lack replicas first." if found else ""
        if self._diagram[0] != self._events:
            run = run_of_journal(self._collector.journal(), self._name, (), self._engine.spec, self._records)
            self._diagram = (self._events, {"runs": [columns(run)], "differences": []})
        return {
            "kind": "console",
            "unavailable": UNAVAILABLE,
            "ended": self.ended,
            "title": self._name,
            "description": "A running cluster, in real time." + (only if found != len(shown) else ""),
            "now_ms": self._engine.now_ms(),
            "nodes": self._nodes,
            "cuts": self._cuts,
            "partitions": shown,
            "is_current": self._is_current,
            "voters": [] if self._view is None else sorted(self._view.voters),
            "loads": [load.words() for load in self._loads],
            "done": [{"text": step_text(it.raw), "detail": it.detail} for it in self.done],
            "given": 0,
            "ahead": [],
            "sentences": [it.document() for it in self._explainer.sentences],
            "violations": [],
            "diagram": self._diagram[1],
            "events": self._events,
            "lessons": [],
            "lesson": None,
        }

    def _counted(self, name: TopicPartition, state: dict[str, object]) -> dict[str, object]:
        """With what has become of the records of this page: `lost_acked` is None while it is not known."""
        records = self._runner.clients.acknowledged.get(name, ())
        epoch, lost = self._lost.get(name, (-1, 0))
        is_known = not records or (epoch == state["leader_epoch"] and state["leader"] != NO_LEADER)
        return {**state, "acknowledged": len(records), "lost_acked": lost if is_known else None}

    def _document(self) -> dict[str, object]:
        """The cluster as a scenario has it, without steps: what steps can name."""
        spec = self._engine.spec
        cluster: dict[str, object] = {"brokers": spec.brokers, "generation": spec.config.generation.value}
        if not spec.has_store_metadata:
            cluster["controllers"] = spec.controllers
        topics: dict[str, list[list[int]]] = {}
        for name, state in sorted({} if self._view is None else self._view.partitions.items()):
            topics.setdefault(name.topic, []).append([*state.replicas])
        listed = [self._topic(name, found) for name, found in topics.items()]
        return {"name": self._name, "cluster": cluster, "topics": listed}

    def _topic(self, name: str, assignments: list[list[int]]) -> dict[str, object]:
        placed = len({*map(len, assignments)}) == 1
        min_isr = self._min_isr.get(TopicPartition(name, 0))
        return {
            "name": name,
            **({"assignments": assignments} if placed else {"partitions": len(assignments)}),
            **({"config": {MIN_INSYNC_REPLICAS: min_isr}} if min_isr is not None else {}),
        }

    def _scenario(self, step: RawStep) -> Scenario:
        return scenario_from({**self._document(), "steps": [dict(step)]}, self._name)

    def scenario(self) -> str:
        if not self.done:
            raise RefusedError("nothing has been done yet, and a scenario has one step or more")
        steps: list[tuple[RawStep, int]] = []
        before_ms = self.done[0].time_ms
        for it in self.done:
            waited_s = (it.time_ms - before_ms) // 1_000
            steps += [({}, 1_000 * waited_s)] if waited_s else []
            steps.append((it.raw, 0))
            before_ms = it.time_ms
        return yaml.safe_dump({**self._base, "steps": list(joined(steps))}, sort_keys=False, width=120)

    # -- what a running cluster does not do ----------------------------------------------------------------------------

    def step(self) -> str:
        raise RefusedError(_TIME)

    def rewind(self, count: int) -> None:
        raise RefusedError(_TIME)

    def back(self) -> None:
        raise RefusedError(_TIME)

    def load(self, text: str, seed: int) -> World:
        raise RefusedError(_FILES)

    def lesson(self, name: str) -> World:
        raise RefusedError(_FILES)

    def answer(self) -> None:
        raise RefusedError(_FILES)

    def has_steps_ahead(self) -> bool:
        return False


def _metadata_log(engine: AttachedEngine) -> Sequence[MetadataRecord]:
    """The metadata log, for the names of topics in the diagram; empty where a controller does not answer."""
    try:
        return engine.metadata_log()
    except (ActionRefusedError, *NODE_FAILURES):
        return ()


def _shown(view: ClusterView) -> list[TopicPartition]:
    """The partitions that a page shows: those first whose ISR lacks most replicas, then by name."""
    lacking = {name: len(state.replicas) - len(state.isr) for name, state in view.partitions.items()}
    return sorted(view.partitions, key=lambda name: (-lacking[name], name))[:SHOWN_PARTITIONS]


def _published(
    view: ClusterView | None, min_isr: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, PartitionChanged]:
    """The states of the partitions as trace events have them, before which no event was seen."""
    states = {} if view is None else view.partitions
    return {name: partition_changed(name, state, min_isr.get(name) or 1) for name, state in states.items()}
