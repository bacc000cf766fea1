"""The controller node: one event at a time, decide, append, replay, answer.

Every change takes the same way: a handler plans records against the present state, the records are appended to the
metadata log and flushed, then replayed, then the request is answered and brokers with a standing metadata fetch are
sent the news. Nothing is changed that is not in the log, so a restarted controller is where its log is. Sessions of
brokers live in memory only: after a restart every unfenced broker gets a full session timeout to speak up. Heartbeats
and ISR proposals of a broker's life count once, and in the order in which they were sent (`sending_order.py`): a
heartbeat that was overtaken is answered and changes nothing, a proposal is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from protocol.config import BROKER_SESSION_TIMEOUT_MS, MIN_INSYNC_REPLICAS, ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.controller import alter_partition, brokers
from protocol.controller.administration import plan
from protocol.controller.broker_requests import heartbeat_error, metadata_fetch_error, registration_error
from protocol.controller.context import ControllerState
from protocol.controller.features import bootstrap_records
from protocol.controller.heartbeats import BrokerControlState, HeartbeatView, next_control_state
from protocol.controller.metrics import Alert, ControllerMetrics
from protocol.controller.recoveries import TIMERS as RECOVERY_TIMERS
from protocol.controller.recoveries import Recoveries
from protocol.controller.sending_order import SendingOrder
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import (
    METADATA_LOG,
    NO_EPOCH,
    BrokerId,
    Epoch,
    NodeId,
    Offset,
    TimeMs,
    TopicIdPartition,
    is_recovery_manager,
)
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    MetadataFetchRequest,
    MetadataFetchResponse,
)
from protocol.messages.metadata_batch import pack_batch, unpack_records
from protocol.messages.partitions import ElectLeadersResponse
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.messages.recovery import RecoveryResults
from protocol.messages.trusted import trusted
from protocol.metadata.authorizer import may_act_for_cluster
from protocol.metadata.describe import describe_topic
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.metadata.queries import answer
from protocol.nodes.refusals import refuse

_ANSWER: Final = trusted(BrokerHeartbeatResponse)
_RECORDS: Final = trusted(MetadataFetchResponse)
_BATCH: Final = trusted(RecordBatch)
SESSION_PREFIX = "session/"
HEARTBEAT_TIMER = "heartbeat"
SNAPSHOT_LAG = 64
"""A broker that is more records behind than this, and than an image of the metadata has, gets the image."""
MAX_FETCH_RECORDS = 10_000
"""No answer to a metadata fetch has more records: more of the log goes in several, and a larger image is not sent."""
_SCAN_BYTES = 8 * 1_048_576
_OF_THE_CLUSTER = (
    BrokerHeartbeatRequest,
    MetadataFetchRequest,
    AlterPartitionRequest,
    BrokerRegistrationRequest,
    RecoveryResults,
    ShutdownCommand,
)
"""What only the cluster's own nodes have reason to send, and the experiment (G8)."""


