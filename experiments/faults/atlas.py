"""The fault atlas: how much of a fault a cluster can bear that must stay within tolerance.

KIP-966 promises that nothing committed is lost as long as at most min ISR - 1 lossy unclean shutdowns are outstanding
per partition (F27, L18); a shutdown is outstanding until the broker is back in the ISR. Before ELR nothing is promised
once a member has lost anything, nor while the ISR has not reached min ISR. So a crash may take from a disk what leaves
every partition within that, and where it would take more, it takes nothing. A controller may lose its disk where a
majority of the voters keep theirs (`voters.py`); what it has not flushed it has not answered for.

The decision is taken when the fault begins, on the ground truth: no fault that is left out of a timeline makes what
remains of it intolerable, which is what lets timelines be shrunk.
"""

from __future__ import annotations

from experiments.check.truth import GroundTruth
from experiments.engines.port import Loss
from experiments.faults.voters import QuorumOperator
from protocol.broker.context import log_name
from protocol.ids import NodeId, TopicPartition, is_broker

KEEPS = Loss("none")


def granted(loss: Loss, node: NodeId, truth: GroundTruth, operator: QuorumOperator) -> Loss:
    """The loss that was asked for, or none where it would bring a partition beyond its tolerance."""
    if loss.kind == "none":
        return loss
    if not is_broker(node):
        return KEEPS if loss.kind == "all" and not operator.can_replace(node) else loss
    stored = _at_stake(loss, node, truth)
    if stored is None or any(not _can_bear(partition, node, truth) for partition in stored):
        return KEEPS
    return loss


def _at_stake(loss: Loss, node: NodeId, truth: GroundTruth) -> list[TopicPartition] | None:
    """Partitions of which the broker's disk could lose records; None while nobody can tell."""
    image, disk = truth.controller_image(), truth.cluster.disks[node]
    if image is None:
        return None
    names, found = set(disk.log_names()), []
    for key, _ in image.partitions():
        if log_name(key) in names:
            log = disk.open_log(log_name(key))
            at_stake = log.end_offset - (log.start_offset if loss.kind == "all" else log.flushed_offset)
            if at_stake > 0:
                found.append(image.name_of(key))
    return found


def _can_bear(partition: TopicPartition, node: NodeId, truth: GroundTruth) -> bool:
    """Whether the partition keeps its promise if this broker loses records of it."""
    state, known = truth.controller_state(partition), truth.of(partition)
    if state is None or not truth.features.elr or not known.reached_min_isr:
        return False
    min_isr = truth.min_isr(partition, state)
    return min_isr == known.min_isr and len(known.lossy | {node}) <= min_isr - 1
