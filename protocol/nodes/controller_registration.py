"""A controller keeps itself registered with the active controller, where the metadata version has registrations.

After every input the controller compares the registration in its image with its own process. Where there is none, or
that of an earlier process, it registers: when it starts, when the level is raised, and when an operator has removed the
registration of a controller that runs (Kafka's ControllerRegistrationManager). The active controller writes its own
record; another one sends its request every `retry.backoff.ms` until the record is in its log, and needs no response.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from protocol.config import RETRY_BACKOFF_MS, ClusterConfig
from protocol.contract import Outbox
from protocol.controller.controllers import register_controller
from protocol.errors import Refused
from protocol.features import SUPPORTED_FEATURES, controllers_register
from protocol.ids import NO_NODE, NodeId, TimeMs
from protocol.messages.control import ControllerRegistrationRequest, ControllerRegistrationResponse
from protocol.messages.records import ControllerFeature
from protocol.nodes.controller_log import ControllerLog
from protocol.nodes.refusals import refuse
from protocol.quorum.replica import QuorumReplica

REGISTRATION_TIMER = "controller-registration"
_FEATURES = tuple(
    ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
    for name, (low, high) in SUPPORTED_FEATURES.items()
)


class ControllerRegistration:
    """`rng` generates the incarnation id of the process, when it registers for the first time."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_replica"})

    def __init__(
        self, replica: QuorumReplica, log: ControllerLog, config: ClusterConfig, rng: Random, out: Outbox
    ) -> None:
        self._replica = replica
        self._log = log
        self._retry_ms = config.int_value(RETRY_BACKOFF_MS)
        self._rng = rng
        self._out = out
        self._incarnation_id = ""
        self._waits = False

    def settle(self, now_ms: TimeMs, is_active: bool) -> None:
        """Ends an input: begins to register where the image has no registration of this process."""
        leader = self._replica.leader
        is_reachable = is_active or leader not in (NO_NODE, self._replica.key.id)
        if self._waits or not is_reachable or not self._is_needed():
            return
        self._waits = True
        if not is_active:
            self._out.send(leader, self._request())
        self._out.set_timer(REGISTRATION_TIMER, now_ms if is_active else now_ms + self._retry_ms)

    def fire(self, is_active: bool) -> None:
        """Ends the wait: the active controller writes its record, in an input of its own; others may send again."""
        self._waits = False
        if is_active and self._is_needed():
            self._log.write(register_controller(self._log.state, self._request()))

    def _is_needed(self) -> bool:
        image = self._log.state.image
        if not controllers_register(image.feature_levels):
            return False
        known = image.controllers.get(self._replica.key.id)
        return known is None or known.incarnation_id != self._incarnation_id

    def _request(self) -> ControllerRegistrationRequest:
        self._incarnation_id = self._incarnation_id or f"{self._rng.getrandbits(128):032x}"
        me = self._replica.key.id
        return ControllerRegistrationRequest(
            correlation_id=0, controller_id=me, incarnation_id=self._incarnation_id, features=_FEATURES
        )

    def receive(self, now_ms: TimeMs, sender: NodeId, request: ControllerRegistrationRequest) -> None:
        """Registers another controller with this one, which is active."""
        try:
            self._log.write(register_controller(self._log.state, request))
        except Refused as refused:
            refuse(self._out, sender, request, refused.error)
            return
        self._out.send(sender, ControllerRegistrationResponse(correlation_id=request.correlation_id))

    def receive_response(self, now_ms: TimeMs, sender: NodeId, response: ControllerRegistrationResponse) -> None:
        """Does nothing: the record in the log is the answer."""
