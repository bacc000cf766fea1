"""One connection of a client: frames in, one request at a time, responses in the order of the requests.

As a broker of Kafka's does, the connection handles a request only when the response to the one before has been sent;
later requests wait in its buffer. So responses keep their order. While responses to a client wait at the transport,
because it does not read, its requests wait too, and the transport stops reading from it.

What ends a connection, without a response, as in Kafka: a frame that is too large or has a negative length, bytes that
do not fit the schema, an API or a version that ApiVersions does not list (except ApiVersions itself, which answers
UNSUPPORTED_VERSION with what is supported), and a request before authentication where that is required.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import MalformedMessageError
from protocol.ids import TimeMs
from protocol.kafka.calls import Task
from protocol.kafka.view import Client
from protocol.kafka.wire import API_VERSIONS, FrameReader, KafkaRequest, decode_request, request_head

SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})


@dataclass(eq=False)
class Connection:
    """A connection. `supports(api_key, version)`: whether the broker serves that version of an API."""

    frames: FrameReader
    supports: Callable[[int, int], bool]
    client: Client = field(default_factory=Client)
    is_busy: bool = False
    """Whether a request is being handled."""
    task: Task | None = None
    """The handler of that request, where it may be cancelled when the connection ends."""
    is_closed: bool = False
    is_congested: bool = False
    """Whether responses wait at the transport, because the client does not read."""
    turn_bytes: int = 0
    """The bytes of responses since its turn began."""
    is_draining: bool = False
    """Whether the requests in its buffer are being handled one after the other."""
    last_active_ms: TimeMs = 0

    def feed(self, data: bytes) -> None:
        self.frames.feed(data)

    def next_request(self) -> Incoming | None:
        """The next request to handle; None while one is being handled, or the client does not read, or the next has not
        arrived whole. Raises MalformedMessageError where the connection must end.
        """
        if self.is_busy or self.is_closed or self.is_congested:
            return None
        body = self.frames.next()
        if body is None:
            return None
        if self.client.sasl is not None and self.client.sasl.expects_frames:
            return Token(body)
        head = request_head(body)
        if self.client.must_authenticate and head.api_key not in BEFORE_AUTHENTICATION:
            raise MalformedMessageError(f"found API {head.api_key} before authentication")
        if not self.supports(head.api_key, head.version):
            return UnsupportedRequest(head.api_key, head.version, head.correlation_id)
        request = decode_request(head, body)
        self.client.client_id = request.client_id
        return request


@dataclass(frozen=True, slots=True)
class Token:
    """A frame that is a token of SASL, after version 0 of SaslHandshake."""

    data: bytes


@dataclass(frozen=True, slots=True)
class UnsupportedRequest:
    """A request of an API or a version that the broker does not serve."""

    api_key: int
    version: int
    correlation_id: int

    def refusal(self) -> MalformedMessageError:
        """Why the connection ends."""
        return MalformedMessageError(
            f"found API {self.api_key} version {self.version}, which ApiVersions does not list"
        )


Incoming = KafkaRequest | UnsupportedRequest | Token
