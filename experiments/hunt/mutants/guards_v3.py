"""Mutants of generation `v3`: the conditional writes, the fence, what brokers obey, and the watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from experiments.faults import recipes
from experiments.faults.kinds.administration import Reassign
from experiments.faults.kinds.processes import Expire
from experiments.faults.schema import Fault
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.mutants.mutant import Mutant, PlanFocus
from experiments.hunt.mutants.patches import Original, around, constant, with_arguments
from experiments.hunt.mutants.scripts import END_MS, TOPIC, scripted
from protocol.config import ISR_UPDATES, Generation
from protocol.errors import ErrorCode
from protocol.ids import TimeMs, TopicPartition, partition_key
from protocol.messages.store import Check, SetData
from protocol.messages.v3 import CommandResult, LeaderAndIsrPartition, LeaderAndIsrRequest
from protocol.v3.broker import isr_writer, metadata
from protocol.v3.broker.isr_writer import IsrWriter
from protocol.v3.broker.membership import Membership
from protocol.v3.broker.metadata import CommandedMetadata
from protocol.v3.controller import decisions, election, publishing, reassignments
from protocol.v3.controller.commands import CommandQueue
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Brokers
from protocol.v3.controller.procedure import Commands, Procedure, Writes
from protocol.v3.controller.runner import Runner
from protocol.v3.store.records import Stored
from protocol.v3.store.settings import Latency, StoreSettings

_ANY_VERSION = -1


def _swarm(why: str, *themes: str, updates: str | None = None, sessions: int | None = None) -> PlanFocus:
    config = {} if updates is None else {ISR_UPDATES: updates}
    return PlanFocus(Bias(generation=Generation.V3, themes=themes, config=config, sessions=sessions), why=why)


_CONTROLLERS = _swarm("Controllers are deposed with writes and commands under way.", "deposed controller")
_LATE = _swarm("Commands are lost, late or twice while leaderships move.", "late commands")
_LEADERS = _swarm("Leaders write ISRs while their sessions expire.", "expired leader", updates="leader")
_REQUESTS = _swarm("Leaders ask the controller for ISRs while sessions expire.", "expired leader", updates="controller")
_LINKS = _swarm("Requests to the store and its responses are lost, late or twice.", "store link", updates="leader")


_SURVIVORS = _swarm("Controllers lose one of their sessions.", "surviving sessions", sessions=3)
_STORE = StoreSettings(
    write_latency=Latency(mean_ms=40), read_latency=Latency(mean_ms=1), session_timeout_ms=2_000, sessions=1
)
_EXTRA = range(3, 8)
"""Brokers of a script without replicas, one of which probably is the controller."""


def _failovers(*at_ms: int) -> list[Fault]:
    """The sessions of the brokers without replicas expire one after the other from each of these times on."""
    return [
        Expire(at_ms=begin_ms + 50 * turn, duration_ms=1, node=broker)
        for begin_ms in at_ms
        for turn, broker in enumerate(_EXTRA)
    ]


_LATE_INIT = scripted(
    "Controllers change while the leader writes its ISR, and the commands of the new ones are late.",
    recipes.disturb(range(1, 8), (0,), "delay", 3_500, END_MS, only="commands", delay_ms=1_000),
    *(recipes.lose_fetch_responses(2, range(8), begin_ms, begin_ms + 2_500) for begin_ms in (4_000, 8_000, 12_000)),
    *_failovers(5_200, 6_300, 9_200, 10_300, 13_200),
    brokers=8,
    store=_STORE,
)
_SWITCHES = scripted(
    "The order of the replicas changes at the moment at which the leader removes a follower from the ISR.",
    *(
        fault
        for turn in range(8)
        for fault in (
            recipes.lose_fetch_responses(1, range(4), 3_500 + 5_000 * turn, 6_500 + 5_000 * turn),
            Reassign(
                at_ms=4_915 + 5_010 * turn,
                duration_ms=2_000,
                topic=TOPIC,
                partition=0,
                replicas=(0, 1, 2) if turn % 2 else (0, 2, 1),
            ),
        )
    ),
    brokers=4,
    store=_STORE,
)
_QUIET = scripted(
    "Brokers register again at nearly the same time, and then nothing happens any more.",
    *(Expire(at_ms=8_000 + 2 * broker, duration_ms=1, node=broker) for broker in range(4)),
    brokers=8,
    replicas=8,
    store=StoreSettings(write_latency=Latency(mean_ms=1), session_timeout_ms=2_000),
)
_Children = Callable[..., Procedure[tuple[str, ...]]]
_Write = Callable[..., Procedure[dict[TopicPartition, int]]]


def _unconditional(original: Original, *args: Any) -> object:
    write = original(*args)
    assert isinstance(write, SetData)
    return replace(write, version=_ANY_VERSION)


def _write_unconditionally(original: Original, changes: Any, topic_ids: Any) -> object:
    return original({key: replace(stored, version=_ANY_VERSION) for key, stored in changes.items()}, topic_ids)


def _obey_any_controller(
    original: Original, self: CommandedMetadata, now_ms: TimeMs, sender: int, request: Any
) -> object:
    self._controller_epoch = min(self._controller_epoch, request.controller_epoch)
    return original(self, now_ms, sender, request)


def _without_init(original: Original, self: CommandedMetadata, now_ms: TimeMs, request: LeaderAndIsrRequest) -> object:
    return original(self, now_ms, replace(request, is_init=False))


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


def _blind_watch(original: Original, self: Membership, now_ms: TimeMs, kind: object, path: str) -> None:
    """The notification is lost."""


def _any_live_replica(original: Original, state: Any, replicas: Any, brokers: Brokers, allowed: bool) -> object:
    choice = original(state, replicas, brokers, allowed)
    if isinstance(choice, decisions.Choice) and choice.leader != state.leader and brokers.alive(replicas):
        return choice._replace(leader=brokers.alive(replicas)[-1])
    return choice


def _fence_of_any_version(original: Original, self: Runner, step: Writes) -> tuple[Check, ...]:
    checks = original(self, step)
    assert isinstance(checks, tuple)
    return tuple(replace(check, version=_ANY_VERSION) for check in checks)


def _watched_afterwards(original: _Children, path: str, *, watch: bool = True) -> Procedure[tuple[str, ...]]:
    names = yield from original(path, watch=False)
    yield from original(path, watch=watch)
    return names


def _written_in_any_case(
    original: _Write, changes: dict[TopicPartition, Stored], topic_ids: Mapping[str, str]
) -> Procedure[dict[TopicPartition, int]]:
    versions = yield from original(changes, topic_ids)
    return {key: versions.get(key, stored.version + 1) for key, stored in changes.items()}


def _leads_on(original: Original, self: CommandedMetadata, part: LeaderAndIsrPartition) -> object:
    known = self._context.image.partition(partition_key(part.topic_id, part.partition_id))
    me = self._context.me
    if known is not None and known.leader == me != part.leader:
        return CommandResult(topic=part.topic, partition_id=part.partition_id)
    return original(self, part)


GUARDS: tuple[Mutant, ...] = (
    Mutant(
        "store-decision-unconditional",
        "A controller writes a decision on condition that the version is the one it has read (A16, M28).",
        "It overwrites the ISR that the leader has written since.",
        ("ElectionAddsNoMember", "ReplicationQuorumSuperset", "LeaderUsesStoredIsr"),
        (around(publishing, "publication", _unconditional),),
        _LEADERS,
    ),
    Mutant(
        "store-isr-unconditional",
        "A leader writes its ISR on condition that the version is the one it knows (A7, A46, M30).",
        "A deposed leader overwrites the election of its successor.",
        ("LeaderEpochsRise", "LeaderUsesStoredIsr"),
        (around(isr_writer, "write_isrs", _write_unconditionally),),
        _LEADERS,
    ),
    Mutant(
        "store-controller-epoch-not-checked",
        "A broker obeys no controller with an older epoch (A35, M34).",
        "It obeys the late commands of a deposed one.",
        ("CommandsInOrder",),
        (around(CommandedMetadata, "obey", _obey_any_controller),),
        _LATE,
    ),
    Mutant(
        "store-init-not-obeyed",
        "INIT deletes every replica that it does not name (A24).",
        "They stay.",
        ("InitIsObeyed",),
        (around(CommandedMetadata, "_lead_and_follow", _without_init),),
        _swarm("Partitions move while brokers are down.", "moved partition"),
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
        (around(Membership, "watch_fired", _blind_watch),),
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
    Mutant(
        "store-fence-not-checked",
        "Every write of a controller requires that its epoch is still the present one (A35, M34).",
        "A deposed controller whose other sessions are open goes on deciding.",
        ("DecisionsAreFenced",),
        (around(Runner, "_fence_of", _fence_of_any_version),),
        _SURVIVORS,
    ),
    Mutant(
        "store-older-state-obeyed",
        "A broker takes no state of a partition that is older than the one it knows (A25).",
        "A command that was on its way replaces the ISR that the leader has written since.",
        ("BrokerStatesRise",),
        (constant(metadata, "is_older", False),),
        _LATE_INIT,
    ),
    Mutant(
        "store-watch-after-read",
        "The read itself sets the watch (A11, A18).",
        "The watch is set by a second read, and a change between the two is missed.",
        ("AllConverges",),
        (around(publishing, "children", _watched_afterwards),),
        _QUIET,
    ),
    Mutant(
        "store-conflict-taken-as-success",
        "A leader whose write finds another version keeps its ISR, and assumes that it has been deposed (A46).",
        "It uses the ISR that it wanted.",
        ("LeaderUsesStoredIsr", "ReplicationQuorumSuperset"),
        (around(isr_writer, "write_isrs", _written_in_any_case),),
        _LEADERS,
    ),
    Mutant(
        "store-deposed-leader-leads-on",
        "A leader whose session has expired follows as soon as it is commanded to (A52, M39).",
        "It responds, and goes on leading.",
        ("AllConverges", "OneLeaderPerEpoch"),
        (around(CommandedMetadata, "_take", _leads_on),),
        _LEADERS,
    ),
    Mutant(
        "store-switch-unconditional",
        "A reassignment is completed on condition that the ISR is the one it was decided on (A40).",
        "The switch overwrites the ISR that the leader has written since.",
        ("ElectionAddsNoMember", "ReplicationQuorumSuperset", "LeaderUsesStoredIsr"),
        (around(reassignments, "publication", _unconditional),),
        _SWITCHES,
    ),
)
