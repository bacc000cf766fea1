"""The reassignment agent (S1 F and its comments; A8, A37-A41, M44).

`on_partitions_reassigned` keeps the agent's map of reassignments; `on_wakeup` moves each of them on:

    INIT:         give the partition a new leader epoch, and send its state, with the brokers that are to be added, to
    all
                  that hold it: the new replicas start to fetch, and the leader admits them to the ISR   -> IN_PROGRESS
    IN_PROGRESS:  if the brokers that are added are in the ISR and enough of the target is (E32, N8):
                  1. in one transaction: the ISR becomes its part in the target, the assignment becomes the target, the
                     request is removed; a leader that is not in the target is replaced (A41)
                  2. send the state to the target, and StopReplica to the others

The agent wakes up when a request changes, when an ISR changes as far as the controller hears of it, and every 30 s. It
runs for one step of each partition, never while replicas catch up, and a change of brokers goes before it (A41).

Departures. S1 compares the ISR with AR+RAR, which waits for dead replicas (N8). S1's INIT sends a command without a new
decision; leaders obey only larger epochs (A25). S1 changes ISR, assignment and request one after the other, with the
commands in between: a controller that dies there leaves a partition that is switched and assigned to the old replicas.
One transaction has no such states, and it publishes before it commands (A2).

An admin who changes the replicas of a request changes the target; one who removes it returns the partition to its
assignment, which is a reassignment without a request. So is a partition whose ISR has brokers that are neither assigned
nor requested: the previous controller has died after the request was removed.
"""

from __future__ import annotations

from itertools import chain, groupby
from operator import attrgetter

from protocol.ids import BrokerId, TopicPartition
from protocol.messages.store import Delete
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller, Move
from protocol.v3.controller.decisions import Choice, Replicas
from protocol.v3.controller.partitions import (
    Assignment,
    change_topic,
    read_requests,
    remove_requests,
    requested_replicas,
)
from protocol.v3.controller.procedure import Alert, Event, Later, Procedure, Unit
from protocol.v3.controller.publishing import change_states, publication, read_states
from protocol.v3.controller.topics import require_topics, stop_replicas
from protocol.v3.store import paths
from protocol.v3.store.records import LeaderAndIsr, Stored, Topic


def on_partitions_reassigned(controller: Controller) -> Procedure[None]:
    yield from read_moves(controller)
    yield from on_wakeup(controller)


def read_moves(controller: Controller) -> Procedure[None]:
    """Brings the agent's map up to date with the requests; those for partitions that do not exist are removed."""
    requests = yield from read_requests(paths.REASSIGNED)
    wanted = yield from requested_replicas(paths.REASSIGNED, requests)
    yield from require_topics(controller, requests)
    unknown = [key for key in requests if not controller.assigned(key) and not controller.damaged]
    for key in unknown:
        yield Alert(f"{key} is to be reassigned, and does not exist")
    yield from remove_requests(paths.REASSIGNED, unknown)
    for key in controller.partitions():
        follow_request(controller, key, wanted.get(key), is_damaged=key in requests and key not in wanted)


def follow_request(controller: Controller, key: TopicPartition, wanted: Replicas | None, *, is_damaged: bool) -> None:
    """Adds, changes or withdraws the reassignment of a partition (`add_reassigned_partitions`)."""
    move, assigned = controller.moves.get(key), controller.assigned(key)
    if is_damaged or (move is not None and wanted == move.target and move.is_requested):
        return
    held = set(controller.may_hold(key))
    if wanted is not None:
        controller.moves[key] = Move(wanted, held=held)
    elif move is None or move.is_requested:
        stored = controller.states.get(key)
        if move is not None or (stored is not None and not set(stored.state.isr) <= set(assigned)):
            controller.moves[key] = Move(assigned, is_requested=False, held=held)


def on_wakeup(controller: Controller) -> Procedure[None]:
    yield from _begin(controller)
    waiting = yield from _complete(controller)
    if controller.moves:
        yield Later(Event.WAKE_UP, 0 if waiting else controller.settings.agent_period_ms)


def _begin(controller: Controller) -> Procedure[None]:
    """INIT to IN_PROGRESS. A reassignment that adds no replica begins without a new epoch."""
    new = [key for key, move in controller.moves.items() if not move.has_begun]
    adding = [key for key in new if not set(controller.moves[key].target) <= set(controller.assigned(key))]
    begun = yield from change_states(controller, sorted(adding), lambda key, state: decisions.unchanged(state))
    yield controller.leader_and_isr(begun)
    for key in {*begun, *(set(new) - set(adding))}:
        controller.moves[key].has_begun = True


def _complete(controller: Controller) -> Procedure[bool]:
    """Returns whether more is complete than one transaction takes. Leaders may have written ISRs unnoticed (K12)."""
    begun = sorted(key for key, move in controller.moves.items() if move.has_begun)
    yield from read_states(controller, begun)
    ready = [key for key in begun if _completion(controller, key) is not None]
    limit, waiting = controller.settings.moves_per_write, False
    for name, group in groupby(ready, key=attrgetter("topic")):
        keys = list(group)
        waiting = waiting or len(keys) > limit
        yield from _switch(controller, name, keys[:limit])
    return waiting


def _completion(controller: Controller, key: TopicPartition) -> tuple[Stored, Choice] | None:
    """The state of a partition, and what completes its reassignment; None if nothing can."""
    move, stored = controller.moves[key], controller.states.get(key)
    if stored is None or not move.has_begun:
        return None
    min_isr = controller.min_isr(key.topic)
    choice = decisions.reassigned(stored.state, controller.assigned(key), move.target, controller.brokers, min_isr)
    return None if choice is None else (stored, choice)


def _switch(controller: Controller, name: str, keys: list[TopicPartition]) -> Procedure[None]:
    switched: dict[TopicPartition, LeaderAndIsr] = {}
    versions: dict[TopicPartition, int] = {}

    def decide(topic: Topic) -> Procedure[Assignment | None]:
        switched.clear()
        if versions:  # a write has failed: an ISR, the assignment or a request has changed
            yield from read_moves(controller)
            yield from read_states(controller, keys)
        operations: list[Unit] = []
        for key in keys:
            completion = _completion(controller, key)
            if completion is None:
                continue
            stored, choice = completion
            switched[key] = decisions.decided(stored.state, choice, controller.author)
            versions[key] = stored.version
            is_requested = controller.moves[key].is_requested
            request = (Delete(path=paths.request(paths.REASSIGNED, key)),) if is_requested else ()
            operations.append((publication(controller, key, switched[key]), *request))
        targets = {key.partition: controller.moves[key].target for key in switched}
        unit = tuple(chain.from_iterable(operations))
        return Assignment({**topic.partitions, **targets}, topic.first_epoch, unit) if switched else None

    done = yield from change_topic(controller, name, decide)
    if not done or not switched:
        return
    left: dict[TopicPartition, list[BrokerId]] = {}
    for key, state in switched.items():
        move = controller.moves.pop(key)
        controller.states[key] = Stored(state, versions[key] + 1)
        left[key] = sorted(move.held - set(move.target))
    yield controller.leader_and_isr(switched)
    yield stop_replicas(controller, left)
