"""Which behaviour of the protocol the runs have reached: elections by their reason, transitions, error codes.

Clean runs are evidence only for behaviour that they have reached. It is counted from trace events and messages; what is
never reached is listed too. Error codes are counted in answers and in all their parts; those that could be reached are
read from the protocol's own source: the codes that brokers and controllers name other than to compare with them.

An election is a change of leader in the controller's state of a partition. Its reason is why the new leader was
eligible in the state before: membership of the ISR, which the same change may have given it where it completes a
reassignment; of the ELR; being the last known leader; nothing (an unclean election). In `v3` a decision is a change of
a partition's node with another leader epoch; with the same one it is a change of the ISR, which the leader or the
controller has written. A conditional write of which the version does not hold any more is a conflict.

Campaigns (`experiments/hunt/campaign`) keep plans that reach *features* that no plan has reached. They are finer than
the table: how often each behaviour occurred, in powers of two, as fuzzers of programs count branches; and each three
successive shapes of one partition's state, where a shape is the sizes of ISR and ELR with the state's flags.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Final, get_args, get_type_hints

from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.targets import Targets
from protocol.broker.lifecycle import LifecycleState
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import (
    BrokerStateChanged,
    DataLossRoutineBegan,
    LogReset,
    LogTruncated,
    SegmentsDeleted,
    StorageFailed,
)
from protocol.events.controller import (
    ControllerStarted,
    FeatureLevelChanged,
    PartitionChanged,
    PartitionRemoved,
    SessionExpired,
    TopicDeleted,
)
from protocol.events.quorum import QuorumSnapshotLoaded
from protocol.events.store import (
    CommandCarriedOut,
    ControllerDeposed,
    ControllerElected,
    StoreChanged,
    StoreSessionBegan,
    StoreSessionEnded,
)
from protocol.features import Generation
from protocol.ids import FIRST_CLIENT, NO_LEADER, RECOVERY_MANAGER, STORE, NodeId, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.store import (
    Check,
    ConnectionClosed,
    SetData,
    SetWatches,
    StoreError,
    StoreMessage,
    StoreRead,
    StoreResponse,
    StoreWrite,
    WatchEvent,
)
from protocol.v3.store import paths
from protocol.v3.store.records import LeaderAndIsr, ReplicasNode, TopicNode, stored_state

MET = "operation and fault"
FROM_ISR, FROM_ELR, LAST_KNOWN = "from the ISR", "from the ELR", "last known leader"
UNCLEAN, LEADERLESS = "unclean", "none"
_TRANSITIONS: Mapping[str, Callable[[PartitionChanged, PartitionChanged], bool]] = {
    "ISR shrinks": lambda old, new: not set(old.isr) <= set(new.isr),
    "ISR grows": lambda old, new: not set(new.isr) <= set(old.isr),
    "ISR becomes empty": lambda old, new: bool(old.isr) and not new.isr,
    "ELR gains members": lambda old, new: not set(new.elr) <= set(old.elr),
    "ELR loses members": lambda old, new: not set(old.elr) <= set(new.elr),
    "ELR is cleared": lambda old, new: bool(old.elr) and not new.elr,
    "replicas change": lambda old, new: set(old.replicas) != set(new.replicas),
    "leader recovers": lambda old, new: old.recovering and not new.recovering,
}
_TRACED: Mapping[type[Trace], str] = {
    LogTruncated: "follower truncates",
    LogReset: "follower is emptied",
    SegmentsDeleted: "retention deletes",
    SessionExpired: "session expires",
    StorageFailed: "disk fails",
    ControllerStarted: "controller starts",
    DataLossRoutineBegan: "data-loss routine runs",
    TopicDeleted: "topic is deleted",
    PartitionRemoved: "partition is removed",
    FeatureLevelChanged: "feature level changes",
    QuorumSnapshotLoaded: "snapshot is installed",
}

_LARGE = Targets(range(9), range(1_000, 1_005), (FIRST_CLIENT,), {"t": 1}, 3, (RECOVERY_MANAGER,))
"""A cluster in which every fault is possible that needs no store."""
_LARGE_WITH_STORE = Targets(range(9), (), (FIRST_CLIENT,), {"t": 1}, 3, (), (STORE,))
_PAST = 3
"""So many successive shapes are one feature."""

_ANSWERING = ("broker", "controller", "log", "metadata", "nodes", "recovery")
"""Units of the protocol whose errors travel in answers; those of clients are outcomes."""
_ANSWERING_IN_V3 = ("broker", "log", "v3/broker", "v3/controller", "v3/store")
_SHARED_NODES = ("base_broker.py", "refusals.py")
"""Modules of `protocol/nodes` that brokers of all generations use."""
PLANS = "plans"
"""The group that counts plans by generation."""


@cache
def known(*, with_store: bool = False) -> Mapping[str, tuple[str, ...]]:
    """What can be reached, by group: in `v3`, or in the generations with a metadata log."""
    found = pairs(with_store=with_store).items()
    groups = {
        "broker": tuple(state.value for state in LifecycleState if state is not LifecycleState.NOT_RUNNING),
        "error": answerable(with_store=with_store),
        MET: tuple(pair_name(operation, fault) for operation, faults in found for fault in faults),
    }
    if with_store:
        kinds = (LogTruncated, LogReset, SegmentsDeleted, StorageFailed, DataLossRoutineBegan)
        return {**KNOWN_IN_V3, "transition": tuple(_TRACED[kind] for kind in kinds), **groups}
    election = (FROM_ISR, FROM_ELR, LAST_KNOWN, UNCLEAN, LEADERLESS)
    return {"election": election, "transition": (*_TRANSITIONS, *_TRACED.values()), **groups}


@cache
def pairs(*, with_store: bool = False) -> Mapping[str, tuple[str, ...]]:
    """Each kind of operation, and the kinds of faults during which it may happen, with controllers or in `v3`."""
    targets = _LARGE_WITH_STORE if with_store else _LARGE
    possible = {name: kind for name, kind in FAULT_KINDS.items() if kind.is_possible(targets)}
    faults = tuple(name for name, kind in possible.items() if not kind.is_operation)
    return {name: faults for name, kind in possible.items() if kind.is_operation}


def pair_name(operation: str, fault: str) -> str:
    return f"{operation}, {fault}"


def missing_faults(counts: Counter[tuple[str, str]]) -> Iterator[tuple[str, int, list[str]]]:
    """For each kind of operation: how many kinds of faults it has met, in any generation, and those that it has not met
    of those that are possible in the generations whose plans were counted.
    """
    expected = known_groups(counts)[MET]
    for operation in pairs():
        names = [name for name in expected if name.startswith(f"{operation}, ")]
        missing = [name.partition(", ")[2] for name in names if not counts[MET, name]]
        yield operation, len(names) - len(missing), missing


def known_groups(counts: Counter[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """What can be reached in the generations whose plans were counted."""
    born = {Generation(name) for group, name in counts if group == PLANS}
    groups: dict[str, tuple[str, ...]] = {}
    for with_store in sorted({generation.features.metadata_in_store for generation in born} or {False}):
        for group, names in known(with_store=with_store).items():
            groups[group] = tuple(dict.fromkeys((*groups.get(group, ()), *names)))
    return groups


@cache
def answerable(*, with_store: bool = False) -> tuple[str, ...]:
    """The names of the error codes that the protocol's source can answer, by number."""
    protocol = files("protocol")
    folders = [protocol / unit for unit in (_ANSWERING_IN_V3 if with_store else _ANSWERING)]
    modules = [entry for folder in folders for entry in folder.iterdir() if entry.name.endswith(".py")]
    if with_store:
        modules += [protocol / "nodes" / name for name in _SHARED_NODES]
    named = {name for module in modules for name in codes_in(module.read_text(encoding="utf-8"))}
    return tuple(code.name for code in ErrorCode if code.name in named and code is not ErrorCode.NONE)


