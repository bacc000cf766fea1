"""Mutants of generation `v3`: the conditional writes, the fence, what brokers obey, and the watches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.mutants.mutant import Mutant, Original, PlanFocus, around, constant, with_arguments
from protocol.config import ISR_UPDATES, Generation
from protocol.errors import ErrorCode
from protocol.ids import TimeMs
from protocol.messages.store import SetData
from protocol.messages.v3 import LeaderAndIsrRequest
from protocol.nodes import store_isr
from protocol.nodes.store_isr import IsrWriter
from protocol.nodes.store_membership import StoreMembership
from protocol.nodes.store_metadata import StoreMetadata
from protocol.zookeeper import decisions, election, isr_updates, publishing
from protocol.zookeeper.commands import CommandQueue
from protocol.zookeeper.context import Controller
from protocol.zookeeper.decisions import Brokers
from protocol.zookeeper.procedure import Commands

_ANY_VERSION = -1


def _swarm(why: str, *themes: str, updates: str | None = None) -> PlanFocus:
    config = {} if updates is None else {ISR_UPDATES: updates}
    return PlanFocus(Bias(generation=Generation.V3, themes=themes, config=config), why=why)


_CONTROLLERS = _swarm("Controllers are deposed with writes and commands under way.", "deposed controller")
_LATE = _swarm("Commands are lost, late or twice while leaderships move.", "late commands")
_LEADERS = _swarm("Leaders write ISRs while their sessions expire.", "expired leader", updates="leader")
_REQUESTS = _swarm("Leaders ask the controller for ISRs while sessions expire.", "expired leader", updates="controller")
_LINKS = _swarm("Requests to the store and its responses are lost, late or twice.", "store link", updates="leader")


def _unconditional(original: Original, *args: Any) -> object:
    write = original(*args)
    assert isinstance(write, SetData)
    return write.model_copy(update={"version": _ANY_VERSION})


def _write_unconditionally(original: Original, changes: Any) -> object:
    return original({key: replace(stored, version=_ANY_VERSION) for key, stored in changes.items()})


def _obey_any_controller(original: Original, self: StoreMetadata, now_ms: TimeMs, sender: int, request: Any) -> object:
    self._controller_epoch = min(self._controller_epoch, request.controller_epoch)
    return original(self, now_ms, sender, request)


def _without_init(original: Original, self: StoreMetadata, now_ms: TimeMs, request: LeaderAndIsrRequest) -> object:
    return original(self, now_ms, request.model_copy(update={"is_init": False}))


def _used_before_written(original: Original, self: IsrWriter, now_ms: TimeMs, request: Any) -> object:
    for part in request.partitions:
        for replica in self._context.replicas.values():
            if replica.key.topic_id == part.topic_id and replica.key.partition == part.partition_id:
                leadership = replica.leadership
                if leadership is not None:
                    leadership.isr = tuple(member.broker_id for member in part.new_isr)
    return original(self, now_ms, request)


def _not_watched(original: Original, path: str, *, watch: bool = True) -> object:
    return original(path, watch=False)


def _no_init(original: Original, self: Controller, brokers: Any) -> Commands:
    return Commands(())


def _blind_watch(original: Original, self: StoreMembership, now_ms: TimeMs, kind: object, path: str) -> None:
    """The notification is lost."""


def _any_live_replica(original: Original, state: Any, replicas: Any, brokers: Brokers, allowed: bool) -> object:
    choice = original(state, replicas, brokers, allowed)
    if isinstance(choice, decisions.Choice) and choice.leader != state.leader and brokers.alive(replicas):
        return choice._replace(leader=brokers.alive(replicas)[-1])
    return choice


GUARDS: tuple[Mutant, ...] = (
    Mutant(
        "store-decision-unconditional",
        "A controller writes a decision on condition that the version is the one it has read (A16, M28).",
        "It overwrites the ISR that the leader has written since.",
        ("ElectionAddsNoMember", "ReplicationQuorumSuperset", "LeaderUsesStoredIsr"),
        (around(publishing, "publication", _unconditional), around(isr_updates, "publication", _unconditional)),
        _LEADERS,
    ),
    Mutant(
        "store-isr-unconditional",
        "A leader writes its ISR on condition that the version is the one it knows (A7, A46, M30).",
        "A deposed leader overwrites the election of its successor.",
        ("LeaderEpochsRise", "LeaderUsesStoredIsr"),
        (around(store_isr, "write_isrs", _write_unconditionally),),
        _LEADERS,
    ),
    Mutant(
        "store-controller-epoch-not-checked",
        "A broker obeys no controller with an older epoch (A35, M34).",
        "It obeys the late commands of a deposed one.",
        ("CommandsInOrder",),
        (around(StoreMetadata, "obey", _obey_any_controller),),
        _LATE,
    ),
    Mutant(
        "store-init-not-obeyed",
        "INIT deletes every replica that it does not name (A24).",
        "They stay.",
        ("InitIsObeyed",),
        (around(StoreMetadata, "_lead_and_follow", _without_init),),
        PlanFocus(
            Bias(generation=Generation.V3, brokers=4, weights={"reassign": 3, "crash": 2}),
            why="Replicas move while brokers are down.",
        ),
    ),
    Mutant(
        "store-isr-before-write",
        "A leader uses a smaller ISR only after it is written (A46, A48).",
        "It uses it at once.",
        ("LeaderUsesStoredIsr", "ReplicationQuorumSuperset"),
        (around(IsrWriter, "submit", _used_before_written),),
        _LINKS,
    ),
    Mutant(
        "store-children-not-watched",
        "The read of the children sets the watch (A11, A18).",
        "Changes between the read and the watch, and all later ones, are missed.",
        ("AllConverges",),
        (around(publishing, "children", _not_watched),),
        _CONTROLLERS,
    ),
    Mutant(
        "store-notification-lost",
        "A watch event starts what it is for: an election, or a procedure of the controller (A11, A32).",
        "It is ignored.",
        ("AllConverges",),
        (around(StoreMembership, "watch_fired", _blind_watch),),
        _CONTROLLERS,
    ),
    Mutant(
        "store-no-init-at-return",
        "A broker that comes back gets INIT before anything else (A24, A33, A36).",
        "It gets nothing until something changes.",
        ("AllConverges",),
        (around(Controller, "init", _no_init),),
        _CONTROLLERS,
    ),
    Mutant(
        "store-leader-outside-the-isr",
        "The leader is elected from the ISR while a member of it is alive (A13).",
        "Any live replica is.",
        ("LeaderInIsr",),
        (around(decisions, "after_broker_change", _any_live_replica),),
        _LEADERS,
    ),
    Mutant(
        "store-commands-dropped",
        "A command without a response is repeated until the broker responds or is gone (A51, M38).",
        "It is sent once.",
        ("AllConverges",),
        (constant(CommandQueue, "expire", None),),
        _LATE,
    ),
    Mutant(
        "store-proposals-unchecked",
        "The controller checks the leader, epochs, version and members of a proposal (B6, B18-B23).",
        "It writes any.",
        ("LeaderUsesStoredIsr", "ReplicationQuorumSuperset", "LeaderInIsr", "AllConverges"),
        (constant(decisions, "check_proposal", ErrorCode.NONE),),
        _REQUESTS,
    ),
    Mutant(
        "store-controller-epoch-not-counted",
        "A controller is elected with an epoch of its own (A35).",
        "It has the epoch of its predecessor.",
        ("OneControllerPerEpoch", "DecisionsAreFenced", "AllConverges", "ProtocolInvariantError"),
        (with_arguments(election, "encode_epoch", epoch=lambda epoch: max(0, int(epoch) - 1)),),
        _CONTROLLERS,
    ),
)
