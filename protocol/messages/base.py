"""What every message is: a frozen pydantic model with Kafka's field names in snake_case, and nothing unknown in it.

Messages and records are values of exactly the types that they declare: a text is no number, a number no truth, and an
integer fits the width that Kafka gives it on the wire. They are built once, shared between nodes by reference in the
simulator and carried as bytes between processes by the codec (`codec.py`), which finds a model's wire name in the
registry that is kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import ErrorCode

Int8 = Annotated[int, Field(ge=-(2**7), lt=2**7)]
Int16 = Annotated[int, Field(ge=-(2**15), lt=2**15)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Frozen(BaseModel):
    """A frozen pydantic value that refuses unknown fields and values of another type. How a model checks them is worked
    out when it is first asked to: a process uses few of all models, and starts the sooner.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Message(Frozen):
    """Base of everything that travels between nodes or lies in the metadata log; every concrete subclass is registered.

    `CONTROL` marks traffic that must not queue behind data (heartbeats, registration, elections). `RENEWAL` marks a
    message that only renews what its receiver already knows, such as a heartbeat of an unfenced broker (see
    `contract.SetTimer`). `SINCE` names the fields that a later version of the message brought, which stand behind all
    others and have defaults; an older version is written without them and read with their defaults.
    """

    CONTROL: ClassVar[bool] = False
    RENEWAL: ClassVar[bool] = False
    SINCE: ClassVar[Mapping[str, int]] = {}
    REGISTRY: ClassVar[dict[str, type[Message]]] = {}

    @property
    def can_wait(self) -> bool:
        """Whether nobody waits for it, so that it may travel with the next message to the same node."""
        return False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__name__ in Message.REGISTRY:
            raise TypeError(f"two message types are called {cls.__name__}")
        Message.REGISTRY[cls.__name__] = cls


ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that has none."""


class Request(Message):
    """A message that is answered by a `response_type` with the same correlation id."""

    correlation_id: Int32

    @classmethod
    def response_type(cls) -> type[Response]:
        """The type of the answer: `CreateTopicsResponse` to a CreateTopicsRequest. A request without a response of its
        own name is answered as its base class is.
        """
        names = (base.__name__.removesuffix("Request") + "Response" for base in cls.__mro__)
        return next(kind for name in names if (kind := Message.REGISTRY.get(name)) and issubclass(kind, Response))


class ClientRequest(Request):
    """A request that is made in the name of a principal (`User:alice`); whoever hands it on vouches for the name."""

    principal: str = ANONYMOUS


class Response(Message):
    """The answer to a request."""

    correlation_id: Int32
    error: ErrorCode = ErrorCode.NONE
