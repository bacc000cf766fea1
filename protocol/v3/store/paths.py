"""The paths of the store, as functions, and what a path from a watch event is about (A4-A9, B2, N9).

Requests have one node per topic and below it one per partition, and an admin creates both in one transaction, so that
an empty node of a topic is a remainder that the controller may delete.

A topic that is deleted and created again has the same paths, and the versions of its nodes begin at 0 again. So a
topic's node has a child that is named by the topic id, for as long as that topic exists. Whoever writes what it has
decided about a topic checks this child in the same transaction, and so never changes a later topic of the same name.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import ProtocolError
from protocol.ids import BrokerId, TopicPartition

CONTROLLER: Final = "/controller"
"""Ephemeral: the present controller (A4)."""
CONTROLLER_EPOCH: Final = "/controller_epoch"
"""The number of controllers elected so far; its version fences the writes of deposed ones (A35)."""
BROKER_IDS: Final = "/brokers/ids"
"""Ephemeral children: the live brokers (A5)."""
TOPICS: Final = "/brokers/topics"
"""Children: the topics with their assignments (A6), and below each one node per partition with leader and ISR (A7), and
one that is named by the topic id."""
REASSIGNED: Final = "/admin/partitions_reassigned"
ADDED: Final = "/admin/partitions_add"
REMOVED: Final = "/admin/partitions_remove"
ISR_CHANGES: Final = "/isr_change_notification"
"""Children: notifications of leaders that have written ISRs themselves (B2)."""
LEADER_AND_ISR: Final = "leaderAndISR"

REQUESTS: Final = (REASSIGNED, ADDED, REMOVED)
PERSISTENT: Final = ("/brokers", BROKER_IDS, TOPICS, "/admin", *REQUESTS, ISR_CHANGES)
"""The nodes that always exist, parents first."""


class UnknownPathError(ProtocolError):
    """A node of the store that no part of the system creates."""

    def __init__(self, path: str, allowed: str) -> None:
        super().__init__(f"unknown path in the store: found {path!r}; allowed: {allowed}")


def broker(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def incarnation(name: str, topic_id: str) -> str:
    """The node that exists as long as the topic of this name has this id."""
    return f"{TOPICS}/{name}/{topic_id}"


def partition(key: TopicPartition) -> str:
    return f"{TOPICS}/{key.topic}/{key.partition}"


def leader_and_isr(key: TopicPartition) -> str:
    return f"{TOPICS}/{key.topic}/{key.partition}/{LEADER_AND_ISR}"


def request(root: str, key: TopicPartition) -> str:
    """The request about a partition under one of `REQUESTS`."""
    return f"{root}/{key.topic}/{key.partition}"


def isr_change(broker_id: BrokerId, broker_epoch: int, number: int) -> str:
    return f"{ISR_CHANGES}/{broker_id}-{broker_epoch}-{number}"


def number(parent: str, name: str) -> int:
    """The number that a child of `parent` has as its name: a broker or a partition. Raises UnknownPathError."""
    if name.isascii() and name.isdigit() and (name == "0" or name[0] != "0"):
        return int(name)
    raise UnknownPathError(f"{parent}/{name}", f"{parent}/NUMBER")


_ROOTS: Final = (CONTROLLER, CONTROLLER_EPOCH, BROKER_IDS, TOPICS, *REQUESTS, ISR_CHANGES)


def locate(path: str) -> tuple[str, tuple[str, ...]]:
    """The root that `path` is below, one of the constants above, and the names below it. Raises UnknownPathError."""
    for root in _ROOTS:
        if path == root:
            return root, ()
        if path.startswith(root + "/"):
            return root, tuple(path[len(root) + 1 :].split("/"))
    raise UnknownPathError(path, ", ".join(_ROOTS))
