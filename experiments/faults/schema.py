"""What a fault is: something that goes wrong in a cluster at a time, and is healed after a duration.

Both halves belong to a fault, so a run in which all faults are over is a run in which all nodes run and all links are
up. A *timeline* is a sequence of faults: written out (timeline files), drawn from rates (`draw.py`), or searched
exhaustively within `Bounds` (`experiments/hunt/explore`). Each kind of fault is one subclass of `Fault` in `kinds/`:
docs/contributing/a-fault.md shows how to add one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from experiments.faults.cluster_operator import DesiredState
from experiments.faults.controls import Controls
from experiments.faults.targets import Targets
from experiments.support.fields import Index, Milliseconds, StrictModel
from protocol.ids import NodeId, TopicPartition, node_name

RequiredNodes = Literal["controllers", "stores"] | None
Drawn = Mapping[str, Sequence[object]]


class Fault(StrictModel, ABC):
    """One fault with its times. `in_swarm`: the plans of single faults that `isray fuzz` draws from a seed may contain
    the kind: one added later is left out, so that seeds keep their plans; operated plans may contain all kinds.
    `is_operation`: it is what an operator does, and nothing fails. `requires`: the nodes without which a cluster cannot
    have the fault. `keeps_down`: the nodes that it names are started when it is healed, and not before. `WORDS` is what
    `words` returns, with fields in braces; `DRAWN` are the values that `draw` draws from, by field.
    """

    in_swarm: ClassVar[bool] = True
    is_operation: ClassVar[bool] = False
    requires: ClassVar[RequiredNodes] = None
    keeps_down: ClassVar[bool] = False
    WORDS: ClassVar[str] = ""
    DRAWN: ClassVar[Drawn] = {}

    at_ms: Index = Field(description="when the fault begins, in ms of virtual time")
    duration_ms: Milliseconds = Field(description="how long it lasts until it is healed, in ms")
    kind: str

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.duration_ms

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes that the fault names. A timeline file is refused if the cluster lacks one of them."""
        return self.brokers

    @property
    def brokers(self) -> tuple[NodeId, ...]:
        """The nodes that it names and that must be brokers."""
        return ()

    @property
    def partition_named(self) -> TopicPartition | None:
        """The partition that the fault names, which must exist; partition 0 for a fault of a whole topic."""
        topic = getattr(self, "topic", None)
        return None if topic is None else TopicPartition(topic, getattr(self, "partition", 0))

    @property
    def duplicates_sends(self) -> bool:
        """Whether the fault may deliver a producer's batch twice."""
        return False

    @property
    def delays_sends(self) -> bool:
        """Whether the fault may deliver a producer's batch late, or twice."""
        return False

    @abstractmethod
    def begin(self, controls: Controls, number: int) -> None:
        """Makes the fault happen. `number` is the fault's place in its timeline and identifies it to what it holds."""

    def heal(self, controls: Controls, number: int) -> None:
        """Ends the fault, where anything is left to be done. Called exactly once, `duration_ms` after `begin`."""
        for node in sorted(self.nodes) if self.keeps_down else ():
            controls.down.drop(node, number)

    def words(self) -> str:
        """One clause that says what happens and to which nodes, without the times."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return self.WORDS.format(**values | ({"node": node_name(values["node"])} if "node" in values else {}))

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        """Draws the fields of a fault of this kind, its times excepted."""
        return cls.draw_subject(targets, rng) | {name: rng.choice(values) for name, values in cls.DRAWN.items()}

    @classmethod
    def draw_subject(cls, targets: Targets, rng: Random) -> dict[str, object]:
        """Draws the fields that name what the fault hits."""
        return {}

    @classmethod
    def is_possible(cls, targets: Targets) -> bool:
        """Whether a cluster with these targets can have a fault of this kind."""
        return cls.requires is None or bool(getattr(targets, cls.requires))


class NodeFault(Fault):
    """A fault of one node."""

    node: Index = Field(description="the node's id")

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)

    @classmethod
    def draw_subject(cls, targets: Targets, rng: Random) -> dict[str, object]:
        return {"node": targets.draw_server(rng)}


class DesiredStateFault(Fault):
    """A change of the metadata that the operator of the run makes and keeps up until the end, and then takes back."""

    is_operation: ClassVar[bool] = True
    requires: ClassVar[RequiredNodes] = "controllers"

    @abstractmethod
    def desired(self) -> DesiredState:
        """The part of the desired state."""

    def begin(self, controls: Controls, number: int) -> None:
        controls.cluster_operator.declare(number, self.desired())

    def heal(self, controls: Controls, number: int) -> None:
        controls.cluster_operator.release(number)


class BrokerFault(NodeFault):
    """A fault of one broker."""

    @classmethod
    def draw_subject(cls, targets: Targets, rng: Random) -> dict[str, object]:
        return {"node": rng.choice(targets.brokers)}


class Bounds(StrictModel):
    """What may happen in one run of an exhaustive search, each at any time and at most so often: records produced;
    crashes that lose some or all of what is not flushed, crashes that lose nothing, controlled restarts; heartbeats
    lost until the session of a running broker expires (`fences`); followers that are found lagging or silent
    (`shrinks`); proposals that are repeated (`retries`); controllers that are replaced by another one (`failovers`);
    unclean recoveries whose time is over before all replicas have answered (`recoveries`; 0: no unclean recovery is
    enabled). `delays`: how often a link is delayed, for any time, while
    everything else goes on at once; -1: all links may be delayed for any time, in every combination. A fault is healed
    at any time: a dead broker may start again, a delayed link moves.
    """

    records: Index = 1
    lossy: Index = 1
    crashes: Index = 0
    shutdowns: Index = 0
    fences: Index = 1
    shrinks: Index = 0
    retries: Index = 0
    failovers: Index = 0
    recoveries: Index = 0
    delays: Annotated[int, Field(ge=-1)] = 0
