"""Checks the invariants of `experiments/check` on the numbered states of a search.

An `InvariantSuite` observes a simulated cluster and accumulates what was committed, which broker led in which epoch,
and which brokers have lost records. In a search these variables belong to the state, as auxiliary variables do in a
TLA+ model: they have a number, the *suite state*, and two states that differ in it are two states. The suite is the one
that every simulation runs; it is attached to a `Stage`, a cluster that is filled with the nodes and disks of a state,
and receives the trace events of the step. Then every invariant is checked on all partitions.

A step is checked in parts: what the suite makes of a crash, of the trace events of each node, and of the state of each
node. The result of a part depends on the suite state and on what the part reads: the node itself, the controller, and
what `views.py` lists of the other brokers. It is computed once for all steps that agree in these. What the suite keeps
only to spare work, or can see in the state before the step, is not part of the suite state (`_FORGOTTEN`).

One more property is checked here, since no client takes part in a search: what a leader acknowledges with acks=all is
below its high watermark (E5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from experiments.check.invariants_broker import ValidReplicaState
from experiments.check.invariants_log import ConsistentRead, LogMatching
from experiments.check.invariants_metrics import CountersMatchTheirDefinitions
from experiments.check.invariants_recovery import RecoveryLeavesNothingReachable
from experiments.check.invariants_replicas import FetchSessionsAgree, OneCopyPerSequence, OnlyAssignedLogs
from experiments.check.suite import InvariantSuite
from experiments.check.truth import GroundTruth
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.hunt.explore.copies import copy_of
from experiments.hunt.explore.machines import Broker, DeadBroker, Local, Machines, Outcome
from experiments.hunt.explore.values import Keys
from experiments.hunt.explore.views import Views, high_watermark, read_by_others, sessions
from protocol.events.controller import RecoveryDecided
from protocol.ids import NO_OFFSET, NodeId, TimeMs, is_broker
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.nodes.store import StoreNode

SuiteState = int
"""The number of a state of the suite."""

_FORGOTTEN: Mapping[type, str] = {
    LogMatching: "_checked",
    ConsistentRead: "_checked",
    OneCopyPerSequence: "_found",
    OnlyAssignedLogs: "_checked",
    ValidReplicaState: "_before",
}
"""What has been checked before, and may be checked again; and the high watermarks before the step."""
_NOT_CHECKED = (CountersMatchTheirDefinitions, RecoveryLeavesNothingReachable)
"""What needs more than states have: counters, which differ between equal states, and the time that passes."""
_SAME = -1
"""The high watermarks are those before the step."""
_CHANGED: SuiteState = -1
"""No suite state: the suite has observed more events since."""


class _WithoutClients(ClusterSpec):
    """A cluster without clients: no invariant needs to be checked after an event of a client."""

    @property
    def client_ids(self) -> tuple[NodeId, ...]:
        return ()


class Stage(SimCluster):
    """A cluster that shows the nodes of a state and never runs."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec, keep_traces=False)
        self.incarnations: dict[NodeId, int] = {}
        self.after_crash: Callable[[], None] | None = None

    def show(self, locals_: Sequence[Local], machines: Machines) -> None:
        """Fills the cluster with nodes in these states: the controller or the store, then the brokers."""
        self.nodes.clear()
        for local in locals_:
            exhibit = machines.exhibits[local]
            if isinstance(exhibit, DeadBroker):
                self.disks[exhibit.broker] = exhibit.disk
            else:
                self.nodes[exhibit.node_id] = exhibit
                if not isinstance(exhibit, StoreNode | RecoveryManagerNode):
                    self.disks[exhibit.node_id] = exhibit.storage  # type: ignore[assignment]

    def incarnation_of(self, node: NodeId) -> int:
        """A broker's epoch identifies its incarnation."""
        exhibit = self.nodes.get(node)
        return exhibit.context.broker_epoch if isinstance(exhibit, Broker) else -1

    def crash(self, node: NodeId, loss: Loss) -> int:
        """Shows the state after the crash; the suite itself compares the disks before and after."""
        assert self.after_crash is not None
        self.after_crash()
        return 0


