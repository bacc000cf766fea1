"""Random runs: from a seed, set up a quorum, inject faults, heal everything, and check the result.

Phase 1 injects a fault or ends one in each step, of the kinds that the run has, and appends values meanwhile. Phase 2
heals all faults, lets the operator replace the voters whose disks are lost, and checks the liveness properties; with
`joins` the controllers do that, and all of them become voters (`ControllersJoin`). Phase 3
partitions one voter of the healthy quorum for a while, which must not depose the leader (`HealthyLeaderStays`,
KIP-996). The first violation ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pydantic import ConfigDict

from experiments.engines.port import Loss
from experiments.hunt.quorum.global_view import ReplicaStep, is_voter_of
from experiments.hunt.quorum.harness import BLANK_START, Listener, PropertyViolatedError, QuorumHarness
from experiments.hunt.quorum.liveness import first_violation
from experiments.hunt.quorum.operator import Operator
from protocol.errors import ProtocolError
from protocol.ids import NodeId
from protocol.messages.quorum import AddVoterRecord, FetchSnapshotResponse, VoteRequest
from protocol.quorum.voters import ReplicaKey

STEPS = 60
SETTLED_WITHIN_MS = 120_000
LONGEST_PARTITION_MS = 15_000
"""The longest partition of phase 3, in virtual milliseconds."""
HEALTHY_LEADER_STAYS = "HealthyLeaderStays"
CONTROLLERS_JOIN = "ControllersJoin"
_DEFECTS = (ProtocolError, LookupError, ArithmeticError, AssertionError, AttributeError, TypeError, ValueError)
"""Exceptions of a defective replica, which count as violations under their names."""


@dataclass(frozen=True, slots=True)
class ChaosBias:
    """Restricts what a seed draws (None: anything): only `faults` if given, else those in `always` and drawn ones. With
    `joins`, which no seed draws, controllers make themselves voters (`controller.quorum.auto.join.enable`), unless
    voters are static.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    sizes: tuple[int, ...] | None = None
    static: bool | None = None
    faults: tuple[str, ...] | None = None
    always: tuple[str, ...] = ()
    steps: int = STEPS
    joins: bool = False


NO_BIAS = ChaosBias()


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """The drawn parameters of a run: `size` controllers, of which `voters` become voters before phase 1 unless they are
    `static`; `pinned` static voters get the uuids of their disks, so that the run can lose their disks.
    """

    seed: int
    size: int
    observers: int
    static: bool
    pinned: bool
    voters: int
    faults: tuple[str, ...]
    steps: int
    joins: bool


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    """The result of a run: the first `violation` (None: all properties held), its `detail`, and `counts` of faults."""

    events: int
    trace_hash: str
    violation: str | None
    detail: str
    counts: Counter[str]


def draw(seed: int, bias: ChaosBias = NO_BIAS) -> ChaosSettings:
    """The parameters of the run with this seed."""
    rng = Random(f"course/{seed}")
    size = rng.choice(bias.sizes or (1, 2, 3, 3, 3, 4, 5, 5))
    static = rng.random() < 0.3 if bias.static is None else bias.static
    share = rng.choice([0.3, 0.6, 0.9])
    drawn = {fault for fault in FAULTS if rng.random() < share} | set(bias.always)
    faults = bias.faults or tuple(fault for fault in FAULTS if fault in drawn) or ("crash",)
    voters = rng.randint(1, size)
    observers, pinned = rng.randint(0, 2), rng.random() < 0.7
    return ChaosSettings(seed, size, observers, static, pinned, voters, faults, bias.steps, bias.joins and not static)


def run(seed: int, bias: ChaosBias = NO_BIAS, listener: Listener | None = None) -> ChaosOutcome:
    """Runs a seed to its end or to the first violation."""
    chaos = ChaosRun(draw(seed, bias))
    if listener is not None:
        chaos.harness.listeners.append(listener)
    violation, detail = None, ""
    try:
        chaos.run()
    except PropertyViolatedError as error:
        violation, detail = error.name, error.detail
    except _DEFECTS as error:
        violation, detail = type(error).__name__, str(error)
    return ChaosOutcome(chaos.harness.events, chaos.harness.trace_hash(), violation, detail, chaos.counts)


