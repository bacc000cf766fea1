"""The cluster that a cell's parameters describe, the same on both engines: its nodes, configs and topic."""

from __future__ import annotations

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss, LossKind
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import Simulated, simulated_partitions
from protocol.config import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    ENABLE_OF_STRATEGY,
    FLUSH_MS,
    METADATA_SNAPSHOT_BYTES,
    METADATA_SNAPSHOT_INTERVAL_MS,
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    UNCLEAN_RECOVERY_STRATEGY,
    ClusterConfig,
)
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import TopicPartition
from protocol.kafka_release import KafkaRelease
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import ProduceCommand
from protocol.v3.store.settings import MAX_SESSION_TIMEOUT_MS, MIN_SESSION_TIMEOUT_MS, StoreSettings

SET_UP_MS = 60_000
STARTED_MS = 1_000
"""How long before its topics are created the nodes of a trial start, and register."""
RETRY_START_MS = 1_000
"""How long a start waits before it is tried again, while the broker's controlled shutdown lasts."""
ACKS = {"0": 0, "1": 1, "all": -1}
"""The producer's `acks` as the protocol writes them."""
SNAPSHOT_BYTES = 1_000
"""Of the metadata log between two snapshots, about 15 batches: a restarting broker replays these and what it has
missed, however long the trial. Changes are so rare that with Kafka's interval of an hour, which is switched off here,
every node would take a snapshot after each of them.
"""
SNAPSHOT_BYTES_PER_CLASS = 350
"""The same in a whole cluster, for each partition of the trial. There a failure changes many partitions, and a snapshot
has all of them; writing snapshots and replaying what follows them take about the same time with this interval.
"""
_LOSSES: dict[str, LossKind] = {"unclean": "none", "lossy": "unflushed", "disk": "all"}


class SetUpError(RuntimeError):
    """The cluster of a trial did not come up, or failed by itself."""


def cluster_spec(params: CellParameters, seed: int) -> ClusterSpec:
    """The nodes and the brokers' configs. The controller does not fail, or the store where the metadata are in one; the
    broker that is the controller there fails as all brokers do. Failures are detected after the cell's `detection`,
    by the sessions of the store there."""
    generation, strategy = Generation(params.generation), params.unclean_recovery_strategy
    overrides: dict[str, object] = {} if params.flush_interval_ms is None else {FLUSH_MS: params.flush_interval_ms}
    if generation.features.metadata_in_store:
        timeout_ms = StoreSettings().session_timeout_ms if params.detection_ms is None else params.detection_ms
        timeout_ms = min(max(timeout_ms, MIN_SESSION_TIMEOUT_MS), MAX_SESSION_TIMEOUT_MS)
        store = StoreSettings(session_timeout_ms=timeout_ms)
        return ClusterSpec(params.brokers, 1, ClusterConfig.of(generation, overrides), seed, store=store)
    classes = 0 if params.cluster is None else len(params.cluster.classes)
    snapshot_bytes = max(SNAPSHOT_BYTES, SNAPSHOT_BYTES_PER_CLASS * classes)
    overrides |= {METADATA_SNAPSHOT_BYTES: snapshot_bytes, METADATA_SNAPSHOT_INTERVAL_MS: 0}
    if generation.features.unclean_recovery:
        overrides[UNCLEAN_RECOVERY_STRATEGY] = strategy
    else:
        overrides[UNCLEAN_LEADER_ELECTION_ENABLE] = ENABLE_OF_STRATEGY[strategy]
    if params.detection_ms is not None:
        overrides[BROKER_SESSION_TIMEOUT_MS] = params.detection_ms
        overrides[BROKER_HEARTBEAT_INTERVAL_MS] = params.heartbeat_interval_ms
    release = KafkaRelease(params.kafka_release)
    return ClusterSpec(params.brokers, 1, ClusterConfig.of(generation, overrides, kafka_release=release), seed)


def topic_requests(params: CellParameters) -> list[AdminRequest]:
    """The requests that create the topics of a trial."""
    topics: dict[str, list[Simulated]] = {}
    for each in simulated_partitions(params):
        topics.setdefault(each.name.topic, []).append(each)
    return [
        create_topic(name, [each.replicas for each in found], {MIN_INSYNC_REPLICAS: found[0].min_insync_replicas})
        for name, found in topics.items()
    ]


def write_of(command_id: int, partition: TopicPartition, acks: int, payload: bytes) -> ProduceCommand:
    """Writes one record of a trial's workload. Too small an ISR is an answer; other errors are retried."""
    return ProduceCommand.unchecked(
        command_id=command_id,
        topic=partition.topic,
        partition=partition.partition,
        acks=acks,
        record_count=1,
        payload=payload,
        final_errors=(ErrorCode.NOT_ENOUGH_REPLICAS,),
    )


def loss_of(kind: str, writeback_ms: int | None) -> Loss:
    """What a failure of this kind (`unclean`, `lossy`, `disk`) does to the broker's logs."""
    return Loss(_LOSSES[kind], writeback_ms=writeback_ms)
