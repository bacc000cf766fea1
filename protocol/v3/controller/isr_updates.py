"""Who writes the ISR: the leader (V3) or the controller (KIP-497), by `inter.broker.protocol.isr.updates` (K12, K13).

`leader`: the leader writes its ISR to the store on condition that the node has the version that it knows (A7, A46,
M30); it uses the new ISR only after the write has succeeded (A48). After a conflict it keeps the old ISR and assumes
that it has been deposed (A46), unless the leader epoch is still its own: then it goes on from the version that is
there, with an alert (`read_overtaken`). It leaves a notification of the partitions it has changed, at most once a
minute (`IsrChanges`, B2), which the controller's watch finds: `on_isr_change` then reads their states.

`controller`: the leader sends AlterPartition, KIP-497's AlterIsr under its later name, and `alter_isr` writes the ISR.
The controller knows every state without reading it, and sets no watch on notifications.

While a cluster changes from one to the other, some leaders write and some send. Both are conditional on the version of
the same node, so one of two changes wins; a controller accepts AlterPartition in either mode, and one that does not
watch notifications finds the ISRs that leaders write by conflicts.

The response to AlterPartition is sent after the write, with the new state (N3), whereas KIP-497 responds on receipt.
The controller sends LeaderAndIsr to the leader as KIP-497 says, so that one whose response is lost learns of its
version too (B18).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import ErrorCode
from protocol.ids import BrokerId, TimeMs, TopicPartition
from protocol.messages.base import Response
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionIsrProposal,
    PartitionIsrResult,
)
from protocol.messages.store import Create, Delete, GetData, SetData, StoreError
from protocol.v3.controller import decisions
from protocol.v3.controller.context import Controller
from protocol.v3.controller.procedure import Alert, Event, Later, Procedure, error_of, read, same_topic, write
from protocol.v3.controller.publishing import as_topic, children, lost_incarnation, publish, read_present, read_states
from protocol.v3.store import paths
from protocol.v3.store.records import DamagedNodeError, IsrChangeNode, LeaderAndIsr, Stored, stored_state

LEADER_WRITES: Final = "leader"
"""The value of the config with which leaders write."""
PROPAGATION_MS = 60_000
"""How often a leader leaves a notification at most (B2)."""


def write_isrs(
    changes: Mapping[TopicPartition, Stored], topic_ids: Mapping[str, str]
) -> Procedure[dict[TopicPartition, int]]:
    """A leader writes states with new ISRs on condition that the known versions are there; `topic_ids` by name. Returns
    the versions of those that are written. A write that found another version is followed by a read, since an earlier
    one may have taken effect: a leader that took that for a failure would go on without a broker that is in the ISR.
    """
    units = (
        (
            same_topic(key.topic, topic_ids[key.topic]),
            SetData(path=paths.leader_and_isr(key), data=change.state.encode(), version=change.version),
        )
        for key, change in changes.items()
    )
    results = dict(zip(changes, (yield from write(units, is_fenced=False)), strict=True))
    written = {key: unit[1].version for key, unit in results.items() if error_of(unit) is StoreError.NONE}
    others = [key for key, unit in results.items() if error_of(unit) not in (StoreError.NONE, StoreError.NO_NODE)]
    found = yield from read(GetData(path=paths.leader_and_isr(key)) for key in others)
    for key, result in zip(others, found, strict=True):
        if not result.error and result.data == changes[key].state.encode():
            written[key] = result.version
    return written


def read_overtaken(
    known: Mapping[TopicPartition, Stored], topic_ids: Mapping[str, str]
) -> Procedure[dict[TopicPartition, Stored]]:
    """The states of partitions whose write has failed although the leader epoch is still the known one: no command will
    follow, and a leader that waited for one would never change its ISR again. Each raises an alert, since no other node
    writes in this epoch; so does a damaged node, and one with the known version: the node of the topic's id is lost.
    Left out are nodes that are gone, removed, of a later topic or of another leader epoch.
    """
    found = yield from read(GetData(path=paths.leader_and_isr(key)) for key in known)
    topics = yield from read(GetData(path=paths.topic(key.topic)) for key in known)
    states = {}
    for (key, before), result, topic in zip(known.items(), found, topics, strict=True):
        path = paths.leader_and_isr(key)
        try:
            state = stored_state(path, result.data) if not result.error else None
            is_same = not topic.error and as_topic(key.topic, topic).topic_id == topic_ids[key.topic]
        except DamagedNodeError as error:
            yield Alert(str(error))
            continue
        if state is None or not is_same or state.leader_epoch != before.state.leader_epoch:
            continue
        if result.version > before.version:
            states[key] = Stored(state, result.version)
            yield Alert(f"{path}: found version {result.version}, which its leader has not written; it goes on from it")
        elif result.version == before.version:
            yield Alert(str(lost_incarnation(key.topic, topic_ids[key.topic])))
    return states


def with_isr(state: LeaderAndIsr, isr: tuple[BrokerId, ...], is_unclean_leader: bool | None = None) -> LeaderAndIsr:
    """What a leader writes: another ISR (A7, C6); after its data-loss routine also the flag (C5)."""
    flag = state.is_unclean_leader if is_unclean_leader is None else is_unclean_leader
    return state.model_copy(update={"isr": isr, "is_unclean_leader": flag})


@dataclass(slots=True)
class IsrChanges:
    """ISRs that a broker has written since its last notification, which it leaves at most every `PROPAGATION_MS`."""

    broker: BrokerId
    broker_epoch: int
    changed: set[TopicPartition] = field(default_factory=set)
    count: int = 0
    next_ms: TimeMs = 0

    def due_ms(self) -> TimeMs | None:
        """The time at which `notify` has something to write, None if nothing has changed."""
        return self.next_ms if self.changed else None

    def notify(self, now_ms: TimeMs) -> Procedure[None]:
        node = IsrChangeNode(partitions=tuple(sorted(self.changed)))
        path = paths.isr_change(self.broker, self.broker_epoch, self.count)
        self.count, self.next_ms = self.count + 1, now_ms + PROPAGATION_MS
        self.changed.clear()
        yield from write(((Create(path=path, data=node.encode()),),), is_fenced=False)


def on_isr_change(controller: Controller) -> Procedure[None]:
    """Reads the states that notifications name, and removes the notifications; reassignments may go on."""
    names = yield from children(paths.ISR_CHANGES)
    notifications = [f"{paths.ISR_CHANGES}/{name}" for name in names]
    changed: dict[TopicPartition, None] = {}
    for path, result in (yield from read_present(notifications)).items():
        try:
            changed |= dict.fromkeys(IsrChangeNode.decode(path, result.data).keys)
        except DamagedNodeError as error:
            yield Alert(str(error))
    yield from read_states(controller, [key for key in changed if controller.assigned(key)])
    yield from write((Delete(path=path),) for path in notifications)
    if any(key in controller.moves for key in changed):
        yield Later(Event.WAKE_UP)


def remove_notifications() -> Procedure[None]:
    """Removes the notifications of a former mode or term, without a watch."""
    names = yield from children(paths.ISR_CHANGES, watch=False)
    yield from write((Delete(path=f"{paths.ISR_CHANGES}/{name}"),) for name in names)


def alter_isr(controller: Controller, request: AlterPartitionRequest) -> Procedure[Response]:
    """Carries out AlterPartition: every proposal is accepted and written, or refused, by itself (B6, B15-B20)."""
    if controller.live.get(request.broker_id) != request.broker_epoch:
        return AlterPartitionResponse(correlation_id=request.correlation_id, error=ErrorCode.STALE_BROKER_EPOCH)
    names = {topic.topic_id: name for name, topic in controller.topics.items()}
    keys = [TopicPartition(names.get(p.topic_id, ""), p.partition_id) for p in request.partitions]
    proposals = list(zip(keys, request.partitions, strict=True))
    yield from _read_newer(controller, dict(proposals))
    errors: list[ErrorCode] = []
    wanted: dict[TopicPartition, LeaderAndIsr] = {}
    for key, proposal in proposals:
        error = _check(controller, request.broker_id, key, proposal)
        if key in wanted:
            error = ErrorCode.INVALID_UPDATE_VERSION
        if error is ErrorCode.NONE:
            wanted[key] = decisions.proposed(controller.states[key].state, proposal, controller.author)
        errors.append(error)
    written, conflicts = yield from publish(controller, wanted)
    yield from read_states(controller, [key for key in wanted if key in conflicts])
    yield controller.leader_and_isr(wanted)
    if any(key in controller.moves for key in wanted):
        yield Later(Event.WAKE_UP)
    results = []
    for (key, proposal), error in zip(proposals, errors, strict=True):
        if error is ErrorCode.NONE and key not in written:
            error = ErrorCode.INVALID_UPDATE_VERSION
        results.append(isr_result(proposal, error, controller.states.get(key)))
    return AlterPartitionResponse(correlation_id=request.correlation_id, partitions=tuple(results))


def _read_newer(controller: Controller, proposals: dict[TopicPartition, PartitionIsrProposal]) -> Procedure[None]:
    """Reads the states that a leader may know better: it has written them itself (K13)."""
    states, writes = controller.states, controller.settings.leaders_write_isr
    newer = {key for key, part in proposals.items() if key in states and part.partition_epoch > states[key].version}
    yield from read_states(
        controller, [key for key in proposals if controller.assigned(key) and (writes or key in newer)]
    )


def _check(controller: Controller, sender: BrokerId, key: TopicPartition, proposal: PartitionIsrProposal) -> ErrorCode:
    if not key.topic:
        return ErrorCode.UNKNOWN_TOPIC_ID
    stored = controller.states.get(key)
    if stored is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return decisions.check_proposal(stored, sender, proposal, controller.holders(key), controller.brokers)


def isr_result(proposal: PartitionIsrProposal, error: ErrorCode, stored: Stored | None) -> PartitionIsrResult:
    """The answer to a proposal: the `error`, or the state as it is stored."""
    if error is not ErrorCode.NONE or stored is None:
        return PartitionIsrResult(topic_id=proposal.topic_id, partition_id=proposal.partition_id, error=error)
    return PartitionIsrResult(
        topic_id=proposal.topic_id,
        partition_id=proposal.partition_id,
        leader=stored.state.leader,
        leader_epoch=stored.state.leader_epoch,
        isr=stored.state.isr,
        leader_recovery_state=int(stored.state.is_unclean_leader),
        partition_epoch=stored.version,
    )
