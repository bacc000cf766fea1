"""TLS and SASL of a broker's listener, from the files that its configs name."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

from protocol.config import (
    SASL_ENABLED_MECHANISMS,
    SASL_USERS_FILE,
    SSL_CLIENT_AUTH,
    SSL_KEYSTORE_LOCATION,
    SSL_TRUSTSTORE_LOCATION,
    ClusterConfig,
    ConfigError,
)
from protocol.kafka.addresses import ListenerAddress
from protocol.kafka.sasl import Sasl, users_of
from protocol.messages.acls import USER_PREFIX

_SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}


def sasl_of(address: ListenerAddress, config: ClusterConfig) -> Sasl | None:
    """The users of a listener that authenticates its clients; None for another. ConfigError for a wrong file."""
    if not address.has_sasl:
        return None
    name = str(config.values[SASL_USERS_FILE])
    allowed = "a file with lines NAME=PASSWORD"
    try:
        users = users_of(Path(name).read_text(encoding="utf-8").splitlines(), SASL_USERS_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(SASL_USERS_FILE, name, allowed, f" ({error})") from error
    if not users:
        raise ConfigError(SASL_USERS_FILE, name, allowed, " (no users)")
    mechanisms = [each.strip() for each in str(config.values[SASL_ENABLED_MECHANISMS]).split(",")]
    return Sasl(users, os.urandom, mechanisms)


def tls_of(address: ListenerAddress, config: ClusterConfig) -> ssl.SSLContext | None:
    """The TLS context of a listener that encrypts; None for another. ConfigError for wrong files."""
    if not address.has_tls:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(SSL_KEYSTORE_LOCATION, config, context.load_cert_chain)
    if config.values[SSL_CLIENT_AUTH] == "required":
        context.verify_mode = ssl.CERT_REQUIRED
        _load(SSL_TRUSTSTORE_LOCATION, config, context.load_verify_locations)
    return context


def _load(config_name: str, config: ClusterConfig, load: Any) -> None:
    file = str(config.values[config_name])
    try:
        load(file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(config_name, file, "a PEM file", f" ({reason})") from error


def principal_of(certificate: dict[str, Any] | None) -> str:
    """The principal of a client's verified certificate: its distinguished name, last part first as Kafka has it; empty
    without a certificate.
    """
    if not certificate:
        return ""
    parts = [f"{_SHORT.get(key, key)}={value}" for names in reversed(certificate["subject"]) for key, value in names]
    return f"{USER_PREFIX}{','.join(parts)}"
