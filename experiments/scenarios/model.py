"""Scenario files as typed values (the project's interfaces, section 1).

A step is a mapping with exactly one key, the step's kind; `STEPS` maps each kind to the model of its fields.
Everything is checked before a cluster is built: names, types, ranges, and that brokers, topics and partitions that
steps speak of exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from experiments.support.fields import (
    Assignment,
    ClusterConfigs,
    DurationMs,
    ErrorName,
    GenerationName,
    Index,
    StrictModel,
    TopicConfig,
    TopicName,
)
from protocol.controller.metrics import CLUSTER_METRICS, PARTITION_METRICS
from protocol.ids import RECOVERY_MANAGER

METRIC_NAMES = (*CLUSTER_METRICS, *PARTITION_METRICS)


def _metric_name(value: object) -> object:
    if value not in METRIC_NAMES:
        raise ValueError(f"allowed: one of {', '.join(METRIC_NAMES)}")
    return value


def _acks(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("allowed: 0, 1 or all")
    return value


def _lose(value: object) -> object:
    if value in ("none", "unflushed", "all") or (isinstance(value, int) and value is not True and value >= 0):
        return value
    raise ValueError("allowed: none, unflushed, all, or a number of records")


def _party(value: object) -> object:
    if value in ("controllers", "urm", "rest") or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError("allowed: a node id, controllers, urm or rest")


DynamicConfigs = TopicConfig
"""What can be changed while the cluster runs; without a topic, the cluster-wide default of it."""
Metrics = Annotated[dict[Annotated[str, BeforeValidator(_metric_name)], int], Field(min_length=1)]
Party = Annotated[int | Literal["controllers", "urm", "rest"], BeforeValidator(_party)]


class ClusterModel(StrictModel):
    """`voters` are the controllers with which the quorum begins, by default all."""

    brokers: int = Field(ge=1, le=999)
    controllers: int = Field(default=1, ge=1, le=9)
    voters: Annotated[list[int], Field(min_length=1)] | None = None
    generation: GenerationName = "kip-966"
    config: ClusterConfigs = Field(default_factory=dict)


class TopicModel(StrictModel):
    name: TopicName
    assignments: list[Assignment] = Field(min_length=1)
    config: TopicConfig = Field(default_factory=dict)


class NodeStep(StrictModel):
    """A step about one node: a broker, a controller, or (`urm: true`) the unclean recovery manager."""

    broker: Index | None = None
    controller: int | None = None
    urm: Literal[True] | None = None

    @model_validator(mode="after")
    def _one_node(self) -> NodeStep:
        if [self.broker, self.controller, self.urm].count(None) != 2:
            raise ValueError("allowed: either broker or controller or urm")
        return self

    @property
    def node(self) -> int:
        if self.urm:
            return RECOVERY_MANAGER
        node = self.broker if self.broker is not None else self.controller
        assert node is not None
        return node


class ProduceStep(StrictModel):
    topic: str
    partition: Index = 0
    records: int = Field(ge=1)
    acks: Annotated[Literal[0, 1, "all"], BeforeValidator(_acks)] = "all"
    expect_error: ErrorName | None = None


class CrashStep(NodeStep):
    lose: Annotated[Literal["none", "unflushed", "all"] | Index, BeforeValidator(_lose)] = "none"


class LinkStep(StrictModel):
    """`between: [x, y]` both ways, `from: x, to: y` one way; for heal also `all: all` through the short form `heal:
    all`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    between: list[Party] | None = Field(default=None, min_length=2, max_length=2)
    source: Party | None = Field(default=None, alias="from")
    target: Party | None = Field(default=None, alias="to")

    @model_validator(mode="after")
    def _one_form(self) -> LinkStep:
        one_way = self.source is not None and self.target is not None
        if (self.between is not None) == one_way or (self.source is None) != (self.target is None):
            raise ValueError("allowed: either between: [x, y], or from and to")
        if "rest" in self.parties and self.parties[0] == self.parties[1]:
            raise ValueError("allowed: rest on one side only")
        return self

    @property
    def parties(self) -> tuple[Party, Party]:
        first, second = self.between or (self.source, self.target)
        assert first is not None
        assert second is not None
        return first, second


class BrokerStep(StrictModel):
    broker: Index


class ElectStep(StrictModel):
    topic: str
    partition: Index = 0
    type: Literal["preferred", "unclean", "longest_log_proactive", "longest_log_balanced", "designation"]
    desired_leader: Index | None = None
    expect_error: ErrorName | None = None

    @model_validator(mode="after")
    def _named_leader(self) -> ElectStep:
        if (self.type == "designation") != (self.desired_leader is not None):
            raise ValueError("allowed: desired_leader with type designation, and only there")
        return self


class ReassignStep(StrictModel):
    topic: str
    partition: Index = 0
    replicas: Assignment | None = None
    cancel: bool = False
    expect_error: ErrorName | None = None

    @model_validator(mode="after")
    def _one_form(self) -> ReassignStep:
        if self.cancel == (self.replicas is not None):
            raise ValueError("allowed: either replicas or cancel: true")
        return self


