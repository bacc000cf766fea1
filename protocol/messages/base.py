"""Base classes of messages: frozen pydantic models with Kafka's field names in snake_case and no unknown fields.

Validation is strict: a string is not a number, a number is not a boolean, and an integer must fit the width that Kafka
gives it on the wire. The simulator shares message objects between nodes by reference; between processes the codec
(`codec.py`) carries them as bytes. It finds a model by its class name in `Message.REGISTRY`.

Beside its fields an instance of a pydantic model has three slots: unknown fields and private attributes, of which these
models have none, and the names of the fields that were set. Here all fields count as set. So the slots are constants
of the class, and an instance is its fields (`making.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import ErrorCode

Int8 = Annotated[int, Field(ge=-(2**7), lt=2**7)]
Int16 = Annotated[int, Field(ge=-(2**15), lt=2**15)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Frozen(BaseModel):
    """A frozen, strict pydantic model without unknown fields. Its validator is built at first use: faster starts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def model_rebuild(
        cls,
        *,
        force: bool = False,
        raise_errors: bool = True,
        _parent_namespace_depth: int = 0,
        _types_namespace: Mapping[str, object] | None = None,
    ) -> bool | None:
        """As pydantic's, but names in annotations are those of the model's module only: pydantic would look into the
        frames of the caller, too, and compiled code has none.
        """
        return super().model_rebuild(
            force=force, raise_errors=raise_errors, _parent_namespace_depth=0, _types_namespace=_types_namespace
        )


class _Constant:
    """A descriptor of what all instances of a model have in common, which no instance has to store."""

    def __init__(self, value: Callable[[type[Frozen]], object]) -> None:
        self._value = value

    def __get__(self, message: Frozen | None, model: type[Frozen]) -> object:
        return self._value(model)

    def __set__(self, message: Frozen, value: object) -> None:
        """Nothing: pydantic assigns the constant."""


@cache
def _field_names(model: type[Frozen]) -> set[str]:
    return set(model.model_fields)


type.__setattr__(Frozen, "__pydantic_extra__", _Constant(lambda model: None))
type.__setattr__(Frozen, "__pydantic_private__", _Constant(lambda model: None))
type.__setattr__(Frozen, "__pydantic_fields_set__", _Constant(_field_names))


class Message(Frozen):
    """Base of everything that nodes send or that is in the metadata log. Every subclass is registered under its class
    name.

    `CONTROL` marks messages that must not queue behind data (heartbeats, registration, elections). `RENEWAL` marks a
    message that only repeats what its receiver knows, such as the heartbeat of an unfenced broker
    (`contract.SetTimer`). `SINCE` maps the fields that later versions added to the version that added them; they follow
    all other fields and have defaults. An older version is encoded without them and decoded with their defaults.
    """

    CONTROL: ClassVar[bool] = False
    RENEWAL: ClassVar[bool] = False
    SINCE: ClassVar[Mapping[str, int]] = {}
    REGISTRY: ClassVar[dict[str, type[Message]]] = {}

    @property
    def can_wait(self) -> bool:
        """Whether the transport may delay the message until the next one to the same node."""
        return False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__name__ in Message.REGISTRY:
            raise TypeError(f"two message types are called {cls.__name__}")
        Message.REGISTRY[cls.__name__] = cls


ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated client."""


class Request(Message):
    """A message to which the receiver responds with the same correlation id."""

    correlation_id: Int32

    @classmethod
    def response_type(cls) -> type[Response]:
        """The type of the response: by the name of the request, else by that of its base class."""
        names = (base.__name__.removesuffix("Request") + "Response" for base in cls.__mro__)
        return next(kind for name in names if (kind := Message.REGISTRY.get(name)) and issubclass(kind, Response))


class ClientRequest(Request):
    """A request on behalf of a principal (`User:alice`). The host of the client is trusted to set it."""

    principal: str = ANONYMOUS


class Response(Message):
    """The response to a request."""

    correlation_id: Int32
    error: ErrorCode = ErrorCode.NONE
