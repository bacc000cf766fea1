"""Reads the layout of a running Kafka cluster, by librdkafka's administration client (`pip install 'isray[kafka]'`).

Three requests: the metadata of all topics, the nodes with their racks, and the configs of each topic. librdkafka knows
neither ELR nor reassignments that are under way: the layout has none, and `--describe` of Kafka's tool, which has both,
is the better source while replicas are not in sync. Only brokers that are up are nodes; of others the rack is unknown.
A topic that the principal may not describe is not in the metadata: nothing says that it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.studies.layouts.layout import Described, Layout, TopicLayout, layout_of
from experiments.support.errors import InputError
from experiments.support.librdkafka import librdkafka

CONFIGS = ("min.insync.replicas", "unclean.leader.election.enable")
TIMEOUT_S = 15
TOPICS_PER_REQUEST = 200
_LOGIN, _REFUSED = "_AUTHENTICATION", "AUTHORIZATION_FAILED"

Metadata = Any
"""What librdkafka returns: topics with partitions (`leader`, `replicas`, `isrs`), brokers; nodes (`id`, `rack`)."""


class ClusterRefusedError(Exception):
    """The cluster refuses a request; the text is one line."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A layout. `down`: brokers that hold replicas and are not up; `without_rack`: those whose rack is unknown."""

    layout: Layout
    cluster_id: str | None
    down: tuple[int, ...]
    without_rack: tuple[int, ...]


def imported(
    metadata: Metadata, nodes: Sequence[Metadata], configs: Mapping[str, Mapping[str, str]], racks: Mapping[int, str]
) -> Imported:
    """The layout in answers of the client; `racks` gives those of brokers that are down, and wins over theirs."""
    topics = [
        _topic(name, topic, configs.get(name, {})) for name, topic in metadata.topics.items() if topic.error is None
    ]
    up = {node.id for node in nodes}
    found = {node.id: str(node.rack) for node in nodes if node.rack} | dict(racks)
    layout = layout_of(topics, up, found)
    without = tuple(broker for broker in layout.brokers if broker not in found) if found else ()
    down = tuple(broker for broker in layout.brokers if broker not in up)
    return Imported(layout, getattr(metadata, "cluster_id", None), down, without)


def _topic(name: str, topic: Metadata, configs: Mapping[str, str]) -> TopicLayout:
    partitions = [topic.partitions[index] for index in sorted(topic.partitions)]
    min_isr, unclean = (configs.get(config) for config in CONFIGS)
    return TopicLayout(
        name,
        tuple(tuple(partition.replicas) for partition in partitions),
        None if min_isr is None else int(min_isr),
        tuple(Described(partition.leader, tuple(partition.isrs)) for partition in partitions),
        None if unclean is None else unclean == "true",
    )


def import_cluster(bootstrap: str, client: Mapping[str, str], racks: Mapping[int, str]) -> Imported:
    """The layout of the cluster at `bootstrap`; `client` is a configuration of librdkafka. InputError where the client
    is not installed, a setting is wrong or no broker can be reached; ClusterRefusedError where one refuses."""
    module = librdkafka("isray cluster import")
    admin_module = librdkafka("isray cluster import", "confluent_kafka.admin")
    events: list[Any] = []
    settings = {"log_level": 0, **client, "bootstrap.servers": bootstrap, "error_cb": events.append}
    try:
        admin = admin_module.AdminClient(settings)
    except module.KafkaException as error:
        raise InputError("--command-config", "", error.args[0].str(), "settings that librdkafka takes") from error
    try:
        metadata = admin.list_topics(timeout=TIMEOUT_S)
        nodes = admin.describe_cluster(request_timeout=TIMEOUT_S).result().nodes
        configs = dict(_configs(admin, admin_module, sorted(metadata.topics)))
    except module.KafkaException as error:
        admin.poll(0)
        raise refusal(error.args[0], events, bootstrap) from error
    return imported(metadata, nodes, configs, racks)


def _configs(admin: Any, module: Any, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for begin in range(0, len(names), TOPICS_PER_REQUEST):
        resources = [module.ConfigResource("topic", name) for name in names[begin : begin + TOPICS_PER_REQUEST]]
        for resource, answer in admin.describe_configs(resources, request_timeout=TIMEOUT_S).items():
            entries = answer.result()
            yield resource.name, {name: entries[name].value for name in CONFIGS if name in entries}


def refusal(error: Any, events: Sequence[Any], bootstrap: str) -> Exception:
    """What a failed request comes from: the login, a missing permission, or brokers that are not reached. `events` are
    the errors of the connections, which say more than the request's."""
    login = next((event for event in events if event.name() == _LOGIN), None)
    if login is not None or error.name() == _LOGIN or "SASL_AUTHENTICATION" in error.name():
        found = (login or error).str()
        return InputError("--command-config", "", found, "a user and a password that the brokers know")
    if error.name().endswith(_REFUSED):
        return ClusterRefusedError(
            f"{error.name()}: {error.str()}; needed: DESCRIBE and DESCRIBE_CONFIGS on all topics"
        )
    cause = next((event for event in events if event.name() != "_ALL_BROKERS_DOWN"), error)
    return InputError("--bootstrap-server", "", f"{bootstrap}: {cause.str()}", "brokers that can be reached")
