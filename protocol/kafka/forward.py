"""Administration requests on their way to the controller, or answered from the broker's own metadata.

Kafka's brokers forward what changes something to the active controller with the client's principal, and so does
`change`: until the request's timeout, whichever controller is active then. What only reads is a pure function of the
metadata (`protocol/metadata/queries.py`), which the broker has itself.

A request that is refused as a whole, or that no controller answers in time, is refused for each of its parts where
Kafka's response has no error of the whole.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from protocol.errors import ErrorCode
from protocol.kafka.calls import CONTROLLER, Call, Calls
from protocol.kafka.view import View
from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.metadata.queries import answer

DEFAULT_TIMEOUT_MS = 30_000
"""For requests without a timeout of their own: the default of `request.timeout.ms`."""
E_ = TypeVar("E_", bound=Enum)
R = TypeVar("R", bound=AdminResponse)


def change(view: View, request: AdminRequest, kind: type[R], timeout_ms: int) -> Generator[Calls, Any, R]:
    """The active controller's response to a request; REQUEST_TIMED_OUT without one in `timeout_ms`."""
    (found,) = yield Calls([Call(CONTROLLER, request, is_change=not request.READ_ONLY)], view.now_ms + timeout_ms)
    if isinstance(found, kind):
        return found
    return cast(R, request.refusal(ErrorCode.REQUEST_TIMED_OUT, f"no controller has answered within {timeout_ms} ms"))


def read(view: View, request: AdminRequest, kind: type[R]) -> R:
    """The response of this broker's metadata to a request that only reads."""
    return cast(R, answer(view.image, view.context.controller_id, request))


def parts(response: AdminResponse, count: int) -> Sequence[Any]:
    """The results of the `count` parts of a request, in their order."""
    if response.error is not ErrorCode.NONE:
        return [Result(error=response.error, message=response.message)] * count
    return response.parts()


def error_fields(result: Result | AdminResponse) -> dict[str, Any]:
    """The error of a result as responses have it."""
    return {"error_code": result.error, "error_message": result.message or None}


def refused(error: ErrorCode, message: str) -> dict[str, Any]:
    """The error of a part that this broker refuses."""
    return {"error_code": error, "error_message": message}


def member(kind: type[E_], value: int) -> E_ | None:
    """The member of an enumeration by Kafka's wire value; None where there is none."""
    return next((item for item in kind if item.value == value), None)


def allowed(kind: type[Enum]) -> str:
    """The members of an enumeration, for error messages."""
    return ", ".join(f"{item.value} ({item.name})" for item in kind)
