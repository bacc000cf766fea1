"""What a message is: a frozen pydantic dataclass with Kafka's field names in snake_case and no unknown fields.

A class derived from `Message` declares its fields and thereby becomes a dataclass that pydantic validates strictly: a
string is not a number, a number is not a boolean, and an integer must fit the width that Kafka gives it on the wire.
Whatever comes from the wire, a disk, a recording, a user or a test is built that way. That costs more than the rest of
most inputs of a node. So where a node builds a message of values that are valid already, it calls `unchecked` of the
class; the type checker checks the arguments of both. The simulator's paranoid mode encodes and decodes every message,
which validates what nodes build.

These are the operations on messages; those of pydantic's models do not exist:

| to | call |
|---|---|
| build one of any values | `Kind(**values)` |
| build one of valid values | `Kind.unchecked(**values)` |
| copy one with any changes | `dataclasses.replace(message, **changes)` |
| copy one with valid changes | `changed(message, **changes)` |
| list the fields of a class with their defaults | `dataclasses.fields(kind)` |
| list the values of a message | `field_values(message)` |
| write JSON, read JSON | `json_values(message)`, `from_json(kind, text)` |
| get the JSON schema of a class | `pydantic.TypeAdapter(kind).json_schema()` |
| find a class by its name | `Message.REGISTRY` |

A message keeps its values in its `__dict__`. With slots a field is read 2 ns faster, but a frozen class then has no
fast way to fill them: a copy takes twice as long (docs/benchmarks.md). The simulator shares message objects between
nodes by reference; between processes the codec (`codec.py`) carries them as bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from protocol.errors import ErrorCode

Int8 = Annotated[int, Field(ge=-(2**7), lt=2**7)]
Int16 = Annotated[int, Field(ge=-(2**15), lt=2**15)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Frozen(BaseModel):
    """A frozen, strict pydantic model without unknown fields, for settings and files."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


M = TypeVar("M", bound="Message")
_CONFIG = ConfigDict(strict=True, extra="forbid", defer_build=True)
"""A validator is built at its first use, since a process uses few of them."""


class _Unchecked:
    """Tells the type checker that `unchecked` of a class takes the arguments of the class."""

    def __get__(self, message: M | None, kind: type[M]) -> type[M]:
        raise NotImplementedError("Message.__init_subclass__ puts the constructor of each class here")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message:
    """Base of everything that nodes send or that is in the metadata log. Every subclass is registered under its class
    name. Arguments of the class statement, which subclasses inherit:

    - `control`: the messages must not queue behind data (heartbeats, registration, elections).
    - `renewal`: the message only repeats what its receiver knows, such as the heartbeat of an unfenced broker
      (`contract.SetTimer`).
    - `since` maps the fields that later versions added to the version that added them; they follow all other fields and
      have defaults. An older version is encoded without them and decoded with their defaults.
    """

    CONTROL: ClassVar[bool] = False
    RENEWAL: ClassVar[bool] = False
    SINCE: ClassVar[Mapping[str, int]] = {}
    REGISTRY: ClassVar[dict[str, type[Message]]] = {}

    unchecked: ClassVar[_Unchecked]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(
        cls, *, control: bool | None = None, renewal: bool | None = None, since: Mapping[str, int] | None = None
    ) -> None:
        cls.CONTROL = cls.CONTROL if control is None else control
        cls.RENEWAL = cls.RENEWAL if renewal is None else renewal
        cls.SINCE = cls.SINCE if since is None else since
        if cls.__name__ in Message.REGISTRY:
            raise TypeError(f"two message types are called {cls.__name__}")
        dataclass(cls, frozen=True, kw_only=True, config=_CONFIG)
        cls.unchecked = _unchecked(cls)
        Message.REGISTRY[cls.__name__] = cls

    @property
    def can_wait(self) -> bool:
        """Whether the transport may delay the message until the next one to the same node."""
        return False


def _unchecked(kind: type[M]) -> Any:
    """The constructor of a class that validates nothing. Defaults are shared, which is safe because values in messages
    are immutable. Raises TypeError if these are too few or too many fields.
    """
    own = fields(kind)
    defaults = {field.name: field.default for field in own if field.default is not MISSING}
    new, count = object.__new__, len(own)

    def unchecked(**given: object) -> M:
        message = new(kind)
        values = message.__dict__
        values |= defaults
        values |= given
        if len(values) != count:
            wrong = sorted(values.keys() ^ {field.name for field in own})
            raise TypeError(f"{kind.__name__} lacks fields or does not have them: {', '.join(wrong)}")
        return message

    return unchecked


def changed(message: M, **changes: object) -> M:
    """A copy of the message with `changes` to its fields, which are not validated."""
    copy = object.__new__(type(message))
    values = copy.__dict__
    values |= message.__dict__
    values |= changes
    return copy


def field_values(message: Message) -> dict[str, Any]:
    """The values of a message by field, in order of declaration; nested messages stay messages."""
    return {field.name: getattr(message, field.name) for field in fields(message)}


def json_values(message: Message) -> dict[str, Any]:
    """The fields of a message as JSON has them: enumerations by value, nested messages as mappings."""
    values: dict[str, Any] = _ANYTHING.dump_python(message, mode="json")
    return values


def from_json(kind: type[M], text: str | bytes) -> M:
    """The message with the fields of a JSON document. Raises pydantic's ValidationError."""
    adapter: TypeAdapter[M] = _adapter(kind.__name__)
    return adapter.validate_json(text)


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(Message.REGISTRY[name])


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

    def refusal(self, error: ErrorCode) -> Response:
        """The response with `error` and otherwise the defaults of its type."""
        return self.response_type()(correlation_id=self.correlation_id, error=error)


class ClientRequest(Request):
    """A request on behalf of a principal (`User:alice`). The host of the client is trusted to set it."""

    principal: str = ANONYMOUS


class Response(Message):
    """The response to a request."""

    correlation_id: Int32
    error: ErrorCode = ErrorCode.NONE
