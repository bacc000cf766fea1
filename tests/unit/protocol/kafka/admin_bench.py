"""The bench of a listener with a controller that answers: administration requests are decided by the controller's own
rules, and their records reach the broker before the response does. Those to the quorum get the answers of a script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.contract import Effect, Send
from protocol.controller.administration import CHANGE_REQUESTS, handle
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.records import MetadataRecord
from tests.unit.protocol.kafka.kafka_bench import KafkaBench
from tests.unit.protocol.node_helpers import CONTROLLER, ControllerBench

Script = Mapping[type[AdminRequest], dict[str, Any]]


class AdminBench(KafkaBench):
    """`asked` has the requests that reached the controller; `script` the fields of its answers by type of request."""

    def __init__(
        self, *records: MetadataRecord, script: Mapping[type[AdminRequest], dict[str, Any]] = {}, **fields: Any
    ):
        super().__init__(**fields)
        self.asked: list[AdminRequest] = []
        self.script = script
        self.is_silent = False
        self.controller = ControllerBench(config=fields.get("config"))
        self.run(*records).connect()
        self.controller.apply(self.records)

    def _did(self, effects: list[Effect]) -> AdminBench:
        super()._did(effects)
        for effect in effects:
            if isinstance(effect, Send) and effect.to == CONTROLLER and isinstance(effect.message, AdminRequest):
                self.asked.append(effect.message)
                if not self.is_silent:
                    self._answer(effect.message)
        return self

    def _answer(self, request: AdminRequest) -> None:
        if type(request) in CHANGE_REQUESTS:
            result = handle(self.controller.state, request)
            self.controller.apply(result.records)
            if result.records:
                self.publish(*result.records)
            self.receive(CONTROLLER, result.response)
        else:
            kind = request.response_type()
            assert issubclass(kind, AdminResponse)
            self.receive(CONTROLLER, kind(correlation_id=request.correlation_id, **self.script[type(request)]))
