"""`on_partitions_add` and `on_partitions_remove`: partitions of existing topics (S1 H; A9, A21, A22, M45); and the
requests of admins in the store (A8, A9).

A request is a node per partition; the controller reads all requests of a kind, and removes them when they are carried
out. Its watches are on the parent, on each topic's node below it, and, for reassignments, on each request, whose
replicas an admin may change. Each step is re-entrant: the next controller carries out what a request leaves.

    add:    1. the topic's assignment gets the partitions         no effect if it has them
            2. init_leaders on them                               no effect if they are initialised
            3. remove the requests
    remove: 1. the assignment loses the partitions, and their nodes become `REMOVED`, in one transaction
            2. send StopReplica to the brokers that held them     replaced by INIT, which does not name them
            3. remove the requests

Departures: S1 removes a request before it changes the assignment, so that a controller that dies in between has lost
the partition, and sends StopReplica before the decision is published (A2).

A request to add waits until its brokers are alive and the partition below exists, so that indexes have no gaps; one to
remove waits until the partition's node can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from protocol.ids import Epoch, TopicPartition
from protocol.messages.store import Delete, GetData, SetData, StoreError
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Replicas
from protocol.v3.controller.procedure import (
    Alert,
    Event,
    Later,
    Pause,
    Procedure,
    Unit,
    error_of,
    read,
    same_topic,
    write,
)
from protocol.v3.controller.publishing import as_topic, children, read_states
from protocol.v3.controller.topics import init_leaders, require_topics, stop_replicas
from protocol.v3.store import paths
from protocol.v3.store.paths import UnknownPathError
from protocol.v3.store.records import REMOVED, DamagedNodeError, ReplicasNode, Topic, TopicNode


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
    keys.sort()
    results = yield from read(GetData(path=paths.request(root, key), watch=root == paths.REASSIGNED) for key in keys)
    return {key: result.data for key, result in zip(keys, results, strict=True) if not result.error}


def requested_replicas(
    root: str, requests: Mapping[TopicPartition, bytes]
) -> Procedure[dict[TopicPartition, Replicas]]:
    """The replicas of requests to reassign or to add; one without, or with one twice, raises an alert and stays."""
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
    """Changes the assignment of a topic by a conditional write, and after a conflict reads the topic and decides again;
    returns whether the topic now is as decided (None: unchanged).
    """
    for attempt in range(controller.settings.attempts):
        if attempt:
            yield Pause(controller.settings.backoff_ms * 2 ** (attempt - 1))
            (result,) = yield from read((GetData(path=paths.topic(name)),))
            if result.error or as_topic(name, result).topic_id != controller.topics[name].topic_id:
                return False  # the topic is gone, as the event of a watch says too
            controller.topics[name] = as_topic(name, result)
        topic = controller.topics.get(name)
        wanted = (yield from decide(topic)) if topic is not None else None
        if topic is None or wanted is None:
            return topic is not None
        partitions, first_epoch, configs = wanted.partitions, wanted.first_epoch, dict(topic.configs)
        node = TopicNode(topic_id=topic.topic_id, partitions=partitions, first_epoch=first_epoch, configs=configs)
        change = SetData(path=paths.topic(name), data=node.encode(), version=topic.version)
        (unit,) = yield from write(((same_topic(name, topic.topic_id), change, *wanted.operations),))
        if error_of(unit) is StoreError.NONE:
            version = unit[1].version
            controller.topics[name] = replace(topic, partitions=partitions, version=version, first_epoch=first_epoch)
            return True
    yield Alert(f"topic {name}: {controller.settings.attempts} writes of its assignment found another version each")
    return False


def on_partitions_add(controller: Controller) -> Procedure[None]:
    requests = yield from read_requests(paths.ADDED)
    wanted = yield from requested_replicas(paths.ADDED, requests)
    yield from require_topics(controller, wanted)
    wanted = yield from _assignable(controller, wanted)
    for name in dict.fromkeys(key.topic for key in wanted):
        added = {key: replicas for key, replicas in wanted.items() if key.topic == name}
        if not (yield from _extend(controller, name, added)):
            continue
        yield from init_leaders(controller, [key for key in added if key not in controller.states])
        yield from remove_requests(paths.ADDED, added)


def _extend(controller: Controller, name: str, added: dict[TopicPartition, Replicas]) -> Procedure[bool]:
    if name not in controller.topics:
        yield Alert(f"partitions are to be added to topic {name}, which does not exist")
        yield from remove_requests(paths.ADDED, added)
        return False

    def decide(topic: Topic) -> Procedure[Assignment | None]:
        yield from ()
        new = {key.partition: replicas for key, replicas in added.items() if key.partition not in topic.partitions}
        return Assignment({**topic.partitions, **new}, topic.first_epoch) if new else None

    done = yield from change_topic(controller, name, decide)
    if not done:
        yield Later(Event.ADDED, controller.settings.retry_ms)
    return done


def _assignable(
    controller: Controller, wanted: dict[TopicPartition, Replicas]
) -> Procedure[dict[TopicPartition, Replicas]]:
    """The requests whose brokers are alive (A53) and that leave no gap, or that an earlier controller has begun."""
    dead = {
        key: sorted(set(replicas) - controller.live.keys())
        for key, replicas in wanted.items()
        if not controller.assigned(key) and not controller.live.keys() >= set(replicas)
    }
    for key, brokers in dead.items():
        yield Alert(f"{key} is to be added on brokers {brokers}, which are not alive")
    ready: dict[TopicPartition, Replicas] = {}
    for key in sorted(wanted):
        below = TopicPartition(key.topic, key.partition - 1)
        follows = key.partition == 0 or below in ready or controller.assigned(below)
        if controller.assigned(key) or (follows and key not in dead):
            ready[key] = wanted[key]
    if len(ready) < len(wanted):
        yield Later(Event.ADDED, controller.settings.retry_ms)
    return ready


def on_partitions_remove(controller: Controller) -> Procedure[None]:
    requests = yield from read_requests(paths.REMOVED)
    yield from require_topics(controller, requests)
    requests = {key: data for key, data in requests.items() if paths.leader_and_isr(key) not in controller.damaged}
    for name in dict.fromkeys(key.topic for key in requests):
        keys = [key for key in requests if key.topic == name]
        if name in controller.topics and not (yield from _reduce(controller, name, keys)):
            yield Later(Event.REMOVED, controller.settings.retry_ms)
            continue
        yield from remove_requests(paths.REMOVED, keys)
    yield from remove_requests(paths.REASSIGNED, [key for key in requests if key in controller.moves])
    for key in requests:
        controller.forget(key)


def _reduce(controller: Controller, name: str, keys: list[TopicPartition]) -> Procedure[bool]:
    holders = {key: controller.may_hold(key) for key in keys}

    def decide(topic: Topic) -> Procedure[Assignment | None]:
        present = [key for key in keys if key.partition in topic.partitions]
        yield from read_states(controller, present)
        states = {key: controller.states[key] for key in present if key in controller.states}
        nodes = (
            SetData(path=paths.leader_and_isr(key), data=REMOVED, version=stored.version)
            for key, stored in states.items()
        )
        removed = {key.partition for key in present}
        left = {index: replicas for index, replicas in topic.partitions.items() if index not in removed}
        first_epoch = max((topic.first_epoch, *(stored.state.leader_epoch + 1 for stored in states.values())))
        return Assignment(left, first_epoch, tuple(nodes)) if present else None

    done = yield from change_topic(controller, name, decide)
    if done:
        yield stop_replicas(controller, holders)
    return done
