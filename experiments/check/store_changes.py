"""What the store of generation `v3` publishes about a partition, as an event of the other generations' controllers."""

from __future__ import annotations

from protocol.events.controller import PartitionChanged
from protocol.events.store import StoreChanged
from protocol.ids import NO_LEADER, TopicPartition
from protocol.v3.store import paths
from protocol.v3.store.records import stored_state


def partition_changed(trace: StoreChanged) -> PartitionChanged | None:
    """The change of a partition that `trace` reports; None if it reports another one. A store that publishes an ISR
    does not say the min ISR, which is 0."""
    root, names = paths.locate(trace.path) if trace.path.startswith(f"{paths.TOPICS}/") else ("", ())
    is_deletion = trace.version == -1
    if is_deletion or root != paths.TOPICS or names[2:] != (paths.LEADER_AND_ISR,):
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
        min_isr=0,
    )
