"""Drives a simulated quorum in tests (`experiments/hunt/quorum/harness.py`): waits, requests, queries."""

from __future__ import annotations

from experiments.hunt.quorum.harness import CLUSTER, QuorumHarness
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Response
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

SOON_MS = 60_000


def replica(harness: QuorumHarness, node: NodeId) -> QuorumReplica:
    return harness.nodes[node].replica


def leader(harness: QuorumHarness) -> QuorumReplica:
    assert harness.run_until(lambda: harness.leader is not None, SOON_MS)
    found = harness.leader
    assert found is not None
    return found


def settle(harness: QuorumHarness) -> None:
    harness.heal()
    assert harness.run_until(harness.is_settled, SOON_MS), replica_states(harness)


def replica_states(harness: QuorumHarness) -> list[tuple[object, ...]]:
    return [
        (name, node.replica.role, node.replica.epoch, node.replica.leader, node.replica.high_watermark)
        for name, node in harness.nodes.items()
    ]


def voter_ids(harness: QuorumHarness) -> set[tuple[NodeId, ...]]:
    """The voter sets that the replicas use."""
    return {tuple(key.id for key in node.replica.voters.keys) for node in harness.nodes.values()}


def ask(harness: QuorumHarness, adds: bool, key: ReplicaKey, to: NodeId | None = None, **fields: object) -> int:
    """Requests a change of the voters, by default from the leader; returns the correlation id."""
    number = len(harness.responses) + 1_000 * (harness.events + 1)
    kind = AddVoterRequest if adds else RemoveVoterRequest
    request = kind(correlation_id=number, cluster_id=CLUSTER, voter_id=key.id, voter_uuid=key.uuid, **fields)
    harness.submit(leader(harness).key.id if to is None else to, request)
    return number


def answer(harness: QuorumHarness, number: int, within_ms: int = SOON_MS) -> Response:
    def found() -> list[Response]:
        return [response for response in harness.responses if response.correlation_id == number]

    assert harness.run_until(lambda: bool(found()), within_ms), replica_states(harness)
    return found()[0]


def change(harness: QuorumHarness, adds: bool, key: ReplicaKey, **fields: object) -> ErrorCode:
    return answer(harness, ask(harness, adds, key, **fields)).error
