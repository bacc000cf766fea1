"""`on_topic_change`: topics have been created or deleted (S1 B; A18, A20, M36).

    1. read the topics, with a watch for the next change, and compare them with those in memory
    2. a topic that is gone: send StopReplica to the brokers that held it
    3. a new topic: init_leaders on its partitions

An admin creates the topic's node, and deletes it with everything below it, and with the requests about its partitions,
in one transaction (`admin_writes.py`).
S1 compares names. A topic that is deleted and created again between two reads has the same name, and brokers would go
on with the old logs; here topics are compared by id (N11).

A controller that dies after a deletion and before step 2 needs no record of it: the next one does not name those
replicas in its INIT commands, and their brokers delete them. So does a broker that was down (A36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.ids import BrokerId, TopicPartition
from protocol.messages.v3 import StopReplicaPartition
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import stop_replica_command
from protocol.v3.controller.initialising import init_leaders, uninitialised
from protocol.v3.controller.procedure import BrokerCommand, Commands, Procedure
from protocol.v3.controller.publishing import read_topics

ANY_EPOCH = 2**31 - 1
"""Stops a replica whatever its leader epoch: no decision on a deleted topic comes later."""


def on_topic_change(controller: Controller) -> Procedure[None]:
    """Initialises new topics, and stops the replicas of deleted ones."""
    topics = yield from read_topics(controller)
    ids = {name: topic.topic_id for name, topic in topics.items()}
    kept = {name for name, topic in controller.topics.items() if ids.get(name) == topic.topic_id}
    gone = [key for key in controller.partitions() if key.topic not in kept]
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
    """StopReplica for partitions, to those of their holders that are alive, one request per broker. `is_deleted`: their
    topics are.
    """
    parts: dict[BrokerId, list[StopReplicaPartition]] = {broker: [] for broker in sorted(controller.live)}
    for key, brokers in holders.items():
        stored = controller.states.get(key)
        epoch = stored.state.leader_epoch if stored is not None and not is_deleted else ANY_EPOCH
        for broker in brokers:
            if broker in parts:
                parts[broker].append(stop_replica_command(key, controller.topics[key.topic].topic_id, epoch))
    return Commands(
        tuple(BrokerCommand(broker, stop_replica=tuple(stopped)) for broker, stopped in parts.items() if stopped)
    )
