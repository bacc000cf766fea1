"""Node ids, typed aliases, partition names, and the constants that stand for "none".

Brokers are numbered from 0, controllers from 1000, clients from 3000; of these, load generators from 4000, and hosts of
applications that use Kafka's protocol from 6000. The unclean recovery manager is 2000, the store 2500. A node id is an
`int`; the aliases tell readers which kind of number a signature expects. `NO_LEADER` is Kafka's -1; in a change record
-2 means "unchanged" (requirements G22, N15).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from functools import lru_cache
from typing import NamedTuple

NodeId = int
BrokerId = int
Offset = int
Epoch = int
TimeMs = int
NO_LEADER = -1
NO_NODE = -1
UNCHANGED_LEADER = -2
NO_EPOCH = -1
NO_OFFSET = -1

FIRST_CONTROLLER = 1000
RECOVERY_MANAGER = 2000
STORE = 2500
FIRST_CLIENT = 3000
FIRST_LOAD = 4000
FIRST_APPLICATION = 6000
CLUSTER_ID = "isray"
"""The default cluster id."""
METADATA_LOG = "__cluster_metadata/0"
"""The name of the metadata log in a node's storage."""
STORE_LOG = "__store/0"
"""The name of the transaction log in the store's storage."""
LISTENER = 8000
"""The listener for Kafka's clients, as a node of which its own broker alone knows (`protocol/kafka`)."""
SOCKETS = 8001
"""The sockets of a broker's process, as the node at the other end of its listener's connections."""
DRIVER = 9000
"""The experiment as a node: it sends commands to clients and receives their outcomes."""


UUID_BITS = 127
_UUID = re.compile(r"[A-Za-z0-9_-]{22}")


def uuid_text(number: int) -> str:
    """A number of `UUID_BITS` bits as Kafka prints a uuid: its 16 bytes in the URL-safe base64 alphabet, 22 characters.
    The first bit is 0, so that no uuid begins with a hyphen, which a command would take for an option.
    """
    return urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")


def is_uuid(text: str) -> bool:
    """Whether a text is a uuid as `uuid_text` and Kafka print it, other than 0."""
    return _UUID.fullmatch(text) is not None and text != uuid_text(0)


class TopicPartition(NamedTuple):
    """A partition by topic name, as users write it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by topic id, as brokers and the controller identify it. A topic id is an opaque string that is never
    reused, so a recreated topic has another one (N11).
    """

    topic_id: str
    partition: int


@lru_cache(maxsize=65_536)
def partition_key(topic_id: str, partition: int) -> TopicIdPartition:
    """A cached `TopicIdPartition`, for hot paths: a cache hit is cheaper than building the tuple."""
    return TopicIdPartition(topic_id, partition)


def is_broker(node: NodeId) -> bool:
    return 0 <= node < FIRST_CONTROLLER


def is_controller(node: NodeId) -> bool:
    return FIRST_CONTROLLER <= node < RECOVERY_MANAGER


def is_recovery_manager(node: NodeId) -> bool:
    return node == RECOVERY_MANAGER


def is_store(node: NodeId) -> bool:
    return node == STORE


def is_client(node: NodeId) -> bool:
    return FIRST_CLIENT <= node < DRIVER


def is_load(node: NodeId) -> bool:
    return FIRST_LOAD <= node < FIRST_APPLICATION


def is_application(node: NodeId) -> bool:
    """Whether the node is the host of an application, which reaches brokers by connections to their listeners."""
    return FIRST_APPLICATION <= node < LISTENER


def node_name(node: NodeId) -> str:
    """The name of a node: `broker-0`, `controller-1000`, `urm`, `store`, `client-3000`, `load-4000`, `app-6000`,
    `driver`.
    """
    if is_broker(node):
        return f"broker-{node}"
    if is_controller(node):
        return f"controller-{node}"
    if is_recovery_manager(node):
        return "urm"
    if is_store(node):
        return "store"
    if is_load(node):
        return f"load-{node}"
    if is_application(node):
        return f"app-{node}"
    return {LISTENER: "listener", SOCKETS: "sockets", DRIVER: "driver"}.get(node, f"client-{node}")
