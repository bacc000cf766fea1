"""The invariants of `experiments/check` on a cluster that is a handful of numbers.

An `InvariantSuite` watches a simulated cluster and remembers: what was committed, who led in which epoch, who has lost
records. In a search that memory belongs to the state, as auxiliary variables do in a TLA+ model: it has a number too,
and two states with different memories are two states. The suite itself is the one that every simulation runs; it is put
on a *stage*, a cluster whose nodes and disks are the exhibits of the states in question, and is shown the trace events
of the step. Afterwards every invariant is checked on everything, touched or not.

One property is checked here besides, since no client takes part: what a leader acknowledges with acks=all is below its
high watermark (E5).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.hunt.explore.machines import DeadBroker, Local, Machines, Outcome, message_of
from experiments.hunt.explore.values import Keys, dump
from protocol.errors import ErrorCode
from protocol.ids import NodeId, is_client
from protocol.messages.data import ProduceResponse
from protocol.metadata.image import MetadataImage
from protocol.nodes.broker import BrokerNode

History = int
"""The number of what the suite remembers."""

_LEFT_OUT = (MetadataImage,)
"""The truth keeps the controller's last image for a time without one; here there always is one."""
_CHANGED: History = -1
"""No history: the suite has seen more since."""

_STAGES: dict[int, Stage] = {}


class _WithoutClients(ClusterSpec):
    """There is no client on the stage, whose side nothing need be looked at from."""

    @property
    def client_ids(self) -> tuple[NodeId, ...]:
        return ()


class Stage(SimCluster):
    """A cluster that shows exhibits and never runs."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec, keep_traces=False)
        self.lives: dict[NodeId, int] = {}
        self.after_crash: Callable[[], None] | None = None

    def __reduce__(self) -> Any:
        _STAGES[id(self)] = self
        return _stage_at, (id(self),)

    def show(self, locals_: Sequence[Local], machines: Machines) -> None:
        """Puts nodes in these states on the stage, the controller's first, then the brokers'."""
        self.nodes.clear()
        for local in locals_:
            exhibit = machines.exhibits[local]
            if isinstance(exhibit, DeadBroker):
                self.disks[exhibit.broker] = exhibit.disk
            else:
                self.nodes[exhibit.node_id] = exhibit
                self.disks[exhibit.node_id] = exhibit.storage  # type: ignore[assignment]

    def life_of(self, node: NodeId) -> int:
        """A broker's epoch names its life."""
        exhibit = self.nodes.get(node)
        return exhibit.context.broker_epoch if isinstance(exhibit, BrokerNode) else -1

    def crash(self, node: NodeId, loss: Loss) -> int:
        """Shows what the crash has left; how much it took the suite finds out."""
        assert self.after_crash is not None
        self.after_crash()
        return 0


def _stage_at(identity: int) -> Stage:
    return _STAGES[identity]


class Judge:
    """Judges steps and keeps histories. `judge` is asked once for each step between two cluster states, channels left
    aside.
    """

    def __init__(self, spec: ClusterSpec, machines: Machines) -> None:
        self._machines = machines
        self._stage = Stage(_WithoutClients(spec.brokers, spec.controllers, spec.config, spec.seed))
        self._keys = Keys(constants=(Stage, MetadataImage), unordered=True)
        self._snapshots: list[bytes] = []
        self._numbers: dict[object, History] = {}
        self._by_snapshot: dict[bytes, History] = {}
        self._known: dict[tuple[Any, ...], tuple[History, str]] = {}
        suite = InvariantSuite(self._stage)
        self.first = self._intern(suite)
        self._shown = self.first, suite

    @property
    def history_count(self) -> int:
        return len(self._snapshots)

    def _intern(self, suite: InvariantSuite) -> History:
        snapshot = dump((suite, self._stage.trace_observers, self._stage.on_event), _LEFT_OUT)
        number = self._by_snapshot.get(snapshot)
        if number is None:
            key = self._keys.key(suite)
            number = self._by_snapshot[snapshot] = self._numbers.setdefault(key, len(self._snapshots))
            if number == len(self._snapshots):
                self._snapshots.append(snapshot)
        return number

    def judge(
        self,
        history: History,
        before: tuple[Local, ...],
        after: tuple[Local, ...],
        outcomes: Sequence[tuple[NodeId, Outcome]],
        crash: tuple[NodeId, Loss] | None = None,
    ) -> tuple[History, str]:
        """The history behind a step from `before` to `after`, and the name of the invariant that it breaks with what is
        wrong; empty where all is well.
        """
        told = [(node, outcome) for node, outcome in outcomes if outcome.told]
        wrong = _acknowledged_too_early(after, outcomes, self._machines)
        if crash is not None:
            history, lost = self._crashed(history, before, after, crash)
            wrong = wrong or lost
        return (history, wrong) if wrong else self._watched(history, after, told)

    def _crashed(
        self, history: History, before: tuple[Local, ...], after: tuple[Local, ...], crash: tuple[NodeId, Loss]
    ) -> tuple[History, str]:
        """The history once the suite has seen the crash."""
        key = (history, crash, self._sights(before), self._sights(after))
        if key not in self._known:
            stage, suite = self._stage, self._suite(history)
            stage.show(before, self._machines)
            stage.after_crash = lambda: stage.show(after, self._machines)
            suite.crash(*crash)
            self._known[key] = self._verdict(history, suite)
        return self._known[key]

    def _watched(
        self, history: History, after: tuple[Local, ...], told: Sequence[tuple[NodeId, Outcome]]
    ) -> tuple[History, str]:
        """The history once the suite has heard the trace events of the step and has looked at everything behind it."""
        key = (history, self._sights(after), *[(node, outcome.told) for node, outcome in told])
        if key not in self._known:
            stage, suite = self._stage, self._suite(history)
            stage.show(after, self._machines)
            for node, outcome in told:
                for trace in outcome.traces:
                    for observer in stage.trace_observers:
                        observer(0, node, trace)
            suite.check_everything()
            self._known[key] = self._verdict(history, suite)
        return self._known[key]

    def _sights(self, locals_: Sequence[Local]) -> tuple[int, ...]:
        return tuple(map(self._machines.sight, locals_))

    def _suite(self, history: History) -> InvariantSuite:
        """The suite as that history left it, on the stage: the one that was there last, if it is the same."""
        known, suite = self._shown
        if known != history:
            stage = self._stage
            suite, stage.trace_observers, stage.on_event = pickle.loads(self._snapshots[history])
        self._shown = _CHANGED, suite
        return suite

    def _verdict(self, history: History, suite: InvariantSuite) -> tuple[History, str]:
        if suite.violations:
            violation = suite.violations[0]
            return history, f"{violation.invariant}: {violation.detail}"
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
            if isinstance(exhibit, BrokerNode):
                [replica] = exhibit.context.replicas.values()
                if message.base_offset >= replica.log.high_watermark:
                    return (
                        f"AcknowledgedIsCommitted: broker {node} acknowledges the record at {message.base_offset}, "
                        f"its high watermark is {replica.log.high_watermark}"
                    )
    return ""
