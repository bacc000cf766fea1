"""The settings of a node of Apache Kafka, for the cluster that a scenario describes.

A config that the scenario leaves at its default is left to Kafka, whose defaults are the same but for those in
`_ALWAYS`. Topic configs as the cluster's default have names of their own in brokers (`BROKER_NAMES`). Configs of
clients are those of this engine's client, not of a broker; `REFUSED` are those that Kafka does not have, and those that
the engine sets itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from experiments.engines.kafka.links import LOOPBACK, Addresses, host_name
from experiments.engines.port import ClusterSpec
from protocol.config import CONFIGS, CONTROLLER_QUORUM_VOTERS, config_text, node_ids
from protocol.features import Generation
from protocol.ids import NodeId, is_controller
from protocol.quorum.voters import ReplicaKey

BROKER_NAMES: Mapping[str, str] = {
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "segment.bytes": "log.segment.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
}
"""The names of topic configs as configs of a broker, where they differ."""
ALIASES: Mapping[str, str] = {broker: own for own, broker in BROKER_NAMES.items()}
CLIENT_CONFIGS = frozenset(
    {"request.timeout.ms", "delivery.timeout.ms", "retry.backoff.ms", "enable.idempotence", "linger.ms", "batch.size"}
    | {"buffer.memory", "max.block.ms", "max.in.flight.requests.per.connection"}
)
_OWN = "nothing: the engine sets it itself"
_ABSENT = "nothing: no release of Kafka has it"
REFUSED: Mapping[str, str] = {
    "unclean.recovery.strategy": _ABSENT,
    "unclean.recovery.timeout.ms": _ABSENT,
    "unclean.leader.hook": _ABSENT,
    "sasl.users.file": _ABSENT,
    "metadata.log.max.record.bytes.between.snapshots": "nothing: the metadata log is read from its start",
    "metadata.log.max.snapshot.interval.ms": "nothing: the metadata log is read from its start",
    "metadata.max.retention.bytes": "nothing: the metadata log is read from its start",
    "controller.quorum.bootstrap.servers": _OWN,
    "listeners": _OWN,
    "authorizer.class.name": "nothing: the engine's client has no principal",
    **dict.fromkeys(("ssl.keystore.location", "ssl.truststore.location", "ssl.client.auth"), _OWN),
    **dict.fromkeys(("sasl.enabled.mechanisms", "sasl.server.max.receive.size"), _OWN),
    **dict.fromkeys(("super.users", "allow.everyone.if.no.acl.found"), "nothing: there is no authorizer"),
}
"""Configs that a scenario cannot set on this engine, and what is allowed."""
CHECKPOINT_MS: Final = 250
"""How often a broker writes down which offsets are flushed."""
PATIENCE_MS: Final = 2**31 - 1
"""For how long a broker asks for its registration until it ends its process."""
_ALWAYS: Mapping[str, object] = {
    "auto.create.topics.enable": False,
    "initial.broker.registration.timeout.ms": PATIENCE_MS,
    "auto.leader.rebalance.enable": False,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "log.initial.task.delay.ms": CHECKPOINT_MS,
    "log.flush.offset.checkpoint.interval.ms": CHECKPOINT_MS,
    "log.flush.scheduler.interval.ms": CHECKPOINT_MS,
    "log.flush.interval.ms": 2**63 - 1,
    "log.cleaner.dedupe.buffer.size": 2_097_152,
    "metadata.log.max.snapshot.interval.ms": 0,
    "metadata.log.max.record.bytes.between.snapshots": 2**62,
    "metadata.max.idle.interval.ms": 0,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "background.threads": 2,
}
"""Beside what a scenario sets. Without snapshots the metadata log begins with the cluster; without an interval for
flushes of its own a broker would take that of the scheduler."""
CONTROLLER, CLIENTS, OUTSIDE = "CONTROLLER", "PLAINTEXT", "OUTSIDE"


def first_voters(spec: ClusterSpec, uuids: Mapping[NodeId, str]) -> tuple[ReplicaKey, ...]:
    """The controllers that form the first quorum. Static voters have no uuids in the log."""
    ids = spec.controller_ids if spec.voters is None else spec.voters
    return tuple(ReplicaKey(node, "" if is_static(spec) else uuids[node]) for node in static_voters(spec) or ids)


def static_voters(spec: ClusterSpec) -> tuple[NodeId, ...]:
    """The voters that the config names, none where the log has them (KIP-853)."""
    return node_ids(spec.config.values[CONTROLLER_QUORUM_VOTERS])


def is_static(spec: ClusterSpec) -> bool:
    return bool(static_voters(spec))


def node_properties(spec: ClusterSpec, node: NodeId, addresses: Addresses, disk: str) -> str:
    """The content of a node's `server.properties`."""
    role, name = ("controller", CONTROLLER) if is_controller(node) else ("broker", CLIENTS)
    port = addresses.ports[node]
    controllers = {it: f"{host_name(it)}:{addresses.ports[it]}" for it in spec.controller_ids}
    values: dict[str, object] = {
        "process.roles": role,
        "node.id": node,
        "controller.listener.names": CONTROLLER,
        "listener.security.protocol.map": ",".join(f"{it}:PLAINTEXT" for it in (CONTROLLER, CLIENTS, OUTSIDE)),
        "listeners": f"{name}://{LOOPBACK}:{port}",
        "advertised.listeners": f"{name}://{host_name(node)}:{port}",
        "log.dirs": disk,
        **_ALWAYS,
    }
    if client_port := addresses.client_ports.get(node):
        for key in ("listeners", "advertised.listeners"):
            values[key] = f"{values[key]},{OUTSIDE}://{LOOPBACK}:{client_port}"
    if role == "broker":
        values["inter.broker.listener.name"] = CLIENTS
        if (rack := spec.rack_of(node)) is not None:
            values["broker.rack"] = rack
    if is_static(spec):
        values["controller.quorum.voters"] = ",".join(f"{it}@{controllers[it]}" for it in static_voters(spec))
    else:
        values["controller.quorum.bootstrap.servers"] = ",".join(controllers.values())
    for config, definition in CONFIGS.items():
        value = spec.config.values[config]
        is_kafkas = config not in CLIENT_CONFIGS and config not in REFUSED and config != CONTROLLER_QUORUM_VOTERS
        if is_kafkas and value != definition.default:
            values[BROKER_NAMES.get(config, config)] = config_text(value)
    return "".join(f"{key}={_text(value)}\n" for key, value in values.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_words(
    spec: ClusterSpec, node: NodeId, addresses: Addresses, uuids: Mapping[NodeId, str], is_new: bool
) -> Mapping[str, Sequence[str]]:
    """The words of `format` about the first voters, and about the feature levels of the generation. `uuids` are the
    directory ids of the first disks; a disk of a cluster that is not `is_new` replaces one, and gets an id of its own.
    """
    level = 1 if spec.config.generation is Generation.KIP_966_ELR else 0
    features = ["--feature", f"eligible.leader.replicas.version={level}"]
    if is_static(spec) or not is_controller(node):
        return {"voters": [], "features": features}
    first = first_voters(spec, uuids)
    if any(key.id == node for key in first) and is_new:
        listed = ",".join(f"{key.id}@{host_name(key.id)}:{addresses.ports[key.id]}:{key.uuid}" for key in first)
        return {"voters": ["--initial-controllers", listed], "features": features}
    return {"voters": ["--no-initial-controllers"], "features": features}
