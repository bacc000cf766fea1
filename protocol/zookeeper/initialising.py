"""`init_leaders`: the first leader and ISR of partitions (S1 B; A19).

    0. the live brokers are known
    1.1 for each partition: one of the live assigned brokers leads, all live assigned brokers are the ISR
    1.2 write that, if there is nothing yet
    2. send it to the brokers that it concerns, one request per broker

A node that is there already was written by an earlier controller, which may have died before step 2: its state is read
and sent. A partition of which no replica is alive stays as it is, with an alert, until a broker comes back (A53:
replicas are assigned to live brokers, so they have died since).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import TopicPartition
from protocol.messages.store import Check, Create, StoreError
from protocol.zookeeper import decisions, paths
from protocol.zookeeper.context import Controller
from protocol.zookeeper.procedure import Alert, Procedure, error_of, is_topic_gone, write
from protocol.zookeeper.publishing import UnexpectedStoreError, forget_deleted, incarnation, read_states
from protocol.zookeeper.records import LeaderAndIsr, Stored


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
    results = yield from write(_creation(controller, key, state) for key, state in wanted.items())
    existing, refused = [], []
    for (key, state), unit in zip(wanted.items(), results, strict=True):
        error = error_of(unit)
        if error is StoreError.NONE:
            controller.states[key] = Stored(state, 0)
            controller.damaged.discard(incarnation(controller, key).path)
            controller.unsettled.discard(key)
        elif error is StoreError.NODE_EXISTS:
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


def _creation(controller: Controller, key: TopicPartition, state: LeaderAndIsr) -> tuple[Check, Create, Create]:
    return (
        incarnation(controller, key),
        Create(path=paths.partition(key)),
        Create(path=paths.leader_and_isr(key), data=state.encode()),
    )
