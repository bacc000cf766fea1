"""States of the invariant suite, by number.

An `InvariantSuite` accumulates what was committed, which broker led in which epoch, and which brokers have lost
records. In a search these variables belong to the state, as auxiliary variables do in a TLA+ model. The suite is
attached to a `Stage`, a cluster that is filled with the nodes and disks of a state.

A suite state has two halves with numbers of their own: the ground truth, which the checks of states read, and the rest,
which only observers of trace events read. What the suite keeps only to spare work, or can see in the state before the
step, is not part of it (`NOT_STATE` of the invariants).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.check.invariants_metrics import CountersMatchTheirDefinitions
from experiments.check.invariants_recovery import RecoveryLeavesNothingReachable
from experiments.check.suite import InvariantSuite
from experiments.check.truth import GroundTruth
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.hunt.explore.copies import copy_of
from experiments.hunt.explore.machines import DeadBroker, Local, Machines
from experiments.hunt.explore.values import Keys, not_state
from protocol.ids import NodeId
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.v3.store.node import StoreNode

SuiteState = int
"""The number of a state of the suite."""
Truth = int
"""The number of a ground truth."""

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
        self.incarnations: dict[NodeId, int] = {}
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

    def __len__(self) -> int:
        return len(self._halves)

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
