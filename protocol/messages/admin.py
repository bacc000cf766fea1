"""Administration: what a client asks the controller to change.

Each request is answered when its records are committed. Wrong input is answered with an `ErrorCode` and changes
nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from protocol.ids import NO_LEADER
from protocol.messages.base import Message
from protocol.messages.control import Request, Response


class AdminRequest(Request):
    """Base of administration requests; answered with `AdminResponse`."""

    CONTROL: ClassVar[bool] = True


class AdminResponse(Response):
    """`message` says in a few words what was wrong, and is empty otherwise."""

    CONTROL: ClassVar[bool] = True

    message: str = ""


class ConfigChange(Message):
    """Sets a config, or removes its override (`value` None)."""

    name: str
    value: str | None


class CreateTopicRequest(AdminRequest):
    """Creates a topic with one replica list per partition; the first replica is the preferred leader (A6)."""

    name: str
    assignments: tuple[tuple[int, ...], ...]
    configs: tuple[ConfigChange, ...] = ()


class DeleteTopicRequest(AdminRequest):
    name: str


class CreatePartitionsRequest(AdminRequest):
    """Adds partitions to a topic, one replica list each."""

    name: str
    assignments: tuple[tuple[int, ...], ...]


class AlterConfigsRequest(AdminRequest):
    """Changes configs of a topic, or the cluster-wide defaults (`topic` None)."""

    topic: str | None
    configs: tuple[ConfigChange, ...]


class ElectionType(Enum):
    """Wire values as requirements N14 settles them."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeadersRequest(AdminRequest):
    """Elects a leader for one partition (J2, J3)."""

    topic: str
    partition: int
    election_type: ElectionType


class AlterPartitionReassignmentRequest(AdminRequest):
    """Moves a partition to `replicas`, or cancels the move that is under way (`replicas` None)."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class PartitionMetadata(Message):
    """A partition as clients need it."""

    partition: int
    leader: int = NO_LEADER
    leader_epoch: int = 0


class TopicMetadata(Message):
    name: str
    topic_id: str
    partitions: tuple[PartitionMetadata, ...]


class MetadataRequest(Request):
    """A client asks a broker who leads what; `topic` names the one that it is interested in."""

    topic: str


class MetadataResponse(Response):
    topics: tuple[TopicMetadata, ...] = ()
