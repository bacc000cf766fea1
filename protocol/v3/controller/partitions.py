"""`on_partitions_add` and `on_partitions_remove`: partitions of existing topics (S1 H; A9, A21, A22, M45).

Each step is re-entrant: a controller that dies after it leaves a request, and the next one carries out what is left.

    add:    1. the topic's assignment gets the partitions         no effect if it has them
            2. init_leaders on them                               no effect if they are initialised
            3. remove the requests
    remove: 1. the assignment loses the partitions, and their nodes become `REMOVED`, in one transaction
            2. send StopReplica to the brokers that held them     replaced by INIT, which does not name them
            3. remove the requests

S1 removes a request before it changes the assignment: a controller that dies in between has lost the partition. It also
sends StopReplica before the decision is in the store, against its own rule that decisions are published first (A2).

A request to add waits until its brokers are alive and the partition below exists, so that indexes have no gaps; one to
remove waits until the partition's node can be read.
"""

from __future__ import annotations

from protocol.ids import TopicPartition
from protocol.messages.store import SetData
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Replicas
from protocol.v3.controller.procedure import Alert, Event, Later, Procedure
from protocol.v3.controller.publishing import read_states
from protocol.v3.controller.requests import Assignment, change_topic, read_requests, remove_requests, requested_replicas
from protocol.v3.controller.topics import init_leaders, require_topics, stop_replicas
from protocol.v3.store import paths
from protocol.v3.store.records import REMOVED, Topic


def on_partitions_add(controller: Controller) -> Procedure[None]:
    requests = yield from read_requests(paths.ADDED)
    wanted = yield from requested_replicas(paths.ADDED, requests)
    yield from require_topics(controller, wanted)
    wanted = yield from _assignable(controller, wanted)
    for name in dict.fromkeys(key.topic for key in wanted):
        added = {key: replicas for key, replicas in wanted.items() if key.topic == name}
        if not (yield from _extend(controller, name, added)):
            continue
        new = [key for key in added if key not in controller.states]
        yield from init_leaders(controller, new)
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
    """Steps 1 and 2 for the partitions of one topic."""
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
