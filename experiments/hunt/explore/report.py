"""One search from spec to answer: what is asked, what is reported, and a counterexample as a story.

The story says each action in a sentence, followed by the trace events of the nodes. The time in front of a line is the
number of the step, as if each had taken a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from experiments.engines.port import TraceEvent
from experiments.faults.schema import Bounds
from experiments.hunt.explore.controlled_model import STRATEGIES, ControlledModel
from experiments.hunt.explore.machines import message_of
from experiments.hunt.explore.model import LATE, Model
from experiments.hunt.explore.search import Counterexample, Search
from experiments.hunt.explore.states import Action
from experiments.hunt.explore.v3_model import V3Model
from experiments.hunt.mutants.registry import mutated
from experiments.story.render import Heading, render
from experiments.support.build import is_compiled
from experiments.support.errors import InputError
from protocol.broker.fetcher import FETCH_PREFIX
from protocol.broker.isr_manager import LAG_PREFIX, SILENT_PREFIX
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import NodeId, node_name
from protocol.kafka_release import NEWEST, KafkaRelease
from protocol.messages.base import Message
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse
from protocol.messages.data import FetchPartitionResult, FetchRequest, FetchResponse
from protocol.messages.recovery import GetReplicaLogInfoResponse, RecoverPartitions, RecoveryResults
from protocol.messages.store import SetWatches, StoreRead, StoreResponse, StoreWrite, WatchEvent
from protocol.messages.v3 import LeaderAndIsrRequest
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.v3.broker.isr_writer import NOTIFY_TIMER
from protocol.v3.controller.runner import RUNNER_PREFIX

MS_PER_STEP = 1_000
NOT_IN_V3 = ("shutdowns", "retries", "failovers", "recoveries")
"""Bounds of events that the search of a cluster of `v3` does not have."""


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """What to search. `bounds` replace the defaults of `Bounds`; `depth` and `max_states` end the search early."""

    brokers: int = 3
    min_isr: int = 2
    generation: Generation = Generation.KIP_966
    mutant: str | None = None
    kafka_release: KafkaRelease = NEWEST
    strategy: str = STRATEGIES[0]
    bounds: Mapping[str, int] = field(default_factory=dict)
    depth: int | None = None
    max_states: int | None = None

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig.of(self.generation, kafka_release=self.kafka_release)


@dataclass(frozen=True, slots=True)
class FoundViolation:
    """A shortest counterexample: the invariant, how it is violated, after how many steps, and the story of the path."""

    invariant: str
    detail: str
    steps: int
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`transitions` led to `distinct_states`; `node_states` and `node_steps` were computed by the node code."""

    spec: SearchSpec
    bounds: Bounds
    transitions: int
    distinct_states: int
    node_states: int
    node_steps: int
    depth: int
    complete: bool
    seconds: float
    violation: FoundViolation | None

    def document(self) -> dict[str, object]:
        """The JSON document of `isray explore --json`."""
        spec = self.spec
        return {
            "brokers": spec.brokers,
            "min_insync_replicas": spec.min_isr,
            "generation": spec.generation.value,
            "kafka_release": spec.config.release_name,
            "mutant": spec.mutant,
            "bounds": self.bounds.model_dump(),
            "states": self.transitions + 1,
            "distinct_states": self.distinct_states,
            "states_per_second": round((self.transitions + 1) / max(self.seconds, 1e-9)),
            "node_states": self.node_states,
            "node_steps": self.node_steps,
            "depth": self.depth,
            "complete": self.complete,
            "seconds": round(self.seconds, 3),
            "violation": None if self.violation is None else asdict(self.violation),
        }


def run(spec: SearchSpec, progress: Callable[[Search], None] | None = None) -> Report:
    """Runs a search. InputError for an unknown mutant, a min ISR above the number of brokers, or a bound on what is not
    searched in this generation; and in a compiled build, whose nodes do not show their attributes.
    """
    if is_compiled():
        raise InputError("this build", "", "compiled", "the interpreted sources, whose states can be compared")
    if spec.min_isr > spec.brokers:
        raise InputError("--min-isr", "", spec.min_isr, f"1 to {spec.brokers}, the number of brokers")
    bounds, has_store = Bounds(**spec.bounds), spec.generation.features.metadata_in_store
    for name in NOT_IN_V3 if has_store else ():
        if spec.bounds.get(name):
            raise InputError("--bounds", "", f"{name}={spec.bounds[name]}", f"{name}=0 in v3")
    if bounds.recoveries and not spec.generation.features.unclean_recovery:
        raise InputError("--bounds", "", f"recoveries={bounds.recoveries}", "recoveries=0 before kip-966")
    begin = time.perf_counter()
    with mutated(spec.mutant):
        model = (
            V3Model(spec.config, spec.brokers, spec.min_isr, bounds)
            if has_store
            else ControlledModel(spec.config, spec.brokers, spec.min_isr, bounds, spec.strategy)
        )
        search = Search(model).run(spec.depth, spec.max_states, progress)
        seconds = time.perf_counter() - begin
        violation = None
        if search.counterexample is not None:
            path, story = search.counterexample.path, tuple(story_of(model, search.counterexample))
            invariant, _, detail = search.counterexample.wrong.partition(": ")
            violation = FoundViolation(invariant, detail, len(path), story)
    return Report(
        spec=spec,
        bounds=bounds,
        transitions=search.transitions,
        distinct_states=search.states,
        **model.machines.sizes(),
        depth=search.depth,
        complete=search.complete,
        seconds=seconds,
        violation=violation,
    )


