"""Checks the invariants of `experiments/check` on the numbered states of a search.

The suite that every simulation runs receives the trace events of a step; then every invariant is checked on all
partitions. A step is checked in parts: what the suite makes of a crash, of the trace events of each node, and of the
state, the last of these for each broker and kind of invariant. The result of a part depends on the suite state
(`SuiteStates`), or only on its ground truth, and on what the part reads of the nodes (`views.py`). It is computed
once for all steps that agree in these. An invariant of no kind below is checked for every broker, and reads everything.

One more property is checked here, since no client takes part in a search: what a leader acknowledges with acks=all is
below its high watermark (E5).

What the suite accumulates, such as what was committed and who led in which epoch, belongs to the state, as auxiliary
variables do in a TLA+ model. A suite state has two halves with numbers of their own: the ground truth, which the checks
of states read, and the rest, which only observers of trace events read. What the suite keeps only to spare work, or can
see in the state before the step, is not part of it (`NOT_STATE` of the invariants).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from experiments.check.invariants import Invariant
from experiments.check.invariants_broker import (
    RecoveringLeaderIsAlone,
    ValidBrokerState,
    ValidFetcherState,
    ValidReplicaState,
)
from experiments.check.invariants_controller import MetadataLogMatching, ReplicationQuorumSuperset
from experiments.check.invariants_log import (
    ConsistentRead,
    LeaderCandidateCompleteness,
    LeaderCompleteness,
    LogMatching,
    NoCommittedRecordLostGlobally,
)
from experiments.check.invariants_metrics import CountersMatchTheirDefinitions
from experiments.check.invariants_recovery import RecoveryLeavesNothingReachable
from experiments.check.invariants_replicas import (
    FetchSessionsAgree,
    LeadersCountWhatFollowersHold,
    OneCopyPerSequence,
    OnlyAssignedLogs,
    ProducerEpochsRise,
)
from experiments.check.suite import InvariantSuite
from experiments.check.truth import GroundTruth
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.hunt.explore import views
from experiments.hunt.explore.copies import copy_of
from experiments.hunt.explore.machines import DeadBroker, Local, Machines, Outcome
from experiments.hunt.explore.values import Keys, not_state
from experiments.hunt.explore.views import Views
from protocol.ids import FIRST_CONTROLLER, NO_OFFSET, NodeId, TimeMs, is_broker
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.v3.store.node import StoreNode

SuiteState = int
Truth = int

_NOT_CHECKED = (CountersMatchTheirDefinitions, RecoveryLeavesNothingReachable)
"""What needs more than states have: counters, which differ between equal states, and the time that passes."""
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
        super().__init__(_WithoutClients(spec.brokers, spec.controllers, spec.config, spec.seed), keep_traces=False)
        self.after_crash: Callable[[], None] | None = None

    def show(self, locals_: Sequence[Local], machines: Machines) -> None:
        """Fills the cluster with nodes in these states: the controller or the store, then the brokers."""
        self.nodes.clear()
        for local in locals_:
            found = machines.nodes[local]
            if isinstance(found, DeadBroker):
                self.disks[found.broker] = found.disk
            else:
                self.nodes[found.node_id] = found
                if not isinstance(found, StoreNode | RecoveryManagerNode):
                    self.disks[found.node_id] = found.storage  # type: ignore[assignment]

    def incarnation_of(self, node: NodeId) -> int:
        """A broker's epoch identifies its incarnation."""
        found = self.nodes.get(node)
        return found.context.broker_epoch if isinstance(found, BaseBroker) else -1

    def crash(self, node: NodeId, loss: Loss) -> int:
        """Shows the state after the crash; the suite itself compares the disks before and after."""
        assert self.after_crash is not None
        self.after_crash()
        return 0


