"""A properties file of Kafka's Java clients as the configuration of librdkafka, which has other names for some of it.

Names that both know keep their value. SASL with PLAIN and SCRAM has its user and password in `sasl.jaas.config` in Java
and as two properties in librdkafka. TLS material is read from PEM files; librdkafka cannot read Java's stores
(JKS), but PKCS12 key stores. Everything else is refused, so that no setting is dropped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from experiments.support.errors import InputError, shown

SAME = (
    *("security.protocol", "client.id", "client.dns.lookup", "metadata.max.age.ms", "reconnect.backoff.ms"),
    *("reconnect.backoff.max.ms", "ssl.endpoint.identification.algorithm", "ssl.key.password", "sasl.mechanism"),
    *("ssl.cipher.suites", "retry.backoff.ms"),
)
RENAMED = {
    "request.timeout.ms": "socket.timeout.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
STORES = ("ssl.truststore.location", "ssl.keystore.location", "ssl.keystore.password")
TYPES = ("ssl.truststore.type", "ssl.keystore.type")
JAAS = "sasl.jaas.config"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OPTION = re.compile(r"\b(username|password)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|'([^']*)'|([^\s;\"']+))")
_ALLOWED = ", ".join(sorted((*SAME, *RENAMED, *STORES, *TYPES, JAAS, "bootstrap.servers")))


def librdkafka_config(properties: Mapping[str, str], source: str) -> dict[str, str]:
    """The configuration of librdkafka. InputError, which names `source` and the property: one that is not known or
    cannot be carried over. `bootstrap.servers` is left to the caller.
    """
    found: dict[str, str] = {}
    for name, value in properties.items():
        if name in SAME:
            found[name] = value
        elif name in RENAMED:
            found[RENAMED[name]] = value
        elif name not in (*STORES, *TYPES, JAAS, "bootstrap.servers"):
            raise InputError(source, name, shown("..." if "password" in name else value), f"one of {_ALLOWED}")
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found | _stores(properties, source) | _login(properties, source)


def _stores(properties: Mapping[str, str], source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if trusted := properties.get("ssl.truststore.location"):
        _type_of("ssl.truststore.type", properties, source, ("PEM",))
        found["ssl.ca.location"] = trusted
    if own := properties.get("ssl.keystore.location"):
        if _type_of("ssl.keystore.type", properties, source, ("PEM", "PKCS12")) == "PEM":
            found |= {"ssl.certificate.location": own, "ssl.key.location": own}
        else:
            found["ssl.keystore.location"] = own
            found["ssl.keystore.password"] = properties.get("ssl.keystore.password", "")
    return found


def _type_of(name: str, properties: Mapping[str, str], source: str, allowed: tuple[str, ...]) -> str:
    """The type of a store; Java's default is JKS."""
    found = properties.get(name, "JKS").upper()
    if found not in allowed:
        text = f"{' or '.join(allowed)}: librdkafka reads no {found}; keytool and openssl convert it"
        raise InputError(source, name, found, text)
    return found


def _login(properties: Mapping[str, str], source: str) -> dict[str, str]:
    """User and password. What is wrong is never shown: it may be the password."""
    if "SASL" not in properties.get("security.protocol", "").upper():
        return {}
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in MECHANISMS:
        raise InputError(source, "sasl.mechanism", mechanism, ", ".join(MECHANISMS))
    options = {name: "".join(values) for name, *values in _OPTION.findall(properties.get(JAAS, ""))}
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        allowed = 'LoginModule required username="..." password="...";'
        raise InputError(source, JAAS, f"no {missing[0]}", allowed)
    unescaped = {name: re.sub(r"\\(.)", r"\1", value) for name, value in options.items()}
    return {"sasl.username": unescaped["username"], "sasl.password": unescaped["password"]}
