"""Golden transcripts of quorums (`quorum_transcript.py`): bootstrap from one voter, replacement of a
disk, removal of the leader, and a leader crash with an uncommitted change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from experiments.engines.port import Loss
from experiments.hunt.quorum.harness import QuorumHarness
from experiments.hunt.quorum.liveness import first_violation
from experiments.hunt.quorum.operator import Operator
from protocol.ids import NodeId
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey
from tests.sim.quorum_helpers import SOON_MS, leader
from tests.sim.quorum_transcript import Transcript, short_key


class TranscribedQuorum:
    """A simulated quorum with `voters` voters, and the transcript of what happens afterwards."""

    def __init__(self, size: int, voters: int, observers: int = 0) -> None:
        self.harness = QuorumHarness("story", size, observers=observers)
        self._operator = Operator(self.harness)
        if voters:
            self.harness.start(*self.harness.disks)
            self._operator.grow(voters)
            self.settle()
        self.transcript = Transcript(self.harness)
        if voters:
            self.transcript.heading("initial state")
            for node in self.harness.nodes:
                self.harness.observe(node)

    @property
    def leader(self) -> QuorumReplica:
        return leader(self.harness)

    def key(self, node: NodeId) -> ReplicaKey:
        return self.harness.nodes[node].replica.key

    def others(self) -> list[NodeId]:
        """The voters other than the leader."""
        return [voter.id for voter in self.leader.voters.keys if voter.id != self.leader.key.id]

    def settle(self) -> None:
        assert self.harness.run_until(self.harness.is_settled, SOON_MS), first_violation(self.harness.view)

    def append(self) -> None:
        self.transcript.heading("a value is appended")
        self.harness.append()
        self.harness.run_for(50)

    def change(self, adds: bool, key: ReplicaKey) -> None:
        self.transcript.heading(f"the operator {'adds' if adds else 'removes'} {short_key(key)}")
        self._operator.change(adds, key)
        self.harness.run_for(50)

    def text(self, name: str) -> str:
        self.settle()
        assert first_violation(self.harness.view) is None
        return "\n".join([f"# {name}", *self.transcript.lines]) + "\n"


def _bootstrap(name: str) -> str:
    """1000 is formatted as the only voter; the others discover it and are added while values are appended (M77)."""
    quorum = TranscribedQuorum(3, 0, observers=1)
    quorum.transcript.heading("1000 starts, formatted as the one voter")
    quorum.harness.start(1000)
    quorum.append()
    for node in (1001, 1002, 0):
        quorum.transcript.heading(f"{node} starts on an empty disk")
        quorum.harness.start(node)
        quorum.harness.run_for(1_000)
    for node in (1001, 1002):
        quorum.change(True, quorum.key(node))
        quorum.append()
    return quorum.text(name)


def _disk_replacement(name: str) -> str:
    """A voter's disk is replaced: a new replica with the same id (M78)."""
    quorum = TranscribedQuorum(3, 3)
    broken = quorum.others()[0]
    old = quorum.key(broken)
    quorum.transcript.heading(f"the disk of {short_key(old)} fails")
    quorum.harness.crash(broken, Loss("all"))
    quorum.append()
    quorum.transcript.heading(f"{broken} starts on an empty disk")
    quorum.harness.start(broken)
    quorum.harness.run_for(1_500)
    new = quorum.key(broken)
    quorum.change(True, new)
    quorum.change(False, old)
    quorum.change(True, new)
    quorum.append()
    return quorum.text(name)


def _leader_removal(name: str) -> str:
    """The leader is removed: it commits its removal without its own vote and resigns (M82)."""
    quorum = TranscribedQuorum(3, 3)
    removed = quorum.leader.key
    quorum.change(False, removed)
    assert quorum.leader.key != removed
    quorum.settle()
    quorum.append()
    return quorum.text(name)


def _uncommitted_add_voter(name: str) -> str:
    """A leader crashes with an AddVoter record that no other voter has, which is truncated; the next leader crashes
    with one that another voter has, which commits it (M80).
    """
    quorum = TranscribedQuorum(4, 3)
    added, first = quorum.key(1003), quorum.leader.key
    quorum.transcript.heading(f"{first.id} is cut off")
    quorum.harness.cut(first.id)
    quorum.transcript.heading(f"the operator adds {short_key(added)}")
    asker = Operator(quorum.harness)
    asker.request_change(True, added, first.id)
    quorum.harness.run_for(20)
    quorum.transcript.heading(f"{first.id} crashes, and the others elect a leader")
    quorum.harness.crash(first.id, Loss("none"))
    quorum.harness.cuts = frozenset()
    second = quorum.leader.key
    quorum.harness.run_for(1_000)
    quorum.transcript.heading(f"{first.id} starts")
    quorum.harness.start(first.id)
    quorum.settle()
    quorum.transcript.heading(
        f"the operator adds {short_key(added)}, and {second.id} crashes as soon as another voter has that"
    )
    asker.request_change(True, added, second.id)
    others = [quorum.harness.nodes[node].replica for node in quorum.others()]
    quorum.harness.run_until(lambda: any(added in replica.voters for replica in others), SOON_MS)
    quorum.harness.crash(second.id, Loss("none"))
    assert quorum.leader.key != second
    quorum.harness.run_for(1_000)
    quorum.transcript.heading(f"{second.id} starts")
    quorum.harness.start(second.id)
    return quorum.text(name)


KRAFT_STORIES: Mapping[str, Callable[[], str]] = {
    name: partial(story, name)
    for name, story in {
        "kraft-bootstrap": _bootstrap,
        "kraft-disk-replacement": _disk_replacement,
        "kraft-leader-removal": _leader_removal,
        "kraft-uncommitted-add-voter": _uncommitted_add_voter,
    }.items()
}
