"""Reading states from the store and publishing decisions in it: S1's steps 3.1 to 3.3, for many partitions at once.

A decision is written on condition that the node still has the version that it was decided on (A7, A16, M28). If a
leader has changed its ISR in between, the partition starts again at the read (S1 writes "1.1" and means 3.1, N11). The
attempts are bounded, with pauses that double; what is left then raises an alert and is decided again later. If only the
controller writes ISRs, it knows the state and reads after a conflict only (B7).

An attempt whose response is lost may have taken effect. A read that finds what this controller wanted to write counts
as a success: the commands still have to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from protocol.errors import ProtocolError, ProtocolInvariantError
from protocol.ids import TopicPartition
from protocol.messages.store import Check, Exists, GetChildren, GetData, OperationResult, SetData, StoreError
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Choice
from protocol.v3.controller.procedure import Alert, Pause, Procedure, error_of, is_topic_gone, read, same_topic, write
from protocol.v3.store import paths
from protocol.v3.store.paths import UnknownPathError
from protocol.v3.store.records import BrokerNode, DamagedNodeError, LeaderAndIsr, Stored, Topic, TopicNode, stored_state


def children(path: str, *, watch: bool = True) -> Procedure[tuple[str, ...]]:
    """The names of a node's children, with a watch; none if the node does not exist."""
    (result,) = yield from read((GetChildren(path=path, watch=watch),))
    return result.children


def read_brokers(controller: Controller) -> Procedure[dict[int, int]]:
    """The live brokers with their epochs, and a watch for changes (A11); a damaged node raises an alert."""
    names = yield from children(paths.BROKER_IDS)
    live = {}
    for path, result in (yield from read_present(f"{paths.BROKER_IDS}/{name}" for name in names)).items():
        try:
            node = BrokerNode.decode(path, result.data)
            live[paths.number(*path.rsplit("/", 1))] = node.broker_epoch
        except (DamagedNodeError, UnknownPathError) as error:
            yield Alert(str(error))
    return live


def read_present(wanted: Iterable[str]) -> Procedure[dict[str, OperationResult]]:
    """Reads nodes; the results for those that exist, by path."""
    found = tuple(wanted)
    results = yield from read(GetData(path=path) for path in found)
    return {path: result for path, result in zip(found, results, strict=True) if not result.error}


def read_topics(controller: Controller) -> Procedure[dict[str, Topic]]:
    """All topics, and a watch for new and deleted ones (A18). A damaged topic stays as it was."""
    names = yield from children(paths.TOPICS)
    topics = {}
    for path, result in (yield from read_present(map(paths.topic, names))).items():
        name = path.rpartition("/")[2]
        try:
            topics[name] = as_topic(name, result)
            controller.damaged.discard(path)
        except DamagedNodeError as error:
            if name in controller.topics:
                topics[name] = controller.topics[name]
            yield from report_damage(controller, error)
    return topics


def as_topic(name: str, result: OperationResult) -> Topic:
    """The topic that a read has found. Raises DamagedNodeError."""
    node = TopicNode.decode(paths.topic(name), result.data)
    configs = tuple(sorted(node.configs.items()))
    return Topic(node.topic_id, dict(node.partitions), result.version, node.first_epoch, configs)


def report_damage(controller: Controller, error: DamagedNodeError) -> Procedure[None]:
    if error.path not in controller.damaged:
        controller.damaged.add(error.path)
        yield Alert(str(error))


def read_states(controller: Controller, partitions: Sequence[TopicPartition]) -> Procedure[None]:
    """Reads leader and ISR of partitions (step 3.1) into `controller.states`; none for a node that does not exist, is
    damaged or removed. Both nodes of a partition are created in one transaction, so that the upper one alone is damage.
    """
    missing = []
    results = yield from read(GetData(path=paths.leader_and_isr(key)) for key in partitions)
    for key, result in zip(partitions, results, strict=True):
        path = paths.leader_and_isr(key)
        controller.states.pop(key, None)
        try:
            if result.error is not StoreError.NONE:
                missing.append(key)
                continue
            state = stored_state(path, result.data)
            if state is not None:
                controller.states[key] = Stored(state, result.version)
            controller.damaged.discard(path)
        except DamagedNodeError as error:
            yield from report_damage(controller, error)
    found = yield from read(Exists(path=paths.partition(key)) for key in missing)
    for key, above in zip(missing, found, strict=True):
        path = paths.leader_and_isr(key)
        if above.exists:
            lost = DamagedNodeError(path, b"", f"a node, since {paths.partition(key)} exists")
            yield from report_damage(controller, lost)
        else:
            controller.damaged.discard(path)