def story_of(model: Model, found: Counterexample) -> list[str]:
    """The lines of the story; the last one is the violation."""
    events: list[TraceEvent] = []
    headings: list[Heading] = []
    for number, step in enumerate(found.path, 1):
        headings.append(Heading(f"{number}. {_step(model, step.action)}", len(events)))
        traces = [(node, trace) for node, outcome in step.outcomes for trace in outcome.traces]
        events += [TraceEvent(number * MS_PER_STEP, node, trace) for node, trace in traces]
    return [*render(events, headings, model.records_of(found.path[-1].state)), f"!! {found.wrong}"]


def _step(model: Model, action: Action) -> str:
    if action[0] == "hold":
        return f"{model.queue_name(int(str(action[1])))} is held up"
    return sentence(action) + (", late" if action[-1] == LATE else "")


def sentence(action: Action) -> str:
    kind, about = action[0], action[1:]
    numbers = [part for part in about if isinstance(part, int)]
    if kind == "deliver":
        source, target, message = numbers
        return f"{node_name(target)} receives from {node_name(source)}: {_content(message_of(message))}"
    if kind == "fire":
        return _timer(numbers[0], str(about[1]))
    name = node_name(numbers[0]) if numbers else ""
    if kind == "metadata":
        return f"{name} applies the metadata records {numbers[1]} to {numbers[2] - 1}"
    if kind == "expire":
        return f"session {numbers[1]} of {name} expires"
    if kind == "crash":
        lost = {0: "nothing", 1: "its last record"}.get(numbers[1], f"its last {numbers[1]} records")
        return f"{name} crashes; its disk loses {lost}"
    if kind == "fail over":
        lost = " and ".join(f"what {node_name(sender)} has sent" for sender in numbers[1:])
        return f"{name} ends, and another controller begins with its log" + (f"; {lost} to it is lost" if lost else "")
    if kind == "produce":
        return f"a client sends record {numbers[1]} to {name}"
    return f"{name} {_EVENT_WORDS[str(kind)]}"


_EVENT_WORDS = {
    "heartbeat": "sends a heartbeat, and is unfenced",
    "start": "starts, and registers",
    "shut down": "shuts down in a controlled way",
    "query again": "repeats its queries",
    "decide": "decides, since the time of the recovery is over",
}


def _timer(node: NodeId, timer: str) -> str:
    about = timer.rpartition("/")[2]
    if timer.startswith(SESSION_PREFIX):
        return f"the session of broker {about} expires"
    if timer.startswith((LAG_PREFIX, SILENT_PREFIX)):
        return f"{node_name(node)} finds that broker {about} {'lags' if timer.startswith(LAG_PREFIX) else 'is silent'}"
    if timer.startswith(FETCH_PREFIX):
        return f"{node_name(node)} repeats its fetch to broker {about}"
    if timer.startswith(RUNNER_PREFIX):
        return f"{node_name(node)} ends a pause"
    if timer == NOTIFY_TIMER:
        return f"{node_name(node)} leaves a notification of the ISRs that it has written"
    return f"{node_name(node)} repeats its ISR proposal"


def _content(message: Message) -> str:
    if isinstance(message, FetchRequest):
        return "; ".join(f"fetch from {f.fetch_offset}, epoch {f.current_leader_epoch}" for f in message.partitions)
    if isinstance(message, FetchResponse):
        found = [f"epoch {r.leader_epoch}, {r.error.name if r.error else _records_of(r)}" for r in message.partitions]
        return "; ".join(found) or f"session: {message.error.name}"
    if isinstance(message, AlterPartitionRequest):
        return "; ".join(
            f"proposes ISR {_isr([m.broker_id for m in p.new_isr])} in epochs {p.leader_epoch}/{p.partition_epoch}"
            for p in message.partitions
        )
    if isinstance(message, AlterPartitionResponse):
        found = [
            r.error.name if r.error else f"ISR {_isr(r.isr)}, partition epoch {r.partition_epoch}"
            for r in message.partitions
        ]
        return "; ".join(found) or message.error.name
    if isinstance(message, StoreWrite):
        return "writes " + ", ".join(f"{type(part).__name__} {part.path}" for part in message.operations)
    if isinstance(message, StoreRead) and not isinstance(message.operation, SetWatches):
        return f"reads {message.operation.path}"
    if isinstance(message, StoreResponse):
        return f"response {message.error.name}"
    if isinstance(message, WatchEvent):
        return f"watch event {message.kind.name} {message.path}"
    if isinstance(message, LeaderAndIsrRequest):
        parts = (f"leader {p.leader}, epoch {p.leader_epoch}, ISR {_isr(p.isr)}" for p in message.partitions)
        return f"LeaderAndIsr{' (INIT)' if message.is_init else ''}: {'; '.join(parts)}"
    return _recovery(message) or type(message).__name__


def _recovery(message: Message) -> str:
    if isinstance(message, RecoverPartitions):
        return "; ".join(f"recover in mode {each.mode.name.lower()}" for each in message.recoveries)
    if isinstance(message, GetReplicaLogInfoResponse):
        logs = message.log_info_list
        return "; ".join(f"log of epoch {log.last_written_leader_epoch} ends at {log.log_end_offset}" for log in logs)
    if isinstance(message, RecoveryResults):
        return "; ".join(f"elect broker {each.leader} ({each.reason})" for each in message.results)
    return ""


def _records_of(result: FetchPartitionResult) -> str:
    if result.diverging_epoch is not None:
        end = result.diverging_epoch
        return f"the logs diverge after epoch {end.leader_epoch}, which ends at {end.end_offset}"
    return f"{len(result.batches)} batches from {result.fetch_offset}, high watermark {result.high_watermark}"


def _isr(brokers: Sequence[int]) -> str:
    return "{" + " ".join(map(str, brokers)) + "}"
