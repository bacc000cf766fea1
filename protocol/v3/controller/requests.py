"""Requests of an admin in the store, and changes of a topic's assignment (A8, A9).

A request is a node per partition; the controller reads all requests of a kind, and removes them when they are carried
out. Its watches are on the parent, on each topic's node below it, and, for reassignments, on each request, whose
replicas an admin may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from protocol.ids import Epoch, TopicPartition
from protocol.messages.store import Delete, GetData, SetData, StoreError
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Replicas
from protocol.v3.controller.procedure import Alert, Pause, Procedure, Unit, error_of, read, same_topic, write
from protocol.v3.controller.publishing import as_topic, children
from protocol.v3.store import paths
from protocol.v3.store.paths import UnknownPathError
from protocol.v3.store.records import DamagedNodeError, ReplicasNode, Topic, TopicNode


def read_requests(root: str) -> Procedure[dict[TopicPartition, bytes]]:
    """The data of all requests under `root`, by partition and in order, with watches. A node with an unknown name
    raises an alert and stays; the empty node of a topic is removed.
    """
    keys: list[TopicPartition] = []
    for name in (yield from children(root)):
        path = f"{root}/{name}"
        below = yield from children(path)
        if not below:
            yield from write(((Delete(path=path),),))
        for child in below:
            try:
                keys.append(TopicPartition(name, paths.number(path, child)))
            except UnknownPathError as error:
                yield Alert(str(error))
    results = yield from read(
        GetData(path=paths.request(root, key), watch=root == paths.REASSIGNED) for key in sorted(keys)
    )
    return {key: result.data for key, result in zip(sorted(keys), results, strict=True) if not result.error}


def requested_replicas(
    root: str, requests: Mapping[TopicPartition, bytes]
) -> Procedure[dict[TopicPartition, Replicas]]:
    """The replicas of requests to reassign or to add. A damaged request, without replicas or with one twice, raises an
    alert and stays.
    """
    found = {}
    for key, data in requests.items():
        path = paths.request(root, key)
        try:
            replicas = ReplicasNode.decode(path, data).replicas
            if not replicas or len(set(replicas)) < len(replicas):
                raise DamagedNodeError(path, data, "different brokers, one at least")
            found[key] = replicas
        except DamagedNodeError as error:
            yield Alert(str(error))
    return found


def remove_requests(root: str, keys: Iterable[TopicPartition]) -> Procedure[None]:
    yield from write((Delete(path=paths.request(root, key)),) for key in keys)


class Assignment(NamedTuple):
    """The new assignment of a topic, and what has to happen in the same transaction."""

    partitions: dict[int, Replicas]
    first_epoch: Epoch
    operations: Unit = ()


def change_topic(
    controller: Controller, name: str, decide: Callable[[Topic], Procedure[Assignment | None]]
) -> Procedure[bool]:
    """Changes the assignment of a topic by a conditional write; after a conflict the topic is read again. `decide` is a
    procedure; None changes nothing. Returns whether the topic now is as decided.
    """
    for attempt in range(controller.settings.attempts):
        if attempt:
            yield Pause(controller.settings.backoff_ms * 2 ** (attempt - 1))
            if not (yield from _read_topic(controller, name)):
                return False
        topic = controller.topics.get(name)
        wanted = (yield from decide(topic)) if topic is not None else None
        if topic is None or wanted is None:
            return topic is not None
        node = TopicNode(
            topic_id=topic.topic_id,
            partitions=wanted.partitions,
            first_epoch=wanted.first_epoch,
            configs=dict(topic.configs),
        )
        change = SetData(path=paths.topic(name), data=node.encode(), version=topic.version)
        (unit,) = yield from write(((same_topic(name, topic.topic_id), change, *wanted.operations),))
        if error_of(unit) is StoreError.NONE:
            controller.topics[name] = replace(
                topic, partitions=wanted.partitions, version=unit[1].version, first_epoch=wanted.first_epoch
            )
            return True
    yield Alert(f"topic {name}: {controller.settings.attempts} writes of its assignment found another version each")
    return False


def _read_topic(controller: Controller, name: str) -> Procedure[bool]:
    """Reads the assignment of a topic again. Returns whether it still exists; if not, a watch event says so too."""
    (result,) = yield from read((GetData(path=paths.topic(name)),))
    if result.error:
        return False
    topic = as_topic(name, result)
    if topic.topic_id != controller.topics[name].topic_id:
        return False
    controller.topics[name] = topic
    return True
