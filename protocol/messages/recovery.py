"""Messages of unclean recovery: what brokers are asked for, and what controller and recovery manager tell each other.

GetReplicaLogInfo is KIP-966's (G29, G30), with an error per partition, which the KIP forgot (N22). Between the
controller and the manager nothing is an answer: the controller *states* which recoveries it wants, and states them
again until it has heard how they ended; the manager states a result, and states it again when the recovery is stated
again. So every one of these messages may be lost, or come twice, and a manager that has forgotten everything is told
everything (F14).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_OFFSET
from protocol.messages.base import Int32, Int64, Message, Request, Response
from protocol.messages.control import BrokerState

MAX_PARTITIONS_PER_REQUEST = 2_000
"""Limit of GetReplicaLogInfo (F20, G29)."""


class ReplicaLogInfoTopic(Message):
    """Partitions of a topic whose logs are asked for."""

    topic_id: str
    partitions: tuple[Int32, ...]


class GetReplicaLogInfoRequest(Request):
    """Asks the broker `broker_id` for the ends of its logs; of all that it hosts, where `topic_partitions` is None."""

    CONTROL: ClassVar[bool] = True

    broker_id: Int32
    topic_partitions: tuple[ReplicaLogInfoTopic, ...] | None


class ReplicaLogInfo(Message):
    """The end of one replica's log: the leader epoch of its last record (-1: it has none), the offset behind it, and
    the leader epoch of the partition as the broker knows it from the metadata. With an error only the names count.
    """

    topic_id: str
    partition_id: Int32
    error: ErrorCode = ErrorCode.NONE
    last_written_leader_epoch: Int32 = NO_EPOCH
    current_leader_epoch: Int32 = NO_EPOCH
    log_end_offset: Int64 = NO_OFFSET


class GetReplicaLogInfoResponse(Response):
    """`broker_epoch` is that of the life which answers."""

    CONTROL: ClassVar[bool] = True

    broker_epoch: Int64 = NO_EPOCH
    log_info_list: tuple[ReplicaLogInfo, ...] = ()


class RecoveryMode(Enum):
    """When a recovery has heard enough (F11, F12)."""

    BALANCED = 0
    PROACTIVE = 1


class PartitionRecovery(Message):
    """A recovery that the controller wants. `recovery_id` names it for good. `replicas` are those that may lead now, in
    the order of the assignment, each with the epoch under which it is registered; `required` must all be heard of
    before anyone is chosen. `timeout_ms` counts from when the manager first hears of the recovery.
    """

    recovery_id: Int64
    topic_id: str
    partition_id: Int32
    leader_epoch: Int32
    mode: RecoveryMode
    replicas: tuple[BrokerState, ...]
    required: tuple[Int32, ...]
    timeout_ms: Int64


class RecoverPartitions(Message):
    """The controller wants these recoveries as they stand here. One that the manager knows goes on, with the replicas
    that are named now; another recovery of the same partition ends.
    """

    CONTROL: ClassVar[bool] = True

    recoveries: tuple[PartitionRecovery, ...]


class CancelledRecovery(Message):
    recovery_id: Int64
    topic_id: str
    partition_id: Int32


class CancelRecoveries(Message):
    """The controller wants no leader of these recoveries, be it that they have done their work."""

    CONTROL: ClassVar[bool] = True

    recoveries: tuple[CancelledRecovery, ...]


class ReplicaAnswer(Message):
    """What a replica answered, in the life `broker_epoch` of its broker."""

    broker_id: Int32
    broker_epoch: Int64
    last_written_leader_epoch: Int32
    log_end_offset: Int64


class PartitionRecoveryResult(Message):
    """What a recovery comes to: elect `leader`, for these answers. `reason` says by what it won, in a few words;
    `silent` were asked and have not answered.
    """

    recovery_id: Int64
    topic_id: str
    partition_id: Int32
    leader_epoch: Int32
    leader: Int32
    reason: str
    answers: tuple[ReplicaAnswer, ...]
    silent: tuple[Int32, ...] = ()


class RecoveryResults(Message):
    """The manager's results; they count for as long as nothing that they rest on has changed."""

    CONTROL: ClassVar[bool] = True

    results: tuple[PartitionRecoveryResult, ...]
