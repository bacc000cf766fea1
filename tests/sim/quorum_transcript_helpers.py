"""Golden transcripts of quorums (`experiments/hunt/quorum/transcript.py`): bootstrap from one voter, replacement of a
disk, removal of the leader, and a leader crash with an uncommitted change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from experiments.engines.port import Loss
from experiments.hunt.quorum.harness import QuorumHarness
from experiments.hunt.quorum.liveness import first_violation
from experiments.hunt.quorum.operator import Operator
from experiments.hunt.quorum.transcript import Transcript, short_key
from protocol.ids import NodeId
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey
from tests.sim.quorum_helpers import SOON_MS, leader


class Scenario:
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
    scenario = Scenario(3, 0, observers=1)
    scenario.transcript.heading("1000 starts, formatted as the one voter")
    scenario.harness.start(1000)
    scenario.append()
    for node in (1001, 1002, 0):
        scenario.transcript.heading(f"{node} starts on an empty disk")
        scenario.harness.start(node)
        scenario.harness.run_for(1_000)
    for node in (1001, 1002):
        scenario.change(True, scenario.key(node))
        scenario.append()
    return scenario.text(name)


def _disk_replacement(name: str) -> str:
    """A voter's disk is replaced: a new replica with the same id (M78)."""
    scenario = Scenario(3, 3)
    broken = scenario.others()[0]
    old = scenario.key(broken)
    scenario.transcript.heading(f"the disk of {short_key(old)} fails")
    scenario.harness.crash(broken, Loss("all"))
    scenario.append()
    scenario.transcript.heading(f"{broken} starts on an empty disk")
    scenario.harness.start(broken)
    scenario.harness.run_for(1_500)
    new = scenario.key(broken)
    scenario.change(True, new)
    scenario.change(False, old)
    scenario.change(True, new)
    scenario.append()
    return scenario.text(name)


def _leader_removal(name: str) -> str:
    """The leader is removed: it commits its removal without its own vote and resigns (M82)."""
    scenario = Scenario(3, 3)
    removed = scenario.leader.key
    scenario.change(False, removed)
    assert scenario.leader.key != removed
    scenario.settle()
    scenario.append()
    return scenario.text(name)


def _uncommitted_add_voter(name: str) -> str:
    """A leader crashes with an AddVoter record that no other voter has, which is truncated; the next leader crashes
    with one that another voter has, which commits it (M80).
    """
    scenario = Scenario(4, 3)
    added, first = scenario.key(1003), scenario.leader.key
    scenario.transcript.heading(f"{first.id} is cut off")
    scenario.harness.cut(first.id)
    scenario.transcript.heading(f"the operator adds {short_key(added)}")
    asker = Operator(scenario.harness)
    asker.request_change(True, added, first.id)
    scenario.harness.run_for(20)
    scenario.transcript.heading(f"{first.id} crashes, and the others elect a leader")
    scenario.harness.crash(first.id, Loss("none"))
    scenario.harness.cuts.clear()
    second = scenario.leader.key
    scenario.harness.run_for(1_000)
    scenario.transcript.heading(f"{first.id} starts")
    scenario.harness.start(first.id)
    scenario.settle()
    scenario.transcript.heading(
        f"the operator adds {short_key(added)}, and {second.id} crashes as soon as another voter has that"
    )
    asker.request_change(True, added, second.id)
    others = [scenario.harness.nodes[node].replica for node in scenario.others()]
    scenario.harness.run_until(lambda: any(added in replica.voters for replica in others), SOON_MS)
    scenario.harness.crash(second.id, Loss("none"))
    assert scenario.leader.key != second
    scenario.harness.run_for(1_000)
    scenario.transcript.heading(f"{second.id} starts")
    scenario.harness.start(second.id)
    return scenario.text(name)


KRAFT_STORIES: Mapping[str, Callable[[], str]] = {
    name: partial(story, name)
    for name, story in {
        "kraft-bootstrap": _bootstrap,
        "kraft-disk-replacement": _disk_replacement,
        "kraft-leader-removal": _leader_removal,
        "kraft-uncommitted-add-voter": _uncommitted_add_voter,
    }.items()
}
