"""`init_leaders`: the first leader and ISR of partitions (S1 B; A19).

    0. the live brokers are known
    1.1 for each partition: one of the live assigned brokers leads, all live assigned brokers are the ISR
    1.2 write that, if there is nothing yet
    2. send it to the brokers that it concerns, one request per broker

A partition that was removed and is added again has a node already, which is `REMOVED` and gets the state
(`store/records.py`). Any other node that is there was written by an earlier controller, which may have died before step
2: its state is read and sent. A partition of which no replica is alive stays as it is, with an alert, until a broker
comes back (A53: replicas are assigned to live brokers, so they have died since).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.ids import TopicPartition
from protocol.messages.store import Create, GetData, SetData, StoreError
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller
from protocol.v3.controller.procedure import Alert, Procedure, Unit, error_of, is_topic_gone, read, write
from protocol.v3.controller.publishing import (
    UnexpectedStoreError,
    forget_deleted,
    incarnation,
    note_written,
    read_states,
)
from protocol.v3.store import paths
from protocol.v3.store.records import REMOVED, LeaderAndIsr, Stored


def uninitialised(controller: Controller) -> list[TopicPartition]:
    """The partitions that have no state and are not damaged, in order."""
    return [
        key
        for key in controller.partitions()
        if key not in controller.states and paths.leader_and_isr(key) not in controller.damaged
    ]


def init_leaders(controller: Controller, partitions: Sequence[TopicPartition]) -> Procedure[None]:
    """Initialises partitions, and sends their states."""
    wanted = {key: state for key in partitions if (state := _first_state(controller, key)) is not None}
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


def _first_state(controller: Controller, key: TopicPartition) -> LeaderAndIsr | None:
    choice = decisions.initial(controller.assigned(key), controller.brokers)
    epoch = controller.topics[key.topic].first_epoch
    return LeaderAndIsr(leader_epoch=epoch, **choice._asdict(), **controller.author._asdict()) if choice else None


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
