"""`on_topic_change`: topics have been created or deleted (S1 B; A18, A20, M36); and `init_leaders`, the first leader
and ISR of partitions (A19).

    1. read the topics, with a watch for the next change, and compare them with those in memory
    2. a topic that is gone: send StopReplica to the brokers that held it
    3. a new topic: init_leaders on its partitions; for each, one of the live assigned brokers leads, and all live
       assigned brokers are the ISR; write that, if there is nothing yet; send it, one request per broker

Topics are compared by id (N11): brokers would go on with the old logs of one that is deleted and created again between
two reads. A controller that dies after a deletion and before step 2 needs no record of it: the next one does not name
those replicas in its INIT commands, and their brokers delete them. So does a broker that was down (A36).

A partition that was removed and is added again has a node already, which is `REMOVED` and gets the state
(`store/records.py`). Any other node that is there was written by an earlier controller, which may have died before
sending it: its state is read and sent. A partition of which no replica is alive stays as it is, with an alert, until a
broker comes back (A53: replicas are assigned to live brokers, so they have died since).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from protocol.ids import BrokerId, TopicPartition
from protocol.messages.store import Create, GetData, SetData, StoreError
from protocol.messages.v3 import StopReplicaPartition
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller
from protocol.v3.controller.procedure import (
    Alert,
    BrokerCommand,
    Commands,
    Procedure,
    Unit,
    error_of,
    is_topic_gone,
    read,
    write,
)
from protocol.v3.controller.publishing import (
    UnexpectedStoreError,
    forget_deleted,
    incarnation,
    note_written,
    read_states,
    read_topics,
)
from protocol.v3.store import paths
from protocol.v3.store.records import REMOVED, LeaderAndIsr, Stored

ANY_EPOCH = 2**31 - 1
"""Stops a replica whatever its leader epoch: no decision on a deleted topic comes later."""


def on_topic_change(controller: Controller) -> Procedure[None]:
    topics = yield from read_topics(controller)
    ids = {name: topic.topic_id for name, topic in topics.items()}
    gone = [key for key in controller.partitions() if ids.get(key.topic) != controller.topics[key.topic].topic_id]
    stops = stop_replicas(controller, {key: controller.may_hold(key) for key in gone}, is_deleted=True)
    for key in gone:
        controller.forget(key)
    controller.topics = topics
    yield stops
    yield from init_leaders(controller, uninitialised(controller))


def require_topics(controller: Controller, keys: Iterable[TopicPartition]) -> Procedure[None]:
    """Reads the topics if a request names one that is not known: its creation may still be in the queue of events."""
    if any(key.topic not in controller.topics for key in keys):
        yield from on_topic_change(controller)


def stop_replicas(
    controller: Controller, holders: Mapping[TopicPartition, Iterable[BrokerId]], *, is_deleted: bool = False
) -> Commands:
    """StopReplica for partitions, to their live holders, one request per broker. `is_deleted`: their topics are."""
    parts: dict[BrokerId, list[StopReplicaPartition]] = {broker: [] for broker in sorted(controller.live)}
    for key, brokers in holders.items():
        stored = controller.states.get(key)
        epoch = stored.state.leader_epoch if stored is not None and not is_deleted else ANY_EPOCH
        for broker in brokers:
            if broker in parts:
                topic_id = controller.topics[key.topic].topic_id
                stop = StopReplicaPartition(
                    topic=key.topic, topic_id=topic_id, partition_id=key.partition, leader_epoch=epoch
                )
                parts[broker].append(stop)
    return Commands(
        tuple(BrokerCommand(broker, stop_replica=tuple(stopped)) for broker, stopped in parts.items() if stopped)
    )


def uninitialised(controller: Controller) -> list[TopicPartition]:
    """The partitions that have no state and are not damaged, in order."""
    return [
        key
        for key in controller.partitions()
        if key not in controller.states and paths.leader_and_isr(key) not in controller.damaged
    ]


def init_leaders(controller: Controller, partitions: Sequence[TopicPartition]) -> Procedure[None]:
    wanted = {}
    for key in partitions:
        if choice := decisions.initial(controller.assigned(key), controller.brokers):
            epoch = controller.topics[key.topic].first_epoch
            wanted[key] = LeaderAndIsr(leader_epoch=epoch, **choice._asdict(), **controller.author._asdict())
    if len(wanted) < len(partitions):
        offline = [key for key in partitions if key not in wanted]
        yield Alert(f"{len(offline)} new partitions, {offline[0]} first: no replica is alive")
    removed = yield from _removed(controller, wanted)
    results = yield from write(_creation(controller, key, state, removed.get(key)) for key, state in wanted.items())
    existing, refused = [], []
    for (key, state), unit in zip(wanted.items(), results, strict=True):
        error = error_of(unit)
        if error is StoreError.NONE:
            note_written(controller, key, Stored(state, unit[-1].version))
            controller.unsettled.discard(key)
        elif error in (StoreError.NODE_EXISTS, StoreError.BAD_VERSION):
            existing.append(key)
        elif is_topic_gone(unit):
            refused.append(key)
        else:
            raise UnexpectedStoreError(paths.leader_and_isr(key), error)
    yield from read_states(controller, existing)
    yield from forget_deleted(controller, refused)
    yield controller.leader_and_isr(wanted)


def _removed(controller: Controller, keys: Iterable[TopicPartition]) -> Procedure[dict[TopicPartition, int]]:
    """The versions of nodes that are `REMOVED`. There are none in a topic of which no partition has been removed."""
    again = [key for key in keys if controller.topics[key.topic].first_epoch > 0]
    results = yield from read(GetData(path=paths.leader_and_isr(key)) for key in again)
    return {key: result.version for key, result in zip(again, results, strict=True) if result.data == REMOVED}


def _creation(controller: Controller, key: TopicPartition, state: LeaderAndIsr, removed: int | None) -> Unit:
    path, data, is_same = paths.leader_and_isr(key), state.encode(), incarnation(controller, key)
    if removed is not None:
        return (is_same, SetData(path=path, data=data, version=removed))
    return (is_same, Create(path=paths.partition(key)), Create(path=path, data=data))
