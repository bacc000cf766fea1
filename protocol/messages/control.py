"""Messages between brokers and controllers.

Registration and heartbeats are KIP-631 with KIP-966's previous broker epoch (G23); AlterPartition is KIP-497 with the
later names (G6-G8, B1-B24); the metadata fetch carries the controller's log to brokers, who are its observers. Every
answer repeats the `correlation_id` of its request.
"""

from __future__ import annotations

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER
from protocol.messages.base import Int8, Int32, Int64, Message, Request, Response


class BrokerRegistrationRequest(Request):
    """A new incarnation of a broker asks for its epoch. `previous_broker_epoch` is what its clean-shutdown file held,
    -1 without one (G23, E21).
    """

    CONTROL: ClassVar[bool] = True

    broker_id: Int32
    incarnation_id: str
    previous_broker_epoch: Int64 = NO_EPOCH
    rack: str | None = None


class BrokerRegistrationResponse(Response):
    """`incarnation_id` is what the request said: an answer finds its way by broker id, and may be to a request of a
    former process, or of one that registers anew since it has lost its epoch.
    """

    CONTROL: ClassVar[bool] = True

    incarnation_id: str
    broker_epoch: Int64 = NO_EPOCH


class BrokerHeartbeatRequest(Request):
    """Keeps a broker's session; `current_metadata_offset` is the offset behind the last record that it applied."""

    CONTROL: ClassVar[bool] = True
    RENEWAL: ClassVar[bool] = True

    broker_id: Int32
    broker_epoch: Int64
    current_metadata_offset: Int64
    want_fence: bool = False
    want_shut_down: bool = False


class BrokerHeartbeatResponse(Response):
    """`broker_epoch` is what the heartbeat said: an answer finds its way by broker id, and two lives of a broker may be
    alive at a time (Apache Kafka answers on the connection that asked). -1 is meant for whichever life takes it.
    """

    CONTROL: ClassVar[bool] = True
    RENEWAL: ClassVar[bool] = True

    broker_epoch: Int64 = NO_EPOCH
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


class BrokerState(Message):
    """A broker id with the epoch under which the sender knows it."""

    broker_id: Int32
    broker_epoch: Int64


class PartitionIsrProposal(Message):
    """One partition of an AlterPartition request."""

    topic_id: str
    partition_id: Int32
    leader_epoch: Int32
    partition_epoch: Int32
    new_isr: tuple[BrokerState, ...]
    leader_recovery_state: Int8 = 0


class AlterPartitionRequest(Request):
    """A leader proposes new ISRs for any number of its partitions (B15)."""

    CONTROL: ClassVar[bool] = True

    broker_id: Int32
    broker_epoch: Int64
    partitions: tuple[PartitionIsrProposal, ...]


class PartitionIsrResult(Message):
    """The controller's answer for one partition: an error, or the state that is now committed.

    `metadata_offset` is the offset behind the records that made it.
    """

    topic_id: str
    partition_id: Int32
    error: ErrorCode = ErrorCode.NONE
    leader: Int32 = NO_LEADER
    leader_epoch: Int32 = 0
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0
    metadata_offset: Int64 = 0


class AlterPartitionResponse(Response):
    CONTROL: ClassVar[bool] = True

    partitions: tuple[PartitionIsrResult, ...] = ()
