"""Commands of the V3 controller to brokers, and a broker's request to leave (G1-G4, G9, A35).

After the controller has written a decision to the store, it sends it to the brokers that it concerns, in one request
per broker (A17). Beside the fields of the design document a command has: the controller's epoch, since a broker refuses
the commands of a deposed controller (A35); topic ids, so that a command for a deleted topic does not reach one of the
same name that was created later (N11); the replicas, since a leader admits to the ISR only brokers that hold the
partition; and the leader epoch at which a replica is stopped, so that a delayed StopReplica does not stop a replica
that a later command started.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.base import Int32, Int64, Message, Request, Response


class TopicConfigValue(Message):
    """A config override of a topic."""

    name: str
    value: str


class LeaderAndIsrPartition(Message, since={"is_unclean_leader": 1}):
    """The state of a partition as it is in the store at `version`. `replicas` include those of a reassignment.
    `controller_id` and `controller_epoch`: who decided. `configs`: the topic's overrides.
    """

    topic: str
    topic_id: str
    partition_id: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...]
    version: Int32
    replicas: tuple[Int32, ...]
    controller_id: Int32
    controller_epoch: Int32
    configs: tuple[TopicConfigValue, ...] = ()
    is_unclean_leader: bool = False


class ControllerCommand(Request, control=True):
    """A command of a controller, which raises an alert without a response within `ack_timeout_ms` (A51)."""

    controller_id: Int32
    controller_epoch: Int32
    ack_timeout_ms: Int32


class LeaderAndIsrRequest(ControllerCommand):
    """Leaders and ISRs of partitions that the receiver holds. With `is_init`, the first command of a controller to an
    incarnation of a broker, these are all of them: the receiver deletes its other replicas (A24).
    """

    is_init: bool
    partitions: tuple[LeaderAndIsrPartition, ...]


class CommandResult(Message):
    """What a broker did with one partition of a command. FENCED_LEADER_EPOCH: it knows a newer decision."""

    topic: str
    partition_id: Int32
    error: ErrorCode = ErrorCode.NONE


class CommandResponse(Response, control=True):
    """Base of responses to commands. `error` concerns the whole command: STALE_CONTROLLER_EPOCH."""

    partitions: tuple[CommandResult, ...] = ()


class LeaderAndIsrResponse(CommandResponse):
    """One result per partition."""


class StopReplicaPartition(Message):
    """A replica to stop and delete, unless the broker knows a leader epoch of this topic id above `leader_epoch`."""

    topic: str
    topic_id: str
    partition_id: Int32
    leader_epoch: Int32


class StopReplicaRequest(ControllerCommand):
    """Replicas that the receiver no longer holds."""

    partitions: tuple[StopReplicaPartition, ...]


class StopReplicaResponse(CommandResponse):
    """One result per partition."""


class ControlledShutdownRequest(Request, control=True):
    """A broker is going to stop, and asks the controller to move its leaderships (B3, B7)."""

    broker_id: Int32
    broker_epoch: Int64


class RemainingPartition(Message):
    """A partition that the broker still leads, because no other member of the ISR is alive."""

    topic: str
    partition_id: Int32


class ControlledShutdownResponse(Response, control=True):
    """The partitions that could not be moved. The broker asks again, or stops and leaves them without a leader."""

    remaining: tuple[RemainingPartition, ...] = ()