class ConfigureStep(StrictModel):
    topic: str | None = None
    config: DynamicConfigs


class UpdateFeatureStep(StrictModel):
    """Raises a feature level, or lowers it with `downgrade`: safe refuses to lose metadata, unsafe does not."""

    feature: Literal["metadata.version", "unclean.recovery.enabled"]
    level: int
    downgrade: Literal["safe", "unsafe"] | None = None
    expect_error: ErrorName | None = None


class UnregisterStep(BrokerStep):
    expect_error: ErrorName | None = None


class VoterStep(StrictModel):
    """Makes a controller a voter, with the disk that it has, or ends its vote."""

    controller: int
    expect_error: ErrorName | None = None


class DeleteTopicStep(StrictModel):
    name: str


class AddPartitionsStep(StrictModel):
    name: str
    assignments: list[Assignment] = Field(min_length=1)


class RemovePartitionsStep(StrictModel):
    """The last partitions of a topic."""

    name: str
    partitions: list[Index] = Field(min_length=1)


_NOT_OF_A_TOPIC = {"topic", "partition", "broker", "controller", "state", "role", "voters", "metrics"}


class Expectation(StrictModel):
    """What must hold. Sets compare as sets; only what is named is looked at. `metrics` are the active controller's, and
    with a topic those of its partition too; they and `voters` go with any subject, or alone.
    """

    topic: str | None = None
    partition: Index = 0
    leader: int | None = None
    isr: list[int] | None = None
    elr: list[int] | None = None
    last_known_elr: list[int] | None = None
    last_known_leader: int | None = None
    replicas: list[int] | None = None
    leader_recovery_state: Literal["recovered", "recovering"] | None = None
    leader_epoch: int | None = None
    partition_epoch: int | None = None
    high_watermark: int | None = None
    log_end_offset: dict[int, int] | None = None
    visible: int | None = None
    lost_acked: int | None = None
    high_watermark_regressions: int | None = None
    broker: Index | None = None
    state: Literal["fenced", "unfenced", "shutdown"] | None = None
    controller: int | None = None
    role: Literal["leader", "follower", "observer"] | None = None
    voters: list[int] | None = None
    metrics: Metrics | None = None

    @model_validator(mode="after")
    def _one_subject(self) -> Expectation:
        subjects = [name for name in ("topic", "broker", "controller") if getattr(self, name) is not None]
        named = set(self.model_fields_set) - {
            "topic",
            "partition",
            "broker",
            "controller",
            "within",
            "voters",
            "metrics",
        }
        beside = self.metrics or self.voters is not None
        if len(subjects) > 1 or (not subjects and (named or not beside)):
            raise ValueError("allowed: exactly one of topic, broker, controller; voters and metrics with it or alone")
        for metric in self.metrics or ():
            if metric in PARTITION_METRICS and self.topic is None:
                raise ValueError(f"allowed: {metric} with topic and partition")
        if not subjects:
            return self
        fitting = {"broker": {"state"}, "controller": {"role"}}.get(
            subjects[0], set(Expectation.model_fields) - _NOT_OF_A_TOPIC
        )
        if named - fitting or not (named or beside):
            allowed = ", ".join(sorted(fitting))
            raise ValueError(f"allowed: with {subjects[0]} one or more of {allowed}; voters and metrics")
        return self


class AwaitStep(Expectation):
    within: DurationMs = 30_000


class WaitStep(StrictModel):
    """`wait: 5s`."""

    duration_ms: DurationMs


STEPS: dict[str, type[StrictModel]] = {
    "produce": ProduceStep,
    "crash": CrashStep,
    "shutdown": NodeStep,
    "start": NodeStep,
    "pause": NodeStep,
    "resume": NodeStep,
    "cut": LinkStep,
    "heal": LinkStep,
    "flush": BrokerStep,
    "elect": ElectStep,
    "reassign": ReassignStep,
    "configure": ConfigureStep,
    "update_feature": UpdateFeatureStep,
    "unregister": UnregisterStep,
    "create_topic": TopicModel,
    "delete_topic": DeleteTopicStep,
    "add_partitions": AddPartitionsStep,
    "remove_partitions": RemovePartitionsStep,
    "add_voter": VoterStep,
    "remove_voter": VoterStep,
    "wait": WaitStep,
    "await": AwaitStep,
    "expect": Expectation,
}


class Step(StrictModel):
    """One step: its kind, its fields, and how the file writes it. `fields` None only for `heal: all`."""

    kind: str
    fields: Any
    text: str


class ScenarioFile(StrictModel):
    """The file as written; steps are checked one by one by the loader."""

    name: str = Field(min_length=1)
    description: str = ""
    cluster: ClusterModel
    topics: list[TopicModel] = Field(default_factory=list)
    steps: list[dict[str, Any]] = Field(min_length=1)


class Scenario(StrictModel):
    """A scenario that has passed all checks."""

    name: str
    description: str
    cluster: ClusterModel
    topics: list[TopicModel]
    steps: list[Step]