class _Half:
    """The values of some attributes of the suite's parts, each combination of values once."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._numbers: dict[object, int] = {}
        self.snapshots: list[list[object]] = []

    def number(self, data: list[object], likely: int) -> int:
        """The number of the values; most steps leave them as they were, in `likely`."""
        if likely >= 0 and data == self.snapshots[likely]:
            return likely
        number = self._numbers.setdefault(self._keys.key(data), len(self.snapshots))
        if number == len(self.snapshots):
            self.snapshots.append(copy_of(data))
        return number


class SuiteStates:
    """The suite on its stage, and its states so far. `first` is the state of a suite that has observed nothing."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._keys = Keys(unordered=True)
        self._truths, self._rests = _Half(self._keys), _Half(self._keys)
        self._halves: list[tuple[Truth, int]] = []
        self._numbers: dict[tuple[Truth, int], SuiteState] = {}
        self._attach()
        self.first = self._present = self._intern(_CHANGED)

    def _attach(self) -> None:
        self._stage.trace_observers.clear()
        self.suite = suite = InvariantSuite(self._stage, without=_NOT_CHECKED)
        data = [(part, name) for part in suite.parts for name in vars(part) if not _is_reference(name, part)]
        self._spared = [(part, name) for part, name in data if name in not_state(type(part))]
        self._of_truth = [(part, name) for part, name in data if part is suite.truth]
        self._of_rest = [found for found in data if found not in (*self._spared, *self._of_truth)]
        self._present = _CHANGED

    def truth_of(self, suite_state: SuiteState) -> Truth:
        return self._halves[suite_state][0]

    def with_truth(self, suite_state: SuiteState, truth: Truth) -> SuiteState:
        former, rest = self._halves[suite_state]
        return suite_state if truth == former else self._number(truth, rest)

    def restored(self, suite_state: SuiteState) -> InvariantSuite:
        """The suite in that state; `verdict` must follow."""
        if self._present != suite_state:
            truth, rest = self._halves[suite_state]
            values = copy_of(self._truths.snapshots[truth]) + copy_of(self._rests.snapshots[rest])
            for (part, name), value in zip(self._of_truth + self._of_rest, values, strict=True):
                vars(part)[name] = value
        self._present = _CHANGED
        return self.suite

    def verdict(self, suite_state: SuiteState) -> tuple[SuiteState, str]:
        """The state that the suite is in now, and the violation that it has found in `suite_state`."""
        if self.suite.violations:
            violation = self.suite.violations[0]
            self._attach()
            return suite_state, f"{violation.invariant}: {violation.detail}"
        self._present = self._intern(suite_state)
        return self._present, ""

    def _intern(self, likely: SuiteState) -> SuiteState:
        self.suite.take_touched()
        for part, name in self._spared:
            vars(part)[name].clear()
        truth, rest = (-1, -1) if likely == _CHANGED else self._halves[likely]
        truth = self._truths.number([vars(part)[name] for part, name in self._of_truth], truth)
        rest = self._rests.number([vars(part)[name] for part, name in self._of_rest], rest)
        return self._number(truth, rest)

    def _number(self, truth: Truth, rest: int) -> SuiteState:
        number = self._numbers.setdefault((truth, rest), len(self._halves))
        if number == len(self._halves):
            self._halves.append((truth, rest))
        return number


def _is_reference(name: str, part: object) -> bool:
    """Whether an attribute never changes. The last image does not, as there always is a controller."""
    value = vars(part)[name]
    return name == "last_image" or isinstance(value, Stage | GroundTruth) or callable(value)


_Kinds = frozenset[type[Invariant]]
_Nodes = tuple[Local, ...]
_Verdict = tuple[SuiteState, str]

_OF_BROKER: _Kinds = frozenset(
    {
        ConsistentRead,
        LeaderCompleteness,
        LogMatching,
        OneCopyPerSequence,
        OnlyAssignedLogs,
        ProducerEpochsRise,
        RecoveringLeaderIsAlone,
        ValidBrokerState,
        ValidFetcherState,
        ValidReplicaState,
    }
)
"""These read one broker, and of the controller which partitions there are and who leads them."""
_COMPARING: _Kinds = frozenset({MetadataLogMatching, LeadersCountWhatFollowersHold, FetchSessionsAgree})
"""These compare nodes: copies of the metadata, what leaders believe of followers, the two sides of fetch sessions."""
_OF_CLUSTER: _Kinds = frozenset({LeaderCandidateCompleteness, NoCommittedRecordLostGlobally, ReplicationQuorumSuperset})
"""These come to the same after an event of any node: they are checked once, with those of the controller."""


