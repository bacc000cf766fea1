"""Scenario files as typed values (docs/scenarios.md). A step is a mapping with exactly one key, the step's kind;
`STEPS` maps each kind to the model of its fields and to its meaning. Everything is checked before a cluster is built,
also that what steps name exists (`loader.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args

from pydantic import ConfigDict, Field, model_validator

from experiments.check.invariants import INVARIANTS
from experiments.engines.port import ClusterSpec
from experiments.faults.kinds import AnyFault
from experiments.faults.kinds.machines import MAX_SKEW_MS
from experiments.scenarios.expectation_model import ControllerName, ControllerWord, Expectation
from experiments.scenarios.load import LoadStep
from experiments.support.fields import (
    GENERATIONS,
    NOT_ON_THE_WIRE,
    RELEASES,
    Assignment,
    ClusterConfigs,
    DurationMs,
    ErrorName,
    GenerationName,
    Index,
    OverrideName,
    ReleaseName,
    StrictModel,
    TopicConfig,
    TopicName,
    is_whole,
    one_of,
)
from protocol.config import NUM_PARTITIONS, ClusterConfig
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, RECOVERY_MANAGER, STORE
from protocol.kafka_release import NEWEST, KafkaRelease
from protocol.kafka_rules import KAFKA_RULES
from protocol.v3.store.settings import (
    MAX_LATENCY_MS,
    MAX_MULTI,
    MAX_SESSION_TIMEOUT_MS,
    MAX_SESSIONS,
    MIN_SESSION_TIMEOUT_MS,
    Latency,
    StoreSettings,
)

SIDES = "a node id, controllers, active-controller, former-controller, urm, store or rest"
ControllerSide = Literal["active-controller", "former-controller"]
_SideName = Literal["controllers", ControllerSide, "urm", "store", "rest"]
Side = Annotated[int | _SideName, one_of(get_args(_SideName), is_whole, SIDES)]
CONTROLLER_WORDS = (*get_args(ControllerWord), *get_args(ControllerSide))
"""The words that stand for a controller until the step begins."""
RackName = Annotated[str, Field(min_length=1)]
LossName = Literal["none", "unflushed", "all"]
_Loss = Annotated[
    LossName | Index,
    one_of(
        get_args(LossName),
        lambda value: is_whole(value) and value >= 0,
        "none, unflushed, all, or a number of records",
    ),
]
TopicField = Annotated[str, Field(description="name of an existing topic")]
ExpectedError = Annotated[
    ErrorName | None,
    Field(
        description="the step succeeds if and only if the response is this error code; topics, partitions, brokers and "
        "configs that it names need not exist"
    ),
]


class V3Model(StrictModel):
    """The store of a cluster of generation v3."""

    write_latency: DurationMs = Field(default=4, le=MAX_LATENCY_MS, description="how long a transaction takes")
    read_latency: DurationMs = Field(default=1, le=MAX_LATENCY_MS, description="how long a read takes")
    session_timeout: DurationMs = Field(
        default=6_000,
        ge=MIN_SESSION_TIMEOUT_MS,
        le=MAX_SESSION_TIMEOUT_MS,
        description="time without a message of a broker after which its session expires",
    )
    multi: int = Field(default=1, ge=1, le=MAX_MULTI, description="updates of the controller per transaction")
    sessions: int = Field(default=1, ge=1, le=MAX_SESSIONS, description="parallel sessions of the controller")

    def settings(self) -> StoreSettings:
        return StoreSettings(
            write_latency=Latency(mean_ms=self.write_latency),
            read_latency=Latency(mean_ms=self.read_latency),
            session_timeout_ms=self.session_timeout,
            multi=self.multi,
            sessions=self.sessions,
        )


class ClusterModel(StrictModel):
    """The cluster to start."""

    brokers: int = Field(ge=1, le=999, description="number of brokers; their ids are 0 to brokers - 1")
    controllers: int = Field(default=1, ge=1, le=9, description="number of controllers; their ids begin at 1000")
    voters: Annotated[list[int], Field(min_length=1)] | None = Field(
        default=None, description="ids of the controllers that vote at first; left out: all"
    )
    generation: GenerationName = Field(default="kip-966", description=f"protocol generation: {', '.join(GENERATIONS)}")
    config: ClusterConfigs = Field(default_factory=dict, description="cluster-wide configs, by Kafka's names")
    store: V3Model | None = Field(default=None, description="with generation v3: the settings of the store")
    racks: Annotated[int, Field(ge=1)] | Annotated[list[RackName], Field(min_length=1)] | None = Field(
        default=None,
        description="the rack of each broker, in the order of their ids; or how many racks they are in, in turn: "
        "rack-0, rack-1, ...",
    )
    kafka_release: ReleaseName = Field(
        default=NEWEST.value,
        description=f"in kip-497 and kip-966-elr, the release of Kafka whose rules hold: {', '.join(RELEASES)}",
    )
    kafka_rules: list[Annotated[str, one_of(KAFKA_RULES)]] = Field(
        default_factory=list,
        description=f"rules of Kafka's code in the place of isray's, on sim only: {', '.join(KAFKA_RULES)}",
    )

    @property
    def has_store(self) -> bool:
        return Generation(self.generation).features.metadata_in_store

    @property
    def controller_ids(self) -> tuple[int, ...]:
        """The ids of the controllers; none where a broker is the controller."""
        count = 0 if self.has_store else self.controllers
        return tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + count))

    def spec(self, seed: int = 0) -> ClusterSpec:
        config = ClusterConfig.of(
            Generation(self.generation), self.config, self.kafka_rules, KafkaRelease(self.kafka_release)
        )
        voters = None if self.voters is None else tuple(self.voters)
        store = self.store.settings() if self.store is not None else None
        racks = tuple(self.racks) if isinstance(self.racks, list) else self.racks or 0
        return ClusterSpec(self.brokers, self.controllers, config, seed, voters, store, racks)


class TopicModel(StrictModel):
    """A topic to create: with the replicas of each partition, or as many as the controller is to place."""

    name: TopicName = Field(description="name of the new topic")
    assignments: list[Assignment] = Field(
        default_factory=list, min_length=1, description="one list of broker ids per partition"
    )
    partitions: int | None = Field(
        default=None, ge=1, description="without assignments: number of partitions; left out: `num.partitions`"
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        description="without assignments: number of replicas; left out: `default.replication.factor`",
    )
    config: TopicConfig = Field(default_factory=dict, description="configs of the topic, by Kafka's names")

    @model_validator(mode="after")
    def _one_form(self) -> TopicModel:
        if self.assignments and (self.partitions, self.replication_factor) != (None, None):
            raise ValueError("allowed: either assignments, or partitions and replication_factor")
        return self

    def partition_count(self, config: ClusterConfig) -> int:
        """How many partitions the topic has; `config` is that of the cluster."""
        return len(self.assignments) or self.partitions or config.int_value(NUM_PARTITIONS)


class NodeStep(StrictModel):
    """A step about one node: a broker, a controller, (`urm: true`) the unclean recovery manager, or (`store: true`) the
    store.
    """

    broker: Index | None = Field(default=None, description="id of a broker")
    controller: ControllerName | None = Field(
        default=None,
        description="id of a controller; or `active`: the active controller, in v3 the broker that is it; or `former`: "
        "the one that the last `active` was",
    )
    urm: Literal[True] | None = Field(default=None, description="the unclean recovery manager")
    store: Literal[True] | None = Field(default=None, description="the store of generation v3")

    @model_validator(mode="after")
    def _one_node(self) -> NodeStep:
        if [self.broker, self.controller, self.urm, self.store].count(None) != 3:
            raise ValueError("allowed: either broker or controller or urm or store")
        return self

    @property
    def node(self) -> int:
        """The node's id, of a step in which ids stand for `active` and `former`."""
        given = (self.broker, self.controller, self.urm and RECOVERY_MANAGER, self.store and STORE)
        return next(node for node in given if isinstance(node, int))


