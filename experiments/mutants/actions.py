"""What a plan of the hunt may do to a cluster, step by step; each has its healing half.

Crashes lose what the atlas grants (`experiments/faults/atlas.py`). With `beyond_tolerance` they lose what is asked for:
that is for invariants that hold at any loss. What a step cuts or disturbs belongs to its owner, and is sound again when
the owner is mended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

from experiments.engine import Loss
from experiments.faults.atlas import granted
from experiments.requests import alter_config, elect_leader, reassign
from experiments.sim.engine import SimEngine
from experiments.sim.network import Disturbance
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NodeId
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.commands import AdminCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    MetadataFetchResponse,
)
from protocol.messages.data import FetchRenewal, FetchRequest, FetchResponse, ProduceRequest
from protocol.messages.partitions import ElectionType

KEEPS = Loss("none")


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes and configs of one run. `rate` is in records a second; `topic` are configs of the topic, `cluster` of the
    cluster beside `CONFIG`.
    """

    generation: str = "kip-966"
    brokers: int = 3
    replicas: int = 3
    min_isr: int = 2
    partitions: int = 1
    rate: int = 20
    duration_ms: int = 25_000
    jitter_ms: int = 2
    topic: Mapping[str, object] = field(default_factory=dict)
    cluster: Mapping[str, object] = field(default_factory=dict)
    beyond_tolerance: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a plan: a fault's beginning or its healing half. What is cut or disturbed belongs to `owner`, until
    that is mended.
    """

    at_ms: int
    action: str
    broker: NodeId
    dice: int
    owner: int


class Actions:
    """Carries out steps on a cluster; `do` one, `mend_everything` at the end."""

    def __init__(self, engine: SimEngine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self._ids = count(1_000_000)
        self._disturbed: dict[Disturbance, NodeId] = {}
        self._cuts: dict[tuple[NodeId, NodeId], NodeId] = {}

    def do(self, step: Step) -> None:
        """Carries out a step. KeyError for an action that there is not."""
        _ACTIONS[step.action](self, step)

    def mend_everything(self) -> None:
        """Nothing is cut or disturbed, all nodes run."""
        for owner in sorted({*self._cuts.values(), *self._disturbed.values()}):
            self._calm(Step(0, "calm", 0, 0, owner))
        for broker in self.engine.spec.broker_ids:
            self._mend(Step(0, "mend", broker, 0, broker))

    def administer(self, request: AdminRequest) -> None:
        """Sends a request, where there is a controller."""
        if self.engine.view() is not None:
            self.engine.submit(AdminCommand(command_id=next(self._ids), request=request))

    def _crash(self, step: Step, loss: Loss = KEEPS) -> None:
        engine = self.engine
        if engine.is_running(step.broker):
            engine.crash(step.broker, loss)

    def _lossy(self, step: Step) -> None:
        kinds = (Loss("unflushed"), Loss("unflushed"), Loss("records", 15), Loss("suffix", step.dice))
        wanted = kinds[step.dice % len(kinds)]
        truth = self.engine.suite.truth
        self._crash(step, wanted if self.settings.beyond_tolerance else granted(wanted, step.broker, truth))

    def _bounce(self, step: Step) -> None:
        """The broker dies with loss and is back at once, before anybody has missed it."""
        if self.engine.is_running(step.broker):
            self._lossy(step)
            self.engine.start(step.broker)

    def _blackout(self, step: Step) -> None:
        """All brokers die, none loses anything, and come back."""
        for broker in self.engine.spec.broker_ids:
            if self.engine.is_running(broker):
                self.engine.crash(broker, Loss("none"))
                self.engine.start(broker)

    def _shutdown(self, step: Step) -> None:
        if self.engine.is_running(step.broker) and not self.engine.is_paused(step.broker):
            self.engine.terminate(step.broker)

    def _power(self, step: Step) -> None:
        """The machine of a broker fails after the broker has shut down in good order, or while it runs."""
        wanted = Loss("unflushed")
        self.engine.crash(step.broker, granted(wanted, step.broker, self.engine.suite.truth))

    def _pause(self, step: Step) -> None:
        if self.engine.is_running(step.broker) and not self.engine.is_paused(step.broker):
            self.engine.pause(step.broker)

    def _isolate(self, step: Step) -> None:
        for other in (*self.engine.spec.broker_ids, FIRST_CONTROLLER):
            if other != step.broker:
                self._cut(step, step.broker, other)
                self._cut(step, other, step.broker)

    def _one_way(self, step: Step) -> None:
        """From one broker to one other, or back; messages that are on their way are lost."""
        other = (step.broker + 1 + step.dice % (self.settings.brokers - 1)) % self.settings.brokers
        source, target = (step.broker, other) if step.dice % 2 else (other, step.broker)
        self._cut(step, source, target)

    def _estrange(self, step: Step) -> None:
        """The controller and the broker do not hear each other, or one does not hear the other."""
        if step.dice % 3 != 1:
            self._cut(step, step.broker, FIRST_CONTROLLER)
        if step.dice % 3 != 2:
            self._cut(step, FIRST_CONTROLLER, step.broker)

    def _deaf_to_controller(self, step: Step) -> None:
        """The broker does not hear the controller, which hears the broker."""
        self._cut(step, FIRST_CONTROLLER, step.broker)

    def _mute(self, step: Step) -> None:
        self._cut(step, step.broker, FIRST_CLIENT)

    def _deafen(self, step: Step) -> None:
        """No answer of any broker reaches the client."""
        for broker in self.engine.spec.broker_ids:
            self._cut(step, broker, FIRST_CLIENT)

    def _cut_off(self, step: Step) -> None:
        """The client and the broker do not hear each other."""
        self._cut(step, step.broker, FIRST_CLIENT)
        self._cut(step, FIRST_CLIENT, step.broker)

    def _lose_produce(self, step: Step) -> None:
        """Some of what the producer sends is lost."""
        for broker in self.engine.spec.broker_ids:
            self._disturb_link(step, Disturbance(FIRST_CLIENT, broker, "lose", 300, 0, (ProduceRequest,)))

    def _disturb(self, step: Step) -> None:
        """Some of what passes between two brokers, or a broker and the controller, is lost, doubled or overtaken."""
        other = (step.broker + 1 + step.dice % self.settings.brokers) % (self.settings.brokers + 1)
        other = FIRST_CONTROLLER if other == self.settings.brokers else other
        random = Random(step.dice)
        effects: tuple[Literal["lose", "duplicate", "reorder"], ...] = ("lose", "duplicate", "reorder")
        effect, per_mille = random.choice(effects), random.choice((50, 300))
        delay_ms = 0 if effect == "lose" else random.choice((10, 300, 2_500))
        for source, target in ((step.broker, other), (other, step.broker)):
            self._disturb_link(step, Disturbance(source, target, effect, per_mille, delay_ms))

    def _hold(self, step: Step, kinds: tuple[type[Message], ...]) -> None:
        """Messages of these kinds are late, and overtaken, or come twice."""
        for other in (*self.engine.spec.broker_ids, FIRST_CONTROLLER):
            for source, target in ((step.broker, other), (other, step.broker)):
                effect: Literal["reorder", "duplicate"] = "reorder" if step.dice % 2 else "duplicate"
                self._disturb_link(step, Disturbance(source, target, effect, 400, 2_500, kinds))

    def _late_proposals(self, step: Step) -> None:
        self._hold(step, (AlterPartitionRequest, AlterPartitionResponse))

    def _late_fetches(self, step: Step) -> None:
        self._hold(step, (FetchRequest, FetchResponse))

    def _lose_from_broker(self, step: Step, kind: type[Message]) -> None:
        self._disturb_link(step, Disturbance(step.broker, FIRST_CONTROLLER, "lose", 1_000, 0, (kind,)))

    def _heartless(self, step: Step) -> None:
        """Heartbeats of the broker are lost: its session ends though all else goes on."""
        self._lose_from_broker(step, BrokerHeartbeatRequest)

    def _hush(self, step: Step) -> None:
        """Proposals of the broker are lost."""
        self._lose_from_broker(step, AlterPartitionRequest)

    def _echo(self, step: Step) -> None:
        """Proposals of the broker come twice."""
        echo = Disturbance(step.broker, FIRST_CONTROLLER, "duplicate", 1_000, 6_000, (AlterPartitionRequest,))
        self._disturb_link(step, echo)

    def _unanswered(self, step: Step) -> None:
        """Answers to proposals of the broker are lost."""
        self._disturb_link(
            step, Disturbance(FIRST_CONTROLLER, step.broker, "lose", 1_000, 0, (AlterPartitionResponse,))
        )

    def _blind(self, step: Step) -> None:
        """The broker reads nothing of the metadata log."""
        self._disturb_link(step, Disturbance(FIRST_CONTROLLER, step.broker, "lose", 1_000, 0, (MetadataFetchResponse,)))

    def _starve(self, step: Step) -> None:
        """The broker is answered no fetch."""
        for other in self.engine.spec.broker_ids:
            self._disturb_link(step, Disturbance(other, step.broker, "lose", 1_000, 0, (FetchResponse,)))

    def _silence(self, step: Step) -> None:
        """The broker's fetches are lost."""
        for other in self.engine.spec.broker_ids:
            self._disturb_link(step, Disturbance(step.broker, other, "lose", 1_000, 0, (FetchRequest, FetchRenewal)))

    def _sift(self, step: Step) -> None:
        """Some of the broker's fetches are lost."""
        for other in self.engine.spec.broker_ids:
            self._disturb_link(step, Disturbance(step.broker, other, "lose", 300, 0, (FetchRequest,)))

    def _raise_min_isr(self, step: Step) -> None:
        self.administer(alter_config("t", {MIN_INSYNC_REPLICAS: self.settings.min_isr + 1}))

    def _move_on(self, step: Step) -> None:
        """Partition 0 moves to the brokers that follow this one."""
        settings = self.settings
        wanted = [(step.broker + 1 + turn) % settings.brokers for turn in range(settings.replicas)]
        self.administer(reassign("t", 0, wanted))

    def _controller(self, step: Step) -> None:
        """The controller's machine dies: it has flushed what it has answered for."""
        if self.engine.is_running(FIRST_CONTROLLER):
            self.engine.crash(FIRST_CONTROLLER, Loss("unflushed"))

    def _full_disk(self, step: Step) -> None:
        self.engine.cluster.disks[step.broker].set_full(True)

    def _reassign(self, step: Step) -> None:
        settings, random = self.settings, Random(step.dice)
        replicas = random.sample(range(settings.brokers), settings.replicas)
        index = random.randrange(settings.partitions)
        self.administer(reassign("t", index, None if random.random() < 0.15 else replicas))

    def _prefer(self, step: Step) -> None:
        self.administer(elect_leader("t", step.dice % self.settings.partitions, ElectionType.PREFERRED))

    def _elect_unclean(self, step: Step) -> None:
        self.administer(elect_leader("t", step.dice % self.settings.partitions, ElectionType.UNCLEAN))

    def _configure(self, step: Step) -> None:
        min_isr = 1 + step.dice % self.settings.min_isr
        self.administer(alter_config("t", {MIN_INSYNC_REPLICAS: min_isr}))

    def _start(self, step: Step) -> None:
        if not self.engine.is_running(step.broker):
            self.engine.start(step.broker)

    def _mend(self, step: Step) -> None:
        """All that has been done to this broker, or by its steps to others, is over."""
        engine = self.engine
        engine.cluster.disks[step.broker].set_full(False)
        if engine.is_paused(step.broker):
            engine.resume(step.broker)
        self._calm(step)
        for node in (FIRST_CONTROLLER, step.broker):
            if not engine.is_running(node):
                engine.start(node)

    def _calm(self, step: Step) -> None:
        """What the owner has cut and disturbed is sound again."""
        for link in [link for link, owner in self._cuts.items() if owner == step.owner]:
            del self._cuts[link]
            self.engine.set_link(*link, True)
        for disturbance in [found for found, owner in self._disturbed.items() if owner == step.owner]:
            del self._disturbed[disturbance]
            self.engine.cluster.calm_link(disturbance)

    def _cut(self, step: Step, source: NodeId, target: NodeId) -> None:
        self._cuts.setdefault((source, target), step.owner)
        self.engine.set_link(source, target, False)

    def _disturb_link(self, step: Step, disturbance: Disturbance) -> None:
        if disturbance.source != disturbance.target and disturbance not in self._disturbed:
            self._disturbed[disturbance] = step.owner
            self.engine.cluster.disturb_link(disturbance)


