"""Controllers as records: registration (KIP-919), and unregistration by an operator (KIP-1312).

A registration says which feature levels the process of a controller supports, and no level is finalized that one of the
registered controllers does not support. So the registration of a controller that will not return can hold back a level,
until an operator removes it. A registration is no vote: it can be removed from a voter, also from the active controller
and from one that runs. That one finds out from the metadata log and registers again
(`protocol/nodes/controller_registration.py`).

Errors are Kafka's. Departure: a process that is registered already is answered without another record.
"""

from __future__ import annotations

from protocol.controller.context import ControllerState
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode, Refused
from protocol.features import METADATA_VERSION, METADATA_VERSION_REGISTRATIONS, controllers_register
from protocol.messages.acls import AclOperation
from protocol.messages.cluster import UnregisterControllerRequest, UnregisterControllerResponse
from protocol.messages.control import ControllerRegistrationRequest
from protocol.messages.records import MetadataRecord, RegisterControllerRecord, UnregisterControllerRecord
from protocol.metadata.authorizer import require_access
from protocol.metadata.image import MetadataImage


def register_controller(state: ControllerState, request: ControllerRegistrationRequest) -> list[MetadataRecord]:
    """The record of the registration, none where this process has one. Refused: UNSUPPORTED_VERSION below the level."""
    _require_level(state.image)
    known = state.image.controllers.get(request.controller_id)
    if known is not None and known.incarnation_id == request.incarnation_id:
        return []
    return [
        RegisterControllerRecord(
            controller_id=request.controller_id, incarnation_id=request.incarnation_id, features=request.features
        )
    ]


def unregister_controller(state: ControllerState, request: UnregisterControllerRequest) -> ControllerResult:
    """Removes the registration. Refused: UNSUPPORTED_VERSION below the level; CONTROLLER_ID_NOT_REGISTERED where there
    is none. Needs ALTER on the cluster.
    """
    require_access(state.image, request, AclOperation.ALTER)
    _require_level(state.image)
    controller = request.controller_id
    if controller not in state.image.controllers:
        raise Refused(ErrorCode.CONTROLLER_ID_NOT_REGISTERED, f"controller {controller} is not registered")
    records = [UnregisterControllerRecord(controller_id=controller)]
    return ControllerResult(UnregisterControllerResponse(correlation_id=request.correlation_id), records)


def reason_unsupported(image: MetadataImage, feature: str, level: int) -> str:
    """Which registered controller does not support a level; empty where all do."""
    for controller, record in sorted(image.controllers.items()):
        ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in record.features}
        lowest, highest = ranges.get(feature, (0, 0))
        if not lowest <= level <= highest:
            return f"controller {controller} supports levels {lowest} to {highest}"
    return ""


def _require_level(image: MetadataImage) -> None:
    if not controllers_register(image.feature_levels):
        needed = f"registrations of controllers need {METADATA_VERSION} {METADATA_VERSION_REGISTRATIONS}"
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, needed)
