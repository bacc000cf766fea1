"""What an admin writes into the store: topics, and requests for the controller (A6, A8, A9, A18, A20, N9).

Any broker carries these out for a client over its own session; the controller's watches find them. Each is one
transaction, so that the controller never sees a part of it. The functions return what was refused, as a wire error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
from protocol.messages.store import Check, Create, Delete, GetChildren, GetData, SetData, StoreError, WriteOperation
from protocol.v3.controller.decisions import Replicas
from protocol.v3.controller.procedure import Procedure, error_of, read, same_topic, write
from protocol.v3.store import paths
from protocol.v3.store.records import ReplicasNode, TopicNode

ATTEMPTS = 8
"""How often a transaction is decided again after another admin or the controller has changed what it depends on."""


def create_topic(
    name: str, topic_id: str, assignment: Mapping[int, Replicas], configs: Mapping[str, str] | None = None
) -> Procedure[ErrorCode]:
    """Creates a topic with its assignment and config overrides; the controller initialises its partitions."""
    node = TopicNode(topic_id=topic_id, partitions=dict(assignment), configs=dict(configs or {}))
    created = (
        Create(path=paths.topic(name), data=node.encode()),
        Create(path=paths.incarnation(name, topic_id)),
    )
    (unit,) = yield from write((created,), is_fenced=False)
    if error_of(unit) is StoreError.NODE_EXISTS:
        return ErrorCode.TOPIC_ALREADY_EXISTS
    return ErrorCode.NONE if error_of(unit) is StoreError.NONE else ErrorCode.INVALID_TOPIC_EXCEPTION


def delete_topic(name: str) -> Procedure[ErrorCode]:
    """Deletes a topic with its partitions and the requests about them; the controller stops its replicas."""
    for _ in range(ATTEMPTS):
        (topic,) = yield from read((GetData(path=paths.topic(name)),))
        if topic.error:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        requested = [f"{root}/{name}" for root in paths.REQUESTS]
        found = yield from read(GetChildren(path=path) for path in (paths.topic(name), *requested))
        nodes = [*_topic_nodes(name, found[0].children), paths.topic(name)]
        for parent, result in zip(requested, found[1:], strict=True):
            if not result.error:
                nodes += [*(f"{parent}/{child}" for child in result.children), parent]
        (unit,) = yield from write((tuple(Delete(path=path) for path in nodes),), is_fenced=False)
        if error_of(unit) is StoreError.NONE:
            return ErrorCode.NONE
    return ErrorCode.REQUEST_TIMED_OUT


def _topic_nodes(name: str, children: Iterable[str]) -> Iterator[str]:
    """The nodes below that of a topic, with these children: its partitions with their states, and that of its id."""
    for child in children:
        path = f"{paths.topic(name)}/{child}"
        if child.isdigit():
            yield f"{path}/{paths.LEADER_AND_ISR}"
        yield path


def request(root: str, key: TopicPartition, replicas: Replicas = ()) -> Procedure[ErrorCode]:
    """Requests the reassignment (to `replicas`), the addition (on `replicas`) or the removal of a partition, by one of
    `paths.REQUESTS`. A requested reassignment gets the new replicas.
    """
    path, parent = paths.request(root, key), f"{root}/{key.topic}"
    data = ReplicasNode(replicas=replicas).encode() if root != paths.REMOVED else b""
    for _ in range(ATTEMPTS):
        (topic, above) = yield from read((GetData(path=paths.topic(key.topic)), GetData(path=parent)))
        if topic.error:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node = TopicNode.decode(paths.topic(key.topic), topic.data)
        exists = key.partition in node.partitions
        if exists is (root == paths.ADDED):
            return ErrorCode.INVALID_PARTITIONS if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_same = same_topic(key.topic, node.topic_id)
        wanted: list[WriteOperation] = [is_same, Check(path=paths.topic(key.topic), version=topic.version)]
        wanted += [Create(path=parent)] if above.error else []
        (unit,) = yield from write(((*wanted, Create(path=path, data=data)),), is_fenced=False)
        if error_of(unit) is StoreError.NODE_EXISTS and not above.error:
            (unit,) = yield from write(((is_same, SetData(path=path, data=data)),), is_fenced=False)
        if error_of(unit) is StoreError.NONE:
            return ErrorCode.NONE
    return ErrorCode.REQUEST_TIMED_OUT


def cancel_reassignment(key: TopicPartition) -> Procedure[ErrorCode]:
    """Withdraws a reassignment; the partition returns to its assignment."""
    (unit,) = yield from write(((Delete(path=paths.request(paths.REASSIGNED, key)),),), is_fenced=False)
    return ErrorCode.NONE if error_of(unit) is StoreError.NONE else ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
