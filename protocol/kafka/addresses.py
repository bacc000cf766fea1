"""Where and how a broker listens: the config `listeners`, and what its security protocol asks for.

| protocol | who the client is | TLS |
|---|---|---|
| PLAINTEXT | `User:ANONYMOUS` | no |
| SSL | the subject of its certificate, `User:ANONYMOUS` without one | yes |
| SASL_PLAINTEXT | the user that SASL has authenticated | no |
| SASL_SSL | the user that SASL has authenticated | yes |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.config import (
    LISTENERS,
    SASL_USERS_FILE,
    SSL_KEYSTORE_LOCATION,
    ClusterConfig,
    ConfigError,
)
from protocol.ids import BrokerId

MAX_PORT = 65_535
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FORM = re.compile(rf"({'|'.join(PROTOCOLS)})://([^:/]*):([0-9]{{1,5}})")


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """A parsed config `listeners`: an empty `host` is that of the machine, `port` that of broker 0, 0 a free one."""

    protocol: str
    host: str
    port: int

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def port_of(self, broker: BrokerId) -> int:
        return self.port and self.port + broker


def listener_address(config: ClusterConfig) -> ListenerAddress | None:
    """Where the brokers of a cluster listen, None where they do not. ConfigError for another form, or where a config
    that the protocol needs is missing.
    """
    configured = str(config.values[LISTENERS])
    if not configured:
        return None
    match = _FORM.fullmatch(configured)
    if match is None or int(match[3]) > MAX_PORT:
        raise ConfigError(LISTENERS, configured, f"{'|'.join(PROTOCOLS)}://HOST:PORT")
    address = ListenerAddress(match[1], match[2], int(match[3]))
    if address.has_tls and not config.values[SSL_KEYSTORE_LOCATION]:
        raise ConfigError(SSL_KEYSTORE_LOCATION, "", f"a PEM file with key and certificate, as {configured} needs")
    if address.has_sasl and not config.values[SASL_USERS_FILE]:
        raise ConfigError(SASL_USERS_FILE, "", f"a file of lines NAME=PASSWORD, as {configured} needs")
    return address
