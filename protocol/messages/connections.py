"""The bytes of a connection between a client of Kafka's protocol and a broker's listener (`protocol/kafka`).

The end that is not the broker is a node too: on ray the sockets of the broker's own process, in simulation the host of
an application. It numbers its connections; what it sends on one of them must arrive once and in order, as TCP
delivers it.
"""

from __future__ import annotations

from protocol.messages.base import Int64, Message


class ClientConnected(Message):
    """A client has connected. `peer` names its address in logs. `principal` is set where the transport has
    authenticated it (TLS with client certificates), empty otherwise.
    """

    connection: Int64
    peer: str = ""
    principal: str = ""


class ClientBytes(Message):
    """Bytes in either direction, in order; their boundaries mean nothing."""

    connection: Int64
    data: bytes


class ClientCongested(Message):
    """The client does not read: what it asks for is not handled until it does."""

    connection: Int64
    is_congested: bool


class ClientDisconnected(Message):
    """The sender has closed the connection; `reason` says why a listener did."""

    connection: Int64
    reason: str = ""
