"""Runs that are drawn from a seed: a quorum is set up, broken, healed and judged.

Phase 1 strikes: each step breaks or mends something of the kinds of faults that the run has, and values are appended
meanwhile. Phase 2 heals all and has the operator replace the voters whose disks are lost; then the liveness properties
must come true (`properties.py`). Phase 3 cuts off one voter of the healthy quorum for a while, which must not cost the
others their leader (`HealthyLeaderStays`). The invariants are asked after every event of all phases; the first that is
broken ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from experiments.engines.port import Loss
from experiments.hunt.quorum.lab import BLANK_START, BrokenInvariantError, Observer, QuorumLab
from experiments.hunt.quorum.operator import Operator
from experiments.hunt.quorum.properties import missed
from experiments.hunt.quorum.truth import Event, is_counted
from protocol.errors import ProtocolError
from protocol.ids import NodeId, TimeMs
from protocol.messages.quorum import AddVoterRecord, FetchSnapshotResponse, VoteRequest
from protocol.quorum.voters import ReplicaKey

FAULTS = (
    "crash",
    "bounce",
    "disk loss",
    "cut",
    "one-way cut",
    "bad network",
    "reordering",
    "pause",
    "additions",
    "removals",
    "mistakes",
    "snapshots",
)
"""Kinds of faults; a run has some of them. Changes of the voters are faults too."""
STEPS = 60
SETTLED_WITHIN_MS = 120_000
PATIENCE_MS = 15_000
"""For how long one voter is cut off in phase 3, at most."""
STAYS = "HealthyLeaderStays"
_BREAKS = (ProtocolError, LookupError, ArithmeticError, AssertionError, AttributeError, TypeError, ValueError)
"""What a replica that is wrong may raise."""


@dataclass(frozen=True, slots=True)
class Bias:
    """What the draw is bound to, none: nothing. Every run has just these `faults`, or where none are named those in
    `always` and others that are drawn.
    """

    sizes: tuple[int, ...] | None = None
    static: bool | None = None
    faults: tuple[str, ...] | None = None
    always: tuple[str, ...] = ()
    steps: int = STEPS


NO_BIAS = Bias()


@dataclass(frozen=True, slots=True)
class Course:
    """What a seed has drawn. Of a dynamic quorum `voters` are added at first; of a static one `pinned` makes the voters
    known by their uuids, so that they can lose their disks.
    """

    seed: int
    size: int
    observers: int
    static: bool
    pinned: bool
    voters: int
    faults: tuple[str, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: `broken` is the first invariant that did not hold, `detail` what was wrong; `counts` says how
    often what happened.
    """

    events: int
    trace_hash: str
    broken: str | None
    detail: str
    counts: Counter[str]


def draw(seed: int, bias: Bias = NO_BIAS) -> Course:
    """What a run of this seed is."""
    rng = Random(f"course/{seed}")
    size = rng.choice(bias.sizes or (1, 2, 3, 3, 3, 4, 5, 5))
    static = rng.random() < 0.3 if bias.static is None else bias.static
    share = rng.choice([0.3, 0.6, 0.9])
    drawn = {fault for fault in FAULTS if rng.random() < share} | set(bias.always)
    faults = bias.faults or tuple(fault for fault in FAULTS if fault in drawn) or ("crash",)
    voters = rng.randint(1, size)
    return Course(seed, size, rng.randint(0, 2), static, rng.random() < 0.7, voters, faults, bias.steps)


def run(seed: int, bias: Bias = NO_BIAS, observer: Observer | None = None) -> Outcome:
    """The run of this seed, to its end or to the first broken invariant."""
    return run_course(draw(seed, bias), observer)


def run_course(course: Course, observer: Observer | None = None) -> Outcome:
    chaos = Chaos(course)
    if observer is not None:
        chaos.lab.observing.append(observer)
    broken, detail = None, ""
    try:
        chaos.run()
    except BrokenInvariantError as error:
        broken, detail = error.invariant, error.detail
    except _BREAKS as error:
        broken, detail = type(error).__name__, str(error)
    return Outcome(chaos.lab.events, chaos.lab.trace_hash(), broken, detail, chaos.counts)