def change_states(
    controller: Controller,
    partitions: Iterable[TopicPartition],
    decide: Callable[[TopicPartition, LeaderAndIsr], Choice | None],
) -> Procedure[list[TopicPartition]]:
    """Steps 3.1 to 3.3; returns what has changed. After the last attempt the others are `controller.unsettled`."""
    settings, pending = controller.settings, list(partitions)
    changed: list[TopicPartition] = []
    wanted: dict[TopicPartition, LeaderAndIsr] = {}
    for attempt in range(settings.attempts):
        if attempt:
            yield Pause(settings.backoff_ms * 2 ** (attempt - 1))
        if attempt or settings.leaders_write_isr:
            yield from read_states(controller, pending)
        controller.unsettled.difference_update(pending)
        states = controller.states
        landed = {key for key, state in wanted.items() if key in states and states[key].state == state}
        changed += sorted(landed)
        wanted = {}
        for key in pending:
            stored = states.get(key) if key not in landed else None
            choice = decide(key, stored.state) if stored is not None else None
            if stored is not None and choice is not None:
                wanted[key] = decisions.decided(stored.state, choice, controller.author)
        written, conflicts = yield from publish(controller, wanted)
        changed += written
        if not conflicts:
            return changed
        wanted = {key: state for key, state in wanted.items() if key in conflicts}
        pending = list(wanted)
    controller.unsettled.update(pending)
    yield Alert(f"{len(pending)} partitions, {pending[0]} first: {settings.attempts} writes found another version each")
    return changed


def publish(
    controller: Controller, wanted: dict[TopicPartition, LeaderAndIsr]
) -> Procedure[tuple[list[TopicPartition], set[TopicPartition]]]:
    """Step 3.3; returns what is written, and conflicts of versions. A deleted partition has no state afterwards."""
    written: list[TopicPartition] = []
    conflicts: set[TopicPartition] = set()
    gone: list[TopicPartition] = []
    refused: list[TopicPartition] = []
    results = yield from write(
        (incarnation(controller, key), publication(controller, key, state)) for key, state in wanted.items()
    )
    for (key, state), unit in zip(wanted.items(), results, strict=True):
        error = error_of(unit)
        if error is StoreError.NONE:
            note_written(controller, key, Stored(state, unit[-1].version))
            written.append(key)
        elif error is StoreError.BAD_VERSION:
            conflicts.add(key)
        elif error is StoreError.NO_NODE:
            (refused if is_topic_gone(unit) else gone).append(key)
        else:
            raise UnexpectedStoreError(paths.leader_and_isr(key), error)
    yield from read_states(controller, gone)
    yield from forget_deleted(controller, refused)
    return written, conflicts


def note_written(controller: Controller, key: TopicPartition, stored: Stored) -> None:
    """A state has been written on condition that the topic has its id, so the node of the id is there."""
    controller.states[key] = stored
    controller.damaged.discard(paths.incarnation(key.topic, controller.topics[key.topic].topic_id))


def forget_deleted(controller: Controller, keys: Sequence[TopicPartition]) -> Procedure[None]:
    """Forgets the states of deleted topics. If a topic still has the id, only the node of its id is lost."""
    topics = dict.fromkeys(paths.topic(key.topic) for key in keys)
    lost = set()
    for path, result in (yield from read_present(topics)).items():
        name = path.rpartition("/")[2]
        topic_id = controller.topics[name].topic_id
        try:
            if as_topic(name, result).topic_id == topic_id:
                raise lost_incarnation(name, topic_id)
        except DamagedNodeError as error:
            lost.add(name)
            yield from report_damage(controller, error)
    for key in keys:
        if key.topic in lost:
            controller.unsettled.add(key)
        else:
            controller.states.pop(key, None)


def lost_incarnation(name: str, topic_id: str) -> DamagedNodeError:
    """The damage of a topic that has this id, although there is no node of the id."""
    return DamagedNodeError(paths.incarnation(name, topic_id), b"", "a node, since the topic has this id")


def incarnation(controller: Controller, key: TopicPartition) -> Check:
    """The condition that the topic of a partition is still the one that the controller knows."""
    return same_topic(key.topic, controller.topics[key.topic].topic_id)


def publication(controller: Controller, key: TopicPartition, state: LeaderAndIsr) -> SetData:
    """The write of a state on condition that the known one is still there."""
    known = controller.states.get(key)
    if known is None:
        raise ProtocolInvariantError(f"{key}: a decision without a state")
    return SetData(path=paths.leader_and_isr(key), data=state.encode(), version=known.version)


class UnexpectedStoreError(ProtocolError):
    """The store refuses a write for a reason that its tree excludes."""

    def __init__(self, path: str, error: StoreError) -> None:
        super().__init__(f"the store refuses to write {path}: {error.name}")
