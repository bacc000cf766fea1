"""How tests drive the laboratory of quorums (`experiments/hunt/quorum/lab.py`): waiting, asking, looking."""

from __future__ import annotations

from experiments.hunt.quorum.lab import CLUSTER, QuorumLab
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Response
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

SOON_MS = 60_000


def replica(lab: QuorumLab, node: NodeId) -> QuorumReplica:
    return lab.nodes[node].replica


def leader(lab: QuorumLab) -> QuorumReplica:
    assert lab.run_until(lambda: lab.leader is not None, SOON_MS)
    found = lab.leader
    assert found is not None
    return found


def settle(lab: QuorumLab) -> None:
    lab.heal()
    assert lab.run_until(lab.is_settled, SOON_MS), standing(lab)


def standing(lab: QuorumLab) -> list[tuple[object, ...]]:
    return [
        (name, node.replica.role, node.replica.epoch, node.replica.leader, node.replica.high_watermark)
        for name, node in lab.nodes.items()
    ]


def voter_ids(lab: QuorumLab) -> set[tuple[NodeId, ...]]:
    """The voters by the view of each replica."""
    return {tuple(key.id for key in node.replica.voters.keys) for node in lab.nodes.values()}


def ask(lab: QuorumLab, adds: bool, key: ReplicaKey, to: NodeId | None = None, **fields: object) -> int:
    """Asks for a change of the voters, the leader if nobody else is named; the number of the request."""
    number = len(lab.answers) + 1_000 * (lab.events + 1)
    kind = AddVoterRequest if adds else RemoveVoterRequest
    request = kind(correlation_id=number, cluster_id=CLUSTER, voter_id=key.id, voter_uuid=key.uuid, **fields)
    lab.ask(leader(lab).key.id if to is None else to, request)
    return number


def answer(lab: QuorumLab, number: int, within_ms: int = SOON_MS) -> Response:
    def found() -> list[Response]:
        return [response for response in lab.answers if response.correlation_id == number]

    assert lab.run_until(lambda: bool(found()), within_ms), standing(lab)
    return found()[0]


def change(lab: QuorumLab, adds: bool, key: ReplicaKey, **fields: object) -> ErrorCode:
    return answer(lab, ask(lab, adds, key, **fields)).error