class ControllerNode:
    """The active controller of a cluster; see the module docstring."""

    def __init__(
        self, controller_id: NodeId, controllers: Sequence[NodeId], config: ClusterConfig, storage: Storage, rng: Random
    ) -> None:
        self.node_id = controller_id
        self.config = config
        self.storage = storage
        self.state = ControllerState(config, rng)
        self._out = Outbox()
        self._recoveries = Recoveries(self.state, self._out)
        self._metrics = ControllerMetrics(self.state, len(controllers), self._recoveries)
        self._log = storage.open_log(METADATA_LOG)
        self._records: list[MetadataRecord] = []
        self._session_ms = config.int_value(BROKER_SESSION_TIMEOUT_MS)
        self._sessions: set[BrokerId] = set()
        self._applied: dict[BrokerId, Offset] = {}
        self._heartbeats = SendingOrder()
        self._proposals = SendingOrder()
        self._shutdown_offsets: dict[BrokerId, Offset] = {}
        self._parked: dict[BrokerId, Offset] = {}

    @property
    def records(self) -> Sequence[MetadataRecord]:
        """The metadata log, for checkers to read."""
        return self._records

    def metrics(self) -> Mapping[str, int]:
        """The metrics of the cluster by name; units and meaning in `protocol/controller/metrics.py`."""
        return self._metrics.values()

    # -- contract ------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> list[Effect]:
        if self._log.end_offset == 0:
            self._append(bootstrap_records(self.state))
        offset = 0
        while offset < self._log.end_offset:
            for batch in self._log.read(offset, _SCAN_BYTES):
                self._replay(unpack_records(batch.payload))
                offset = batch.next_offset
        self._out.drain()  # observers were told of these records when they were committed
        for broker, registration in sorted(self.state.image.brokers.items()):
            if not registration.fenced:
                self._touch(broker, now_ms)
        self._metrics.begin(now_ms)
        self._out.trace("controller_started", None, next_offset=self.state.image.next_offset)
        self._recoveries.settle(now_ms)
        return self._out.drain()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        self._metrics.now_ms = now_ms
        if isinstance(message, _OF_THE_CLUSTER) and not may_act_for_cluster(self.state.image, sender):
            refuse(self._out, sender, message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elif isinstance(message, BrokerHeartbeatRequest):
            self._heartbeat(now_ms, sender, message)
        elif isinstance(message, MetadataFetchRequest):
            self._fetch(sender, message)
        elif isinstance(message, AlterPartitionRequest):
            self._alter_partition(sender, message)
        elif isinstance(message, BrokerRegistrationRequest):
            self._register(now_ms, sender, message)
        elif isinstance(message, AdminRequest):
            self._administer(now_ms, sender, message)
        elif isinstance(message, RecoveryResults) and is_recovery_manager(sender):
            self._elect_recovered(message)
        elif isinstance(message, MetadataRequest):
            self._out.send(sender, describe_topic(self.state.image, message))
        elif isinstance(message, ShutdownCommand):
            self._out.exit()
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        return self._finish(now_ms)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        self._metrics.now_ms = now_ms
        if name in RECOVERY_TIMERS:
            self._recoveries.fire(now_ms, name)
        elif name.startswith(SESSION_PREFIX):
            self._session_over(name)
        else:
            raise ProtocolInvariantError(f"controller {self.node_id} has no timer {name!r}")
        return self._finish(now_ms)

    def _finish(self, now_ms: TimeMs) -> list[Effect]:
        """What every event ends with."""
        self._recoveries.settle(now_ms)
        self._metrics.settle(self._applied)
        self._answer_parked()
        return self._out.drain()

    def _session_over(self, name: str) -> None:
        broker = int(name.removeprefix(SESSION_PREFIX))
        self._sessions.discard(broker)
        registration = self.state.image.brokers.get(broker)
        if registration is not None and not registration.fenced:
            self._out.trace("session_expired", None, broker=broker)
            self._fence(broker, registration.broker_epoch)

    # -- the one way to change anything --------------------------------------------------------------------------------

    def _write(self, records: Sequence[MetadataRecord]) -> None:
        """Appends, flushes and replays a batch of records, which thereby are committed."""
        if not records:
            return
        base_offset = self._log.end_offset
        self._append(records)
        self._out.trace("committed", None, base_offset=base_offset, end_offset=self._log.end_offset)
        for key in self._replay(records):
            self._trace_partition(key)
        for alert in self._metrics.take_alerts():
            self._trace_alert(alert)

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        """Makes records durable, in the versions of the feature levels in force."""
        self._log.append(
            _BATCH(
                base_offset=self._log.end_offset,
                leader_epoch=0,
                record_count=len(records),
                payload=pack_batch(records, self.state.image.feature_levels),
            )
        )
        self._log.flush()

    def _replay(self, records: Sequence[MetadataRecord]) -> dict[TopicIdPartition, None]:
        changed: dict[TopicIdPartition, None] = {}
        for record in records:
            delta = self.state.replay(record)
            self._metrics.replayed(record, delta)
            self._recoveries.replayed(delta)
            self._records.append(record)
            changed.update(delta.partitions)
            for topic in delta.deleted_topics.values():
                self._out.trace("topic_deleted", None, topic=topic.name)
            for key in delta.removed_partitions:
                name = self.state.image.name_of(key)
                self._out.trace("partition_removed", name)
            if isinstance(record, FeatureLevelRecord):
                self._out.trace("feature_level", None, feature=record.name, level=record.feature_level)
            for broker in delta.brokers:
                registration = self.state.image.brokers.get(broker)
                if registration is None:
                    self._out.trace("broker_unregistered", None, broker=broker)
                    self._end_session(broker)
                    continue
                self._out.trace(
                    "broker_registration",
                    None,
                    broker=broker,
                    broker_epoch=registration.broker_epoch,
                    fenced=registration.fenced,
                    in_controlled_shutdown=registration.in_controlled_shutdown,
                )
        return changed

    def _trace_partition(self, key: TopicIdPartition) -> None:
        state = self.state.image.partition(key)
        if state is None:
            return
        name = self.state.image.name_of(key)
        min_isr = self.state.image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
        self._out.trace("partition", name, **partition_detail(state), min_isr=min_isr)

    def _trace_alert(self, alert: Alert) -> None:
        name = self.state.image.name_of(alert.key)
        state = alert.state
        self._out.trace("alert", name, alert=alert.kind, leader=state.leader, leader_epoch=state.leader_epoch)

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _touch(self, broker: BrokerId, now_ms: TimeMs) -> None:
        """The broker has a session from now."""
        self._sessions.add(broker)
        self._out.set_timer(
            f"{SESSION_PREFIX}{broker}", now_ms + self._session_ms, idle_with=broker, renewed_by=HEARTBEAT_TIMER
        )

    def _forget_life(self, broker: BrokerId) -> None:
        self._heartbeats.forget(broker)
        self._proposals.forget(broker)
        self._shutdown_offsets.pop(broker, None)
        self._applied.pop(broker, None)

    def _end_session(self, broker: BrokerId) -> None:
        self._forget_life(broker)
        if broker in self._sessions:
            self._sessions.discard(broker)
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")

    def _register(self, now_ms: TimeMs, sender: NodeId, request: BrokerRegistrationRequest) -> None:
        broker = request.broker_id
        known = self.state.image.brokers.get(broker)
        error, epoch = registration_error(self.state.image, request, broker in self._sessions), NO_EPOCH
        if error is ErrorCode.NONE and known is not None and known.incarnation_id == request.incarnation_id:
            epoch = known.broker_epoch
        elif error is ErrorCode.NONE:
            self._forget_life(broker)
            self._parked.pop(broker, None)
            records = brokers.register(
                self.state, broker, request.incarnation_id, request.previous_broker_epoch, request.rack
            )
            self._write(records)
            epoch = self.state.image.brokers[broker].broker_epoch
        self._out.send(
            sender,
            BrokerRegistrationResponse(
                correlation_id=request.correlation_id,
                error=error,
                incarnation_id=request.incarnation_id,
                broker_epoch=epoch,
            ),
        )

    def _heartbeat(self, now_ms: TimeMs, sender: NodeId, request: BrokerHeartbeatRequest) -> None:
        broker = request.broker_id
        error = heartbeat_error(self.state.image, request)
        if error is not ErrorCode.NONE:
            self._out.trace("refused", None, message="BrokerHeartbeatRequest", sender=sender, error=error.name)
            number, epoch = request.correlation_id, request.broker_epoch
            self._out.send(sender, BrokerHeartbeatResponse(correlation_id=number, error=error, broker_epoch=epoch))
            return
        registration = self.state.image.brokers[broker]
        target = None
        if self._heartbeats.takes(broker, request.correlation_id):
            target = self._follow_heartbeat(now_ms, request, registration)
        self._out.send(
            sender,
            _ANSWER(
                correlation_id=request.correlation_id,
                broker_epoch=request.broker_epoch,
                is_caught_up=request.current_metadata_offset > registration.broker_epoch,
                is_fenced=self.state.image.brokers[broker].fenced,
                should_shut_down=target is BrokerControlState.SHUTDOWN_NOW,
            ),
        )

    def _follow_heartbeat(
        self, now_ms: TimeMs, request: BrokerHeartbeatRequest, registration: BrokerRegistration
    ) -> BrokerControlState:
        """The state to which the heartbeat moves the broker."""
        broker = request.broker_id
        self._note_applied(broker, request.current_metadata_offset)
        state = self.control_state(broker)
        target = next_control_state(
            HeartbeatView(
                state=state,
                want_fence=request.want_fence,
                want_shut_down=request.want_shut_down,
                has_applied_registration=request.current_metadata_offset > registration.broker_epoch,
                leads_partitions=self.state.has_leaderships(broker),
                shutdown_offset=self._shutdown_offsets.get(broker),
                lowest_active_offset=self._lowest_active_offset(broker),
            )
        )
        if target is not state:
            self._change_control_state(broker, registration.broker_epoch, target)
        if not self.state.image.brokers[broker].fenced:
            self._touch(broker, now_ms)
        return target

    def _note_applied(self, broker: BrokerId, offset: Offset) -> None:
        """The broker has applied the metadata log up to there; nobody has applied what is not in the log."""
        self._applied[broker] = max(self._applied.get(broker, 0), min(offset, self.state.image.next_offset))

    def control_state(self, broker: BrokerId) -> BrokerControlState:
        """As this controller knows it: one that has just started sees a shutdown under way with the next heartbeat."""
        if self.state.image.brokers[broker].fenced:
            return BrokerControlState.FENCED
        if broker in self._shutdown_offsets:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.UNFENCED

    def _lowest_active_offset(self, but: BrokerId) -> Offset:
        offsets = [
            self._applied.get(broker, 0)
            for broker in self.state.image.brokers
            if broker != but and self.state.image.is_active(broker)
        ]
        return min(offsets, default=self.state.image.next_offset)

    def _change_control_state(self, broker: BrokerId, epoch: int, target: BrokerControlState) -> None:
        if target is BrokerControlState.UNFENCED:
            self._write(brokers.unfence(self.state, broker, epoch))
        elif target is BrokerControlState.CONTROLLED_SHUTDOWN:
            self._write(brokers.begin_controlled_shutdown(self.state, broker, epoch))
            self._shutdown_offsets[broker] = self.state.image.next_offset
            self._metrics.shutdown_began(broker)
        elif not self.state.image.brokers[broker].fenced:
            if target is BrokerControlState.SHUTDOWN_NOW:
                self._metrics.shutdown_ended(broker)
            self._fence(broker, epoch)
            self._sessions.discard(broker)
            self._out.cancel_timer(f"{SESSION_PREFIX}{broker}")

    def _fence(self, broker: BrokerId, epoch: Epoch) -> None:
        self._shutdown_offsets.pop(broker, None)
        led = self.state.has_leaderships(broker)
        records = brokers.fence(self.state, broker, epoch)
        self._write(records)
        if led:
            self._metrics.failed_over(len(records))

    # -- metadata fetch ------------------------------------------------------------------------------------------------

    def _fetch(self, sender: NodeId, request: MetadataFetchRequest) -> None:
        error = metadata_fetch_error(self.state.image, request)
        if error is not ErrorCode.NONE:
            refuse(self._out, sender, request, error)
            if error is ErrorCode.BROKER_ID_NOT_REGISTERED and sender == request.broker_id:
                # A broker that missed its unregistration would go on leaving out its heartbeats.
                self._out.send(sender, BrokerHeartbeatResponse(correlation_id=0, error=error))
            return
        self._note_applied(request.broker_id, request.fetch_offset)
        self._parked[sender] = request.fetch_offset
        self._metrics.fetched(request.broker_id)

    def _answer_parked(self) -> None:
        """Sends the records behind their offset to all brokers whose fetch is parked, at most `MAX_FETCH_RECORDS` to
        each; a broker that gets fewer than there are asks again at once. Who lacks the same gets the same message.
        """
        end = len(self._records)
        answers: dict[Offset, MetadataFetchResponse] = {}
        for broker, offset in sorted(self._parked.items()):
            if offset < end:
                del self._parked[broker]
                if offset not in answers:
                    answers[offset] = self._records_from(offset)
                self._out.send(broker, answers[offset])

    def _records_from(self, offset: Offset) -> MetadataFetchResponse:
        end = len(self._records)
        as_image = self._takes_image(lag=end - offset)
        records = self.state.image.to_records() if as_image else self._records[offset : offset + MAX_FETCH_RECORDS]
        return _RECORDS(
            base_offset=offset,
            records=tuple(records),
            high_watermark=end,
            controller_id=self.node_id,
            is_snapshot=as_image,
        )

    def _takes_image(self, lag: int) -> bool:
        """Whether an image is shorter than the `lag` records that a broker lacks, and fits one answer."""
        return lag > SNAPSHOT_LAG and self.state.image.size <= min(lag - 1, MAX_FETCH_RECORDS)

    # -- partitions and administration ---------------------------------------------------------------------------------

    def _alter_partition(self, sender: NodeId, request: AlterPartitionRequest) -> None:
        if self.state.image.broker_epoch(request.broker_id) != request.broker_epoch:
            error = ErrorCode.STALE_BROKER_EPOCH
            self._out.send(sender, AlterPartitionResponse(correlation_id=request.correlation_id, error=error))
            return
        if not self._proposals.takes(request.broker_id, request.correlation_id):
            refuse(self._out, sender, request, ErrorCode.INVALID_REQUEST)
            return
        self._metrics.altered(len(request.partitions))
        errors, records = alter_partition.decide(self.state, request)
        self._write(records)
        results = tuple(
            alter_partition.result(self.state.image, request.broker_id, proposal, error)
            for proposal, error in zip(request.partitions, errors, strict=True)
        )
        self._out.send(sender, AlterPartitionResponse(correlation_id=request.correlation_id, partitions=results))

    def _administer(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        if request.READ_ONLY:
            self._out.send(sender, answer(self.state.image, self.node_id, request))
            return
        planned = plan(self.state, request)
        self._write(planned.records)
        if planned.awaited is not None and isinstance(planned.response, ElectLeadersResponse):
            self._recoveries.await_elections(now_ms, sender, planned.response, planned.awaited)
        else:
            self._out.send(sender, planned.response)

    def _elect_recovered(self, message: RecoveryResults) -> None:
        records = self._recoveries.take(message)
        self._write(records)
        self._metrics.recovered(len(records))


def partition_detail(state: PartitionState) -> dict[str, object]:
    """A partition's state in the plain values of a trace event."""
    return {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "elr": state.elr,
        "last_known_elr": state.last_known_elr,
        "last_known_leader": state.last_known_leader,
        "recovering": bool(state.leader_recovery_state),
    }