class _PartitionStep(StrictModel):
    topic: TopicField
    partition: Index = Field(default=0, description="index of a partition of the topic")


class ProduceStep(_PartitionStep):
    records: int = Field(ge=1, description="how many records, each in a batch of its own")
    acks: Annotated[Literal[0, 1, "all"], one_of(["all"], is_whole, "0, 1 or all"), NOT_ON_THE_WIRE] = Field(
        default="all", description="acknowledgements that the producer asks for"
    )
    expect_error: ExpectedError = None


class CrashStep(NodeStep):
    lose: _Loss = Field(
        default="none",
        description="what the disk loses: `none` (the page cache survives), `unflushed` (each log's unflushed suffix), "
        "`all` (the disk is replaced by an empty one), or a number of records at the end of each log, as far as they "
        "are unflushed",
    )


class LoseDiskStep(NodeStep):
    lose: _Loss = Field(default="all", description="as of `crash`")


class SetClockStep(NodeStep):
    ahead: DurationMs = Field(default=0, ge=0, le=MAX_SKEW_MS, description="how far the clock is ahead of true time")
    behind: DurationMs = Field(
        default=0, ge=0, le=MAX_SKEW_MS, description="how far it is behind; neither: it is right"
    )

    @model_validator(mode="after")
    def _one_side(self) -> SetClockStep:
        if self.ahead and self.behind:
            raise ValueError("allowed: either ahead or behind")
        return self


