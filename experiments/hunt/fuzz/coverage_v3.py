"""Which behaviour of generation `v3` the runs have reached, as counts for the table of `coverage.py`.

Decisions, reassignments and terms of controllers are read from what the store publishes and from trace events; watches,
conflicts and connections from the store's messages. A decision is a change of a partition's node with another leader
epoch, and has a reason, as elections have in the other generations; with the same leader epoch it is a change of the
ISR, which the leader or the controller has written. A conditional write of which the version does not hold any more is
a conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from protocol.events.base import Trace
from protocol.events.store import (
    CommandCarriedOut,
    ControllerDeposed,
    ControllerElected,
    StoreChanged,
    StoreSessionBegan,
    StoreSessionEnded,
)
from protocol.ids import NO_LEADER, NodeId, TopicPartition
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

DECISION, ISR, CONTROLLER, COMMAND = "decision", "ISR", "controller", "command"
REASSIGNMENT, CONFLICT, WATCH, STORE = "reassignment", "conflict", "watch", "store"

KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
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
    STORE: ("session begins", "session is closed", "session expires", "connection is closed", "watches are set again"),
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
            self._count(STORE, "session begins")
        elif isinstance(trace, StoreSessionEnded):
            self._count(STORE, "session expires" if trace.expired else "session is closed")

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
        self._count(DECISION, _reason(before, state))
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
            self._count(STORE, "connection is closed")
        elif isinstance(message, StoreRead) and isinstance(message.operation, SetWatches):
            self._count(STORE, "watches are set again")

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


def _reason(before: LeaderAndIsr, state: LeaderAndIsr) -> str:
    if state.leader == NO_LEADER:
        return "no leader"
    if state.leader != before.leader:
        return "leader from the ISR" if state.leader in before.isr else "leader outside the ISR (unclean)"
    return "new epoch only" if set(before.isr) == set(state.isr) else "ISR without dead members"
