"""Checks the store's part of a recording of generation `v3`: what it has published, and which partitions are within
tolerance.

All changes of the store are events of one node, so their order is known on both engines. They are replayed through the
rules of the simulator (`v3_suite.py`), on a cluster that never runs and so has no state of a process. Elections of
controllers follow when all changes are known, because events of different nodes may have been received in any order.

**Tolerance** ends by an unclean election, by a disk that lost records (unknown ones count for every partition), and by
a leader whose log begins its epoch below a high watermark of an earlier epoch. In a simulation the last of these is a
violation of LeaderCompleteness unless the leader lacks the records for a reason that V3 allows. A recording does not
show the reason, so here it always ends tolerance: what is reported as lost within tolerance is a violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from experiments.check import rules
from experiments.check.suite import InvariantSuite
from experiments.engines.port import ClusterSpec, TraceEvent, Violation
from experiments.engines.sim.cluster import SimCluster
from protocol.events.broker import BecameLeader, HighWatermarkAdvanced
from protocol.events.host import IncarnationEnded
from protocol.events.store import ControllerElected, StoreChanged
from protocol.ids import Epoch, Offset, TopicPartition, is_broker

SHOWN_BY_STORE = (
    "VersionsGrow",
    "OneControllerPerEpoch",
    "DecisionsAreFenced",
    "LeaderEpochsRise",
    "ElectionAddsNoMember",
    "LeaderInIsr",
)


@dataclass(slots=True)
class ReplayedStore:
    """The number of `changes` of the store; `tolerant`: whether each partition is within tolerance at the end."""

    changes: int = 0
    tolerant: dict[TopicPartition, bool] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


def replay_store(spec: ClusterSpec, events: Iterable[TraceEvent]) -> ReplayedStore:
    cluster = SimCluster(spec, keep_traces=False)
    suite = InvariantSuite(cluster)
    found = ReplayedStore()
    elected: list[TraceEvent] = []
    leaders: list[BecameLeader] = []
    lost: set[TopicPartition] = set()
    are_all_hit = False
    marks: dict[TopicPartition, dict[Epoch, Offset]] = defaultdict(dict)
    for event in events:
        match event.trace:
            case StoreChanged() as changed:
                cluster.now_ms = event.time_ms
                suite.replay(event.node, changed)
                found.changes += 1
            case ControllerElected():
                elected.append(event)
            case BecameLeader() as leader:
                leaders.append(leader)
            case HighWatermarkAdvanced(partition=key, leader_epoch=epoch, high_watermark=mark):
                marks[key][epoch] = max(mark, marks[key].get(epoch, 0))
            case IncarnationEnded(loss=loss, lost=parts) if is_broker(event.node) and loss != "none":
                are_all_hit = are_all_hit or parts is None
                lost.update(key for key, count in parts or () if count)
    for event in elected:
        cluster.now_ms = event.time_ms
        suite.replay(event.node, event.trace)
    lost.update(
        leader.partition
        for leader in leaders
        if leader.log_end < rules.committed_before(marks[leader.partition], leader.leader_epoch)
    )
    partitions = suite.truth.partitions
    found.tolerant = {key: of.tolerant and key not in lost and not are_all_hit for key, of in partitions.items()}
    found.violations = suite.violations
    return found