FAULTS: dict[str, Callable[[Actions, Step], None]] = {
    "crash": Actions._crash,
    "lossy": Actions._lossy,
    "bounce": Actions._bounce,
    "shutdown": Actions._shutdown,
    "pause": Actions._pause,
    "isolate": Actions._isolate,
    "one_way": Actions._one_way,
    "estrange": Actions._estrange,
    "mute": Actions._mute,
    "deafen": Actions._deafen,
    "lose_produce": Actions._lose_produce,
    "disturb": Actions._disturb,
    "late_proposals": Actions._late_proposals,
    "late_fetches": Actions._late_fetches,
    "heartless": Actions._heartless,
    "controller": Actions._controller,
    "full_disk": Actions._full_disk,
    "reassign": Actions._reassign,
    "prefer": Actions._prefer,
    "configure": Actions._configure,
}
"""What a plan may do, by name: the swarm draws from these."""
DIRECTED: dict[str, Callable[[Actions, Step], None]] = {
    "blackout": Actions._blackout,
    "power": Actions._power,
    "deaf_to_controller": Actions._deaf_to_controller,
    "hush": Actions._hush,
    "echo": Actions._echo,
    "unanswered": Actions._unanswered,
    "blind": Actions._blind,
    "silence": Actions._silence,
    "raise_min_isr": Actions._raise_min_isr,
    "move_on": Actions._move_on,
    "cut_off": Actions._cut_off,
    "sift": Actions._sift,
    "calm": Actions._calm,
    "starve": Actions._starve,
    "start": Actions._start,
    "elect_unclean": Actions._elect_unclean,
}
"""What only a focus asks for."""
_ACTIONS = {**FAULTS, **DIRECTED, "mend": Actions._mend}
