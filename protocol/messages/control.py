"""Requests of brokers, and of controllers that stand by, to the active controller.

Registration and heartbeats are KIP-631 with KIP-966's previous broker epoch (G23); AlterPartition is KIP-497 with the
later field names (G6-G8, B1-B24). Every response repeats the `correlation_id` of its request.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER
from protocol.messages.base import Int8, Int32, Int64, Message, Request, Response
from protocol.messages.records import ControllerFeature

NEW_DISK = -2
"""As `previous_broker_epoch`: the disk is new. Only under `NEW_DIRECTORY_RULES` (`protocol/kafka_rules.py`)."""


class BrokerRegistrationRequest(Request, control=True):
    """A broker registers. `previous_broker_epoch` is that of its clean-shutdown file, -1 without one (G23, E21).
    `endpoint` is the `HOST:PORT` of its listener for Kafka's clients, if it has one.
    """

    broker_id: Int32
    incarnation_id: str
    previous_broker_epoch: Int64 = NO_EPOCH
    rack: str | None = None
    endpoint: str | None = None


class BrokerRegistrationResponse(Response, control=True):
    """The broker epoch of the registered incarnation. `incarnation_id` repeats the request's: a response is delivered
    by broker id and may belong to an earlier incarnation, or to one that registers again.
    """

    incarnation_id: str
    broker_epoch: Int64 = NO_EPOCH


class ControllerRegistrationRequest(Request, control=True):
    """A process of a controller registers, with the feature levels that it supports (KIP-919)."""

    controller_id: Int32
    incarnation_id: str
    features: tuple[ControllerFeature, ...]


class ControllerRegistrationResponse(Response, control=True):
    """Confirms that the registration is committed, or refuses it."""


class BrokerHeartbeatRequest(Request, control=True, renewal=True):
    """Renews a broker's session. `current_metadata_offset` is the end offset of the metadata that it has applied."""

    broker_id: Int32
    broker_epoch: Int64
    current_metadata_offset: Int64
    want_fence: bool = False
    want_shut_down: bool = False


class BrokerHeartbeatResponse(Response, control=True, renewal=True):
    """The broker's state by the controller. `broker_epoch` repeats the heartbeat's, because two incarnations of a
    broker may exist at a time (Kafka responds on the connection of the request); -1 addresses any.
    """

    broker_epoch: Int64 = NO_EPOCH
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


class BrokerState(Message):
    """A broker id with the broker epoch that the sender knows."""

    broker_id: Int32
    broker_epoch: Int64


class PartitionIsrProposal(Message):
    """The proposed ISR of one partition."""

    topic_id: str
    partition_id: Int32
    leader_epoch: Int32
    partition_epoch: Int32
    new_isr: tuple[BrokerState, ...]
    leader_recovery_state: Int8 = 0


class AlterPartitionRequest(Request, control=True):
    """A leader proposes new ISRs for some of its partitions (B15)."""

    broker_id: Int32
    broker_epoch: Int64
    partitions: tuple[PartitionIsrProposal, ...]


class PartitionIsrResult(Message):
    """An error, or the committed state of one partition; `metadata_offset` is the end offset of its records."""

    topic_id: str
    partition_id: Int32
    error: ErrorCode = ErrorCode.NONE
    leader: Int32 = NO_LEADER
    leader_epoch: Int32 = 0
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0
    metadata_offset: Int64 = 0


class AlterPartitionResponse(Response, control=True):
    """One result per partition."""

    partitions: tuple[PartitionIsrResult, ...] = ()
