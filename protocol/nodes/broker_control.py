"""What the active controller does for brokers: registration, heartbeats, fencing, ISR proposals (KIP-631, KIP-497).

Heartbeats and ISR proposals of a broker incarnation count once, in the order in which the broker sent them
(`heartbeats.py`): a heartbeat that was overtaken is answered and changes nothing, a proposal is refused.
"""

from __future__ import annotations

from protocol.contract import Outbox
from protocol.controller import alter_partition, brokers
from protocol.controller.brokers import heartbeat_error, registration_error
from protocol.controller.heartbeats import BrokerControlState
from protocol.errors import ErrorCode
from protocol.events.controller import SessionExpired
from protocol.events.node import RequestRefused
from protocol.ids import NO_EPOCH, BrokerId, Epoch, NodeId, TimeMs
from protocol.kafka_rules import DEAD_LAST_KNOWN_LEADER_ELECTED
from protocol.messages.control import (
    NEW_DISK,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.metadata.image import BrokerRegistration
from protocol.nodes.broker_sessions import BrokerSessions
from protocol.nodes.controller_log import ControllerLog
from protocol.nodes.refusals import refuse


class BrokerControl:
    """Handlers of brokers' requests and session timers. They change state by writing to `log`, and answer to `out`."""

    def __init__(self, log: ControllerLog, sessions: BrokerSessions, out: Outbox) -> None:
        self._log = log
        self._sessions = sessions
        self._out = out

    def register(self, now_ms: TimeMs, sender: NodeId, request: BrokerRegistrationRequest) -> None:
        """Answers with the broker epoch of the incarnation; -1 with the errors of `registration_error`."""
        state, broker = self._log.state, request.broker_id
        known = state.image.brokers.get(broker)
        error, epoch = registration_error(state.image, request, self._sessions.is_open(broker)), NO_EPOCH
        if error is ErrorCode.NONE and known is not None and known.incarnation_id == request.incarnation_id:
            epoch = known.broker_epoch
        elif error is ErrorCode.NONE:
            self._log.incarnations.forget(broker)
            incarnation, previous = request.incarnation_id, request.previous_broker_epoch
            records = brokers.register(state, broker, incarnation, previous, request.rack, request.endpoint)
            self._log.write(records)
            self._log.incarnations.on_new_disk.update({broker} if previous == NEW_DISK else ())
            epoch = state.image.brokers[broker].broker_epoch
        number, incarnation = request.correlation_id, request.incarnation_id
        response = BrokerRegistrationResponse.unchecked(
            correlation_id=number, error=error, incarnation_id=incarnation, broker_epoch=epoch
        )
        self._out.send(sender, response)

    def open_sessions(self, now_ms: TimeMs) -> None:
        """Gives every unfenced broker a session that begins now; for a controller that has become active."""
        for broker, registration in sorted(self._log.state.image.brokers.items()):
            if not registration.fenced:
                self._sessions.renew(broker, now_ms)

    def expire_session(self, now_ms: TimeMs, timer: str) -> None:
        broker = self._sessions.expire(timer)
        registration = self._log.state.image.brokers.get(broker)
        if registration is not None and not registration.fenced:
            self._out.trace(SessionExpired(broker))
            self._fence(broker, registration.broker_epoch)

    def heartbeat(self, now_ms: TimeMs, sender: NodeId, request: BrokerHeartbeatRequest) -> None:
        """Moves the broker to its next state (`heartbeats.py`) and answers with that state."""
        broker, image = request.broker_id, self._log.state.image
        error = heartbeat_error(image, request)
        if error is not ErrorCode.NONE:
            self._out.trace(RequestRefused("BrokerHeartbeatRequest", sender, error.name))
            number, epoch = request.correlation_id, request.broker_epoch
            self._out.send(sender, BrokerHeartbeatResponse(correlation_id=number, error=error, broker_epoch=epoch))
            return
        registration = image.brokers[broker]
        target = None
        if self._log.incarnations.heartbeats.takes(broker, request.correlation_id):
            target = self._follow_heartbeat(now_ms, request, registration)
        response = BrokerHeartbeatResponse.unchecked(
            correlation_id=request.correlation_id,
            broker_epoch=request.broker_epoch,
            is_caught_up=request.current_metadata_offset > registration.broker_epoch,
            is_fenced=image.brokers[broker].fenced,
            should_shut_down=target is BrokerControlState.SHUTDOWN_NOW,
        )
        self._out.send(sender, response)

    def _follow_heartbeat(
        self, now_ms: TimeMs, request: BrokerHeartbeatRequest, registration: BrokerRegistration
    ) -> BrokerControlState:
        broker, incarnations = request.broker_id, self._log.incarnations
        incarnations.observe_applied(broker, request.current_metadata_offset)
        state, target = incarnations.control_state(broker), incarnations.next_state(request)
        if target is not state:
            self._change_control_state(broker, registration.broker_epoch, target)
        if not self._log.state.image.brokers[broker].fenced:
            self._sessions.renew(broker, now_ms)
        return target

    def _change_control_state(self, broker: BrokerId, epoch: Epoch, target: BrokerControlState) -> None:
        log = self._log
        if target is BrokerControlState.UNFENCED:
            is_new = broker in log.incarnations.on_new_disk
            log.incarnations.on_new_disk.discard(broker)
            log.write(brokers.report_directories(log.state, broker) if is_new else [])
            log.write(brokers.unfence(log.state, broker, epoch, on_new_disk=is_new))
        elif target is BrokerControlState.CONTROLLED_SHUTDOWN:
            log.write(brokers.begin_controlled_shutdown(log.state, broker, epoch))
            log.incarnations.shutdown_offsets[broker] = log.state.image.next_offset
            log.metrics.shutdown_began(broker)
        elif not log.state.image.brokers[broker].fenced:
            if target is BrokerControlState.SHUTDOWN_NOW:
                log.metrics.shutdown_ended(broker)
            self._fence(broker, epoch)
            self._sessions.end(broker)
        elif DEAD_LAST_KNOWN_LEADER_ELECTED in log.state.config.kafka_rules:
            # A dead leader is in an ISR though it is fenced; it leaves when it may shut down.
            log.write(brokers.leave_in_sync_replicas(log.state, broker))

    def _fence(self, broker: BrokerId, epoch: Epoch) -> None:
        log = self._log
        log.incarnations.shutdown_offsets.pop(broker, None)
        led = log.state.has_leaderships(broker)
        records = brokers.fence(log.state, broker, epoch)
        log.write(records)
        if led:
            log.metrics.failed_over(len(records))

    def alter_partition(self, now_ms: TimeMs, sender: NodeId, request: AlterPartitionRequest) -> None:
        """One result per proposal; STALE_BROKER_EPOCH for another incarnation, INVALID_REQUEST if overtaken."""
        log, number = self._log, request.correlation_id
        if log.state.image.broker_epoch(request.broker_id) != request.broker_epoch:
            error = ErrorCode.STALE_BROKER_EPOCH
            self._out.send(sender, AlterPartitionResponse.unchecked(correlation_id=number, error=error))
            return
        if not log.incarnations.proposals.takes(request.broker_id, number):
            refuse(self._out, sender, request, ErrorCode.INVALID_REQUEST)
            return
        log.metrics.altered(len(request.partitions))
        errors, records = alter_partition.decide(log.state, request)
        log.write(records)
        results = tuple(
            alter_partition.result(log.state.image, request.broker_id, proposal, error)
            for proposal, error in zip(request.partitions, errors, strict=True)
        )
        self._out.send(sender, AlterPartitionResponse.unchecked(correlation_id=number, partitions=results))
