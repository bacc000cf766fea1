"""The changes of partitions that a store has published, in the form in which a controller with a log reports them.

In generation `v3` leader and ISR of a partition are the data of a node of the store, which the controller and the
leader write (A7). The node's version is the partition epoch (N2). There is no ELR.
"""

from __future__ import annotations

from protocol.events.controller import PartitionChanged
from protocol.events.store import StoreChanged
from protocol.ids import NO_LEADER, TopicPartition
from protocol.v3.store import paths
from protocol.v3.store.records import stored_state

_DELETED = -1


def partition_changed(trace: StoreChanged, min_isr: int) -> PartitionChanged | None:
    """The change of a partition that `trace` reports; None if it reports another one. `min_isr`: of the topic, since a
    store that publishes an ISR does not say how many members it needs.
    """
    root, names = paths.locate(trace.path) if trace.path.startswith(f"{paths.TOPICS}/") else ("", ())
    if trace.version == _DELETED or root != paths.TOPICS or names[2:] != (paths.LEADER_AND_ISR,):
        return None
    state = stored_state(trace.path, trace.data.encode())
    if state is None:
        return None
    return PartitionChanged(
        TopicPartition(names[0], paths.number(paths.TOPICS, names[1])),
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=trace.version,
        replicas=(),
        isr=state.isr,
        elr=(),
        last_known_elr=(),
        last_known_leader=NO_LEADER,
        recovering=state.is_unclean_leader,
        min_isr=min_isr,
    )