class StepChecker:
    """Checks steps; `states` are the suite states."""

    def __init__(self, spec: ClusterSpec, machines: Machines) -> None:
        self._machines = machines
        self._stage = Stage(spec)
        self.states = SuiteStates(self._stage)
        self.first = self.states.first
        self._reads_everything = spec.has_store_metadata
        self._broker_ids = spec.broker_ids
        self._known: dict[tuple[object, ...], _Verdict] = {}
        self._whole: dict[tuple[object, ...], tuple[Truth, str]] = {}
        self._parts: dict[tuple[object, ...], tuple[Truth, str]] = {}
        self._disagreements: dict[tuple[int, ...], str] = {}
        self._compared_so_far: dict[tuple[object, ...], str] = {}
        self._views = _NodeViews(machines)
        found = {type(invariant) for invariant in self.states.suite.invariants}
        kinds = [kind for kind in found if kind.check is not Invariant.check]
        self._of_controller: _Kinds = frozenset(kind for kind in kinds if kind.AFTER_CONTROLLERS) - _COMPARING
        of_brokers: _Kinds = frozenset(kind for kind in kinds if kind.AFTER_BROKERS)
        self._of_no_kind = of_brokers - _OF_BROKER - _COMPARING - _OF_CLUSTER

    def check(
        self,
        suite_state: SuiteState,
        before: _Nodes,
        after: _Nodes,
        outcomes: Sequence[tuple[NodeId, Outcome]],
        crash: tuple[NodeId, Loss] | None = None,
        now_ms: TimeMs = 0,
    ) -> _Verdict:
        """The suite state after a step at `now_ms`, and the violation as `Invariant: detail`, empty without one."""
        self._stage.now_ms = now_ms
        wrong = _acknowledged_too_early(outcomes, self._machines)
        if crash is not None and not wrong:
            suite_state, wrong = self._after_crash(suite_state, before, after, crash)
        for node, outcome in outcomes:
            if outcome.events_number and not wrong:
                suite_state, wrong = self._after_events(suite_state, after, node, outcome)
        if wrong:
            return suite_state, wrong
        if self._reads_everything or self._of_no_kind:
            return self._checked_entirely(suite_state, before, after)
        marks, by_itself, compared = self._lowered(before, after), self._views.by_itself, self._views.compared
        key = (self.states.truth_of(suite_state), marks, tuple([by_itself[local] for local in after]))
        if key not in self._whole:
            self._whole[key] = self._checked_by_parts(suite_state, dict(marks), after)
        truth, wrong = self._whole[key]
        if not wrong:
            others = tuple([compared[local] for local in after])
            if others not in self._disagreements:
                self._disagreements[others] = self._disagreement(after)
            wrong = self._disagreements[others]
        return self.states.with_truth(suite_state, truth), wrong

    def _after_crash(
        self, suite_state: SuiteState, before: _Nodes, after: _Nodes, crash: tuple[NodeId, Loss]
    ) -> _Verdict:
        place, disk = 1 + crash[0], self._views.disk
        key: tuple[object, ...] = (suite_state, crash, before[place], after)
        if not self._reads_everything:
            key = (suite_state, crash, disk[before[place]], disk[after[place]], self._views.committed[after[0]])
        if key not in self._known:
            stage, suite = self._stage, self.states.restored(suite_state)
            stage.show(before, self._machines)
            stage.after_crash = lambda: stage.show(after, self._machines)
            suite.lose(*crash)
            self._known[key] = self.states.verdict(suite_state)
        return self._known[key]

    def _after_events(self, suite_state: SuiteState, after: _Nodes, node: NodeId, outcome: Outcome) -> _Verdict:
        """The suite state after the suite has received the trace events of a node. They are compared with the
        controller, the node itself and the incarnations of the others; the outcome of a recovery with everything.
        """
        key: tuple[object, ...] = (suite_state, self._stage.now_ms, node, outcome.events_number)
        if self._reads_everything or outcome.decides:
            key = (*key, after)
        else:
            incarnation = self._views.incarnation
            own = self._views.itself[after[1 + node]] if is_broker(node) else -1
            key = (*key, own, self._views.committed[after[0]], tuple([incarnation[local] for local in after]))
        if key not in self._known:
            stage = self._stage
            self.states.restored(suite_state)
            stage.show(after, self._machines)
            for trace, observer in product(outcome.traces, stage.trace_observers):
                observer(stage.now_ms, node, trace)
            self._known[key] = self.states.verdict(suite_state)
        return self._known[key]

    def _lowered(self, before: _Nodes, after: _Nodes) -> tuple[tuple[NodeId, Local], ...]:
        """The brokers whose high watermark has changed, with the state before."""
        marks = self._views.high_watermark
        changed = [(node, before[1 + node]) for node in self._broker_ids if before[1 + node] != after[1 + node]]
        return tuple([(node, was) for node, was in changed if marks[was] != marks[after[1 + node]]])

    def _checked_entirely(self, suite_state: SuiteState, before: _Nodes, after: _Nodes) -> _Verdict:
        marks = self._lowered(before, after)
        key = (suite_state, marks, after)
        if key not in self._known:
            suite = self.states.restored(suite_state)
            for node, was in marks:
                self._recall_high_watermark(suite, node, was, after)
            self._stage.show(after, self._machines)
            suite.check_everything()
            self._known[key] = self.states.verdict(suite_state)
        return self._known[key]

    def _checked_by_parts(
        self, suite_state: SuiteState, marks: dict[NodeId, Local], after: _Nodes
    ) -> tuple[Truth, str]:
        """The ground truth after all checks, and the violation. Since a broker's check may change the ground truth,
        what concerns the whole cluster is then checked again.
        """
        of, brokers = self._views, after[1 : 1 + len(self._broker_ids)]
        cluster = (of.committed[after[0]], *[of.ends[local] for local in brokers])
        truth, wrong = self._part(suite_state, after, FIRST_CONTROLLER, self._of_controller, cluster)
        for node in self._broker_ids:
            if wrong:
                return truth, wrong
            was = marks.get(node)
            reads = (of.itself[after[1 + node]], of.leaders[after[0]], -1 if was is None else of.high_watermark[was])
            truth, wrong = self._part(suite_state, after, node, _OF_BROKER, reads, was)
            suite_state = self.states.with_truth(suite_state, truth)
        return (
            (truth, wrong) if wrong else self._part(suite_state, after, FIRST_CONTROLLER, self._of_controller, cluster)
        )

    def _disagreement(self, after: _Nodes) -> str:
        """How nodes disagree with each other; that depends on no suite state."""
        of, brokers = self._views, self._broker_ids
        wrong = [
            self._compared(kind, brokers, (of.leaders[after[0]], *[view[after[1 + node]] for node in brokers]), after)
            for kind, view in ((LeadersCountWhatFollowersHold, of.counted), (FetchSessionsAgree, of.sessions))
        ]
        for node in brokers:
            copies = (of.replayed[after[0]], of.replayed[after[1 + node]])
            wrong.append(self._compared(MetadataLogMatching, (node,), copies, after))
        return next(filter(None, wrong), "")

    def _compared(self, kind: type[Invariant], nodes: Sequence[NodeId], read: tuple[object, ...], after: _Nodes) -> str:
        """What is wrong by an invariant that reads no suite state, checked for these nodes."""
        key = (kind, nodes, read)
        if key not in self._compared_so_far:
            self._stage.show(after, self._machines)
            truth = self.states.suite.truth
            image = truth.latest_image()
            names = [] if image is None else [image.name_of(key) for key, _ in image.partitions()]
            found = ((name, kind(truth).check(truth.view(node, name))) for node in nodes for name in names)
            wrong = next((f"{kind.__name__}: {name}: {wrong}" for name, wrong in found if wrong), "")
            self._compared_so_far[key] = wrong
        return self._compared_so_far[key]

    def _part(
        self,
        suite_state: SuiteState,
        after: _Nodes,
        node: NodeId,
        kinds: _Kinds,
        read: tuple[int, ...],
        was: Local | None = None,
    ) -> tuple[Truth, str]:
        """The ground truth after some invariants have been checked for a node, and the violation."""
        truth = self.states.truth_of(suite_state)
        key = (truth, node, kinds, read)
        if key not in self._parts:
            suite = self.states.restored(suite_state)
            if was is not None:
                self._recall_high_watermark(suite, node, was, after)
            self._stage.show(after, self._machines)
            suite.check_node(node, kinds)
            suite_state, wrong = self.states.verdict(suite_state)
            self._parts[key] = self.states.truth_of(suite_state), wrong
        return self._parts[key]

    def _recall_high_watermark(self, suite: InvariantSuite, node: NodeId, was: Local, after: _Nodes) -> None:
        """Checks the state before the step once more, so that the suite knows the node's high watermarks there."""
        self._stage.show((*after[: 1 + node], was, *after[2 + node :]), self._machines)
        for invariant in suite.invariants:
            if isinstance(invariant, ValidReplicaState):
                for partition in suite.truth.partitions:
                    invariant.check(suite.truth.view(node, partition))


