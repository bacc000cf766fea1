"""A plan: the cluster, the operations of its clients and the faults of one run; and the timeline file that stores it.

Operations and faults are independent of each other, each with its time, so any of them can be left out. The file (YAML,
`isray-timeline`) holds a plan with what came of it: the violation, the trace hash at that moment, what shrinking took
away, and the story of the last steps. `isray replay` needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from experiments.engines.port import ClusterSpec
from experiments.faults.kinds import AnyFault
from experiments.scenarios.model import TopicModel
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, ClusterConfigs, GenerationName, Index, ReleaseName, StrictModel
from experiments.support.yaml_input import read_yaml_mapping, validated
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import TopicPartition
from protocol.kafka_release import NEWEST, KafkaRelease
from protocol.v3.store.settings import StoreSettings


class _Operation(StrictModel):
    """An operation of a client at a time; `id` is its command's number, also when other operations are left out."""

    at_ms: Index
    id: Annotated[int, Field(ge=1, lt=1_000_000)]
    topic: str
    partition: Index

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Send(_Operation):
    """The producer sends records (`SendRecords`); acks -1 means all."""

    kind: Literal["send"] = "send"
    acks: Literal[-1, 0, 1] = -1
    records: Annotated[int, Field(ge=1)] = 1
    record_bytes: Annotated[int, Field(ge=12)] = 12


class Read(_Operation):
    """A reader continues where its last read ended, or from the start; nothing while its last read is open."""

    kind: Literal["read"] = "read"
    reader: Index
    from_start: bool = False
    max_wait_ms: Index = 0


class Elect(_Operation):
    """A preferred leader election, or an unclean one."""

    kind: Literal["elect"] = "elect"
    unclean: bool = False


Operation = Annotated[Send | Read | Elect, Field(discriminator="kind")]


class Plan(StrictModel):
    """Everything that a run depends on. `voters` are the controllers with which the quorum begins (empty: all);
    `jitter_ms` is the network's, `racks` how many racks the brokers are in (0: none). Without `within_tolerance` disks
    lose what the faults ask for, and only rules that hold at any loss are checked. `store` is for `v3`.
    """

    seed: Index
    brokers: Annotated[int, Field(ge=1, le=99)]
    controllers: Annotated[int, Field(ge=1, le=9)] = 1
    voters: Annotated[tuple[Index, ...], AsTuple] = ()
    generation: GenerationName
    kafka_release: ReleaseName = NEWEST.value
    config: ClusterConfigs = Field(default_factory=dict)
    store: StoreSettings | None = None
    jitter_ms: Index = 2
    racks: Annotated[int, Field(ge=0, le=99)] = 0
    within_tolerance: bool = True
    topics: Annotated[tuple[TopicModel, ...], AsTuple, Field(min_length=1)]
    operations: Annotated[tuple[Operation, ...], AsTuple] = ()
    faults: Annotated[tuple[AnyFault, ...], AsTuple] = ()

    def spec(self, kafka_rules: Iterable[str] = ()) -> ClusterSpec:
        """The cluster to run, with these of Kafka's rules."""
        config = ClusterConfig.of(
            Generation(self.generation), self.config, kafka_rules, KafkaRelease(self.kafka_release)
        )
        voters = self.voters or None
        return ClusterSpec(self.brokers, self.controllers, config, self.seed, voters, self.store, self.racks)

    @property
    def end_ms(self) -> int:
        """When the last operation has begun and the last fault has ended."""
        begun = (operation.at_ms for operation in self.operations)
        return max((*begun, *(fault.end_ms for fault in self.faults)), default=0)

    @property
    def duplicates_sends(self) -> bool:
        """Whether a batch that a producer sends may arrive twice: then one of the two may be refused, and the other be
        stored after the producer was notified that its records had failed.
        """
        return any(fault.duplicates_sends for fault in self.faults)

    @property
    def delays_sends(self) -> bool:
        """Whether a batch that a producer sends may arrive late, or twice: after a retry of it was acknowledged."""
        return any(fault.delays_sends for fault in self.faults)

    @property
    def sizes(self) -> Sizes:
        return Sizes(faults=len(self.faults), operations=len(self.operations))


class Sizes(StrictModel):
    """How large a plan is."""

    faults: int
    operations: int


class PlanViolation(StrictModel):
    """The violated invariant, the event (`step`) and time; `detail` is one line."""

    invariant: str
    step: int
    time_ms: int
    detail: str


class TimelineFile(StrictModel):
    """What a file holds. `before` are the sizes before shrinking."""

    format: Literal["isray-timeline"] = "isray-timeline"
    version: Literal[1] = 1
    mutant: str | None = None
    violation: PlanViolation | None = None
    trace_hash: str
    before: Sizes
    after: Sizes
    story: Annotated[tuple[str, ...], AsTuple] = ()
    plan: Plan


def save(file: TimelineFile, path: Path) -> None:
    document = file.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
    path.write_text(text, encoding="utf-8")


def load(path: Path) -> TimelineFile:
    """Reads a file; InputError for one that is no timeline, or whose parts do not fit together."""
    file = validated(TimelineFile, read_yaml_mapping(path, "a timeline file of isray fuzz"), str(path))
    for field, found, allowed in dangling_references(file.plan):
        raise InputError(str(path), field, found, allowed)
    return file


def dangling_references(plan: Plan) -> Iterator[tuple[str, object, str]]:
    """References to nodes, topics and partitions that the plan does not have: field, found, allowed."""
    spec = plan.spec()
    nodes = frozenset(spec.node_ids)
    sizes = {topic.name: len(topic.assignments) for topic in plan.topics}
    ids = [operation.id for operation in plan.operations]
    if len(set(ids)) < len(ids):
        yield "plan.operations", "an id twice", "each id once"
    places = [(f"plan.operations[{index}]", item.topic, item.partition) for index, item in enumerate(plan.operations)]
    for index, fault in enumerate(plan.faults):
        where = f"plan.faults[{index}]"
        if fault.partition_named is not None:
            places.append((where, *fault.partition_named))
        for node in fault.nodes:
            if node not in nodes or (node in fault.brokers and node not in spec.broker_ids):
                yield where, f"node {node}", f"one of {sorted(spec.broker_ids if fault.brokers else nodes)}"
    for where, topic, partition in places:
        if partition >= sizes.get(topic, 0):
            yield where, f"{topic}-{partition}", f"a partition of {', '.join(sorted(sizes))}"
    for index, made in enumerate(plan.topics):
        if any(broker >= plan.brokers for replicas in made.assignments for broker in replicas):
            yield f"plan.topics[{index}].assignments", "a broker that is not there", f"0 to {plan.brokers - 1}"
