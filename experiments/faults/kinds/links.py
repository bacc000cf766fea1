"""Faults of links: nothing passes, or messages are lost, duplicated, reordered or delayed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import ClassVar, Literal, get_args

from pydantic import Field

from experiments.engines.sim.network import Disturbance
from experiments.faults.controls import Controls
from experiments.faults.schema import BrokerFault, Drawn, Fault
from experiments.faults.targets import Targets
from experiments.support.fields import Index, Milliseconds, Nodes, PerMille
from protocol.ids import FIRST_CLIENT, NodeId, node_name
from protocol.messages import control, data, quorum, recovery, store, v3
from protocol.messages.base import Message

MessageKind = Literal[
    "registrations", "heartbeats", "proposals", "metadata", "fetches", "produce", "recoveries", "commands", "store"
]
"""Groups of requests with their responses: of brokers to the controller (`proposals`: AlterPartition), of brokers to
each other, of clients, and those of the recovery manager; in `v3` the controller's commands and those of the store.
"""
Effect = Literal["lose", "duplicate", "reorder", "delay"]
MESSAGES: Mapping[MessageKind | None, tuple[type[Message], ...]] = {
    None: (),
    "registrations": (control.BrokerRegistrationRequest, control.BrokerRegistrationResponse),
    "heartbeats": (control.BrokerHeartbeatRequest, control.BrokerHeartbeatResponse),
    "proposals": (control.AlterPartitionRequest, control.AlterPartitionResponse),
    "metadata": (
        quorum.QuorumFetchRequest,
        quorum.QuorumFetchResponse,
        quorum.FetchSnapshotRequest,
        quorum.FetchSnapshotResponse,
    ),
    "fetches": (data.FetchRequest, data.FetchRenewal, data.FetchResponse),
    "produce": (data.ProduceRequest, data.ProduceResponse),
    "recoveries": (
        recovery.RecoverPartitions,
        recovery.CancelRecoveries,
        recovery.RecoveryResults,
        recovery.GetReplicaLogInfoRequest,
        recovery.GetReplicaLogInfoResponse,
    ),
    "commands": (v3.LeaderAndIsrRequest, v3.LeaderAndIsrResponse, v3.StopReplicaRequest, v3.StopReplicaResponse),
    "store": (
        store.StoreRead,
        store.StoreWrite,
        store.StoreResponse,
        store.WatchEvent,
        store.SessionPing,
        store.SessionPong,
    ),
}

_OF_STORES: Sequence[MessageKind | None] = (None, None, "commands", "proposals", "store", "store", "fetches", "produce")
_DRAWN_MESSAGES: Sequence[MessageKind | None] = (
    None,
    None,
    "heartbeats",
    "proposals",
    "metadata",
    "fetches",
    "produce",
)


class LinkFault(Fault):
    """A fault of the links from one group of nodes to another."""

    source: Nodes = Field(description="ids of the nodes that send")
    target: Nodes = Field(description="ids of the nodes that receive")

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (*self.source, *self.target)

    def directions(self, one_way: bool) -> list[tuple[NodeId, NodeId]]:
        """The (sender, receiver) pairs between the groups: from source to target, and back unless it is one way."""
        forth = list(product(self.source, self.target))
        return forth if one_way else forth + [(target, source) for source, target in forth]

    def restore(self, controls: Controls, number: int, one_way: bool) -> None:
        for link in self.directions(one_way):
            controls.cut_links.drop(link, number)

    def between(self, one_way: bool) -> str:
        source, target = (", ".join(map(node_name, side)) for side in (self.source, self.target))
        return f"from {source} to {target}" if one_way else f"between {source} and {target}"


class Cut(LinkFault):
    """Nothing passes from `source` to `target`, and nothing back unless the cut is `one_way`."""

    kind: Literal["cut"] = "cut"
    one_way: bool = Field(default=False, description="whether the other direction stays up")

    def begin(self, controls: Controls, number: int) -> None:
        for link in self.directions(self.one_way):
            controls.cut_links.add(link, number)

    def heal(self, controls: Controls, number: int) -> None:
        self.restore(controls, number, self.one_way)

    def words(self) -> str:
        return f"nothing passes {self.between(self.one_way)}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        source, target = targets.draw_sides(rng)
        if rng.random() < 0.5:
            source, target = target, source
        return {"source": source, "target": target, "one_way": rng.random() < 0.5}


class _DisturbingFault(Fault):
    """A fault that does something to single messages of links."""

    @abstractmethod
    def disturbances(self, controls: Controls) -> Iterator[Disturbance]:
        """What happens to which direction of which link."""

    def begin(self, controls: Controls, number: int) -> None:
        for disturbance in self.disturbances(controls):
            controls.cluster.disturb_link(disturbance)

    def heal(self, controls: Controls, number: int) -> None:
        for disturbance in self.disturbances(controls):
            controls.cluster.clear_disturbance(disturbance)


class Disturb(_DisturbingFault, LinkFault):
    """A share of the messages from `source` to `target` is lost, duplicated, reordered or delayed. A slow link is a
    delay of all messages.
    """

    kind: Literal["disturb"] = "disturb"
    effect: Effect = Field(
        description="`lose`, `duplicate` (the copy arrives up to `delay_ms` later), `reorder` (later messages overtake "
        "it, by up to `delay_ms`) or `delay` (it and all behind it arrive `delay_ms` later)"
    )
    per_mille: PerMille = Field(default=1_000, description="the share of messages that are hit, in 1/1000")
    delay_ms: Index = Field(default=0, description="the delay of `effect`, in ms")
    only: MessageKind | None = Field(
        default=None, description="the requests that are hit, with their responses; left out: all messages"
    )

    @property
    def duplicates_sends(self) -> bool:
        return self.effect == "duplicate" and self.delays_sends

    @property
    def delays_sends(self) -> bool:
        return self.effect != "lose" and self.only in (None, "produce") and FIRST_CLIENT in self.source

    def disturbances(self, controls: Controls) -> Iterator[Disturbance]:
        for source, target in self.directions(one_way=True):
            yield Disturbance(source, target, self.effect, self.per_mille, self.delay_ms, MESSAGES[self.only])

    def words(self) -> str:
        done = {"lose": "lost", "duplicate": "duplicated", "reorder": "reordered", "delay": "delayed"}[self.effect]
        by = f" by up to {self.delay_ms} ms" if self.delay_ms else ""
        return f"{self.per_mille / 10:g} % of {self.only or 'messages'} {self.between(one_way=True)} are {done}{by}"

    @classmethod
    def draw(cls, targets: Targets, rng: Random) -> dict[str, object]:
        kinds = (*_DRAWN_MESSAGES, "recoveries") if targets.managers else _DRAWN_MESSAGES
        only = rng.choice(_OF_STORES if targets.stores else kinds)
        source, target = _draw_ends(only, targets, rng)
        if rng.random() < 0.5:
            source, target = target, source
        effect, share = rng.choice(get_args(Effect)), rng.choice((20, 200, 1_000))
        delay_ms = rng.choice((5, 50, 500, 3_000))
        return {
            "source": source,
            "target": target,
            "effect": effect,
            "per_mille": share,
            "delay_ms": 0 if effect == "lose" else delay_ms,
            "only": only,
        }


def _draw_ends(only: str | None, targets: Targets, rng: Random) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Two groups of nodes between which messages of that group pass."""
    one = (rng.choice(targets.brokers),)
    brokers = tuple(targets.brokers) if rng.random() < 0.3 else one
    if only is None:
        return targets.draw_sides(rng)
    if only in ("fetches", "commands") or (only == "proposals" and targets.stores):
        return one, tuple(broker for broker in targets.brokers if broker not in one)
    if only == "recoveries":
        return tuple(targets.managers), (*targets.controllers, *brokers)
    if only == "store":
        return brokers, tuple(targets.stores)
    return brokers, tuple(targets.clients if only == "produce" else targets.controllers)


