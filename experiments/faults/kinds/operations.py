"""What operators do to a running cluster (`cluster_operator.py`), and take back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field

from experiments.engines.admin_requests import reassign, unregister_broker
from experiments.faults.cluster_operator import DesiredState
from experiments.faults.controls import Controls
from experiments.faults.kinds.administration import Reassignment
from experiments.faults.kinds.processes import loss_of
from experiments.faults.schema import BrokerFault, DesiredStateFault, Drawn, Fault
from experiments.faults.targets import Targets
from experiments.support.fields import AsTuple, ClusterConfigs, Index, Milliseconds
from protocol.config import FLUSH_MESSAGES, MIN_INSYNC_REPLICAS, SEGMENT_BYTES, UNCLEAN_RECOVERY_STRATEGY
from protocol.features import METADATA_VERSION, METADATA_VERSION_ELR, SUPPORTED_FEATURES, UNCLEAN_RECOVERY_ENABLED
from protocol.ids import FIRST_CLIENT, NodeId, node_name
from protocol.messages.acls import CLUSTER_NAME, AclEntry, AclOperation, AclPermissionType, AclResourceType
from protocol.metadata.authorizer import node_principal

_LEVELS: tuple[Mapping[str, int], ...] = (
    {METADATA_VERSION: METADATA_VERSION_ELR - 1, UNCLEAN_RECOVERY_ENABLED: 0},
    {METADATA_VERSION: METADATA_VERSION_ELR, UNCLEAN_RECOVERY_ENABLED: 0},
    {METADATA_VERSION: METADATA_VERSION_ELR, UNCLEAN_RECOVERY_ENABLED: 1},
)
_DRAWN_CONFIGS: Mapping[str, tuple[int | str, ...]] = {
    MIN_INSYNC_REPLICAS: (1, 2, 3),
    SEGMENT_BYTES: (200, 1_000),
    FLUSH_MESSAGES: (1, 5),
    UNCLEAN_RECOVERY_STRATEGY: ("balanced", "manual"),
}
_DRAWN_MOVES_MS = (30, 200, 700)
_Denied = Literal["write", "read", "describe", "cluster_action"]
_OTHER_PRINCIPAL = "User:other"


class _TopicOperation(DesiredStateFault):
    """A change of a topic, which a controller with the store makes as well."""

    in_swarm: ClassVar[bool] = False
    requires = None

    topic: str = Field(description="the topic")

    @classmethod
    def draw_subject(cls, targets: Targets, rng: Random) -> dict[str, object]:
        return {"topic": targets.draw_partition(rng)[0]}


class RecreateTopic(_TopicOperation):
    """A topic is deleted; at the end it is created again under the same name, with the same assignment and configs."""

    WORDS = "topic {topic} is deleted"
    kind: Literal["recreate_topic"] = "recreate_topic"

    def desired(self) -> DesiredState:
        return DesiredState(deleted=(self.topic,))


class AddPartitions(_TopicOperation):
    """A topic gets further partitions, which the controller places; at the end they are removed."""

    WORDS = "topic {topic} gets {count} more partitions"
    DRAWN: ClassVar[Drawn] = {"count": (1, 1, 2)}
    kind: Literal["add_partitions"] = "add_partitions"
    count: Annotated[int, Field(ge=1)] = Field(description="how many partitions")

    def desired(self) -> DesiredState:
        return DesiredState(added={self.topic: self.count})


def _check_levels(levels: dict[str, int]) -> dict[str, int]:
    for name, level in levels.items():
        lowest, highest = SUPPORTED_FEATURES.get(name, (1, 0))
        if not lowest <= level <= highest:
            known = ", ".join(f"{name} {low} to {high}" for name, (low, high) in SUPPORTED_FEATURES.items())
            raise ValueError(f"allowed: {known}")
    return levels


class FeatureLevels(DesiredStateFault):
    """Features are raised or lowered to other levels, metadata lost or not; at the end they have the levels of the
    generation again.
    """

    in_swarm: ClassVar[bool] = False

    kind: Literal["feature_levels"] = "feature_levels"
    levels: Annotated[dict[str, int], AfterValidator(_check_levels)] = Field(
        min_length=1, description="levels by the names of the features"
    )

    def desired(self) -> DesiredState:
        return DesiredState(levels=self.levels)

    def words(self) -> str:
        return f"features change to {', '.join(f'{name} {level}' for name, level in self.levels.items())}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        return {"levels": dict(rng.choice(_LEVELS))}


class ConfigureCluster(DesiredStateFault):
    """Cluster-wide defaults of configs change; at the end they have their static values again."""

    in_swarm: ClassVar[bool] = False

    kind: Literal["configure_cluster"] = "configure_cluster"
    config: ClusterConfigs = Field(description="values by config name")

    def desired(self) -> DesiredState:
        return DesiredState(configs={None: self.config})

    def words(self) -> str:
        settings = ", ".join(f"{name} = {value}" for name, value in self.config.items())
        return f"the cluster is configured with {settings}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        name = rng.choice(list(_DRAWN_CONFIGS))
        return {"config": {name: rng.choice(_DRAWN_CONFIGS[name])}}


class ReassignmentStorm(Reassignment):
    """A partition is reassigned to `targets` in turn, every `every_ms`, whatever has become of the reassignment before;
    an empty one cancels. At the end what is under way is cancelled.
    """

    in_swarm: ClassVar[bool] = False

    kind: Literal["reassignment_storm"] = "reassignment_storm"
    targets: Annotated[tuple[Annotated[tuple[Index, ...], AsTuple], ...], AsTuple] = Field(
        min_length=1, description="lists of broker ids; an empty one cancels"
    )
    every_ms: Milliseconds = Field(description="time between two requests, in ms")

    @property
    def brokers(self) -> tuple[NodeId, ...]:
        return tuple(sorted({node for replicas in self.targets for node in replicas}))

    def begin(self, controls: Controls, number: int) -> None:
        self._move(controls, 0, controls.cluster.now_ms + self.duration_ms)

    def _move(self, controls: Controls, turn: int, end_ms: int) -> None:
        """Requests one of the reassignments, and schedules the next one if that is before the end."""
        replicas = self.targets[turn % len(self.targets)]
        controls.administer(reassign(self.topic, self.partition, replicas or None))
        next_ms = controls.cluster.now_ms + self.every_ms
        if next_ms < end_ms:
            controls.cluster.call_at(next_ms, partial(self._move, controls, turn + 1, end_ms))

    def words(self) -> str:
        moves = " then ".join(str(list(replicas)) if replicas else "cancelled" for replicas in self.targets)
        return f"{self.partition_named} is reassigned every {self.every_ms} ms: {moves}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        topic, partition = targets.draw_partition(rng)
        moves = [tuple(rng.sample(list(targets.brokers), targets.replication_factor)) for _ in range(2)]
        return {
            "topic": topic,
            "partition": partition,
            "targets": (*moves, *(((),) if rng.random() < 0.5 else ())),
            "every_ms": rng.choice(_DRAWN_MOVES_MS[1:] if targets.stores else _DRAWN_MOVES_MS),
        }


class Deny(DesiredStateFault):
    """The client of the cluster is denied an operation, where the cluster has an authorizer: `write`, `read` or
    `describe` on a topic, or `cluster_action`, which elections need. With `others` no entry denies it, but one allows
    another principal the operation, so that only this principal may do anything with the topic or the cluster. At the
    end the client is allowed again.
    """

    in_swarm: ClassVar[bool] = False

    kind: Literal["deny"] = "deny"
    operation: _Denied = Field(description="what is denied")
    topic: str | None = Field(default=None, description="the topic; left out for `cluster_action`")
    others: bool = Field(default=False, description="whether another principal is allowed instead")

    def desired(self) -> DesiredState:
        entry = AclEntry(
            resource_type=AclResourceType.CLUSTER if self.topic is None else AclResourceType.TOPIC,
            resource_name=self.topic or CLUSTER_NAME,
            principal=_OTHER_PRINCIPAL if self.others else node_principal(FIRST_CLIENT),
            operation=AclOperation[self.operation.upper()],
            permission_type=AclPermissionType.ALLOW if self.others else AclPermissionType.DENY,
        )
        return DesiredState(entries=(entry,))

    def words(self) -> str:
        place = self.topic or "the cluster"
        if self.others:
            return f"only {_OTHER_PRINCIPAL} may use {place}"
        return f"the client may not {self.operation} {place}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        operation = rng.choice(get_args(_Denied))
        topic = None if operation == "cluster_action" else targets.draw_partition(rng)[0]
        return {"operation": operation, "topic": topic, "others": rng.random() < 0.3}


class ReplaceBroker(BrokerFault):
    """A broker's process is killed, if it runs, and the broker unregistered. At the end it is started again, as a new
    broker under the same id if its disk was replaced.
    """

    in_swarm: ClassVar[bool] = False
    is_operation: ClassVar[bool] = True
    requires = "controllers"

    keeps_down = True
    kind: Literal["replace_broker"] = "replace_broker"
    new_disk: bool = Field(default=False, description="whether its disk is replaced by an empty one")

    def begin(self, controls: Controls, number: int) -> None:
        controls.kill(self.node, loss_of("all" if self.new_disk else "nothing"))
        controls.administer(unregister_broker(self.node))

    def words(self) -> str:
        return f"{node_name(self.node)} is killed and unregistered{', its disk replaced' if self.new_disk else ''}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        return super().draw(targets, rng) | {"new_disk": rng.random() < 0.5}


KINDS: tuple[type[Fault], ...] = (
    RecreateTopic,
    AddPartitions,
    FeatureLevels,
    ConfigureCluster,
    ReassignmentStorm,
    Deny,
    ReplaceBroker,
)
