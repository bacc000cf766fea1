"""Faults of processes: they end, stop for a while, restart (also as another release), or lose their session."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from experiments.engines.port import Loss
from experiments.faults.controls import Controls
from experiments.faults.schema import BrokerFault, Drawn, Fault, NodeFault
from experiments.faults.targets import Targets
from experiments.support.fields import Index, Nodes
from protocol.config import ISR_UPDATES
from protocol.ids import FIRST_CLIENT, STORE, NodeId, node_name

Loses = Literal["nothing", "suffix", "torn", "corrupt", "records", "unflushed", "all"]
DRAWN_LOSSES: tuple[Loses, ...] = ("nothing", "suffix", "torn", "corrupt", "unflushed", "all")
_LOSS_WORDS = {
    "nothing": "its disk loses nothing",
    "suffix": "each log loses a random suffix of what was not flushed",
    "torn": "the last unflushed batch of each log is torn",
    "corrupt": "an unflushed batch of each log is corrupt",
    "unflushed": "its disk loses everything that was not flushed",
    "all": "its disk is replaced by an empty one",
}
WHOLE_CLUSTER = 0.15
"""Probability that a power loss hits all nodes."""


def loss_of(loses: Loses, count: int = 0) -> Loss:
    """The loss as the engines take it; `count` is a suffix's seed, or a number of records."""
    return Loss("none" if loses == "nothing" else loses, count)


class Crash(NodeFault):
    """A node's process is killed, if it runs, and its machine with it where the disk loses anything; at the end it is
    started again on what its disk holds.
    """

    keeps_down = True
    kind: Literal["crash"] = "crash"
    loses: Loses = Field(
        default="nothing",
        description="what its disk loses: `nothing` (the page cache survives), a `suffix` of each log's unflushed "
        "part, drawn with `seed`; the `torn` last batch of that part; a `corrupt` batch in it, drawn with `seed`, and "
        "all behind it; the last `count` of its `records`; everything `unflushed`; or `all` (the disk is replaced)",
    )
    seed: Index = Field(default=0, description="seed of the draw of `suffix` and `corrupt`")
    count: Index = Field(default=0, description="number of records, with `loses: records` only")

    @model_validator(mode="after")
    def _counts_records(self) -> Self:
        if self.count and self.loses != "records":
            raise ValueError("allowed: count with loses: records, and only there")
        return self

    def begin(self, controls: Controls, number: int) -> None:
        loss = loss_of(self.loses, self.count if self.loses == "records" else self.seed)
        controls.kill(self.node, loss)

    def words(self) -> str:
        lost = _LOSS_WORDS.get(self.loses, f"each log loses its last {self.count} unflushed records")
        return f"{node_name(self.node)} crashes; {lost}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        node = targets.draw_server(rng)
        may_lose = node in targets.brokers or (node in targets.controllers and len(targets.controllers) > 1)
        loses = rng.choice(DRAWN_LOSSES if may_lose else DRAWN_LOSSES[:1])
        return {"node": node, "loses": loses, "seed": rng.randrange(1_000)}


class PowerLoss(Fault):
    """The nodes of a rack lose power: their processes end and what was not flushed is lost, also on the disks of nodes
    that had ended before. At the end they are started again.
    """

    keeps_down = True
    kind: Literal["power_loss"] = "power_loss"
    rack: Nodes = Field(description="ids of the nodes")

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return self.rack

    def begin(self, controls: Controls, number: int) -> None:
        for node in sorted(self.rack):
            controls.kill(node, loss_of("unflushed"))

    def words(self) -> str:
        return f"{', '.join(map(node_name, self.rack))} lose power and what was not flushed"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        servers = (*targets.controllers, *targets.brokers, *targets.managers, *targets.stores)
        rack = tuple(sorted(rng.sample(servers, rng.randint(1, len(servers)))))
        return {"rack": servers if rng.random() < WHOLE_CLUSTER else rack}


class Pause(NodeFault):
    """A node takes no input, as in a long garbage collection; messages and timers wait."""

    WORDS = "{node} is paused"
    kind: Literal["pause"] = "pause"

    def begin(self, controls: Controls, number: int) -> None:
        controls.pause(self.node, number)

    def heal(self, controls: Controls, number: int) -> None:
        controls.resume(self.node, number)


class _ControlledRestart(BrokerFault):
    """The command for a controlled shutdown, and the start at the end."""

    keeps_down = True

    def begin(self, controls: Controls, number: int) -> None:
        controls.terminate(self.node)


class Restart(_ControlledRestart):
    """A broker gets the command for a controlled shutdown; at the end it is started again, once it has ended."""

    WORDS = "{node} shuts down in a controlled way"
    kind: Literal["restart"] = "restart"


class Bump(_ControlledRestart):
    """A broker of `v3` restarts in good order with another inter-broker protocol: from then on it writes ISRs to the
    store itself, or has the controller write them (K12). While only some brokers have done so the cluster is mixed
    (K13). The protocol stays when the fault is over.
    """

    in_swarm: ClassVar[bool] = False
    requires = "stores"

    DRAWN: ClassVar[Drawn] = {"isr_updates": ("leader", "controller")}
    kind: Literal["bump"] = "bump"
    isr_updates: Literal["leader", "controller"] = Field(
        description="the broker's `inter.broker.protocol.isr.updates` from its next start on"
    )

    def begin(self, controls: Controls, number: int) -> None:
        controls.cluster.configure(self.node, {ISR_UPDATES: self.isr_updates})
        super().begin(controls, number)

    def words(self) -> str:
        writer = "it writes" if self.isr_updates == "leader" else "the controller writes"
        return f"{node_name(self.node)} shuts down in a controlled way; from its next start on {writer} its ISRs"


class Expire(BrokerFault):
    """The store ends the sessions of a broker, which may be alive (M39); the broker opens new ones by itself."""

    requires = "stores"

    kind: Literal["expire"] = "expire"
    owning_only: bool = Field(
        default=False,
        description="whether only the session ends that the broker's ephemeral nodes belong to; a controller with "
        "several sessions keeps the others",
    )

    def begin(self, controls: Controls, number: int) -> None:
        engine = controls.engine
        if engine.is_running(STORE) and not engine.is_paused(STORE):
            engine.expire_sessions(self.node, owning_only=self.owning_only)

    def words(self) -> str:
        ended = "session that owns the registration" if self.owning_only else "sessions"
        return f"the store ends the {ended} of {node_name(self.node)}"


class ClientCrash(Fault):
    """The client's process is killed with all that it has under way, and started again at once. Its producer begins
    with another producer id, while batches of the former one are still on their way.
    """

    in_swarm: ClassVar[bool] = False

    WORDS = "the client crashes and is started again"
    kind: Literal["client_crash"] = "client_crash"

    def begin(self, controls: Controls, number: int) -> None:
        controls.replace_client(FIRST_CLIENT)


KINDS: tuple[type[Fault], ...] = (Crash, PowerLoss, Pause, Restart, Expire, ClientCrash, Bump)