class LinkStep(StrictModel):
    """`between: [x, y]` both ways, `from: x` and `to: y` one way."""

    SHAPE: ClassVar[str] = f"either between: [x, y], or from and to; a side is {SIDES}"
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    between: list[Side] | None = Field(
        default=None, min_length=2, max_length=2, description=f"both directions of the links; a side is {SIDES}"
    )
    source: Side | None = Field(default=None, alias="from", description="with `to`: one direction, from this side")
    target: Side | None = Field(default=None, alias="to", description="with `from`: to this side")

    @model_validator(mode="after")
    def _one_form(self) -> LinkStep:
        one_way = self.source is not None and self.target is not None
        if (self.between is not None) == one_way or (self.source is None) != (self.target is None):
            raise ValueError(f"allowed: {self.SHAPE}")
        if "rest" in self.sides and self.sides[0] == self.sides[1]:
            raise ValueError("allowed: rest on one side only")
        if isinstance(self.sides[0], int) and self.sides[0] == self.sides[1]:
            raise ValueError("allowed: two different nodes")
        return self

    @property
    def sides(self) -> tuple[Side, Side]:
        first, second = self.between or (self.source, self.target)
        assert first is not None
        assert second is not None
        return first, second


class HealStep(LinkStep):
    """As `cut`, or `heal: all` for all links."""

    SHAPE: ClassVar[str] = f"all, or {LinkStep.SHAPE.removeprefix('either ')}"


class BrokerStep(StrictModel):
    broker: Index = Field(description="id of a broker")


class ElectStep(_PartitionStep):
    type: Literal["preferred", "unclean", "longest_log_proactive", "longest_log_balanced", "designation"] = Field(
        description="election type"
    )
    desired_leader: Index | None = Field(default=None, description="with `type: designation`: id of the leader to be")
    expect_error: ExpectedError = None

    @model_validator(mode="after")
    def _named_leader(self) -> ElectStep:
        if (self.type == "designation") != (self.desired_leader is not None):
            raise ValueError("allowed: desired_leader with type designation, and only there")
        return self


