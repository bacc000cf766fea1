"""The replicas of running brokers, by the logs on their disks; the high watermark by a fetch from the leader.

A broker has become leader when it has entered the leader epoch into its log's epochs, and answers a fetch. A follower's
high watermark is not known, and is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.engines.kafka.client import high_watermark
from experiments.engines.kafka.metadata_log import MetadataLog
from experiments.engines.kafka.processes import ProcessCluster
from experiments.engines.kafka.segments import DiskLog
from protocol.broker.context import ReplicaView
from protocol.ids import NodeId, Offset, TopicPartition
from protocol.messages.batch import RecordBatch

FETCH_WITHIN_S = 2.0


@dataclass(slots=True)
class DiskReplicas:
    """`replica` and `log` are as those of `Engine`. Where clients of others write, `digests`, batches have digests of
    their content as payloads.
    """

    cluster: ProcessCluster
    metadata: MetadataLog
    digests: bool = False
    _logs: dict[tuple[NodeId, TopicPartition], DiskLog] = field(default_factory=dict)

    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        log = self._log(broker, partition)
        if log is None:
            return None
        epoch = log.epoch()
        state = self.metadata.state_of(partition)
        mark: Offset | None = None
        is_leader = state is not None and state.leader == broker and state.leader_epoch == epoch
        if is_leader and not self.cluster.is_paused(broker):
            mark = high_watermark(self.cluster.address(broker), partition, FETCH_WITHIN_S)
        return ReplicaView(mark is not None, epoch, log.end_offset, mark or 0)

    def holds(self, broker: NodeId, partition: TopicPartition) -> bool:
        return self._log(broker, partition) is not None

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        log = self._log(broker, partition)
        assert log is not None, f"broker {broker} has no replica of {partition}"
        return [batch.with_payload(batch.payload) if self.digests else batch.stored() for batch in log.batches]

    def _log(self, broker: NodeId, partition: TopicPartition) -> DiskLog | None:
        """The log of a running broker's replica as it is now, None where there is none."""
        folder = self.cluster.disk(broker) / f"{partition.topic}-{partition.partition}"
        if not self.cluster.is_running(broker) or not folder.is_dir():
            return None
        log = self._logs.setdefault((broker, partition), DiskLog(folder, self.digests))
        log.refresh()
        return log