def codes_in(source: str) -> set[str]:
    """The error codes that a module's source names as values. One that is only compared with is no answer, nor is a
    member of a constant set or tuple, which is there to be compared with.
    """
    tree = ast.parse(source)
    compared = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    constants = (node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value)
    ignored = {id(part) for node in (*compared, *constants) for part in ast.walk(node)}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorCode"
        if id(node) not in ignored
    }


class Coverage:
    """Counts by (group, name). `observe` and `message` are for the hooks of a simulated cluster."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._states: dict[TopicPartition, PartitionChanged] = {}
        self._shapes: dict[TopicPartition, tuple[str, ...]] = {}
        self._paths: set[tuple[str, ...]] = set()
        self._store = V3Coverage(self.counts)

    def observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, PartitionChanged):
            before = self._states.get(trace.partition)
            self._states[trace.partition] = trace
            path = (*self._shapes.get(trace.partition, ()), _shape_of(before, trace))[-_PAST:]
            self._shapes[trace.partition] = path
            self._paths.add(path)
            if before is not None:
                happened = (name for name, has_happened in _TRANSITIONS.items() if has_happened(before, trace))
                self.counts.update(("transition", name) for name in happened)
                if trace.leader_epoch != before.leader_epoch:
                    self.counts["election", _reason(before, trace)] += 1
        elif isinstance(trace, BrokerStateChanged):
            self.counts["broker", trace.state] += 1
        elif type(trace) in _TRACED:
            self.counts["transition", _TRACED[type(trace)]] += 1
        else:
            self._store.observe(node, trace)

    def message(self, source: NodeId, target: NodeId, message: Message) -> None:
        if isinstance(message, StoreMessage):
            self._store.message(message)
            return
        has_error, parts = _shape(type(message).__name__)
        if has_error and message.error is not ErrorCode.NONE:  # type: ignore[attr-defined]
            self.counts["error", message.error.name] += 1  # type: ignore[attr-defined]
        for name in parts:
            value = getattr(message, name)
            for part in value if isinstance(value, tuple) else (value,):
                if part is not None:
                    self.message(source, target, part)

    def features(self) -> frozenset[str]:
        """What distinguishes this run from others: what the cluster did, not how often faults and clients acted."""
        groups = known().keys() - {MET}
        counted = (
            f"{group}: {name}: {2 ** (count.bit_length() - 1)} or more"
            for (group, name), count in self.counts.items()
            if count and group in groups
        )
        return frozenset((*counted, *(" > ".join(path) for path in self._paths)))


@cache
def _shape(kind: str) -> tuple[bool, tuple[str, ...]]:
    """Whether the messages with this type name have an error, and the fields that hold parts which have."""
    model = Message.REGISTRY[kind]
    types = get_type_hints(model)
    names = [field.name for field in fields(model)]
    return "error" in names, tuple(name for name in names if _bears_error(types[name]))


def _bears_error(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Message):
        has_error, parts = _shape(annotation.__name__)
        return has_error or bool(parts)
    return any(map(_bears_error, get_args(annotation)))


def rows(counts: Counter[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
    """(group, name, count), everything that can be reached first, as it is declared; then the rest by name."""
    reachable = known_groups(counts)
    for group, names in reachable.items():
        yield from ((group, name, counts[group, name]) for name in names)
    for group, name in sorted(counts):
        if name not in reachable.get(group, ()):
            yield group, name, counts[group, name]


def missed(counts: Counter[tuple[str, str]]) -> dict[str, list[str]]:
    """What can be reached and was not, by group; groups of which all was reached are left out."""
    groups = known_groups(counts).items()
    return {group: never for group, names in groups if (never := [name for name in names if not counts[group, name]])}


def document(counts: Counter[tuple[str, str]]) -> dict[str, object]:
    """The table as JSON: `reached` is group -> name -> count, `never_reached` group -> names."""
    reached: dict[str, dict[str, int]] = {}
    for group, name, count in rows(counts):
        if count:
            reached.setdefault(group, {})[name] = count
    return {"reached": reached, "never_reached": missed(counts)}


def _shape_of(before: PartitionChanged | None, state: PartitionChanged) -> str:
    """Sizes and flags of a partition's state, with the reason of its election if it is the first of a leader epoch."""
    flags = (
        ("recovering", state.recovering),
        ("leader known", state.last_known_leader != NO_LEADER),
        ("ELR known", bool(state.last_known_elr)),
        ("more replicas", before is not None and len(state.replicas) > len(before.replicas)),
        ("fewer replicas", before is not None and len(state.replicas) < len(before.replicas)),
        ("below min ISR", len(state.isr) < state.min_isr),
    )
    named = [name for name, is_so in flags if is_so]
    if before is not None and before.leader_epoch != state.leader_epoch:
        named.append(f"elected {_reason(before, state)}")
    return " ".join((f"{len(state.isr)}+{len(state.elr)}/{len(state.replicas)}", *named))