class ReassignStep(_PartitionStep):
    replicas: Assignment | None = Field(default=None, description="ids of the brokers that shall hold the partition")
    cancel: bool = Field(default=False, description="instead of `replicas`: cancels the reassignment")
    allow_replication_factor_change: bool = Field(
        default=True, description="with `replicas`: false refuses a change of the replication factor (KIP-860)"
    )
    expect_error: ExpectedError = None

    @model_validator(mode="after")
    def _one_form(self) -> ReassignStep:
        if self.cancel == (self.replicas is not None):
            raise ValueError("allowed: either replicas or cancel: true")
        if self.cancel and "allow_replication_factor_change" in self.model_fields_set:
            raise ValueError("allowed: allow_replication_factor_change with replicas only")
        return self


class _RefusableStep(StrictModel):
    """A step whose fields are checked only if it does not expect an error."""

    expect_error: ExpectedError = None


class ConfigureStep(_RefusableStep):
    topic: str | None = Field(default=None, description="name of a topic; left out: the whole cluster")
    config: TopicConfig = Field(default_factory=dict, description="values by config name")
    delete: list[OverrideName] = Field(
        default_factory=list,
        description="names of configs whose override is deleted, so that the value of the next wider scope is in force",
    )

    @model_validator(mode="after")
    def _changes_each_once(self) -> ConfigureStep:
        if not (self.config or self.delete) or not {*self.config}.isdisjoint(self.delete):
            raise ValueError("allowed: config or delete or both, each name once")
        return self


class UpdateFeatureStep(StrictModel):
    feature: Literal["metadata.version", "unclean.recovery.enabled"] = Field(description="the feature")
    level: int = Field(description="its new level")
    downgrade: Literal["safe", "unsafe"] | None = Field(
        default=None, description="allows a lower level; `safe` is refused if it loses metadata"
    )
    expect_error: ExpectedError = None


class UnregisterStep(BrokerStep):
    expect_error: ExpectedError = None


class ControllerStep(StrictModel):
    controller: ControllerName = Field(description="id of a controller, `active` or `former`")
    expect_error: ExpectedError = None

    @property
    def node(self) -> int:
        """As `NodeStep.node`."""
        assert isinstance(self.controller, int)
        return self.controller


class AddVoterStep(ControllerStep):
    ack_when_committed: bool = Field(
        default=True, description="false: the response comes when the change is appended, and may be lost (KIP-1186)"
    )


class CreateTopicStep(TopicModel, _RefusableStep):
    """As `topics`, and `expect_error`."""


class TopicStep(_RefusableStep):
    name: TopicField


class AddPartitionsStep(TopicStep):
    assignments: list[Assignment] = Field(min_length=1, description="one list of broker ids per new partition")


class RemovePartitionsStep(TopicStep):
    partitions: list[Index] = Field(min_length=1, description="indexes of the topic's last partitions")


class FaultStep(StrictModel):
    """Beside these fields the step takes those of its kind of fault, except for their times."""

    kind: str = Field(description="kind of the fault")
    duration: DurationMs = Field(ge=1, description="how long the fault lasts; steps go on meanwhile")
    fault: AnyFault = Field(exclude=True)
    targets: dict[str, object] = Field(default_factory=dict, exclude=True)
    """The fields of the fault, as the file has them, in which words stand for controllers."""


class AwaitStep(Expectation):
    within: DurationMs = Field(default=30_000, description="how long the step waits at most")


class WaitStep(StrictModel):
    """`wait: 5s`."""

    model_config = ConfigDict(validate_by_name=True)

    duration_ms: DurationMs = Field(alias="wait", description="how long; written `wait: 5s`")


class StepKind(NamedTuple):
    """A kind of step: the model of its fields, what it does, and where it can be used (empty: everywhere)."""

    fields: type[StrictModel]
    meaning: str
    where: str = ""


