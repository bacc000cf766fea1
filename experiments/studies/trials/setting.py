"""The cluster that a cell's parameters describe, the same on both engines: its nodes, configs and topic."""

from __future__ import annotations

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss, LossKind
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import assignments
from experiments.studies.trials.states import TOPIC
from protocol.config import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    FLUSH_MS,
    METADATA_SNAPSHOT_BYTES,
    METADATA_SNAPSHOT_INTERVAL_MS,
    MIN_INSYNC_REPLICAS,
    UNCLEAN_RECOVERY_STRATEGY,
    ClusterConfig,
    Generation,
)
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TopicPartition
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import ProduceCommand
from protocol.messages.trusted import trusted

_PRODUCE = trusted(ProduceCommand)

ACKS = {"0": 0, "1": 1, "all": -1}
"""The producer's `acks` as the protocol writes them."""
SNAPSHOT_BYTES = 1_000
"""Of the metadata log between two snapshots, about 15 batches: a restarting broker replays these and what it has
missed, however long the trial. Changes are so rare that with Kafka's interval of an hour, which is switched off here,
every node would take a snapshot after each of them.
"""
_LOSSES: dict[str, LossKind] = {"unclean": "none", "lossy": "unflushed", "disk": "all"}


def cluster_spec(params: CellParameters, seed: int) -> ClusterSpec:
    """The nodes and the brokers' configs; one controller, which does not fail."""
    overrides: dict[str, object] = {
        UNCLEAN_RECOVERY_STRATEGY: params.unclean_recovery_strategy,
        METADATA_SNAPSHOT_BYTES: SNAPSHOT_BYTES,
        METADATA_SNAPSHOT_INTERVAL_MS: 0,
    }
    if params.detection_ms is not None:
        overrides[BROKER_SESSION_TIMEOUT_MS] = params.detection_ms
        overrides[BROKER_HEARTBEAT_INTERVAL_MS] = params.heartbeat_interval_ms
    if params.flush_interval_ms is not None:
        overrides[FLUSH_MS] = params.flush_interval_ms
    return ClusterSpec(params.brokers, 1, ClusterConfig.of(Generation(params.generation), overrides), seed)


def topic_request(params: CellParameters) -> AdminRequest:
    """The request that creates the topic."""
    return create_topic(TOPIC, assignments(params), {MIN_INSYNC_REPLICAS: params.min_insync_replicas})


def replicas_of(params: CellParameters) -> dict[NodeId, set[TopicPartition]]:
    """The partitions of which each broker has a replica."""
    placed = assignments(params)
    return {
        broker: {TopicPartition(TOPIC, index) for index, replicas in enumerate(placed) if broker in replicas}
        for broker in range(params.brokers)
    }


def write_of(command_id: int, partition: TopicPartition, acks: int, payload: bytes) -> ProduceCommand:
    """The command that writes one record of a trial's workload. Too small an ISR is an answer; other errors are
    retried."""
    return _PRODUCE(
        command_id=command_id,
        topic=partition.topic,
        partition=partition.partition,
        acks=acks,
        record_count=1,
        payload=payload,
        final_errors=(ErrorCode.NOT_ENOUGH_REPLICAS,),
    )


def loss_of(kind: str) -> Loss:
    """What a failure of this kind (`unclean`, `lossy`, `disk`) does to the broker's logs."""
    return Loss(_LOSSES[kind])
