"""Messages of unclean recovery between the controller, the Unclean Recovery Manager (URM) and brokers.

GetReplicaLogInfo is KIP-966's (G29, G30), with an error per partition, which the KIP lacks (N22). The controller
publishes the recoveries it requires and repeats them until it has received their results; the URM publishes a result,
and repeats it when the controller repeats the recovery. So any of these messages may be lost or duplicated, and a URM
that has lost its state receives all of it again (F14).
"""

from __future__ import annotations

from enum import Enum

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_OFFSET
from protocol.messages.base import Int32, Int64, Message, Request, Response
from protocol.messages.control import BrokerState
from protocol.values import direct

MAX_PARTITIONS_PER_REQUEST = 2_000
"""Limit of GetReplicaLogInfo (F20, G29)."""


class ReplicaLogInfoTopic(Message):
    """Partitions of a topic whose log information is requested."""

    topic_id: str
    partitions: tuple[Int32, ...]


class GetReplicaLogInfoRequest(Request, control=True):
    """Requests the log ends of replicas from broker `broker_id`; of all its replicas if `topic_partitions` is None."""

    broker_id: Int32
    topic_partitions: tuple[ReplicaLogInfoTopic, ...] | None


class ReplicaLogInfo(Message):
    """The log end of one replica: the leader epoch of its last record (-1: the log is empty), its log end offset, and
    the leader epoch of the partition by the broker's metadata. With an error only the ids are set.
    """

    topic_id: str
    partition_id: Int32
    error: ErrorCode = ErrorCode.NONE
    last_written_leader_epoch: Int32 = NO_EPOCH
    current_leader_epoch: Int32 = NO_EPOCH
    log_end_offset: Int64 = NO_OFFSET


class GetReplicaLogInfoResponse(Response, control=True):
    """The log ends of replicas; `broker_epoch` is that of the responding incarnation."""

    broker_epoch: Int64 = NO_EPOCH
    log_info_list: tuple[ReplicaLogInfo, ...] = ()


@direct
class RecoveryMode(Enum):
    """When a recovery chooses a leader (F11, F12). BALANCED waits for all required replicas, and until the timeout for
    the other queried ones; PROACTIVE waits for all holders until the timeout, and after it for a first response.
    """

    BALANCED = 0
    PROACTIVE = 1


class PartitionRecovery(Message):
    """A recovery that the controller requires. `replicas` may lead, in this order. `holders` may hold the most records,
    fenced ones too; one of them must respond, and all `required` ones. `timeout_ms` starts with its arrival.
    """

    recovery_id: Int64
    topic_id: str
    partition_id: Int32
    leader_epoch: Int32
    mode: RecoveryMode
    replicas: tuple[BrokerState, ...]
    holders: tuple[Int32, ...]
    required: tuple[Int32, ...]
    timeout_ms: Int64


class RecoverPartitions(Message, control=True):
    """The recoveries that the controller requires: one that the URM knows gets these replicas, another replaces it."""

    recoveries: tuple[PartitionRecovery, ...]


class CancelledRecovery(Message):
    """A recovery to cancel."""

    recovery_id: Int64
    topic_id: str
    partition_id: Int32


class CancelRecoveries(Message, control=True):
    """The controller no longer needs these recoveries."""

    recoveries: tuple[CancelledRecovery, ...]


class ReplicaAnswer(Message):
    """The response of a replica whose broker was in incarnation `broker_epoch`."""

    broker_id: Int32
    broker_epoch: Int64
    last_written_leader_epoch: Int32
    log_end_offset: Int64


class PartitionRecoveryResult(Message):
    """The result of a recovery: elect `leader`, by `answers`; `silent` replicas did not respond. `reason` explains."""

    recovery_id: Int64
    topic_id: str
    partition_id: Int32
    leader_epoch: Int32
    leader: Int32
    reason: str
    answers: tuple[ReplicaAnswer, ...]
    silent: tuple[Int32, ...] = ()


class RecoveryResults(Message, control=True):
    """Results of recoveries. The controller ignores a result if the state that it is based on has changed."""

    results: tuple[PartitionRecoveryResult, ...]
