"""What a scenario may expect of a partition, a broker, a controller or the cluster."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from experiments.check.losses import Acks
from experiments.support.fields import TEXT, Index, StrictModel, is_whole, one_of
from protocol.metrics import CLUSTER_METRICS, PARTITION_METRICS

_MetricName = Annotated[str, one_of((*CLUSTER_METRICS, *PARTITION_METRICS))]
Metrics = Annotated[dict[_MetricName, int], Field(min_length=1)]
LostAcks = Annotated[Acks, one_of(get_args(Acks), form="1 or all"), TEXT]
ControllerWord = Literal["active", "former"]
"""The active controller when the step begins, and the one that the last `active` or `active-controller` was."""
ControllerName = Annotated[
    int | ControllerWord, one_of(get_args(ControllerWord), is_whole, "id of a controller, active or former")
]
CLUSTER_WIDE = ("voters", "registered_controllers", "controller_broker", "controller_epoch", "metrics")
"""Expectations about the cluster, which go with any subject or alone."""
_OF_A_BROKER, _OF_A_CONTROLLER = {"state", "registration"}, {"role"}
_NOT_OF_A_TOPIC = {"topic", "partition", "broker", "controller", *_OF_A_BROKER, *_OF_A_CONTROLLER, *CLUSTER_WIDE}


class Expectation(StrictModel):
    """What must hold. Only what is named is compared, sets as sets. What is about the cluster (`voters`,
    `registered_controllers`, `controller_broker`, `controller_epoch`, `metrics`) goes with any subject, or alone; every
    other field goes with the subject that its meaning names.
    """

    topic: str | None = Field(default=None, description="subject: a partition of this topic")
    partition: Index = Field(default=0, description="with a topic: index of the partition")
    leader: int | None = Field(default=None, description="partition: id of the leader, -1 for none")
    isr: list[int] | None = Field(default=None, description="partition: the in-sync replicas, as a set")
    elr: list[int] | None = Field(default=None, description="partition: the eligible leader replicas, as a set")
    last_known_elr: list[int] | None = Field(default=None, description="partition: the last known ELR, as a set")
    last_known_leader: int | None = Field(default=None, description="partition: id of the last known leader")
    replicas: list[int] | None = Field(default=None, description="partition: the replicas, in order")
    racks: list[str] | None = Field(default=None, description="partition: the racks of its replicas, in any order")
    leader_recovery_state: Literal["recovered", "recovering"] | None = Field(
        default=None, description="partition: the leader recovery state"
    )
    leader_epoch: int | None = Field(default=None, description="partition: the leader epoch")
    partition_epoch: int | None = Field(default=None, description="partition: the partition epoch")
    high_watermark: int | None = Field(default=None, description="partition: the leader's high watermark")
    log_end_offset: dict[int, int] | None = Field(default=None, description="partition: log end offsets by broker id")
    visible: int | None = Field(default=None, description="partition: how many records a consumer reads from the start")
    lost_acked: int | None = Field(
        default=None,
        description="partition: records acknowledged with acks=all that the present leader's log lacks; while such "
        "records are undecided it is unknown, and no number holds",
    )
    lost_by_acks: dict[LostAcks, Index] | None = Field(
        default=None, description="partition: the same by the acks of the producer, `1` and `all`"
    )
    undecided: Index | None = Field(
        default=None,
        description="partition: acknowledged records, with any acks, of which it is undecided whether they are lost: "
        "there is no leader, or it does not answer",
    )
    deleted_by_retention: Index | None = Field(
        default=None, description="partition: acknowledged records, with any acks, that the leader's log begins behind"
    )
    high_watermark_regressions: int | None = Field(
        default=None, description="partition: how often a new leader took back what consumers could read"
    )
    broker: Index | None = Field(default=None, description="subject: this broker")
    state: Literal["fenced", "unfenced", "shutdown"] | None = Field(
        default=None, description="broker: its state; `shutdown` if its process does not run, whatever is registered"
    )
    registration: Literal["fenced", "unfenced", "controlled_shutdown", "none"] | None = Field(
        default=None, description="broker: its registration with the controller, whether its process runs or not"
    )
    controller: ControllerName | None = Field(
        default=None, description="subject: this controller; `active` and `former` as in other steps"
    )
    role: Literal["leader", "follower", "observer", "unattached", "prospective", "candidate", "resigned"] | None = (
        Field(
            default=None,
            description="controller: its role in the quorum; `candidate` until it is the active controller",
        )
    )
    voters: list[int] | None = Field(default=None, description="ids of the controllers that vote, as a set")
    registered_controllers: list[int] | None = Field(
        default=None, description="ids of the controllers that are registered with the active one, as a set"
    )
    controller_broker: int | None = Field(default=None, description="with a store: the broker that is the controller")
    controller_epoch: int | None = Field(default=None, description="with a store: the epoch of the last controller")
    metrics: Metrics | None = Field(
        default=None, description="values by metric name: the active controller's, and with a topic the partition's"
    )

    @model_validator(mode="after")
    def _one_subject(self) -> Expectation:
        subjects = [name for name in ("topic", "broker", "controller") if getattr(self, name) is not None]
        named = self.model_fields_set - {"topic", "partition", "broker", "controller", "within", *CLUSTER_WIDE}
        cluster_wide = ", ".join(CLUSTER_WIDE)
        is_cluster_wide = any(getattr(self, name) not in (None, {}) for name in CLUSTER_WIDE)
        if len(subjects) > 1 or (not subjects and (named or not is_cluster_wide)):
            raise ValueError(f"allowed: exactly one of topic, broker, controller; {cluster_wide} with it or alone")
        for metric in self.metrics or ():
            if metric in PARTITION_METRICS and self.topic is None:
                raise ValueError(f"allowed: {metric} with topic and partition")
        if not subjects:
            return self
        fitting = {"broker": _OF_A_BROKER, "controller": _OF_A_CONTROLLER}.get(
            subjects[0], set(Expectation.model_fields) - _NOT_OF_A_TOPIC
        )
        if named - fitting or not (named or is_cluster_wide):
            allowed = ", ".join(sorted(fitting))
            raise ValueError(f"allowed: with {subjects[0]} one or more of {allowed}; {cluster_wide}")
        return self
