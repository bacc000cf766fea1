"""The controller node: one event at a time; decide on records, append, replay, answer when they are committed.

Every change takes the same way: a handler decides on records from the present state, the records are appended to the
metadata log and replayed (`controller_log.py`), and answers and trace events are deferred until a majority of the
quorum has the records (`DeferredEffects`). Only the log changes the state.

`receive` refuses what the sender may not send, by a table of rules for message types, then looks up the handler of the
message type in two tables. Handlers of the first serve on every controller; those of the second on the active one only,
while the others answer NOT_CONTROLLER. Administration requests about topics, configs and ACLs are authorized by their
handlers, which know the resources that a request names (`protocol/controller/administration.py`, and
`protocol/metadata/queries.py` for those that only read). A controller that cannot decide on its state, as only a rule
of Kafka's brings about, answers UNKNOWN_SERVER_ERROR and resigns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from protocol.config import BROKER_SESSION_TIMEOUT_MS, ClusterConfig
from protocol.contract import Effect, Outbox, Storage
from protocol.controller.administration import CHANGE_REQUESTS, handle
from protocol.controller.context import ControllerState
from protocol.controller.heartbeats import BrokerIncarnations
from protocol.controller.recovery_requests import TIMERS as RECOVERY_TIMERS
from protocol.errors import ErrorCode, ProtocolInvariantError, UndecidableError
from protocol.ids import (
    CLUSTER_ID,
    NO_NODE,
    Epoch,
    NodeId,
    Offset,
    TimeMs,
    TopicIdPartition,
    is_controller,
    is_recovery_manager,
)
from protocol.messages.admin import AdminRequest, MetadataRequest
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from protocol.messages.partitions import ElectLeadersResponse
from protocol.messages.quorum import (
    AddVoterRequest,
    AddVoterResponse,
    DescribeQuorumRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    QuorumRequest,
    QuorumResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
)
from protocol.messages.records import MetadataRecord
from protocol.messages.recovery import RecoveryResults
from protocol.metadata.authorizer import may_act_for_cluster, may_administer_quorum
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS, answer, metadata_response
from protocol.nodes.broker_control import BrokerControl
from protocol.nodes.broker_sessions import SESSION_PREFIX, BrokerSessions
from protocol.nodes.controller_log import ControllerLog
from protocol.nodes.controller_quorum import ControllerQuorum, DeferredEffects
from protocol.nodes.controller_registration import REGISTRATION_TIMER, ControllerRegistration
from protocol.nodes.leader_rebalance import REBALANCE_TIMER, LeaderRebalance
from protocol.nodes.metadata_feed import SnapshotGenerator
from protocol.nodes.refusals import refuse
from protocol.quorum.context import QuorumConfig
from protocol.quorum.describe import QuorumView, quorum_view
from protocol.quorum.replica import QuorumReplica

_CLUSTER_ACTION_REQUESTS = (
    BrokerHeartbeatRequest,
    AlterPartitionRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    QuorumFetchRequest,
    FetchSnapshotRequest,
    RecoveryResults,
    ShutdownCommand,
)
"""Sent by nodes of the cluster and by the experiment; a client needs CLUSTER_ACTION (G8)."""
_CONTROLLER_MESSAGES = (
    *QuorumRequest.__subclasses__(),
    *QuorumResponse.__subclasses__(),
    AddVoterResponse,
    RemoveVoterResponse,
    ControllerRegistrationResponse,
)
"""Exchanged between controllers only: elections, and the answers of a leader. Fetches are CLUSTER_ACTION requests."""
_QUORUM_ADMINISTRATION = (AddVoterRequest, RemoveVoterRequest, DescribeQuorumRequest)
"""Requests about the quorum of operators, judged by their principal (G32), and of controllers that join."""

_RULES: Mapping[type[Message], Callable[[MetadataImage, NodeId, Any], bool]] = {
    **dict.fromkeys(_CONTROLLER_MESSAGES, lambda image, sender, message: is_controller(sender)),
    **dict.fromkeys(_CLUSTER_ACTION_REQUESTS, lambda image, sender, message: may_act_for_cluster(image, sender)),
    **dict.fromkeys(
        _QUORUM_ADMINISTRATION,
        lambda image, sender, message: is_controller(sender) or may_administer_quorum(image, message),
    ),
}


class ControllerNode:
    """One of `controllers`. `storage` holds its `replica`; `rng` decides election timeouts and placements."""

    # Tables of handlers, and the metadata log, whose records the image shows.
    NOT_STATE: ClassVar[frozenset[str]] = frozenset(
        {"storage", "replica", "_quorum_out", "_handlers", "_active_handlers"}
    )

    def __init__(
        self,
        controller_id: NodeId,
        controllers: Sequence[NodeId],
        config: ClusterConfig,
        storage: Storage,
        rng: Random,
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        self.node_id = controller_id
        self.config = config
        self.storage = storage
        self._out = Outbox()
        self._quorum_out = Outbox()
        quorum = QuorumConfig.of(config, controllers, cluster_id)
        self.replica = QuorumReplica(controller_id, quorum, storage, rng, self._quorum_out)
        self._snapshots = SnapshotGenerator(self.replica, config)
        self._deferred = DeferredEffects()
        sessions = BrokerSessions(config.int_value(BROKER_SESSION_TIMEOUT_MS), self._out)
        self._log = ControllerLog(self.replica, config, rng, sessions, self._out)
        self._brokers = BrokerControl(self._log, sessions, self._out)
        is_sole = len(controllers) == 1
        self._rebalance = LeaderRebalance(config, self._log, self._out)
        self._quorum = ControllerQuorum(
            self.replica, self._log, self._brokers, sessions, self._rebalance, self._deferred, self._out, is_sole
        )
        self._registration = ControllerRegistration(self.replica, self._log, config, rng, self._out)
        self._handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], object]] = {
            **dict.fromkeys(self.replica.message_types, self.replica.receive),
            QuorumFetchRequest: self._quorum.receive_fetch,
            ControllerRegistrationResponse: self._registration.receive_response,
            DescribeQuorumRequest: self._quorum.describe,
            ShutdownCommand: self._shut_down,
            MetadataRequest: self._describe_topic,
            **dict.fromkeys(READ_ONLY_REQUESTS, self._describe),
        }
        self._active_handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], object]] = {
            BrokerRegistrationRequest: self._brokers.register,
            ControllerRegistrationRequest: self._registration.receive,
            BrokerHeartbeatRequest: self._brokers.heartbeat,
            AlterPartitionRequest: self._brokers.alter_partition,
            RecoveryResults: self._elect_recovered,
            **dict.fromkeys(CHANGE_REQUESTS, self._administer),
        }

    @property
    def state(self) -> ControllerState:
        return self._log.state

    @property
    def incarnations(self) -> BrokerIncarnations:
        """What the active controller remembers of the present incarnations of brokers."""
        return self._log.incarnations

    @property
    def is_active(self) -> bool:
        return self._quorum.is_active

    @property
    def active_epoch(self) -> Epoch:
        """The epoch of the metadata log in which it is active, -1 where it is not."""
        return self._quorum.active_epoch

    @property
    def quorum(self) -> QuorumView:
        return quorum_view(self.replica, self.is_active)

    @property
    def first_record(self) -> Offset:
        """The offset of the first of `records`: 0, or the end offset of the snapshot that was loaded."""
        return self._log.first_record

    @property
    def records(self) -> Sequence[MetadataRecord]:
        return self._log.committed_records

    def gauges(self) -> Mapping[str, Collection[TopicIdPartition]]:
        return self._log.metrics.counted()

    def metrics(self) -> Mapping[str, int]:
        """The metrics of the cluster by name; units and meaning in `protocol/controller/metrics.py`."""
        return self._log.metrics.values()

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self._log.metrics.now_ms = now_ms
        self.replica.start(now_ms)
        self._snapshots.start(now_ms)
        return self._finish(now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        self._log.metrics.now_ms = now_ms
        handler = self._handlers.get(type(message))
        if handler is None and self._quorum.is_active:
            handler = self._active_handlers.get(type(message))
        rule = _RULES.get(type(message))
        if rule is not None and not rule(self._log.state.image, sender, message):
            refuse(self._out, sender, message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elif handler is not None:
            try:
                handler(now_ms, sender, message)
            except UndecidableError as failure:
                refuse(self._out, sender, message, ErrorCode.UNKNOWN_SERVER_ERROR)
                self.replica.resign(now_ms, str(failure))
        else:
            unknown = ErrorCode.UNSUPPORTED_VERSION if self._quorum.is_active else ErrorCode.NOT_CONTROLLER
            refuse(self._out, sender, message, unknown)
        return self._finish(now_ms, sender, message)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        self._log.metrics.now_ms = now_ms
        if name in RECOVERY_TIMERS:
            self._log.recoveries.fire(now_ms, name)
        elif name == REBALANCE_TIMER:
            self._rebalance.fire(now_ms)
        elif name == REGISTRATION_TIMER:
            self._registration.fire(self._quorum.is_active)
        elif name.startswith(SESSION_PREFIX):
            self._brokers.expire_session(now_ms, name)
        elif not self.replica.fire(now_ms, name):
            raise ProtocolInvariantError(f"controller {self.node_id} has no timer {name!r}")
        return self._finish(now_ms)

    def _finish(self, now_ms: TimeMs, sender: NodeId = NO_NODE, request: Message | None = None) -> list[Effect]:
        """Makes appended records durable, replays what the role sees; returns the effects that need no commit."""
        log = self._log
        self.replica.settle(now_ms)
        committed = self._quorum.follow(now_ms)
        self._registration.settle(now_ms, self._quorum.is_active)
        if self._quorum.is_active:
            log.recoveries.settle(now_ms)
            log.metrics.settle(log.incarnations.applied)
        image = log.state.image
        self._snapshots.take_if_due(now_ms, image)
        released = self._deferred.release(
            self._out.drain(), image.next_offset, self.replica.high_watermark, sender, request
        )
        return committed + released + self._quorum_out.drain()

    def _shut_down(self, now_ms: TimeMs, sender: NodeId, command: ShutdownCommand) -> None:
        self.replica.shut_down()
        self._out.exit()

    def _describe_topic(self, now_ms: TimeMs, sender: NodeId, request: MetadataRequest) -> None:
        self._out.send(sender, metadata_response(self._log.state.image, request))

    def _describe(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        self._out.send(sender, answer(self._log.state.image, self.replica.leader, request))

    def _administer(self, now_ms: TimeMs, sender: NodeId, request: AdminRequest) -> None:
        log = self._log
        result = handle(log.state, request)
        log.write(result.records)
        if result.awaited is not None and isinstance(result.response, ElectLeadersResponse):
            log.recoveries.await_elections(now_ms, sender, result.response, result.awaited)
        else:
            self._out.send(sender, result.response)

    def _elect_recovered(self, now_ms: TimeMs, sender: NodeId, message: RecoveryResults) -> None:
        """Records the leaders that the recovery manager has found; any other sender is refused."""
        if not is_recovery_manager(sender):
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
            return
        records = self._log.recoveries.take(message)
        self._log.write(records)
        self._log.metrics.recovered(len(records))