STEPS: dict[str, StepKind] = {
    "produce": StepKind(
        ProduceStep,
        "Sends records to the partition's leader and waits for every response, as a client does: it finds the leader "
        "and retries retriable errors for up to 30 s, unless `expect_error` names the error.",
    ),
    "crash": StepKind(CrashStep, "Kills a process. No clean shutdown file is written."),
    "shutdown": StepKind(NodeStep, "Shuts a node down in a controlled way; ends when the process has ended."),
    "start": StepKind(
        NodeStep,
        "Starts a node on what its disk holds; ends when a broker is registered and unfenced or a controller takes "
        "part in the quorum, or after 60 s without failing.",
    ),
    "pause": StepKind(
        NodeStep, "Stops a process, as a long garbage collection does; it takes no input and loses none."
    ),
    "resume": StepKind(NodeStep, "Lets a paused process go on."),
    "lose_disk": StepKind(
        LoseDiskStep, "Takes from the disk of a node that does not run what a crash of its machine would have taken."
    ),
    "set_clock": StepKind(
        SetClockStep,
        "Sets a node's clock. A process that runs is killed and started again, since time never jumps within one; its "
        "page cache survives. The step then ends as `start` does.",
    ),
    "expire": StepKind(BrokerStep, "Ends the sessions of a broker with the store while the broker lives.", "`v3`"),
    "cut": StepKind(LinkStep, "Cuts links; messages on them are lost."),
    "heal": StepKind(HealStep, "Restores links; `heal: all` restores all of them."),
    "fault": StepKind(
        FaultStep,
        "Begins a fault of any [kind](faults.md), whose fields it takes beside its own, and schedules its healing. The "
        "next step begins at once, or, where the fault restarts nodes, when these take part again.",
        "engine `sim`",
    ),
    "load": StepKind(
        LoadStep, "Begins to send records at a rate, from a client that waits for nothing; steps go on.", "engine `sim`"
    ),
    "flush": StepKind(BrokerStep, "Flushes all logs of a broker to disk."),
    "elect": StepKind(ElectStep, "Requests a leader election, as Kafka's leader election tool does."),
    "reassign": StepKind(ReassignStep, "Begins or cancels a reassignment; does not wait until it has completed."),
    "configure": StepKind(ConfigureStep, "Sets configs of a topic or of the cluster, or deletes what was set."),
    "update_feature": StepKind(UpdateFeatureStep, "Raises or lowers the level of a feature."),
    "unregister": StepKind(UnregisterStep, "Removes the registration of a broker."),
    "create_topic": StepKind(CreateTopicStep, "Creates a topic; ends when the running replicas have it."),
    "delete_topic": StepKind(TopicStep, "Deletes a topic."),
    "add_partitions": StepKind(AddPartitionsStep, "Adds partitions to a topic."),
    "remove_partitions": StepKind(RemovePartitionsStep, "Removes the last partitions of a topic."),
    "add_voter": StepKind(AddVoterStep, "Makes a controller a voter, with the disk that it has."),
    "remove_voter": StepKind(ControllerStep, "Ends the vote of a controller."),
    "unregister_controller": StepKind(
        ControllerStep, "Removes the registration of a controller; one that runs registers again."
    ),
    "wait": StepKind(WaitStep, "Lets time pass (virtual time on sim)."),
    "await": StepKind(AwaitStep, "Waits until the expectation holds, and fails if it does not in time."),
    "expect": StepKind(Expectation, "Fails unless the expectation holds now."),
}


class Step(StrictModel):
    """One step: its kind, its fields, and its text in the file. `fields` is None for `heal: all` only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    kind: str
    fields: StrictModel | None
    text: str


_Step = TypeVar("_Step")


class _ScenarioFields(StrictModel, Generic[_Step]):
    """The scenario passes if it violates, under rules of Kafka's, exactly the invariants in `violates`."""

    name: str = Field(min_length=1)
    description: str = ""
    cluster: ClusterModel
    topics: list[TopicModel] = Field(default_factory=list)
    steps: list[_Step] = Field(min_length=1)
    violates: list[Annotated[str, one_of(sorted(it.__name__ for it in INVARIANTS))]] = Field(default_factory=list)


class ScenarioFile(_ScenarioFields[dict[str, object]]):
    """The file as written; steps are checked one by one by the loader."""


class Scenario(_ScenarioFields[Step]):
    """A scenario that has passed all checks."""