class ChaosRun:
    """One run in progress."""

    def __init__(self, settings: ChaosSettings) -> None:
        self.settings = settings
        self.counts = Counter[str]()
        self._rng = Random(f"chaos/{settings.seed}")
        self._vote_requests: list[NodeId] = []
        self._loss = self._duplication = 0.0
        self._latest_ms: int | None = None
        self.harness = QuorumHarness(
            f"lab/{settings.seed}",
            settings.size,
            static=settings.static,
            observers=settings.observers,
            joins=settings.joins,
        )
        self.harness.listeners.append(self._count)
        self.operator = Operator(self.harness)

    def run(self) -> None:
        """Runs all phases. Raises PropertyViolatedError at the first violation."""
        self.harness.start(*self.harness.disks)
        self._settle()
        if not self.settings.static:
            self.operator.grow(self.settings.voters)
        elif self.settings.pinned:
            for node in self.harness.ids:
                self.operator.change(True, self.harness.view.keys[node])
        self._settle()
        for _ in range(self.settings.steps):
            self._inject_fault()
            for _ in range(self._rng.randint(0, 3)):
                self.harness.append()
                self.harness.run_for(self._rng.choice([0, 3, 30]))
            self.harness.run_for(self._rng.choice([1, 10, 100, 1_000, 4_000]))
        self._heal()
        self._partition_one_voter()
        self._count_results()

    def _count(self, step: ReplicaStep) -> None:
        view, cause = self.harness.view, step.cause
        if cause == BLANK_START and view.losses[step.node]:
            self.counts["restarts without a disk"] += 1
        elif isinstance(cause, FetchSnapshotResponse):
            self.counts["snapshots fetched"] += 1
        elif isinstance(cause, VoteRequest) and not cause.pre_vote:
            self._vote_requests.append(step.node)

    def _count_results(self) -> None:
        view = self.harness.view
        self.counts["epochs"] += len(view.committed_by)
        self.counts["changes committed"] += len(view.changes)
        first_disks = {key.id: key.uuid for key in reversed(view.lost)}
        records = [record for record in view.changes.values() if isinstance(record, AddVoterRecord)]
        uuids = [(record.voter_uuid, first_disks.get(record.voter_id, record.voter_uuid)) for record in records]
        self.counts["voters on another disk"] += sum(uuid != first for uuid, first in uuids)

    def _inject_fault(self) -> None:
        harness, rng = self.harness, self._rng
        down = [node for node in harness.disks if node not in harness.nodes]
        if down and rng.random() < 0.4:
            harness.start(rng.choice(down))
        elif harness.cuts and rng.random() < 0.3:
            harness.cuts = {pair for pair in sorted(harness.cuts) if rng.random() < rng.choice([0, 0.5])}
        else:
            fault = rng.choice(self.settings.faults)
            can_inject = harness.nodes or fault not in _OF_RUNNING_NODES
            self.counts[fault] += bool(can_inject and _INJECTORS[fault](self) is not False)

    def _crash(self) -> None:
        losses = [Loss(kind, self._rng.randrange(1_000)) for kind in ("none", "unflushed", "suffix", "torn")]
        loss, node = self._rng.choice([None, *losses]), self._random_node()
        if loss is None:
            self.harness.shut_down(node)
        else:
            self.harness.crash(node, loss)

    def _bounce(self) -> None:
        """Crashes and restarts a replica at once, and perhaps the next ones right after they have granted a vote."""
        self._restart(self._random_node())
        for _ in range(self._rng.choice([0, 0, 1, 3])):
            self._vote_requests.clear()
            self.harness.run_until(lambda: bool(self._vote_requests), 3_000)
            if self._vote_requests and self._vote_requests[-1] in self.harness.nodes:
                self._restart(self._vote_requests[-1])

    def _restart(self, node: NodeId) -> None:
        self.harness.crash(node)
        self.harness.start(node)

    def _random_node(self) -> NodeId:
        """A random running node, with a preference for the leader."""
        leader = self.harness.leader
        if leader is not None and self._rng.random() < 0.3:
            return leader.key.id
        return self._rng.choice(sorted(self.harness.nodes))

    def _lose_disk(self) -> bool:
        """Crashes a node with the loss of its disk, and may restart it on an empty one."""
        harness, rng = self.harness, self._rng
        node = rng.choice(sorted(harness.disks))
        if not self.operator.can_lose_disk(node) and node in harness.ids:
            return False
        if node not in harness.nodes:
            harness.start(node)
        harness.crash(node, Loss("all"))
        if rng.random() < 0.7:
            harness.start(node)
        return True

    def _cut(self) -> None:
        ids = sorted(self.harness.disks)
        self.harness.cut(*self._rng.sample(ids, self._rng.randint(1, max(1, len(ids) // 2))))

    def _cut_one_way(self) -> bool:
        pairs = [(a, b) for a in sorted(self.harness.disks) for b in sorted(self.harness.disks) if a != b]
        self.harness.cuts |= set(self._rng.sample(pairs, min(len(pairs), self._rng.randint(1, 3))))
        return bool(pairs)

    def _degrade_network(self) -> None:
        self._loss, self._duplication = self._rng.choice([0, 0.05, 0.3]), self._rng.choice([0, 0.1, 0.5])
        self.harness.disturb(self._loss, self._duplication, self._latest_ms)

    def _reorder_network(self) -> None:
        """Messages get random latencies and overtake each other."""
        self._latest_ms = self._rng.choice([5, 20, 300, 1_500])
        self.harness.disturb(self._loss, self._duplication, self._latest_ms)

    def _pause(self) -> None:
        self.harness.pause(self._random_node(), self._rng.choice([100, 1_500, 4_000]))

    def _target(self) -> NodeId | None:
        """The target of the operator's next request: usually the leader, sometimes one that was elected just now."""
        harness = self.harness
        if self._rng.random() < 0.2:
            epoch = max((node.replica.epoch for node in harness.nodes.values()), default=0)
            harness.run_until(lambda: harness.leader is not None and harness.leader.epoch > epoch, 3_000)
        leader, up = harness.leader, [node for node in harness.ids if node in harness.nodes]
        if leader is not None and self._rng.random() < 0.9:
            return leader.key.id
        return self._rng.choice(up) if up else None

    def _add(self) -> bool:
        harness, to = self.harness, self._target()
        others = [key for node, key in sorted(harness.view.keys.items()) if not is_voter_of(key, harness.view.voters)]
        if to is None or not others or not self.operator.can_add():
            return False
        self._change(True, self._rng.choice(others), to)
        return True

    def _remove(self) -> bool:
        harness, to = self.harness, self._target()
        voters = sorted(harness.view.voters)
        lost = [voter for voter in voters if not harness.view.has_disk(voter)]
        leading = [voter for voter in voters if voter.id == to and self._rng.random() < 0.5]
        key = self._rng.choice(lost or leading or voters)
        if to is None or not self.operator.can_remove(key):
            return False
        self._change(False, key, to)
        return True

    def _change(self, adds: bool, key: ReplicaKey, to: NodeId) -> None:
        """Requests a change, and may crash or partition the leader before it has replicated the record."""
        self.operator.request_change(adds, key, to)
        self.harness.run_for(2)
        faults = [fault for fault in ("cut", "crash") if fault in self.settings.faults]
        if not faults or to not in self.harness.nodes or self._rng.random() < 0.7:
            return
        if self._rng.choice(faults) == "cut":
            self.harness.cut(to)
        else:
            self.harness.crash(to)

    def _make_mistake(self) -> bool:
        """Requests the removal of the last voter, or the addition of a replica that does not exist."""
        to, view = self._target(), self.harness.view
        if to is None or self.operator.lost_voters() or self._rng.random() < 0.7:
            return False
        if len(view.voters) == 1 and self._rng.random() < 0.5:
            self._change(False, min(view.voters), to)
        else:
            self._change(True, ReplicaKey(self._rng.choice((*self.harness.ids, 1_099)), "no such disk"), to)
        return True

    def _take_snapshot(self) -> bool:
        """Takes a snapshot, often at the high watermark, so that others need it; some need several FetchSnapshots."""
        replica = self.harness.nodes[self._random_node()].replica
        ends = [batch.next_offset for batch in replica.read(replica.log.start_offset, 2**62)]
        if ends:
            end_offset = self._rng.choice([ends[-1], self._rng.choice(ends)])
            replica.take_snapshot(end_offset, b"state" * self._rng.choice([1, 1, 1, 1, 300_000]))
        return bool(ends)

    def _heal(self) -> None:
        harness = self.harness
        harness.heal()
        harness.run_until(lambda: not self.operator.has_open_requests(), SETTLED_WITHIN_MS)
        self._settle()
        if self.settings.joins:
            if not harness.run_until(self._have_joined, SETTLED_WITHIN_MS):
                raise PropertyViolatedError(CONTROLLERS_JOIN, f"the voters are {sorted(harness.view.voters)}")
        elif not self.operator.replace_lost_voters():
            detail = f"{sorted(self.operator.lost_voters())} are voters still"
            raise PropertyViolatedError("ReconfigurationNotStuck", detail)
        harness.append()
        self._settle()

    def _have_joined(self) -> bool:
        view = self.harness.view
        return all(is_voter_of(view.keys[node], view.voters) for node in self.harness.ids)

    def _settle(self) -> None:
        self.harness.run_until(self.harness.is_settled, SETTLED_WITHIN_MS)
        found = first_violation(self.harness.view)
        if found is not None:
            raise PropertyViolatedError(*found)

    def _partition_one_voter(self) -> None:
        """Partitions one voter from the others or the leader, in one or both directions; the leader must stay."""
        harness, rng = self.harness, self._rng
        leader = harness.leader
        voters = [voter.id for voter in sorted(harness.view.voters) if leader is not None and voter.id != leader.key.id]
        if leader is None or len(voters) < 2:
            return
        epoch, partitioned = leader.epoch, rng.choice(voters)
        others = [node for node in harness.disks if node != partitioned]
        to, away = {(node, partitioned) for node in others}, {(partitioned, node) for node in others}
        leaders = {(leader.key.id, partitioned), (partitioned, leader.key.id)}
        harness.cuts = rng.choice([to, away, to | away, leaders])
        until_ms = harness.now_ms + rng.randint(1_000, LONGEST_PARTITION_MS)
        while harness.now_ms < until_ms:
            harness.run_for(500)
            if rng.random() < 0.2:
                harness.append()
        harness.heal()
        self._settle()
        after = harness.leader
        if after is None or (after.key, after.epoch) != (leader.key, epoch):
            detail = f"{leader.key} led epoch {epoch} until {partitioned} came back"
            raise PropertyViolatedError(HEALTHY_LEADER_STAYS, detail)


_INJECTORS: dict[str, Callable[[ChaosRun], bool | None]] = {
    "crash": ChaosRun._crash,
    "bounce": ChaosRun._bounce,
    "disk loss": ChaosRun._lose_disk,
    "cut": ChaosRun._cut,
    "one-way cut": ChaosRun._cut_one_way,
    "bad network": ChaosRun._degrade_network,
    "reordering": ChaosRun._reorder_network,
    "pause": ChaosRun._pause,
    "additions": ChaosRun._add,
    "removals": ChaosRun._remove,
    "mistakes": ChaosRun._make_mistake,
    "snapshots": ChaosRun._take_snapshot,
}
"""A method per kind of fault; it returns False if it injected none. Changes of the voters count as faults."""
_OF_RUNNING_NODES = ("crash", "bounce", "pause", "snapshots")
FAULTS = tuple(_INJECTORS)