class _NodeViews:
    """What checks read of nodes; `by_itself` with the ground truth, `compared` to compare nodes with each other."""

    def __init__(self, machines: Machines) -> None:
        self.committed = Views(machines, views.committed)
        self.leaders = Views(machines, views.leaders)
        self.replayed = Views(machines, views.replayed)
        self.itself = Views(machines, views.itself)
        self.incarnation = Views(machines, views.incarnation)
        self.ends = Views(machines, views.ends)
        self.counted = Views(machines, views.counted)
        self.sessions = Views(machines, views.sessions)
        self.high_watermark = Views(machines, views.high_watermark)
        self.disk = Views(machines, views.disk)
        self.by_itself = Views(machines, views.committed, views.itself, views.ends)
        self.compared = Views(machines, views.leaders, views.replayed, views.counted, views.sessions)


def _acknowledged_too_early(outcomes: Sequence[tuple[NodeId, Outcome]], machines: Machines) -> str:
    for node, outcome in outcomes:
        found, end = machines.nodes[outcome.local], outcome.acknowledged
        if end != NO_OFFSET and isinstance(found, BaseBroker):
            [mark] = [replica.log.high_watermark for replica in found.context.replicas.values()]
            if end >= mark:
                acknowledged = f"broker {node} acknowledges the record at {end}"
                return f"AcknowledgedIsCommitted: {acknowledged}, its high watermark is {mark}"
    return ""