def _reason(before: PartitionChanged, after: PartitionChanged) -> str:
    leader = after.leader
    if leader == NO_LEADER:
        return LEADERLESS
    if leader in before.elr and leader not in before.isr:
        return FROM_ELR
    if leader in before.isr or not after.recovering:
        return FROM_ISR
    known = before.last_known_leader == leader or (not before.elr and leader in before.last_known_elr)
    return LAST_KNOWN if known else UNCLEAN


DECISION, ISR, CONTROLLER, COMMAND = "decision", "ISR", "controller", "command"
REASSIGNMENT, CONFLICT, WATCH, SESSIONS = "reassignment", "conflict", "watch", "store"

KNOWN_IN_V3: Final[Mapping[str, tuple[str, ...]]] = {
    DECISION: (
        "first leader",
        "leader from the ISR",
        "leader outside the ISR (unclean)",
        "no leader",
        "ISR without dead members",
        "new epoch only",
    ),
    ISR: ("shrinks", "grows", "unclean flag is cleared", "written by the leader", "written by the controller"),
    CONTROLLER: ("first election", "failover", "race is lost", "deposed", "writes of a deposed one are refused"),
    COMMAND: ("LeaderAndIsr", "LeaderAndIsr with INIT", "StopReplica", "refused"),
    REASSIGNMENT: ("requested", "requested again", "withdrawn", "begins", "completes", "leader moves"),
    CONFLICT: ("of a leader's ISR", "of a decision", "of an assignment"),
    WATCH: (
        paths.CONTROLLER,
        paths.BROKER_IDS,
        f"{paths.BROKER_IDS}/ID",
        paths.TOPICS,
        paths.REASSIGNED,
        paths.ADDED,
        paths.REMOVED,
        paths.ISR_CHANGES,
    ),
    SESSIONS: (
        "session begins",
        "session is closed",
        "session expires",
        "connection is closed",
        "watches are set again",
    ),
}
"""What can be reached in plans of the swarm, by group."""


