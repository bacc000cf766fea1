"""`isray up --server-properties FILE`: the broker configs of a server.properties of Kafka's as configs of the cluster.

A broker has names of its own for the defaults of topic configs, and units of its own for some: `log.retention.hours` is
`retention.ms` here. Of several names of one config Kafka takes the one with the finest unit. What says where a process
listens, which id it has and where its disks are has no meaning here, since the nodes of a cluster have ids, addresses
and directories of isray's; it is listed with everything else that is not modelled. A file without any config that only
brokers and controllers have is that of another program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from experiments.support.errors import InputError, shown
from experiments.support.properties import read_properties
from protocol.config import (
    AUTHORIZER_CLASS_NAME,
    BATCH_SIZE,
    BUFFER_MEMORY,
    CLEANUP_POLICY,
    CONFIGS,
    CONNECTIONS_MAX_IDLE_MS,
    CONTROLLER_QUORUM_BOOTSTRAP_SERVERS,
    CONTROLLER_QUORUM_VOTERS,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    FLUSH_MESSAGES,
    FLUSH_MS,
    INDEX_INTERVAL_BYTES,
    LINGER_MS,
    LISTENERS,
    MAX_BLOCK_MS,
    MAX_IN_FLIGHT_REQUESTS,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
    REQUEST_TIMEOUT_MS,
    RETENTION_BYTES,
    RETENTION_MS,
    RETRY_BACKOFF_MS,
    SASL_ENABLED_MECHANISMS,
    SASL_USERS_FILE,
    SEGMENT_BYTES,
    SSL_CLIENT_AUTH,
    SSL_KEYSTORE_LOCATION,
    SSL_TRUSTSTORE_LOCATION,
    ConfigError,
    parse_config,
)
from protocol.features import Generation


class _Named(NamedTuple):
    """A config as a broker names it: the config here, and how many of its units a unit of the broker's is."""

    config: str
    factor: int = 1


_UNLIMITED = "-1"
_SYNONYMS: Mapping[str, _Named] = {
    "log.retention.ms": _Named(RETENTION_MS),
    "log.retention.minutes": _Named(RETENTION_MS, 60_000),
    "log.retention.hours": _Named(RETENTION_MS, 3_600_000),
    "log.retention.bytes": _Named(RETENTION_BYTES),
    "log.cleanup.policy": _Named(CLEANUP_POLICY),
    "log.segment.bytes": _Named(SEGMENT_BYTES),
    "log.flush.interval.messages": _Named(FLUSH_MESSAGES),
    "log.flush.interval.ms": _Named(FLUSH_MS),
    "log.flush.scheduler.interval.ms": _Named(FLUSH_MS),
    "log.index.interval.bytes": _Named(INDEX_INTERVAL_BYTES),
    "log.message.timestamp.after.max.ms": _Named(MESSAGE_TIMESTAMP_AFTER_MAX_MS),
    "log.message.timestamp.type": _Named(MESSAGE_TIMESTAMP_TYPE),
    "message.max.bytes": _Named(MAX_MESSAGE_BYTES),
}
"""Of several names of one config the first that is given counts (Kafka's ServerTopicConfigSynonyms)."""
_OF_TOPICS_OR_CLIENTS = {
    *(named.config for named in _SYNONYMS.values()),
    *(DELIVERY_TIMEOUT_MS, RETRY_BACKOFF_MS, ENABLE_IDEMPOTENCE, LINGER_MS, BATCH_SIZE, BUFFER_MEMORY, MAX_BLOCK_MS),
    MAX_IN_FLIGHT_REQUESTS,
}
_OF_ONE_PROCESS = {CONTROLLER_QUORUM_VOTERS, CONTROLLER_QUORUM_BOOTSTRAP_SERVERS}
"""They name ids and addresses, which the nodes of a cluster of isray's have of their own."""
_OF_LISTENERS = {
    LISTENERS,
    SASL_ENABLED_MECHANISMS,
    SASL_USERS_FILE,
    SSL_KEYSTORE_LOCATION,
    SSL_TRUSTSTORE_LOCATION,
    SSL_CLIENT_AUTH,
}
"""The listeners of a cluster of isray's are its own; other programs have such configs too."""
BROKER_CONFIGS: Mapping[str, _Named] = {
    **_SYNONYMS,
    **{name: _Named(name) for name in CONFIGS if name not in _OF_TOPICS_OR_CLIENTS | _OF_ONE_PROCESS | _OF_LISTENERS},
}
"""The configs of brokers that are modelled, by their names in a server.properties."""
_OF_SERVERS_ONLY = {
    *("node.id", "broker.id", "process.roles", "log.dirs", "log.dir", "zookeeper.connect", *_OF_ONE_PROCESS),
    *(BROKER_CONFIGS.keys() - {REQUEST_TIMEOUT_MS, CONNECTIONS_MAX_IDLE_MS}),
}
_STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_AUTHORIZERS = {"": "", _STANDARD_AUTHORIZER: "standard", "standard": "standard"}


