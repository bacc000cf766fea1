"""Checks the invariants of `experiments/check` on the numbered states of a search.

An `InvariantSuite` observes a simulated cluster and accumulates what was committed, which broker led in which epoch,
and which brokers have lost records. In a search these variables belong to the state, as auxiliary variables do in a
TLA+ model: they have a number, the *suite state*, and two states that differ in it are two states. The suite is the one
that every simulation runs; it is attached to a `Stage`, a cluster that is filled with the nodes and disks of a state,
and receives the trace events of the step. Then every invariant is checked on all partitions.

One more property is checked here, since no client takes part in a search: what a leader acknowledges with acks=all is
below its high watermark (E5).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.hunt.explore.machines import Broker, DeadBroker, Local, Machines, Outcome, message_of
from experiments.hunt.explore.values import Keys, dump
from protocol.errors import ErrorCode
from protocol.ids import NodeId, is_client
from protocol.messages.data import ProduceResponse
from protocol.metadata.image import MetadataImage
from protocol.nodes.store import StoreNode

SuiteState = int
"""The number of a state of the suite."""

_LEFT_OUT = (MetadataImage,)
"""The ground truth keeps the last image for times without a controller; in a search there always is one."""
_CHANGED: SuiteState = -1
"""No suite state: the suite has observed more events since."""

_STAGES: dict[int, Stage] = {}


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

    def __reduce__(self) -> tuple[Callable[[int], Stage], tuple[int]]:
        _STAGES[id(self)] = self
        return _stage_at, (id(self),)

    def show(self, locals_: Sequence[Local], machines: Machines) -> None:
        """Fills the cluster with nodes in these states: the controller or the store, then the brokers."""
        self.nodes.clear()
        for local in locals_:
            exhibit = machines.exhibits[local]
            if isinstance(exhibit, DeadBroker):
                self.disks[exhibit.broker] = exhibit.disk
            else:
                self.nodes[exhibit.node_id] = exhibit
                if not isinstance(exhibit, StoreNode):
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


def _stage_at(identity: int) -> Stage:
    return _STAGES[identity]


class StepChecker:
    """Checks steps and stores the suite states. The result of a step depends on the cluster states before and after it,
    without the channels, and is computed once.
    """

    def __init__(self, spec: ClusterSpec, machines: Machines) -> None:
        self._machines = machines
        self._stage = Stage(_WithoutClients(spec.brokers, spec.controllers, spec.config, spec.seed))
        self._keys = Keys(constants=(Stage, MetadataImage), unordered=True)
        self._snapshots: list[bytes] = []
        self._numbers: dict[object, SuiteState] = {}
        self._by_snapshot: dict[bytes, SuiteState] = {}
        self._known: dict[tuple[object, ...], tuple[SuiteState, str]] = {}
        suite = InvariantSuite(self._stage)
        self.first = self._intern(suite)
        self._shown = self.first, suite

    @property
    def suite_state_count(self) -> int:
        return len(self._snapshots)

    def _intern(self, suite: InvariantSuite) -> SuiteState:
        snapshot = dump((suite, self._stage.trace_observers, self._stage.on_event), _LEFT_OUT)
        number = self._by_snapshot.get(snapshot)
        if number is None:
            key = self._keys.key(suite)
            number = self._by_snapshot[snapshot] = self._numbers.setdefault(key, len(self._snapshots))
            if number == len(self._snapshots):
                self._snapshots.append(snapshot)
        return number

    def check(
        self,
        suite_state: SuiteState,
        before: tuple[Local, ...],
        after: tuple[Local, ...],
        outcomes: Sequence[tuple[NodeId, Outcome]],
        crash: tuple[NodeId, Loss] | None = None,
    ) -> tuple[SuiteState, str]:
        """The suite state after a step from `before` to `after`, and the violation as `Invariant: detail`, empty if
        there is none.
        """
        emitting = [(node, outcome) for node, outcome in outcomes if outcome.events_number]
        wrong = _acknowledged_too_early(after, outcomes, self._machines)
        if crash is not None:
            suite_state, lost = self._after_crash(suite_state, before, after, crash)
            wrong = wrong or lost
        return (suite_state, wrong) if wrong else self._after_events(suite_state, after, emitting)

    def _after_crash(
        self, suite_state: SuiteState, before: tuple[Local, ...], after: tuple[Local, ...], crash: tuple[NodeId, Loss]
    ) -> tuple[SuiteState, str]:
        """The suite state after the suite has observed the crash."""
        key = (suite_state, crash, self._observations(before), self._observations(after))
        if key not in self._known:
            stage, suite = self._stage, self._suite(suite_state)
            stage.show(before, self._machines)
            stage.after_crash = lambda: stage.show(after, self._machines)
            suite.crash(*crash)
            self._known[key] = self._verdict(suite_state, suite)
        return self._known[key]

    def _after_events(
        self, suite_state: SuiteState, after: tuple[Local, ...], emitting: Sequence[tuple[NodeId, Outcome]]
    ) -> tuple[SuiteState, str]:
        """The suite state after the suite has received the step's trace events and has checked all partitions."""
        key = (suite_state, self._observations(after), *[(node, outcome.events_number) for node, outcome in emitting])
        if key not in self._known:
            stage, suite = self._stage, self._suite(suite_state)
            stage.show(after, self._machines)
            for node, outcome in emitting:
                for trace in outcome.traces:
                    for observer in stage.trace_observers:
                        observer(0, node, trace)
            suite.check_everything()
            self._known[key] = self._verdict(suite_state, suite)
        return self._known[key]

    def _observations(self, locals_: Sequence[Local]) -> tuple[int, ...]:
        return tuple(map(self._machines.observation, locals_))

    def _suite(self, suite_state: SuiteState) -> InvariantSuite:
        """The suite in that state, attached to the stage; the present suite if it is in that state."""
        known, suite = self._shown
        if known != suite_state:
            stage = self._stage
            suite, stage.trace_observers, stage.on_event = pickle.loads(self._snapshots[suite_state])
        self._shown = _CHANGED, suite
        return suite

    def _verdict(self, suite_state: SuiteState, suite: InvariantSuite) -> tuple[SuiteState, str]:
        if suite.violations:
            violation = suite.violations[0]
            return suite_state, f"{violation.invariant}: {violation.detail}"
        following = self._intern(suite)
        self._shown = following, suite
        return following, ""


def _acknowledged_too_early(
    after: tuple[Local, ...], outcomes: Sequence[tuple[NodeId, Outcome]], machines: Machines
) -> str:
    for node, outcome in outcomes:
        for receiver, number in outcome.sends:
            message = message_of(number) if is_client(receiver) else None
            exhibit = machines.exhibits[after[1 + node]] if isinstance(message, ProduceResponse) else None
            if not isinstance(message, ProduceResponse) or message.error is not ErrorCode.NONE:
                continue
            if isinstance(exhibit, Broker):
                [replica] = exhibit.context.replicas.values()
                if message.base_offset >= replica.log.high_watermark:
                    return (
                        f"AcknowledgedIsCommitted: broker {node} acknowledges the record at {message.base_offset}, "
                        f"its high watermark is {replica.log.high_watermark}"
                    )
    return ""