class V3Coverage:
    """Adds to `counts`, by (group, name)."""

    def __init__(self, counts: Counter[tuple[str, str]]) -> None:
        self._counts = counts
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._assigned: dict[str, dict[int, tuple[int, ...]]] = {}
        self._targets: dict[TopicPartition, tuple[int, ...]] = {}
        self._writes: dict[tuple[int, int], StoreWrite] = {}
        self._isr_changes: set[tuple[str, int]] = set()

    def _count(self, group: str, name: str) -> None:
        self._counts[group, name] += 1

    def observe(self, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, StoreChanged):
            self._change(trace)
        elif isinstance(trace, CommandCarriedOut):
            init = " with INIT" if trace.is_init else ""
            self._count(COMMAND, "refused" if trace.error != "NONE" else trace.command.removesuffix("Request") + init)
        elif isinstance(trace, ControllerElected):
            self._count(CONTROLLER, "first election" if trace.epoch == 1 else "failover")
        elif isinstance(trace, ControllerDeposed):
            self._count(CONTROLLER, "deposed")
        elif isinstance(trace, StoreSessionBegan):
            self._count(SESSIONS, "session begins")
        elif isinstance(trace, StoreSessionEnded):
            self._count(SESSIONS, "session expires" if trace.expired else "session is closed")

    def _change(self, change: StoreChanged) -> None:
        root, names = paths.locate(change.path) if change.path not in paths.PERSISTENT else (change.path, ())
        if root == paths.TOPICS and len(names) == 1:
            self._assignment(names[0], change)
        elif root == paths.TOPICS and names[2:] == (paths.LEADER_AND_ISR,):
            self._state(TopicPartition(names[0], int(names[1])), change)
        elif root == paths.REASSIGNED and len(names) == 2:
            self._request(TopicPartition(names[0], int(names[1])), change)

    def _assignment(self, topic: str, change: StoreChanged) -> None:
        if change.version < 0:
            self._assigned.pop(topic, None)
            return
        before = self._assigned.get(topic, {})
        partitions = TopicNode.decode(change.path, change.data.encode()).partitions
        self._assigned[topic] = dict(partitions)
        for index, replicas in partitions.items():
            if before.get(index, replicas) != replicas:
                self._count(REASSIGNMENT, "completes")

    def _request(self, key: TopicPartition, change: StoreChanged) -> None:
        if change.version < 0:
            target = self._targets.pop(key, None)
            if target != self._assigned.get(key.topic, {}).get(key.partition):
                self._count(REASSIGNMENT, "withdrawn")
            return
        self._targets[key] = ReplicasNode.decode(change.path, change.data.encode()).replicas
        self._count(REASSIGNMENT, "requested again" if change.version else "requested")

    def _state(self, key: TopicPartition, change: StoreChanged) -> None:
        before = self._states.pop(key, None)
        state = None if change.version < 0 else stored_state(change.path, change.data.encode())
        if state is None:
            return
        self._states[key] = state
        if before is None:
            self._count(DECISION, "first leader")
        elif state.leader_epoch != before.leader_epoch:
            self._decision(key, before, state)
        else:
            self._isr_changes.add((change.path, change.version))
            for name, has_happened in (
                ("shrinks", not set(before.isr) <= set(state.isr)),
                ("grows", not set(state.isr) <= set(before.isr)),
                ("unclean flag is cleared", before.is_unclean_leader and not state.is_unclean_leader),
            ):
                if has_happened:
                    self._count(ISR, name)

    def _decision(self, key: TopicPartition, before: LeaderAndIsr, state: LeaderAndIsr) -> None:
        self._count(DECISION, _v3_reason(before, state))
        target = self._targets.get(key)
        if target is not None and before.leader not in target and state.leader in target:
            self._count(REASSIGNMENT, "leader moves")
        elif target is not None and (before.leader, before.isr) == (state.leader, state.isr):
            self._count(REASSIGNMENT, "begins")

    def message(self, message: StoreMessage) -> None:
        if isinstance(message, StoreWrite):
            self._writes[message.connection_id, message.xid] = message
        elif isinstance(message, StoreResponse):
            self._response(message)
        elif isinstance(message, WatchEvent):
            root, names = paths.locate(message.path)
            self._count(WATCH, f"{root}/ID" if root == paths.BROKER_IDS and names else root)
        elif isinstance(message, ConnectionClosed):
            self._count(SESSIONS, "connection is closed")
        elif isinstance(message, StoreRead) and isinstance(message.operation, SetWatches):
            self._count(SESSIONS, "watches are set again")

    def _response(self, response: StoreResponse) -> None:
        write = self._writes.pop((response.connection_id, response.xid), None)
        if response.error is not StoreError.NONE:
            self._count("store error", response.error.name)
        if write is None:
            return
        first, failed = write.operations[0], write.operations[len(response.results) - 1]
        is_fenced = isinstance(first, Check) and first.path == paths.CONTROLLER_EPOCH
        if response.error is StoreError.NONE:
            for operation, result in zip(write.operations, response.results, strict=True):
                if isinstance(operation, SetData) and (operation.path, result.version) in self._isr_changes:
                    self._isr_changes.discard((operation.path, result.version))
                    self._count(ISR, f"written by the {'controller' if is_fenced else 'leader'}")
        elif failed is first and is_fenced:
            self._count(CONTROLLER, "writes of a deposed one are refused")
        elif failed.path in (paths.CONTROLLER, paths.CONTROLLER_EPOCH) and any(
            operation.path == paths.CONTROLLER for operation in write.operations
        ):
            self._count(CONTROLLER, "race is lost")
        elif response.error is StoreError.BAD_VERSION:
            name = "of a decision" if is_fenced else "of a leader's ISR"
            self._count(CONFLICT, name if failed.path.endswith(f"/{paths.LEADER_AND_ISR}") else "of an assignment")


def _v3_reason(before: LeaderAndIsr, state: LeaderAndIsr) -> str:
    if state.leader == NO_LEADER:
        return "no leader"
    if state.leader != before.leader:
        return "leader from the ISR" if state.leader in before.isr else "leader outside the ISR (unclean)"
    return "new epoch only" if set(before.isr) == set(state.isr) else "ISR without dead members"
