"""Golden transcripts of quorums, told from `experiments/hunt/quorum/story.py`: a quorum grows out of one
voter, a disk is replaced, a leader is removed, and a leader crashes with a change that is not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from experiments.engines.port import Loss
from experiments.hunt.quorum.lab import QuorumLab
from experiments.hunt.quorum.operator import Operator
from experiments.hunt.quorum.properties import missed
from experiments.hunt.quorum.story import Story, short
from protocol.ids import NodeId
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey
from tests.sim.quorum_helpers import SOON_MS, leader


class Telling:
    """A laboratory whose story is told once it has been set up."""

    def __init__(self, size: int, voters: int, observers: int = 0) -> None:
        self.lab = QuorumLab("story", size, observers=observers)
        self._operator = Operator(self.lab)
        if voters:
            self.lab.start(*self.lab.disks)
            self._operator.grow(voters)
            self.settle()
        self.story = Story(self.lab)
        if voters:
            self.story.chapter("as it stands")
            for node in self.lab.nodes:
                self.lab.look_at(node)

    @property
    def leader(self) -> QuorumReplica:
        return leader(self.lab)

    def key(self, node: NodeId) -> ReplicaKey:
        return self.lab.nodes[node].replica.key

    def others(self) -> list[NodeId]:
        """The voters that do not lead."""
        return [voter.id for voter in self.leader.voters.keys if voter.id != self.leader.key.id]

    def settle(self) -> None:
        assert self.lab.run_until(self.lab.is_settled, SOON_MS), missed(self.lab.truth)

    def append(self) -> None:
        self.story.chapter("a value")
        self.lab.append()
        self.lab.run_for(50)

    def change(self, adds: bool, key: ReplicaKey) -> None:
        self.story.chapter(f"the operator {'adds' if adds else 'removes'} {short(key)}")
        self._operator.change(adds, key)
        self.lab.run_for(50)

    def text(self, name: str) -> str:
        self.settle()
        assert missed(self.lab.truth) is None
        return "\n".join([f"# {name}", *self.story.lines]) + "\n"


def _bootstrap(name: str) -> str:
    """1000 is formatted as the one voter, the others find it and are added while values are appended (M77)."""
    told = Telling(3, 0, observers=1)
    told.story.chapter("1000 starts, formatted as the one voter")
    told.lab.start(1000)
    told.append()
    for node in (1001, 1002, 0):
        told.story.chapter(f"{node} starts on an empty disk")
        told.lab.start(node)
        told.lab.run_for(1_000)
    for node in (1001, 1002):
        told.change(True, told.key(node))
        told.append()
    return told.text(name)


def _disk_replacement(name: str) -> str:
    """A voter's disk is replaced: another replica under the same id (M78)."""
    told = Telling(3, 3)
    broken = told.others()[0]
    old = told.key(broken)
    told.story.chapter(f"the disk of {short(old)} fails")
    told.lab.crash(broken, Loss("all"))
    told.append()
    told.story.chapter(f"{broken} starts on an empty disk")
    told.lab.start(broken)
    told.lab.run_for(1_500)
    new = told.key(broken)
    told.change(True, new)
    told.change(False, old)
    told.change(True, new)
    told.append()
    return told.text(name)


def _leader_removal(name: str) -> str:
    """The leader is removed: it commits that without its own vote, and goes (M82)."""
    told = Telling(3, 3)
    removed = told.leader.key
    told.change(False, removed)
    assert told.leader.key != removed
    told.settle()
    told.append()
    return told.text(name)


def _uncommitted_add_voter(name: str) -> str:
    """A leader crashes with an AddVoter record that nobody else has, which is undone; the next one with one that
    another voter has, who commits it (M80).
    """
    told = Telling(4, 3)
    added, first = told.key(1003), told.leader.key
    told.story.chapter(f"{first.id} is cut off")
    told.lab.cut(first.id)
    told.story.chapter(f"the operator adds {short(added)}")
    asker = Operator(told.lab)
    asker.ask(True, added, first.id)
    told.lab.run_for(20)
    told.story.chapter(f"{first.id} crashes, and the others elect")
    told.lab.crash(first.id, Loss("none"))
    told.lab.cuts.clear()
    second = told.leader.key
    told.lab.run_for(1_000)
    told.story.chapter(f"{first.id} starts")
    told.lab.start(first.id)
    told.settle()
    told.story.chapter(f"the operator adds {short(added)}, and {second.id} crashes as soon as another voter has that")
    asker.ask(True, added, second.id)
    others = [told.lab.nodes[node].replica for node in told.others()]
    told.lab.run_until(lambda: any(added in replica.voters for replica in others), SOON_MS)
    told.lab.crash(second.id, Loss("none"))
    assert told.leader.key != second
    told.lab.run_for(1_000)
    told.story.chapter(f"{second.id} starts")
    told.lab.start(second.id)
    return told.text(name)


KRAFT_STORIES: Mapping[str, Callable[[], str]] = {
    name: partial(story, name)
    for name, story in {
        "kraft-bootstrap": _bootstrap,
        "kraft-disk-replacement": _disk_replacement,
        "kraft-leader-removal": _leader_removal,
        "kraft-uncommitted-add-voter": _uncommitted_add_voter,
    }.items()
}
