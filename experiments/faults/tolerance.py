"""How much loss of records the partitions of a cluster tolerate, and so how much of a fault is carried out.

KIP-966 promises that nothing committed is lost as long as at most min ISR - 1 lossy unclean shutdowns are outstanding
per partition (F27, L18); a shutdown is outstanding until the broker is back in the ISR. Before ELR nothing is promised
once a member has lost anything, nor while the ISR has not reached min ISR. A crash may therefore take from a disk what
leaves every partition within that promise, and takes nothing where it would take more. A controller may lose its disk
while a majority of the voters keep theirs (`quorum_operator.py`); it has not acknowledged what it has not flushed.

The decision is taken on the ground truth when the fault begins. Leaving a fault out of a timeline therefore never makes
the other faults exceed the tolerance, which allows timelines to be shrunk.
"""

from __future__ import annotations

from experiments.check.truth import GroundTruth
from experiments.engines.port import Loss
from experiments.faults.quorum_operator import QuorumOperator
from protocol.broker.context import log_name
from protocol.ids import NodeId, TopicPartition, is_broker, is_store

NO_LOSS = Loss("none")


def grant_loss(loss: Loss, node: NodeId, truth: GroundTruth, operator: QuorumOperator) -> Loss:
    """The loss that was asked for, or `NO_LOSS` where it would exceed the tolerance of a partition or of the quorum."""
    if loss.kind == "none":
        return loss
    if is_store(node):
        return loss if loss.kind == "unflushed" else NO_LOSS
    if not is_broker(node):
        return NO_LOSS if loss.kind == "all" and not operator.can_replace(node) else loss
    at_stake = _partitions_at_stake(loss, node, truth)
    if at_stake is None or any(not _tolerates_loss(partition, node, truth) for partition in at_stake):
        return NO_LOSS
    return loss


def _partitions_at_stake(loss: Loss, node: NodeId, truth: GroundTruth) -> list[TopicPartition] | None:
    """Partitions of which the broker's disk could lose records; None while there is no controller to name them."""
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


def _tolerates_loss(partition: TopicPartition, node: NodeId, truth: GroundTruth) -> bool:
    """Whether the partition keeps its promise if this broker loses records of it."""
    state, known = truth.controller_state(partition), truth.of(partition)
    if state is None or not truth.features.elr or not known.reached_min_isr:
        return False
    min_isr = truth.min_isr(partition, state)
    return min_isr == known.min_isr and len(known.lossy | {node}) <= min_isr - 1