@dataclass(slots=True)
class Chaos:
    """One run."""

    course: Course
    lab: QuorumLab = field(init=False)
    operator: Operator = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    _rng: Random = field(init=False)
    _asked_to_vote: list[NodeId] = field(default_factory=list)
    _strikes: dict[str, Callable[[], bool]] = field(init=False)

    def __post_init__(self) -> None:
        course = self.course
        self._rng = Random(f"chaos/{course.seed}")
        self.lab = QuorumLab(f"lab/{course.seed}", course.size, static=course.static, observers=course.observers)
        self.lab.observing.append(self._count)
        self.operator = Operator(self.lab)
        self._strikes = {
            "crash": self._crash,
            "bounce": self._bounce,
            "disk loss": self._lose_disk,
            "cut": self._cut,
            "one-way cut": self._cut_one_way,
            "bad network": self._spoil_network,
            "reordering": self._slow_network,
            "pause": self._pause,
            "additions": self._add,
            "removals": self._remove,
            "mistakes": self._mistake,
            "snapshots": self._take_snapshot,
        }

    def run(self) -> None:
        self._set_up()
        for _ in range(self.course.steps):
            self._strike()
            for _ in range(self._rng.randint(0, 3)):
                self.lab.append()
                self.lab.run_for(self._rng.choice([0, 3, 30]))
            self.lab.run_for(self._rng.choice([1, 10, 100, 1_000, 4_000]))
        self._heal()
        self._cut_one_off()
        self._note_ends()

    def _count(self, event: Event) -> None:
        truth, cause = self.lab.truth, event.cause
        if cause == BLANK_START and truth.losses[event.node]:
            self.counts["restarts without a disk"] += 1
        elif isinstance(cause, FetchSnapshotResponse):
            self.counts["snapshots fetched"] += 1
        elif isinstance(cause, VoteRequest) and not cause.pre_vote:
            self._asked_to_vote.append(event.node)

    # -- phase 1 -------------------------------------------------------------------------------------------------------

    def _note_ends(self) -> None:
        """Counts the epochs in which something was committed, and what came of the changes of the voters."""
        truth = self.lab.truth
        self.counts["epochs"] += len(truth.committed_by)
        self.counts["changes committed"] += len(truth.changes)
        first_disks = {key.id: key.uuid for key in reversed(truth.lost)}
        added = [change for change in truth.changes.values() if isinstance(change, AddVoterRecord)]
        self.counts["voters on another disk"] += sum(
            change.voter_uuid != first_disks.get(change.voter_id, change.voter_uuid) for change in added
        )

    def _set_up(self) -> None:
        self.lab.start(*self.lab.disks)
        self._settle()
        if not self.course.static:
            self.operator.grow(self.course.voters)
        elif self.course.pinned:
            self.operator.pin()
        self._settle()

    def _strike(self) -> None:
        """Breaks something, or mends something of what is broken."""
        lab, rng = self.lab, self._rng
        down = [node for node in lab.disks if node not in lab.nodes]
        if down and rng.random() < 0.4:
            lab.start(rng.choice(down))
        elif lab.cuts and rng.random() < 0.3:
            lab.cuts = {pair for pair in sorted(lab.cuts) if rng.random() < rng.choice([0, 0.5])}
        else:
            fault = rng.choice(self.course.faults)
            self.counts[fault] += self._strikes[fault]()

    def _up(self) -> list[NodeId]:
        return [node for node in self.lab.ids if node in self.lab.nodes]

    def _crash(self) -> bool:
        if not self.lab.nodes:
            return False
        losses = [Loss(kind, self._rng.randrange(1_000)) for kind in ("none", "unflushed", "suffix", "torn")]
        loss, node = self._rng.choice([None, *losses]), self._victim()
        if loss is None:
            self.lab.shut_down(node)
        else:
            self.lab.crash(node, loss)
        return True

    def _bounce(self) -> bool:
        """A replica is back as soon as it is gone, and perhaps the next ones too that have just given a vote."""
        if not self.lab.nodes:
            return False
        self._restart(self._victim())
        for _ in range(self._rng.choice([0, 0, 1, 3])):
            voter = self._next_voter()
            if voter in self.lab.nodes:
                self._restart(voter)
        return True

    def _next_voter(self) -> NodeId:
        """Who is asked for a vote next, -1 where that is nobody for a while."""
        before = len(self._asked_to_vote)
        self.lab.run_until(lambda: len(self._asked_to_vote) > before, 3_000)
        return self._asked_to_vote[-1] if len(self._asked_to_vote) > before else -1

    def _restart(self, node: NodeId) -> None:
        self.lab.crash(node)
        self.lab.start(node)

    def _victim(self) -> NodeId:
        """Any node that runs, often the leader."""
        leader = self.lab.leader
        if leader is not None and self._rng.random() < 0.3:
            return leader.key.id
        return self._rng.choice(sorted(self.lab.nodes))

    def _lose_disk(self) -> bool:
        """A disk fails, and the node has another one when it starts again."""
        lab, rng = self.lab, self._rng
        node = rng.choice(sorted(lab.disks))
        if not self.operator.may_lose(node) and node in lab.ids:
            return False
        if node not in lab.nodes:
            lab.start(node)
        lab.crash(node, Loss("all"))
        if rng.random() < 0.7:
            lab.start(node)
        return True

    def _cut(self) -> bool:
        ids = sorted(self.lab.disks)
        self.lab.cut(*self._rng.sample(ids, self._rng.randint(1, max(1, len(ids) // 2))))
        return True

    def _cut_one_way(self) -> bool:
        pairs = [(a, b) for a in sorted(self.lab.disks) for b in sorted(self.lab.disks) if a != b]
        self.lab.cuts |= set(self._rng.sample(pairs, min(len(pairs), self._rng.randint(1, 3))))
        return bool(pairs)

    def _spoil_network(self) -> bool:
        self.lab.loss = self._rng.choice([0, 0.05, 0.3])
        self.lab.doubling = self._rng.choice([0, 0.1, 0.5])
        return True

    def _slow_network(self) -> bool:
        """Messages take their time, each its own, and so overtake each other."""
        self.lab.reorders = True
        self.lab.slowest_ms = self._rng.choice([5, 20, 300, 1_500])
        return True

    def _pause(self) -> bool:
        if not self.lab.nodes:
            return False
        self.lab.pause(self._victim(), self._rng.choice([100, 1_500, 4_000]))
        return True

    def _asked(self) -> NodeId | None:
        """Whom the operator takes for the leader; now and then it is one that has just become it."""
        lab = self.lab
        if self._rng.random() < 0.2:
            epoch = max((node.replica.epoch for node in lab.nodes.values()), default=0)
            lab.run_until(lambda: lab.leader is not None and lab.leader.epoch > epoch, 3_000)
        leader, up = lab.leader, self._up()
        if leader is not None and self._rng.random() < 0.9:
            return leader.key.id
        return self._rng.choice(up) if up else None

    def _add(self) -> bool:
        lab, to = self.lab, self._asked()
        others = [key for node, key in sorted(lab.truth.keys.items()) if not is_counted(key, lab.truth.voters)]
        if to is None or not others or not self.operator.may_add():
            return False
        self._change(True, self._rng.choice(others), to)
        return True

    def _remove(self) -> bool:
        lab, to = self.lab, self._asked()
        voters = sorted(lab.truth.voters)
        lost = [voter for voter in voters if not lab.truth.is_on_a_disk(voter)]
        leading = [voter for voter in voters if voter.id == to and self._rng.random() < 0.5]
        key = self._rng.choice(lost or leading or voters)
        if to is None or not self.operator.may_remove(key):
            return False
        self._change(False, key, to)
        return True

    def _change(self, adds: bool, key: ReplicaKey, to: NodeId) -> None:
        """Asks for a change; the leader may be gone before anybody else has heard of it."""
        self.operator.ask(adds, key, to)
        self.lab.run_for(2)
        goes = [fault for fault in ("cut", "crash") if fault in self.course.faults]
        if not goes or to not in self.lab.nodes or self._rng.random() < 0.7:
            return
        if self._rng.choice(goes) == "cut":
            self.lab.cut(to)
        else:
            self.lab.crash(to)

    def _mistake(self) -> bool:
        """The last voter is to go, or a replica to vote that nobody has ever heard of."""
        to, truth = self._asked(), self.lab.truth
        if to is None or self.operator.missing() or self._rng.random() < 0.7:
            return False
        if len(truth.voters) == 1 and self._rng.random() < 0.5:
            self._change(False, min(truth.voters), to)
        else:
            self._change(True, ReplicaKey(self._rng.choice((*self.lab.ids, 1_099)), "no such disk"), to)
        return True

    def _take_snapshot(self) -> bool:
        """Often of all that is committed, so that others find it only there; some travel in several parts."""
        if not self.lab.nodes:
            return False
        found = self.lab.nodes[self._victim()].replica
        ends = [batch.next_offset for batch in found.read(found.log.start_offset, 2**62)]
        if ends:
            end_offset = self._rng.choice([ends[-1], self._rng.choice(ends)])
            found.take_snapshot(end_offset, b"state" * self._rng.choice([1, 1, 1, 1, 300_000]))
        return bool(ends)

    # -- phases 2 and 3 ------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        lab = self.lab
        lab.heal()
        lab.run_until(lambda: not self.operator.is_waiting(), SETTLED_WITHIN_MS)
        self._settle()
        if not self.operator.repair():
            raise BrokenInvariantError("ReconfigurationNotStuck", f"{sorted(self.operator.missing())} are voters still")
        lab.append()
        self._settle()

    def _settle(self) -> None:
        self.lab.run_until(self.lab.is_settled, SETTLED_WITHIN_MS)
        found = missed(self.lab.truth)
        if found is not None:
            raise BrokenInvariantError(*found)

    def _cut_one_off(self) -> None:
        """A voter that cannot hear the others, or not be heard, or not speak with the leader, deposes nobody."""
        lab, rng = self.lab, self._rng
        leader = lab.leader
        voters = [voter.id for voter in sorted(lab.truth.voters) if leader is not None and voter.id != leader.key.id]
        if leader is None or len(voters) < 2:
            return
        epoch, lonely = leader.epoch, rng.choice(voters)
        others = [node for node in lab.disks if node != lonely]
        to, away = {(node, lonely) for node in others}, {(lonely, node) for node in others}
        leaders = {(leader.key.id, lonely), (lonely, leader.key.id)}
        lab.cuts = rng.choice([to, away, to | away, leaders])
        until_ms: TimeMs = lab.now_ms + rng.randint(1_000, PATIENCE_MS)
        while lab.now_ms < until_ms:
            lab.run_for(500)
            if rng.random() < 0.2:
                lab.append()
        lab.heal()
        self._settle()
        after = lab.leader
        if after is None or (after.key, after.epoch) != (leader.key, epoch):
            raise BrokenInvariantError(STAYS, f"{leader.key} led epoch {epoch} until {lonely} came back")
