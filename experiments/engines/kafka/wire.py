"""A connection to a node that speaks Kafka's protocol: one request after another, by kio's schemas."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from kio.serial.errors import DecodeError

from protocol.kafka.wire import FrameReader, RequestHead, decode_response, encode_request

CLIENT_ID = "isray"
MAX_FRAME_BYTES = 256 * 2**20
_CHUNK = 65_536


class Unanswered(Exception):
    """No response: the node refuses the connection, ended it, or was silent for too long. `was_sent`: the node may have
    received the request.
    """

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class Connection:
    """A connection, which is opened by the first request, and again after an error."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._frames = FrameReader(MAX_FRAME_BYTES)
        self._correlation_id = 0

    def call(self, api_key: int, version: int, values: Mapping[str, Any], within_s: float) -> Any:
        """kio's object of the response. Unanswered where there is none."""
        self._correlation_id += 1
        head = RequestHead(api_key, version, self._correlation_id)
        self._send(head, values, within_s)
        try:
            return decode_response(head, self._receive())
        except (OSError, DecodeError, ValueError) as error:
            self.close()
            raise Unanswered(str(error) or "no response", was_sent=True) from error

    def tell(self, api_key: int, version: int, values: Mapping[str, Any], within_s: float) -> None:
        """Sends a request that has no response. Unanswered where that fails."""
        self._correlation_id += 1
        self._send(RequestHead(api_key, version, self._correlation_id), values, within_s)

    def _send(self, head: RequestHead, values: Mapping[str, Any], within_s: float) -> None:
        frame = encode_request(head.api_key, head.version, head.correlation_id, CLIENT_ID, values)
        was_sent = False
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self.address, timeout=within_s)
                self._frames = FrameReader(MAX_FRAME_BYTES)
            self._socket.settimeout(within_s)
            was_sent = True
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise Unanswered(str(error), was_sent=was_sent) from error

    def _receive(self) -> bytes:
        assert self._socket is not None
        while (body := self._frames.next()) is None:
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._frames.feed(data)
        return body

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
