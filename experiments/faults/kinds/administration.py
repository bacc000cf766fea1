"""Faults of administration: partitions move, configs change, controllers lose their vote, and all is taken back."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from experiments.engines.admin_requests import reassign
from experiments.faults.cluster_operator import DesiredState
from experiments.faults.controls import Controls
from experiments.faults.schema import DesiredStateFault, Fault, NodeFault
from experiments.faults.targets import Targets
from experiments.support.fields import Index, Nodes, TopicConfig
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import NodeId


class Reassignment(Fault):
    """A fault that reassigns a partition; what is under way at the end is cancelled."""

    is_operation: ClassVar[bool] = True

    topic: str = Field(description="the topic")
    partition: Index = Field(description="index of the partition")

    def heal(self, controls: Controls, number: int) -> None:
        controls.administer(reassign(self.topic, self.partition, None))


class Reassign(Reassignment):
    """The reassignment of a partition begins; if it has not completed by the end it is cancelled."""

    kind: Literal["reassign"] = "reassign"
    replicas: Nodes = Field(description="ids of the brokers that are to hold it")

    @property
    def brokers(self) -> tuple[NodeId, ...]:
        return self.replicas

    def begin(self, controls: Controls, number: int) -> None:
        controls.administer(reassign(self.topic, self.partition, self.replicas))

    def words(self) -> str:
        return f"{self.partition_named} is reassigned to {list(self.replicas)}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        topic, partition = targets.draw_partition(rng)
        replicas = tuple(rng.sample(list(targets.brokers), targets.replication_factor))
        return {"topic": topic, "partition": partition, "replicas": replicas}


class Configure(DesiredStateFault):
    """Configs of a topic change; at the end they have the values again with which the topic was created. In `v3`
    configs do not change.
    """

    kind: Literal["configure"] = "configure"
    topic: str = Field(description="the topic")
    config: TopicConfig = Field(description="values by config name")

    def desired(self) -> DesiredState:
        return DesiredState(configs={self.topic: self.config})

    def words(self) -> str:
        settings = ", ".join(f"{name} = {value}" for name, value in self.config.items())
        return f"topic {self.topic} is configured with {settings}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        topic, _ = targets.draw_partition(rng)
        return {"topic": topic, "config": {MIN_INSYNC_REPLICAS: rng.randint(1, targets.replication_factor)}}


class VoterChange(NodeFault):
    """The vote of a controller ends; at the end the controller becomes a voter again."""

    is_operation: ClassVar[bool] = True

    WORDS = "{node} loses its vote"
    kind: Literal["voter_change"] = "voter_change"

    def begin(self, controls: Controls, number: int) -> None:
        controls.operator.remove_vote(self.node)

    def heal(self, controls: Controls, number: int) -> None:
        controls.operator.restore_vote(self.node)

    @classmethod
    def draw_subject(cls, targets: Targets, rng: Random) -> dict[str, object]:
        return {"node": rng.choice(targets.controllers)}

    @classmethod
    def is_possible(cls, targets: Targets) -> bool:
        return len(targets.controllers) > 1


KINDS: tuple[type[Fault], ...] = (Reassign, Configure, VoterChange)