class StepChecker:
    """Checks steps and stores the suite states. `places` are the nodes in the order in which states name them."""

    def __init__(self, spec: ClusterSpec, machines: Machines) -> None:
        self._machines = machines
        self._stage = Stage(_WithoutClients(spec.brokers, spec.controllers, spec.config, spec.seed))
        self._keys = Keys(unordered=True)
        self._snapshots: list[list[object]] = []
        self._numbers: dict[object, SuiteState] = {}
        self._known: dict[tuple[object, ...], tuple[SuiteState, str]] = {}
        self._read_by_others = Views(machines, read_by_others)
        self._high_watermarks = Views(machines, high_watermark)
        self._sessions = Views(machines, sessions)
        self._disagreeing: dict[tuple[int, ...], str] = {}
        self._checked_nodes = () if spec.has_store_metadata else spec.node_ids
        self._attach_suite()
        self.first = self._present = self._intern()

    def _attach_suite(self) -> None:
        """Attaches a new suite to the stage."""
        self._stage.trace_observers.clear()
        self._suite = suite = InvariantSuite(self._stage, without=_NOT_CHECKED)
        attributes = [(part, name) for part in suite.parts for name in vars(part)]
        self._data = [(part, name) for part, name in attributes if not _is_reference(name, vars(part)[name])]
        self._spared = [(part, name) for part, name in self._data if _FORGOTTEN.get(type(part)) == name]
        self._data = [found for found in self._data if found not in self._spared]
        self._present = _CHANGED

    @property
    def suite_state_count(self) -> int:
        return len(self._snapshots)

    def check(
        self,
        suite_state: SuiteState,
        before: tuple[Local, ...],
        after: tuple[Local, ...],
        outcomes: Sequence[tuple[NodeId, Outcome]],
        crash: tuple[NodeId, Loss] | None = None,
        now_ms: TimeMs = 0,
    ) -> tuple[SuiteState, str]:
        """The suite state after a step at `now_ms` from `before` to `after`, and the violation as `Invariant: detail`,
        empty if there is none.
        """
        self._stage.now_ms = now_ms
        wrong = _acknowledged_too_early(outcomes, self._machines)
        if crash is not None and not wrong:
            suite_state, wrong = self._after_crash(suite_state, before, after, crash)
        for node, outcome in outcomes:
            if outcome.events_number and not wrong:
                suite_state, wrong = self._after_events(suite_state, after, node, outcome)
        wrong = wrong or self._sessions_disagree(after)
        for node in self._checked_nodes:
            if not wrong:
                suite_state, wrong = self._after_check(suite_state, before, after, node)
        if not self._checked_nodes and not wrong:
            suite_state, wrong = self._after_all_checks(suite_state, after)
        return suite_state, wrong

    def _read(self, node: NodeId, nodes: tuple[Local, ...]) -> tuple[Local, ...]:
        """What is read of a state where a node is checked: all of the node itself and of the controller."""
        if not self._checked_nodes:
            return nodes
        read, place = self._read_by_others, 1 + node if is_broker(node) else 0
        return (node, nodes[0], *[local if at == place else read[local] for at, local in enumerate(nodes[1:], 1)])

    def _after_crash(
        self, suite_state: SuiteState, before: tuple[Local, ...], after: tuple[Local, ...], crash: tuple[NodeId, Loss]
    ) -> tuple[SuiteState, str]:
        """The suite state after the suite has observed the crash."""
        key = (suite_state, crash, before[1 + crash[0]], self._read(crash[0], after))
        if key not in self._known:
            stage, suite = self._stage, self._restored(suite_state)
            stage.show(before, self._machines)
            stage.after_crash = lambda: stage.show(after, self._machines)
            suite.crash(*crash)
            self._known[key] = self._verdict(suite_state)
        return self._known[key]

    def _after_events(
        self, suite_state: SuiteState, after: tuple[Local, ...], node: NodeId, outcome: Outcome
    ) -> tuple[SuiteState, str]:
        """The suite state after the suite has received the trace events of a node."""
        decides = any(isinstance(trace, RecoveryDecided) for trace in outcome.traces)
        key = (
            suite_state,
            self._stage.now_ms,
            node,
            outcome.events_number,
            after if decides else self._read(node, after),
        )
        if key not in self._known:
            stage = self._stage
            self._restored(suite_state)
            stage.show(after, self._machines)
            for trace in outcome.traces:
                for observer in stage.trace_observers:
                    observer(stage.now_ms, node, trace)
            self._known[key] = self._verdict(suite_state)
        return self._known[key]

    def _after_check(
        self, suite_state: SuiteState, before: tuple[Local, ...], after: tuple[Local, ...], node: NodeId
    ) -> tuple[SuiteState, str]:
        """The suite state after all partitions have been checked for a node."""
        marks, place = self._high_watermarks, 1 + node
        was = marks[before[place]] if is_broker(node) and before[place] != after[place] else _SAME
        if was != _SAME and was == marks[after[place]]:
            was = _SAME
        key = (suite_state, was, self._read(node, after))
        if key not in self._known:
            suite = self._restored(suite_state)
            if was != _SAME:
                self._stage.show(before, self._machines)
                _recall_high_watermarks(suite, node)
            self._stage.show(after, self._machines)
            suite.check_node(node, without=(FetchSessionsAgree,))
            self._known[key] = self._verdict(suite_state)
        return self._known[key]

    def _sessions_disagree(self, after: tuple[Local, ...]) -> str:
        """How the fetch sessions of two brokers disagree; that depends on nothing else."""
        brokers = [node for node in self._checked_nodes if is_broker(node)]
        key = tuple([self._sessions[after[1 + node]] for node in brokers])
        if key not in self._disagreeing:
            self._stage.show(after, self._machines)
            views = [self._suite.truth.view(node, key) for node in brokers for key in self._suite.truth.partitions]
            check = FetchSessionsAgree(self._suite.truth).check
            wrong = next(filter(None, map(check, views)), "")
            self._disagreeing[key] = wrong and f"FetchSessionsAgree: {wrong}"
        return self._disagreeing[key]

    def _after_all_checks(self, suite_state: SuiteState, after: tuple[Local, ...]) -> tuple[SuiteState, str]:
        """The suite state after everything has been checked at once."""
        key = (suite_state, after)
        if key not in self._known:
            suite = self._restored(suite_state)
            self._stage.show(after, self._machines)
            suite.check_everything()
            self._known[key] = self._verdict(suite_state)
        return self._known[key]

    # -- suite states --------------------------------------------------------------------------------------------------

    def _intern(self, likely: SuiteState = _CHANGED) -> SuiteState:
        """The number of the state that the suite is in; most steps leave it in `likely`, in which they began."""
        self._suite.take_touched()
        for part, name in self._spared:
            vars(part)[name].clear()
        data = [vars(part)[name] for part, name in self._data]
        if likely != _CHANGED and data == self._snapshots[likely]:
            return likely
        number = self._numbers.setdefault(self._keys.key(data), len(self._snapshots))
        if number == len(self._snapshots):
            self._snapshots.append(copy_of(data))
        return number

    def _restored(self, suite_state: SuiteState) -> InvariantSuite:
        """The suite in that state."""
        if self._present != suite_state:
            for (part, name), value in zip(self._data, copy_of(self._snapshots[suite_state]), strict=True):
                vars(part)[name] = value
        self._present = _CHANGED
        return self._suite

    def _verdict(self, suite_state: SuiteState) -> tuple[SuiteState, str]:
        """The state that the suite is in now, and the violation that it has found in `suite_state`."""
        if self._suite.violations:
            violation = self._suite.violations[0]
            self._attach_suite()
            return suite_state, f"{violation.invariant}: {violation.detail}"
        self._present = self._intern(suite_state)
        return self._present, ""


def _is_reference(name: str, value: object) -> bool:
    """Whether an attribute refers to what is the same all the time. The last image is for times without a controller;
    in a search there always is one.
    """
    return name == "last_image" or isinstance(value, Stage | GroundTruth) or callable(value)


def _recall_high_watermarks(suite: InvariantSuite, node: NodeId) -> None:
    """Checks the state before the step once more, so that the suite knows the node's high watermarks there."""
    for invariant in suite.invariants:
        if isinstance(invariant, ValidReplicaState):
            for partition in suite.truth.partitions:
                invariant.check(suite.truth.view(node, partition))


def _acknowledged_too_early(outcomes: Sequence[tuple[NodeId, Outcome]], machines: Machines) -> str:
    for node, outcome in outcomes:
        exhibit = machines.exhibits[outcome.local]
        if outcome.acknowledged != NO_OFFSET and isinstance(exhibit, Broker):
            [replica] = exhibit.context.replicas.values()
            if outcome.acknowledged >= replica.log.high_watermark:
                return (
                    f"AcknowledgedIsCommitted: broker {node} acknowledges the record at {outcome.acknowledged}, "
                    f"its high watermark is {replica.log.high_watermark}"
                )
    return ""
