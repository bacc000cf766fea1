"""The metadata of a broker: what follows an input of its replica of the metadata log.

The broker replays what the quorum has committed into its metadata image, takes snapshots of the image, and takes the
leader of the log for the active controller. The replicas follow the image from when it contains the broker's own
registration, so that they never take roles of a former incarnation (Kafka's `BrokerMetadataPublisher`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.broker.context import BrokerContext
from protocol.broker.fetcher import Fetcher
from protocol.broker.isr_manager import IsrManager
from protocol.broker.lifecycle import LifecycleState
from protocol.broker.lifecycle_manager import BrokerLifecycleManager
from protocol.broker.replicas import ReplicaManager
from protocol.events.broker import MetadataPublished
from protocol.ids import NO_LEADER, NodeId, TimeMs
from protocol.messages.control import BrokerRegistrationResponse
from protocol.messages.quorum import QuorumResponse
from protocol.nodes.metadata_feed import LogEntries, SnapshotGenerator, log_entries
from protocol.quorum.replica import QuorumReplica

_CATCHING_UP: Final = LifecycleState.CATCHING_UP
_RUNNING: Final = LifecycleState.RUNNING


@dataclass(eq=False)
class BrokerMetadata:
    """Brings the parts of one broker to the state of its replica of the metadata log."""

    _context: BrokerContext
    _replica: QuorumReplica
    _snapshots: SnapshotGenerator
    _lifecycle: BrokerLifecycleManager
    _isr: IsrManager
    _fetcher: Fetcher
    _replica_manager: ReplicaManager

    def receive_registration(self, now_ms: TimeMs, sender: NodeId, response: BrokerRegistrationResponse) -> None:
        if self._lifecycle.accept_registration(sender, response):
            self._fetcher.broker_epoch_changed()
            self._publish(now_ms)
            self._lifecycle.fire_heartbeat(now_ms)

    def receive_quorum(self, now_ms: TimeMs, sender: NodeId, response: QuorumResponse) -> None:
        self._replica.receive(now_ms, sender, response)
        self.follow_quorum(now_ms)

    def follow_quorum(self, now_ms: TimeMs) -> None:
        """After an input of the metadata log's replica: follows a new controller, replays what has been committed."""
        replica, context = self._replica, self._context
        replica.settle(now_ms)
        if replica.leader not in (NO_LEADER, context.controller_id):
            context.controller_id = replica.leader
            self._lifecycle.fire_heartbeat(now_ms)
            self._isr.fire(now_ms)
        if context.image.next_offset < replica.high_watermark:
            for item in log_entries(replica, context.image.next_offset, replica.high_watermark):
                self._replay(item)
            self._snapshots.take_if_due(now_ms, context.image)
            self._publish(now_ms)

    def _replay(self, item: LogEntries) -> None:
        image = self._context.image
        if item.is_snapshot:
            image.load(item.records, item.next_offset)
        else:
            for record in item.records:
                image.replay(record)

    def _publish(self, now_ms: TimeMs) -> None:
        """Applies the image to the replicas, once it is complete and contains this broker's registration."""
        context, lifecycle = self._context, self._lifecycle
        image = context.image
        if not self._replica.is_caught_up or not 0 <= context.broker_epoch < image.next_offset:
            return
        if not lifecycle.has_published:
            lifecycle.has_published = True
            self._replica_manager.remove_stale_logs()
        self._replica_manager.apply(image.take_delta(), now_ms)
        context.out.trace(MetadataPublished(context.me, image.next_offset))
        unregistered = image.broker_epoch(context.me) != context.broker_epoch
        state = lifecycle.state
        if state is _CATCHING_UP or (state is _RUNNING and unregistered):
            lifecycle.fire_heartbeat(now_ms)