class HeartbeatLoss(_DisturbingFault, BrokerFault):
    """All heartbeats of a broker, and their responses, are lost; everything else passes."""

    requires = "controllers"

    WORDS = "the heartbeats of {node} are lost"
    kind: Literal["heartbeat_loss"] = "heartbeat_loss"

    def disturbances(self, controls: Controls) -> Iterator[Disturbance]:
        for controller in controls.engine.spec.controller_ids:
            yield Disturbance(self.node, controller, "lose", only=MESSAGES["heartbeats"])
            yield Disturbance(controller, self.node, "lose", only=MESSAGES["heartbeats"])


class FlappingLink(LinkFault):
    """The links between `source` and `target` go down and come up again in turn: down for `down_ms`, then up for
    `up_ms`, until the end. Sessions and fetches are interrupted again and again, and never for long.
    """

    in_swarm: ClassVar[bool] = False

    DRAWN: ClassVar[Drawn] = dict.fromkeys(("down_ms", "up_ms"), (20, 200, 1_500))
    kind: Literal["flapping_link"] = "flapping_link"
    down_ms: Milliseconds = Field(description="how long the links are down each time, in ms")
    up_ms: Milliseconds = Field(description="how long they are up in between, in ms")

    def begin(self, controls: Controls, number: int) -> None:
        self._go_down(controls, number, controls.cluster.now_ms + self.duration_ms)

    def _go_down(self, controls: Controls, number: int, end_ms: int) -> None:
        """Cuts the links, and schedules that they are restored, at the end at the latest, and cut again before it."""
        for link in self.directions(one_way=False):
            controls.cut_links.add(link, number)
        up_again_ms = min(controls.cluster.now_ms + self.down_ms, end_ms)
        controls.cluster.call_at(up_again_ms, partial(self.restore, controls, number, False))
        if up_again_ms + self.up_ms < end_ms:
            controls.cluster.call_at(up_again_ms + self.up_ms, partial(self._go_down, controls, number, end_ms))

    def words(self) -> str:
        return f"the links {self.between(one_way=False)} are down for {self.down_ms} ms of {self.down_ms + self.up_ms}"

    @classmethod
    def draw_subject(cls, targets: Targets, rng: Random) -> dict[str, object]:
        source, target = targets.draw_sides(rng)
        return {"source": source, "target": target}


KINDS: tuple[type[Fault], ...] = (Cut, Disturb, HeartbeatLoss, FlappingLink)
