"""How a leader of generation `v3` changes its ISR: by a write to the store, or by a request to the controller.

The config `inter.broker.protocol.isr.updates` decides (K12; `v3/controller/isr_updates.py`). In both cases the
proposals and their results have the form of AlterPartition (`broker/isr_manager.py`). During the write the leader waits
for the members of both ISRs before it advances the high watermark: S1's leader stops for the write.

A proposal whose write found another version stays open: the command of the controller that has changed the partition
will say how (A46). One that is repeated, because the store was slow, is answered with what the first write has left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.broker.context import BrokerContext
from protocol.config import ISR_UPDATES
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs, TopicIdPartition, partition_key
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse
from protocol.v3.broker.metadata import CommandedMetadata
from protocol.v3.controller.isr_updates import (
    LEADER_WRITES,
    IsrChanges,
    isr_result,
    read_overtaken,
    with_isr,
    write_isrs,
)
from protocol.v3.controller.procedure import Procedure
from protocol.v3.controller.runner import Runner
from protocol.v3.store.records import Stored

NOTIFY_TIMER = "isr-notification"


class IsrWriter:
    """Carries out the ISR proposals of one broker. `on_result` takes the response as one of the controller."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._writes_itself = context.config.values[ISR_UPDATES] == LEADER_WRITES
        self._changes = IsrChanges(context.me, context.broker_epoch)
        self.runner: Runner
        self.metadata: CommandedMetadata
        self.on_result: Callable[[TimeMs, NodeId, AlterPartitionResponse], None] | None = None

    def registered(self) -> None:
        """The broker has a new epoch, under which it leaves its notifications."""
        self._changes = IsrChanges(self._context.me, self._context.broker_epoch)

    def submit(self, now_ms: TimeMs, request: AlterPartitionRequest) -> None:
        """Writes the proposals, or sends them to the controller."""
        if self._writes_itself:
            self.runner.call(now_ms, "isr", partial(self._write, request), self._respond)
        else:
            self._context.out.send(self._context.controller_id, request)

    def _write(self, request: AlterPartitionRequest) -> Procedure[AlterPartitionResponse]:
        keys = [partition_key(part.topic_id, part.partition_id) for part in request.partitions]
        changes: dict[TopicIdPartition, Stored] = {}
        for key, proposal in zip(keys, request.partitions, strict=True):
            known, proposed = self.metadata.states.get(key), (proposal.leader_epoch, proposal.partition_epoch)
            if known is not None and proposed == (known.state.leader_epoch, known.version):
                isr = tuple(member.broker_id for member in proposal.new_isr)
                changes[key] = Stored(with_isr(known.state, isr, bool(proposal.leader_recovery_state)), known.version)
        names = {key: self._context.image.name_of(key) for key in changes}
        topic_ids = {names[key].topic: key.topic_id for key in changes}
        wanted = {names[key]: change for key, change in changes.items()}
        versions = yield from write_isrs(wanted, topic_ids)
        conflicts = {name: change for name, change in wanted.items() if name not in versions}
        newer = yield from read_overtaken(conflicts, topic_ids)
        results = []
        for key, proposal in zip(keys, request.partitions, strict=True):
            version = versions.get(names[key]) if key in names else None
            if version is not None:
                self.metadata.wrote(key, Stored(changes[key].state, version))
                self._changes.changed.add(names[key])
            elif key in names and names[key] in newer:
                self.metadata.wrote(key, newer[names[key]])
            known, error = self.metadata.states.get(key), ErrorCode.INVALID_UPDATE_VERSION
            # A newer state of the epoch was just written, or is left by an earlier write of the same proposal.
            if known is not None and known.state.leader_epoch == proposal.leader_epoch:
                error = ErrorCode.NONE if known.version > proposal.partition_epoch else error
            results.append(isr_result(proposal, error, known))
        return AlterPartitionResponse(correlation_id=request.correlation_id, partitions=tuple(results))

    def _respond(self, now_ms: TimeMs, response: AlterPartitionResponse | None) -> None:
        if response is not None and self.on_result is not None:
            self.on_result(now_ms, self._context.me, response)
            if (due_ms := self._changes.due_ms()) is not None:
                self._context.out.set_timer(NOTIFY_TIMER, max(due_ms, now_ms))

    def fire(self, now_ms: TimeMs, _: str) -> None:
        """Leaves a notification of the ISRs that have changed (B2)."""
        due_ms = self._changes.due_ms()
        if due_ms is not None and due_ms <= now_ms:
            self.runner.call(now_ms, "isr-notification", partial(self._changes.notify, now_ms), lambda now_ms, _: None)