class ServerProperties(NamedTuple):
    """`config` by names here, with what the options of the command add; `notes` are lines for the user."""

    config: dict[str, str]
    notes: list[str]


def with_server_properties(path: Path, generation: Generation, explicit: Mapping[str, str]) -> ServerProperties:
    """The configs of a file, and the explicit ones of `--config`, which win. InputError: a file of another program, or
    a value that its config does not accept.
    """
    source, given = str(path), read_properties(path)
    if _OF_SERVERS_ONLY.isdisjoint(given):
        found = f"no config of a broker among {len(given)} properties{_first(given)}"
        raise InputError(source, "", found, "a server.properties of Kafka's, with names such as log.retention.ms")
    used: dict[str, str] = {}
    config: dict[str, str] = {}
    unused, beaten = [], []
    for name in (*(name for name in BROKER_CONFIGS if name in given), *sorted(given.keys() - BROKER_CONFIGS.keys())):
        named = BROKER_CONFIGS.get(name)
        if named is None or not _may_be_set(named.config, generation):
            unused.append(name)
        elif named.config in config:
            beaten.append(f"{used[named.config]}={given[used[named.config]]} before {name}={given[name]}")
        else:
            used[named.config], config[named.config] = name, _value(source, name, given[name])
    for name, value in config.items():
        wanted = explicit.get(name, value)
        if _typed(name, wanted) != _typed(name, value):
            beaten.append(f"--config {name}={wanted} before {used[name]}={given[used[name]]}")
    return ServerProperties({**config, **explicit}, [*_notes(source, sorted(unused), beaten)])


def _may_be_set(config: str, generation: Generation) -> bool:
    """Whether a cluster of the generation takes the config: one with a store refuses what it does not have."""
    return not generation.features.metadata_in_store or generation in CONFIGS[config].generations


def _first(given: Mapping[str, str]) -> str:
    return f", {shown(next(iter(given)))} first" if given else ""


def _value(source: str, name: str, given: str) -> str:
    """The value of a broker's config in the unit here, as text. InputError where the config does not accept it."""
    config, factor = BROKER_CONFIGS[name]
    if config == AUTHORIZER_CLASS_NAME:
        if given not in _AUTHORIZERS:
            raise InputError(source, name, shown(given), f"{_STANDARD_AUTHORIZER}, or nothing")
        return _AUTHORIZERS[given]
    text = given
    try:
        if factor > 1 and text != _UNLIMITED:
            text = str(int(parse_config(config, text)) * factor)
        parse_config(config, text)
    except ConfigError as error:
        raise InputError(source, name, shown(given), error.allowed) from error
    return text


def _typed(name: str, text: str) -> object:
    """The value that a text gives; of one that is refused later on the text."""
    try:
        return parse_config(name, text)
    except ConfigError:
        return text


def _notes(source: str, unused: list[str], beaten: list[str]) -> Iterator[str]:
    if unused:
        yield f"{source}: not modelled, and without effect: {', '.join(unused)}"
    if beaten:
        yield f"{source}: of two values of one config the first counts: {'; '.join(beaten)}"
